"""What a worker counts of its runs, and when it writes it."""

from __future__ import annotations

import uuid

import pytest
from django.db import ProgrammingError

from django_pgbus import signals
from django_pgbus.insights.recording import Tally
from django_pgbus.insights.stats import Window, by_queue, by_task, overall
from django_pgbus.models import RunCount
from django_pgbus.tasks.executor import Done, HandBack, Superseded
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success
from django_pgbus.worker import counting
from django_pgbus.worker.counting import Counter, verdict_of
from django_pgbus.worker.endings import Ending
from django_pgbus.worker.ledger import Holding, TimedOut
from django_pgbus.worker.repairs import DatabaseRepairs, Repair, Repairs
from tests import eventful, jobs
from tests.insights.rows import NUMBERS, a_delivery
from tests.line import COMMITTED, claim_one, put
from tests.running import a_worker, run_burst
from tests.sessions import execute, until

pytestmark = COMMITTED

HOUR = Window.HOUR


@pytest.fixture(autouse=True)
def _fresh():
    jobs.calls.clear()
    jobs.gates.clear()
    jobs.reached.clear()


def numbers(runs):
    return {name: number for name in NUMBERS if (number := getattr(runs, name))}


def test_three_that_succeed_one_that_fails_and_one_that_snoozes():
    for n in range(3):
        jobs.note.enqueue(n)
    jobs.fails.enqueue()  # three attempts
    jobs.snoozes.enqueue(3600)
    assert run_burst() == 1
    found = overall(HOUR)
    assert numbers(found) == {"succeeded": 3, "failed": 2, "dead": 1, "snoozed": 1}
    assert (found.number, sum(found.run), sum(found.wait)) == (7, 7, 7)
    assert 0 < found.longest <= found.run_seconds
    assert {runs.task: numbers(runs) for runs in by_task(HOUR)} == {
        "tests.jobs.note": {"succeeded": 3},
        "tests.jobs.fails": {"failed": 2, "dead": 1},
        "tests.jobs.snoozes": {"snoozed": 1},
    }
    assert [runs.queue for runs in by_queue(HOUR)] == ["default"]


def test_async_and_transactional_runs_and_handlers_of_events_count_as_others():
    jobs.anote.enqueue("a")
    jobs.noop.using(queue_name="default").enqueue()
    eventful.publish_once()
    assert run_burst("*,@*") == 0
    found = {(runs.task, runs.event): numbers(runs) for runs in by_task(HOUR)}
    assert found == {
        ("tests.jobs.anote", False): {"succeeded": 1},
        ("tests.jobs.noop", False): {"succeeded": 1},
        (eventful.ONCE, True): {"succeeded": 1},
    }
    assert sum(overall(HOUR).wait) == 3


def test_a_wait_lasts_from_standing_in_the_line_to_the_start():
    jobs.note.enqueue(1)
    execute("UPDATE pgbus_messages SET ready_at = statement_timestamp() - interval '100 seconds'")
    run_burst()
    assert 100 <= overall(HOUR).wait_seconds < 130


def test_time_in_the_buffer_is_waiting_too():
    """Claimed is not started: one thread, and what runs in front of it holds it up."""
    (id,) = put()
    delivery = claim_one()
    assert delivery.id == id
    assert 0 <= delivery.confirmed_at - delivery.ready_at < 60
    delivery.started_at = delivery.confirmed_at + 50
    tally = Tally()
    tally.add(delivery, counting.Verdict.SUCCEEDED, 0.1)
    tally.write()
    assert 50 <= RunCount.objects.get().wait_seconds < 110


def test_an_idle_worker_writes_nothing_and_one_that_runs_writes_soon():
    with a_worker(beat=0.05) as worker:
        until(lambda: worker.process._consumer.idle)
        assert not RunCount.objects.exists()
        jobs.note.enqueue(1)
        until(RunCount.objects.exists)
        assert overall(HOUR).succeeded == 1


def test_a_worker_that_stops_has_written_all():
    with a_worker(beat=10.0):
        for n in range(5):
            jobs.note.enqueue(n)
        until(lambda: len(jobs.calls) == 5)
    assert overall(HOUR).succeeded == 5


def test_a_job_whose_hard_timeout_ended_its_process_counts_too():
    (id,) = put()
    delivery = claim_one()
    repairs = Repairs(DatabaseRepairs(), lambda: None)
    repairs.start()
    for _ in range(2):  # The second finds it settled.
        held = [Holding(id, delivery.delivery, True, False)]
        repairs.submit(Repair(ending=Ending.TIMED_OUT, worker=uuid.uuid4(), held=held, timed_out=TimedOut(id, 1, 12.5)))
    until(lambda: repairs.idle)
    repairs.finish(10)
    found = overall(HOUR)
    assert numbers(found) == {"dead": 1}
    assert (found.run_seconds, sum(found.wait)) == (12.5, 0)


def test_one_without_an_attempt_left_is_dead_and_did_not_run():
    jobs.exits.enqueue(1)
    execute("UPDATE pgbus_messages SET attempts = 1")
    run_burst()
    found = overall(HOUR)
    assert (numbers(found), sum(found.run)) == ({"dead": 1}, 0)


def outcome(kind, **fields):
    return kind(delivery=a_delivery(), ran_for=0.1, **fields)


ENDED = {"error": None, "ended": 0.0}


@pytest.mark.parametrize(
    ("one", "name"),
    [
        (outcome(Success, result="null", ended=0.0), "SUCCEEDED"),
        (outcome(Done), "SUCCEEDED"),
        (outcome(PutOff, reason="retry", delay=1.0, **ENDED), "FAILED"),
        (outcome(PutOff, reason="snoozed", delay=1.0, **ENDED), "SNOOZED"),
        (outcome(GaveUp, reason="exhausted", **ENDED), "DEAD"),
        (outcome(Superseded), "SUPERSEDED"),
        (outcome(HandBack), "HANDED_BACK"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_an_outcome_counts_as(one, name):
    assert verdict_of(one).name == name


@pytest.fixture
def clock(monkeypatch):
    class FakeTime:
        now = 5000.0

        def monotonic(self):
            return self.now

    fake = FakeTime()
    monkeypatch.setattr(counting, "time", fake)
    return fake


def no_such_table(tally):
    raise ProgrammingError("no such table")


def count_one(counter):
    counter.count([outcome(Success, result="null", ended=0.0)], {})


def test_it_writes_a_second_after_a_pause_and_then_once_a_beat(clock):
    counter = Counter(10.0)
    assert counter.write_if_due() == float("inf")
    count_one(counter)
    assert counter.write_if_due() == 1.0
    clock.now += 1.0
    counter.write_if_due()
    assert (RunCount.objects.count(), counter.owes) == (1, False)
    count_one(counter)
    assert counter.write_if_due() == 10.0
    clock.now += 9.5
    count_one(counter)
    assert counter.write_if_due() == 0.5
    clock.now += 0.5
    counter.write_if_due()
    assert (RunCount.objects.count(), counter.owes) == (2, False)


def test_in_a_hurry_it_writes_at_once_and_tries_once(clock, monkeypatch):
    counter = Counter(10.0)
    count_one(counter)
    counter.hurries = True
    with monkeypatch.context() as patched:
        patched.setattr(Tally, "write", no_such_table)
        counter.write_if_due()
    assert (counter.hurries, counter.owes) == (False, True)
    counter.hurries = True
    counter.write_if_due()
    assert (counter.owes, overall(HOUR).succeeded) == (False, 1)


def test_an_error_is_said_keeps_what_was_counted_and_is_tried_again_after_a_minute(clock, monkeypatch):
    said = []

    def note(part, exception, **kwargs):
        said.append((part, str(exception)))

    signals.loop_failed.connect(note)
    counter = Counter(10.0)
    count_one(counter)
    clock.now += 1
    with monkeypatch.context() as patched:
        patched.setattr(Tally, "write", no_such_table)
        counter.write_if_due()
    signals.loop_failed.disconnect(note)
    assert said == [("counting of runs", "no such table")]
    clock.now += 59
    assert counter.write_if_due() == 1.0
    clock.now += 1
    counter.write_if_due()
    assert overall(HOUR).succeeded == 1


def test_without_its_table_a_worker_works_on():
    """A release whose migration has not run yet."""
    execute("ALTER TABLE pgbus_run_counts RENAME TO pgbus_run_counts_later")
    try:
        jobs.note.enqueue(1)
        assert run_burst() == 0
    finally:
        execute("ALTER TABLE pgbus_run_counts_later RENAME TO pgbus_run_counts")
    assert jobs.calls == [1]
