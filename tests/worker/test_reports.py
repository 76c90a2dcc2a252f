"""What a child tells arrives whole, in order, and without ever holding up the supervisor."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

from django_pgbus.worker.ledger import Holding, Ledger, TimedOut
from django_pgbus.worker.reports import HEADER, ReportReader, Reports


@pytest.fixture
def pipe():
    reader, writer = multiprocessing.Pipe(duplex=False)
    reports, read = Reports(writer), ReportReader(reader)
    yield reports, read, writer
    read.close()
    writer.close()


def entered(*messages):
    ledger = Ledger()
    for message in messages:
        ledger.enter(message)
    return ledger


def test_messages_arrive_in_order(pipe):
    reports, reader, _ = pipe
    assert reader.read() == []
    for n in range(3):
        reports.send(("ended", [n]))
    assert reader.read() == [("ended", [0]), ("ended", [1]), ("ended", [2])]
    assert not reader.ended


def test_half_a_message_is_waited_for_without_waiting(pipe):
    reports, reader, writer = pipe
    reports.send(("ended", [1]))
    whole = os.read(reader.fileno(), 1000)
    for part in (whole[:2], whole[2:7], whole[7:-1]):
        os.write(writer.fileno(), part)
        assert reader.read() == []
    os.write(writer.fileno(), whole[-1:] + whole)
    assert reader.read() == [("ended", [1])] * 2


def test_a_child_killed_in_the_middle_of_a_message_loses_that_message_only(pipe):
    reports, reader, writer = pipe
    reports.send(("ended", [1]))
    os.write(writer.fileno(), HEADER.pack(1000) + b"half")
    writer.close()
    assert reader.read_to_the_end() == [("ended", [1])]
    assert reader.ended


def test_threads_may_report_at_once_and_more_than_the_pipe_holds(pipe):
    reports, reader, _ = pipe
    big = list(range(60_000))
    threads = [threading.Thread(target=lambda n=n: [reports.send((n, big)) for _ in range(10)]) for n in range(4)]
    for thread in threads:
        thread.start()
    got = []
    while len(got) < 40:
        got += reader.read()
    for thread in threads:
        thread.join()
    assert all(content == big for _, content in got)
    assert sorted(n for n, _ in got) == sorted([*range(4)] * 10)


def test_a_supervisor_that_is_gone_does_not_disturb_the_child(pipe):
    reports, reader, _ = pipe
    reader.close()
    reports.send(("ended", [1]))


def test_the_books_say_what_is_held():
    ledger = entered(
        ("claimed", [(1, 5, False), (2, 1, True), (3, 1, False)]),
        ("started", [1, 2]),
        ("ended", [2]),
        ("state", {"state": "running"}),
        ("something new", None),
    )
    assert ledger.held() == [Holding(1, 5, True, False), Holding(3, 1, False, False)]
    assert ledger.running == [1]
    assert (ledger.done, ledger.phase, len(ledger)) == (1, "running", 2)


def test_a_start_told_after_the_end_is_none():
    ledger = entered(("claimed", [(1, 1, False)]), ("ended", [1]), ("started", [1]), ("claimed", [(1, 2, False)]))
    assert ledger.held() == [Holding(1, 2, False, False)]


def test_a_job_claimed_again_has_not_started_yet():
    ledger = entered(("claimed", [(1, 1, False)]), ("started", [1]), ("claimed", [(1, 2, True)]))
    assert ledger.held() == [Holding(1, 2, False, True)]


def test_a_hard_timeout_is_told_with_or_without_its_limit():
    assert entered(("timed_out", 7)).timed_out == TimedOut(7, None, 0.0)
    assert entered(("timed_out", (7, 3, 1.5))).timed_out == TimedOut(7, 3, 1.5)


def test_bookkeeping_is_cheap():
    ledger = Ledger()
    began = time.process_time()
    for first in range(0, 20_000, 100):
        ids = list(range(first, first + 100))
        ledger.enter(("claimed", [(id, 1, False) for id in ids]))
        ledger.enter(("started", ids))
        ledger.enter(("ended", ids))
    assert time.process_time() - began < 0.25  # for a second's worth of jobs; measured 0.02
    assert len(ledger) == 0
