"""A loop steps, waits, and survives."""

from __future__ import annotations

import math
import threading
import time

import psycopg
import pytest
from django.db import OperationalError

from django_pgbus import signals
from django_pgbus.worker.loop import Loop, backoff


class Steps(Loop):
    """Does the given steps, then stops."""

    part = "tester"

    def __init__(self, *steps):
        super().__init__()
        self.left = list(steps)
        self.waits = []
        self.times = 0

    def step(self):
        self.times += 1
        what = self.left.pop(0)
        if not self.left:
            self.stop()
        if isinstance(what, BaseException):
            raise what
        return what

    def on_error(self, error):
        self.waits.append(super().on_error(error))
        return 0.0


class WakesItself(Steps):
    def step(self):
        self.wake()
        return super().step()


def heard(signal):
    got = []

    def receiver(**kwargs):
        got.append(kwargs)

    signal.connect(receiver, weak=False)
    return got, receiver


def run(loop):
    thread = threading.Thread(target=loop.run)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()


def test_news_that_comes_during_a_step_is_not_lost():
    loop = WakesItself(3000.0, math.inf, 0.0)
    run(loop)
    assert loop.times == 3


def test_stop_ends_the_longest_wait():
    loop = Steps(0.0, 3000.0, 0.0)
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


def test_an_error_never_ends_a_loop_and_is_announced():
    got, receiver = heard(signals.loop_failed)
    try:
        loop = Steps(ValueError("a"), ValueError("b"), -1.0)
        run(loop)
    finally:
        signals.loop_failed.disconnect(receiver)

    assert loop.times == 3
    assert [str(said["exception"]) for said in got] == ["a", "b"]
    assert {said["part"] for said in got} == {"tester"}


def test_a_lost_database_is_said_once_and_its_return_too():
    lost, receiver = heard(signals.database_lost)
    back, receiver_of_return = heard(signals.database_back)
    try:
        run(Steps(OperationalError("gone"), psycopg.OperationalError("still"), OperationalError("yet"), 0.0, 0.0))
    finally:
        signals.database_lost.disconnect(receiver)
        signals.database_back.disconnect(receiver_of_return)

    assert [said["part"] for said in lost] == ["tester"]
    assert [said["part"] for said in back] == ["tester"]


def test_the_parts_of_a_process_say_it_once_together():
    lost, receiver = heard(signals.database_lost)
    back, receiver_of_return = heard(signals.database_back)
    ann, bob = Steps(), Steps()
    bob.outage = ann.outage
    try:
        for loop in (ann, bob, ann):
            loop.on_error(OperationalError("gone"))
        ann._went_well()
        assert not back
        bob._went_well()
        ann._went_well()
    finally:
        signals.database_lost.disconnect(receiver)
        signals.database_back.disconnect(receiver_of_return)
    assert (len(lost), len(back)) == (1, 1)


def test_a_connection_that_was_lost_in_an_outage_that_is_over_is_no_second_one():
    lost, receiver = heard(signals.database_lost)
    ann, bob = Steps(), Steps()
    bob.outage = ann.outage
    bob.connected_since = time.monotonic()
    try:
        ann.on_error(OperationalError("gone"))
        ann._went_well()
        bob.on_error(OperationalError("found out late"))
        assert len(lost) == 1
        bob.connected_since = float("inf")
        bob.on_error(OperationalError("cannot connect"))
    finally:
        signals.database_lost.disconnect(receiver)
    assert len(lost) == 2


def test_a_receiver_that_raises_does_not_end_the_loop():
    def receiver(**kwargs):
        raise RuntimeError

    signals.loop_failed.connect(receiver)
    try:
        loop = Steps(ValueError(), 0.0)
        run(loop)
    finally:
        signals.loop_failed.disconnect(receiver)
    assert loop.times == 2


def test_waits_grow_and_are_back_to_the_first_after_a_good_step():
    loop = Steps(*[ValueError() for _ in range(8)], 0.0, ValueError(), 0.0)
    run(loop)

    assert 0.05 <= loop.waits[0] <= 0.1
    assert 0.75 <= loop.waits[7] <= 1.5  # a database that is back is noticed within 2 s
    assert 0.05 <= loop.waits[8] <= 0.1


@pytest.mark.parametrize(
    ("failures", "least", "most"), [(1, 0.125, 0.25), (3, 0.5, 1.0), (6, 4.0, 8.0), (5000, 5.0, 10.0)]
)
def test_backoff_doubles_up_to_its_cap_with_jitter(failures, least, most):
    waits = [backoff(failures, first=0.25, longest=10.0) for _ in range(50)]

    assert all(least <= wait <= most for wait in waits)
    assert len(set(waits)) > 1
