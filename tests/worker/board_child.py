"""What a spawned process does to a board; imports no models."""

from __future__ import annotations

import time

from django_pgbus.worker.board import Board, places_for


def write_and_wait(board: Board) -> None:
    board.open()
    write = board.places(0, places_for(2))
    write(0, 41)
    write(1, 42)
    write(0, 0)
    write(2, 43)
    time.sleep(60)
