"""What is damaged by hand, or code that exits when it is imported, stops nobody else."""

from __future__ import annotations

import json
import sys

import pytest
from django.db import transaction
from django.test import TestCase

from django_pgbus import limits_concurrency, task
from django_pgbus.concurrency.policy import Limit
from django_pgbus.models import BlockedExecution, DeadLetter, Message, Slot
from django_pgbus.tasks import constraints, lifecycle
from django_pgbus.tasks.compat import InvalidTask
from django_pgbus.tasks.sweeps import GoOn
from tests import constrained
from tests.constrained import alone, enqueue, one, one_or_error, parked, run, two
from tests.jobs import noop
from tests.line import COMMITTED, claim, give_up, state, succeed
from tests.running import a_worker
from tests.sessions import until

LIMIT = {"key": "a", "name": "", "to": 1, "duration": 900.0, "on_conflict": "block"}
UNIQUE = {"key": "a", "name": "", "strategy": "while_executing", "on_conflict": "reject"}
DAMAGED = {
    "no object": [],
    "limit of nothing": {"limit": {}},
    "limited key of nothing": {"limit": LIMIT | {"key": None}},
    "limit of text": {"limit": LIMIT | {"to": "x"}},
    "no duration": {"limit": LIMIT | {"duration": None}},
    "key of nothing": {"unique": UNIQUE | {"key": None}},
    "key with a NUL": {"unique": UNIQUE | {"key": "a\x00b"}},
    "key of a list": {"unique": UNIQUE | {"key": ["a"]}},
    "unknown strategy": {"unique": UNIQUE | {"strategy": "sometimes"}},
}


@pytest.mark.parametrize("document", DAMAGED.values(), ids=DAMAGED)
def test_what_no_version_has_written_is_not_read(document):
    with pytest.raises((ValueError, KeyError)):
        constraints.read(json.dumps(document))


def test_a_whole_number_of_seconds_reads_as_any_other():
    limit = constraints.read(json.dumps({"limit": LIMIT | {"duration": 9, "newer": 1}})).limit
    assert (limit.duration, type(limit.duration)) == (9.0, float)


@COMMITTED
@pytest.mark.parametrize("document", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_message_fails_as_an_attempt_and_keeps_nobody_from_running(document):
    bad = enqueue(one, "a")
    Message.objects.filter(id=bad).update(constraints=json.dumps(document))
    good = [enqueue(alone, "z"), *(int(noop.enqueue().id) for _ in range(3))]
    with a_worker():
        until(lambda: all(state(id) == "succeeded" for id in good))
        until(lambda: state(bad) == "delayed")
    assert not Slot.objects.filter(leased_until__isnull=False).exists()


@COMMITTED
@pytest.mark.parametrize("document", list(DAMAGED.values())[:5], ids=list(DAMAGED)[:5])
def test_a_damaged_parked_job_stops_no_promotion(document, monkeypatch):
    monkeypatch.setattr(lifecycle, "let_in", lambda *args: 0)
    bad, good = enqueue(one, "a"), enqueue(one, "b")
    monkeypatch.undo()
    BlockedExecution.objects.filter(id=bad).update(constraints=json.dumps(document))
    GoOn().sweep()
    assert state(good) == "ready"


@COMMITTED
def test_a_dead_letter_whose_constraints_cannot_be_read_is_redriven_and_fails_with_that_reason():
    bad, good = enqueue(one_or_error, "a"), enqueue(one_or_error, "b")
    for delivery in lifecycle.pick_up(claim()).taken:
        give_up(delivery)
    DeadLetter.objects.filter(id=bad).update(constraints="[]")
    assert sorted(lifecycle.redrive([bad, good]).ids) == [bad, good]


@COMMITTED
def test_code_that_exits_when_it_is_imported_ends_no_thread(monkeypatch):
    """The look after a commit imports the task that waits; in a web process too."""

    def exits(path):
        if path.endswith(".two"):
            raise SystemExit(3)
        return real(path)

    real = constraints.find_task
    monkeypatch.setattr(constraints, "find_task", exits)
    first = enqueue(two, "a")
    others = [enqueue(two, "a") for _ in range(3)]
    with a_worker():
        until(lambda: all(state(id) == "succeeded" for id in (first, *others)))
    assert sys.exc_info() == (None, None, None)


@COMMITTED
@pytest.mark.parametrize(("now", "expected"), [(1, "dead"), (2, "ready"), (None, "ready")])
def test_a_redrive_is_held_to_the_limit_that_is_declared_now(now, expected, monkeypatch):
    """It was one at once when it was enqueued, and another runs."""
    first = enqueue(one_or_error, "a")
    give_up(run())
    enqueue(one_or_error, "a")
    run()
    limit = None if now is None else Limit(to=now, key=one_or_error.limit.key, on_conflict="raise")
    fields = {field: getattr(one_or_error, field) for field in one_or_error.__dataclass_fields__}
    func = unlimited if now is None else one_or_error.func
    monkeypatch.setattr(constrained, "one_or_error", type(one_or_error)(**fields | {"limit": limit, "func": func}))
    lifecycle.redrive([first])
    assert state(first) == expected


def unlimited(key, *args): ...


def declared_below(): ...


class CommittedTwice(TestCase):
    def test_each_capture_of_a_test_lets_in_who_was_enqueued_in_it(self):
        with self.captureOnCommitCallbacks(execute=True):
            first = enqueue(one, "a")
        assert state(first) == "ready"
        with self.captureOnCommitCallbacks(execute=True) as captured:
            second = enqueue(one, "b")
        assert captured
        assert state(second) == "ready"


def test_a_limit_that_is_declared_twice_is_refused():
    with pytest.raises(InvalidTask, match="declares limit twice"):
        task(limit=Limit(to=2))(limits_concurrency(to=1)(declared_below))


@COMMITTED
def test_the_capacity_that_is_shown_is_the_one_that_decides_under_raise_too():
    from django_pgbus.models import Semaphore

    Semaphore.objects.create(key="a", capacity=7)
    with transaction.atomic():
        enqueue(one_or_error, "a")
    assert Semaphore.objects.get().capacity == 1
    succeed(run())
    assert parked() == []
