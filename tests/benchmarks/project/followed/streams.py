"""The stream of the benchmark, and a group that writes down what it got: its count, sum and lag, batch by batch."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, Final

from django_pgbus import Stream, consume

RECORD: Final = struct.Struct("<qqqdd")  # entries, sum of positions, out of order, lag of the oldest, of the newest
FILE: Final = "followed"

log = Stream("bench", partition_size=int(os.environ.get("BENCH_PARTITION", "10000000")))


class _Book:
    def __init__(self) -> None:
        path = Path(os.environ["BENCH_RUN"]) / f"{os.getpid()}.{FILE}"
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.last = 0


_books: list[_Book] = []


@consume("bench", group="bench", batch_size=int(os.environ.get("BENCH_BATCH", "1000")))
def note(entries: list[Any]) -> None:
    now = time.time()
    if not _books:
        _books.append(_Book())
    book = _books[0]
    total, wrong, last = 0, 0, book.last
    for entry in entries:
        position = entry.position
        total += position
        wrong += position <= last
        last = position
    book.last = last
    # The times as they are stored: of each entry a datetime would cost more than all the rest.
    oldest, newest = entries[0]._at / 1e6, entries[-1]._at / 1e6
    os.write(book.file, RECORD.pack(len(entries), total, wrong, now - oldest, now - newest))
