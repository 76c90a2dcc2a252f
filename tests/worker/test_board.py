"""Who was running when a process died is known exactly, and only those are suspects."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid

import pytest

from django_pgbus.models import Message
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Level
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.lifecycle import HeldMessage
from django_pgbus.worker.board import Board, places_for
from django_pgbus.worker.ledger import Holding, Ledger
from tests import jobs
from tests.worker.board_child import write_and_wait

SPAWN = multiprocessing.get_context("spawn")


def test_what_a_killed_process_wrote_can_still_be_read():
    board = Board.shared(SPAWN, [2])
    assert board.running() is None
    child = SPAWN.Process(target=write_and_wait, args=[board])
    child.start()
    deadline = time.monotonic() + 30
    while board.running() != {42, 43} and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert board.running() == {42, 43}


def test_capsules_have_places_of_their_own():
    board = Board.private([2, 3])
    board.open()
    board.places(0, places_for(2))(places_for(2) - 1, 7)
    board.places(places_for(2), places_for(3))(0, 8)
    assert board.running() == {7, 8}
    with pytest.raises(AssertionError):
        board.places(1, places_for(2) + places_for(3))


def test_a_board_that_is_not_complete_says_nothing():
    board = Board.private([1])
    board.open()
    board.give_up()
    assert board.running() is None


def test_a_start_whose_report_was_not_sent_is_known_from_the_board():
    ledger = Ledger()
    ledger.enter(("claimed", [(1, 1, False), (2, 1, False), (3, 1, False)]))
    ledger.enter(("started", [1]))
    ledger.ran = frozenset({2})
    assert ledger.held() == [
        Holding(1, 1, started=True, suspect=False, running=False),
        Holding(2, 1, started=True, suspect=False, running=True),
        Holding(3, 1, started=False, suspect=False, running=False),
    ]


@pytest.mark.django_db(transaction=True)
def test_only_what_was_running_is_a_suspect():
    ids = [int(jobs.noop.enqueue().id) for _ in range(4)]
    deliveries = {d.id: d for d in Line().claim([Level("default", 0)], 4, uuid.uuid4(), 30.0)}
    known = [(True, True), (True, False), (False, False), (False, None)]  # started, running
    lifecycle.reap(
        HeldMessage(id=id, delivery=deliveries[id].delivery, started=started, running=running)
        for id, (started, running) in zip(ids, known, strict=True)
    )
    rows = {m.id: (m.suspect, m.attempts) for m in Message.objects.all()}
    assert [rows[id] for id in ids] == [(True, 1), (False, 1), (False, 0), (True, 0)]
