"""Interrupting a thread: only while it runs the job, once, and with nothing left behind."""

from __future__ import annotations

import threading
import time

import pytest

from django_pgbus.exceptions import TaskSuperseded, TaskTimeout
from django_pgbus.tasks.executor import Executor
from django_pgbus.tasks.lifecycle import GaveUp
from django_pgbus.tasks.watch import HARD_MARGIN, Watch
from tests.line import COMMITTED, claim_one, long_up, put  # noqa: F401

pytestmark = COMMITTED


@pytest.fixture
def delivery():
    put()
    return claim_one()


def spin():
    """Run Python until something is raised in this thread."""
    while True:
        time.sleep(0.001)


class Running(threading.Thread):
    """A thread that spins while it is armed."""

    def __init__(self, watch, delivery, timeout=None):
        super().__init__(daemon=True)
        self.watch, self.delivery, self.timeout = watch, delivery, timeout
        self.armed, self.raised = threading.Event(), None
        self.start()
        assert self.armed.wait(10)

    def run(self):
        try:
            self.watch.arm(self.delivery, self.timeout)
            self.armed.set()
            try:
                spin()
            finally:
                self.watch.disarm()
        except BaseException as error:
            self.raised = type(error)


def test_a_thread_past_its_timeout_is_interrupted(delivery):
    watch = Watch()
    thread = Running(watch, delivery, timeout=0.0)
    assert watch.interrupt(time.monotonic()) == []
    thread.join(10)
    assert thread.raised is TaskTimeout
    assert watch.next_deadline() == float("inf")


def test_a_superseded_run_is_interrupted(delivery):
    watch = Watch()
    thread = Running(watch, delivery)
    watch.interrupt(time.monotonic())
    assert thread.is_alive()
    delivery.superseded = True
    watch.interrupt(time.monotonic())
    thread.join(10)
    assert thread.raised is TaskSuperseded


def test_it_is_raised_once(delivery):
    watch = Watch()
    watch.arm(delivery, timeout=1000)
    delivery.superseded = True
    with pytest.raises(TaskSuperseded):
        for _ in range(100):
            watch.interrupt(time.monotonic())
            time.sleep(0)
    watch.interrupt(time.monotonic())
    time.sleep(0.001)
    watch.disarm()


def test_a_run_that_ignores_it_is_stuck_at_its_hard_limit(delivery):
    watch = Watch()
    watch.arm(delivery, timeout=0.0)
    began = time.monotonic()
    with pytest.raises(TaskTimeout):
        watch.interrupt(began + 1)
        spin()
    assert watch.interrupt(began + HARD_MARGIN + 1) == [delivery]
    watch.disarm()
    assert watch.interrupt(began + HARD_MARGIN + 1) == []


def test_one_that_ended_in_time_is_left_alone(delivery):
    watch = Watch()
    watch.arm(delivery, timeout=0.0)
    watch.disarm()
    assert watch.interrupt(time.monotonic() + 1) == []
    time.sleep(0.001)


def test_one_raised_at_the_last_moment_comes_out_of_disarm_and_nothing_stays_armed(delivery):
    """The job has returned; the interrupt hits `disarm` itself, before it has disarmed anything."""
    delivery.task = "tests.jobs.hurried"
    watch = Watch()
    real = watch.disarm

    def hit():
        watch.disarm = real
        raise TaskTimeout

    watch.disarm = hit
    outcome = Executor(worker="w", watch=watch).prepare(delivery).sync()
    assert type(outcome) is GaveUp
    assert watch._armed == {}, "10 s later its process would be ended for nothing"


def test_one_raised_while_the_timer_is_set_leaves_nothing_armed(delivery):
    delivery.task = "tests.jobs.hurried"
    watch = Watch()

    def hit():
        raise TaskSuperseded

    Executor(worker="w", watch=watch, armed=hit).prepare(delivery).sync()
    assert watch._armed == {}
