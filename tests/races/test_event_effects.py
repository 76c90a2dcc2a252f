"""A handler that is transactional and idempotent: its effects happen once for each event, whoever else had it meanwhile."""

from __future__ import annotations

import uuid

import pytest

from django_pgbus import publish, subscribe
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from django_pgbus.idempotency.claims import completed
from django_pgbus.models import Archived, ProcessedEvent
from django_pgbus.tasks.executor import Done, Executor, Superseded
from django_pgbus.tasks.watch import Watch
from tests.eventful import claim_event, pick_up, silence_claim
from tests.line import COMMITTED, fail, lapse, release, state
from tests.races.guards import fails_if
from tests.races.test_event_claims import COMPLETES_OTHERS
from tests.sessions import execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]

on_call = []


@subscribe("effects.event", idempotent=True, transactional=True)
def effect(event):
    execute("INSERT INTO pgbus_test_effects VALUES (%s)", [str(event.id)])
    for step in on_call:
        step()


@pytest.fixture(autouse=True)
def table():
    on_call.clear()
    completed.clear()
    with sessions() as session:
        session.sql("CREATE TABLE pgbus_test_effects (value text)")
    yield
    completed.clear()
    with sessions() as session:
        session.sql("DROP TABLE pgbus_test_effects")


@pytest.fixture
def event():
    subscriptions.declare([handlers[f"{__name__}.effect"]])
    return uuid.uuid4()


def started(event):
    assert publish("effects.event", event_id=event) == 1
    delivery = claim_event()
    assert pick_up(delivery).taken == [delivery]
    return delivery


def run(delivery):
    return Executor(worker="w", watch=Watch()).prepare(delivery).sync()


def effects():
    return [value for (value,) in execute("SELECT value FROM pgbus_test_effects")]


def completed_by(event):
    return list(
        ProcessedEvent.objects.filter(event_id=event, completed_at__isnull=False).values_list("message_id", flat=True)
    )


def test_effect_archive_and_completion_are_one_transaction(event):
    delivery = started(event)
    with sessions() as outside:

        def look():
            assert outside.do(effects) == []
            assert outside.do(completed_by, event) == []
            assert outside.do(state, delivery.id) == "running"

        on_call.append(look)
        assert type(run(delivery)) is Done
    assert effects() == [str(event)]
    assert (state(delivery.id), completed_by(event)) == ("succeeded", [delivery.id])


def test_an_effect_that_was_rolled_back_is_no_completion(event):
    delivery = started(event)

    def fails():
        raise ValueError("no")

    on_call.append(fails)
    run(delivery)
    assert (effects(), completed_by(event)) == ([], [])
    fail(delivery)
    assert not ProcessedEvent.objects.exists()


@pytest.mark.parametrize("by", ["its own message", "a duplicate"])
@pytest.mark.parametrize("successor", ["runs", "is done"])
def test_a_run_that_was_taken_over_takes_its_effect_back(by, successor, event):
    delivery = started(event)
    with sessions() as others:

        def take_over():
            on_call.clear()
            others.do(lapse, delivery.id)
            others.do(silence_claim, event)
            if by == "its own message":
                assert others.do(release, delivery.id) == [delivery.id]
            else:
                others.do(publish, "effects.event", event_id=event)
            new = others.do(claim_event)
            assert others.do(pick_up, new).taken == [new]
            if successor == "is done":
                assert type(others.do(run, new)) is Done

        on_call.append(take_over)
        assert type(run(delivery)) is Superseded
    assert effects() == ([str(event)] if successor == "is done" else [])
    assert Archived.objects.filter(outcome="succeeded").count() == (successor == "is done")


@fails_if(COMPLETES_OTHERS)
def test_a_run_whose_claim_is_anothers_takes_its_effect_back():
    """The claim was deleted by hand while it ran, and a duplicate had it: its message is still its own."""
    subscriptions.declare([handlers[f"{__name__}.effect"]])
    event = uuid.uuid4()
    delivery = started(event)
    with sessions() as others:

        def steal():
            on_call.clear()
            others.sql("DELETE FROM pgbus_processed_events")
            others.do(publish, "effects.event", event_id=event)
            new = others.do(claim_event)
            assert others.do(pick_up, new).taken == [new]
            assert type(others.do(run, new)) is Done

        on_call.append(steal)
        run(delivery)
    assert effects() == [str(event)]
    assert Archived.objects.filter(outcome="succeeded").count() == 1


def test_a_duplicate_waits_for_no_transaction_of_the_handler(event):
    """It is skipped while the handler runs, however long its transaction is open."""
    delivery = started(event)
    skipped = []
    with sessions() as others:

        def comes():
            others.do(publish, "effects.event", event_id=event)
            duplicate = others.do(claim_event)
            skipped.extend(others.do(pick_up, duplicate).skipped)

        on_call.append(comes)
        assert type(run(delivery)) is Done
    assert [state(duplicate.id) for duplicate in skipped] == ["skipped"]
    assert effects() == [str(event)]
