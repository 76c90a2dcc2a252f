"""Claims that another transaction holds: the worker goes on, and what waits for them is neither lost nor let loose."""

from __future__ import annotations

import time
import uuid

import pytest

from django_pgbus import publish, signals, subscribe
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from django_pgbus.idempotency.sweeps import purge_deserted
from django_pgbus.models import Message, ProcessedEvent
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from tests.eventful import ONCE, claim_events, pick_up, picked_up, publish_once
from tests.jobs import noop
from tests.line import COMMITTED, LEASE, holding, long_up, state, succeed  # noqa: F401
from tests.running import a_worker
from tests.sessions import execute, sessions, until

pytestmark = [COMMITTED, pytest.mark.races]

ran = []
at_once: list[int] = []
_now: list[int] = []


@subscribe("contested.a", idempotent=True, queue_name="contested_a")
def first(event):
    ran.append("first")


@subscribe("contested.b", idempotent=True, queue_name="contested_b")
def second(event):
    ran.append("second")


@subscribe("contested.slow", idempotent=True, queue_name="contested_slow")
def slow(event):
    _now.append(1)
    at_once.append(len(_now))
    time.sleep(0.1)
    _now.pop()
    ran.append("slow")


@pytest.fixture(autouse=True)
def mine():
    for seen in (ran, at_once, _now):
        seen.clear()
    subscriptions.declare(handler for path, handler in handlers.items() if path.startswith(f"{__name__}."))
    yield
    subscriptions.unbind(f"{__name__}.first")


def held_by(person, event, handler):
    """Let the transaction of a person have the claim."""
    person.sql(
        "INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery, leased_until) "
        "VALUES (%s, %s, 0, 1, now())",
        event,
        handler,
    )


def publish_held(person, topic, handler):
    event = uuid.uuid4()
    held_by(person, event, f"{__name__}.{handler}")
    publish(topic, event_id=event)


def test_a_session_that_is_lost_while_one_is_asked_for_again_loses_none_of_the_others():
    with sessions() as person:
        person.open()
        publish_held(person, "contested.a", "first")
        publish_held(person, "contested.b", "second")
        with a_worker("@contested_a: 1; @contested_b: 1") as worker:
            until(lambda: len(worker.process._consumer._contested) == 2)
            until(
                lambda: execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgbus consumer' "
                    "AND wait_event_type = 'Lock' AND datname = current_database()"
                )
            )
            person.roll_back()
            until(lambda: sorted(ran) == ["first", "second"])


def test_suspects_that_were_contested_run_one_at_a_time():
    with sessions() as person:
        person.open()
        for _ in range(3):
            publish_held(person, "contested.slow", "slow")
        execute("UPDATE pgbus_messages SET suspect = true")
        execute("INSERT INTO pgbus_levels (queue, priority, suspect) VALUES ('@contested_slow', 0, true)")
        with a_worker("@contested_slow") as worker:
            until(lambda: worker.process._consumer._contested)
            person.roll_back()
            until(lambda: len(ran) == 3)
    assert at_once == [1, 1, 1]


def test_what_is_contested_goes_back_when_its_queue_is_paused():
    with sessions() as person:
        person.open()
        publish_held(person, "contested.a", "first")
        with a_worker("@contested_a") as worker:
            until(lambda: worker.process._consumer._contested)
            lifecycle.pause_queue("@contested_a")
            until(lambda: Message.objects.get().leased_until is None)
            person.roll_back()
            assert not worker.process._consumer._contested
    assert (ran, Message.objects.get().attempts) == ([], 0)


def test_what_is_contested_takes_the_room_it_will_need():
    with sessions() as person:
        person.open()
        for _ in range(6):
            publish_held(person, "contested.a", "first")
        with a_worker("@contested_a: 2") as worker:
            until(lambda: len(worker.process._consumer._contested) == 2)
            assert Message.objects.filter(leased_until__isnull=False).count() == 2
            person.roll_back()
            until(lambda: len(ran) == 6)


def test_what_was_picked_up_when_a_receiver_exits_goes_back():
    def exits(**kwargs):
        raise SystemExit(3)

    event = publish_once()
    publish_once(event)
    signals.event_skipped.connect(exits)
    try:
        with a_worker("@events"):
            until(lambda: not Message.objects.exists())
    finally:
        signals.event_skipped.disconnect(exits)
    assert ProcessedEvent.objects.get().completed_at


# --- subscriptions that somebody has locked -----------------------------------------------------------


def test_a_worker_that_cannot_declare_works_and_tries_again(monkeypatch):
    monkeypatch.setattr("django_pgbus.worker.consumer.DECLARE_AGAIN", 0.3)
    execute("UPDATE pgbus_subscriptions SET declared_at = declared_at - interval '1 hour'")
    with sessions() as person:
        person.open()
        person.sql("UPDATE pgbus_subscriptions SET priority = priority")
        id = int(noop.enqueue().id)
        with a_worker("*"):
            until(lambda: state(id) == "succeeded")
            person.roll_back()
            until(
                lambda: (
                    not execute(
                        "SELECT 1 FROM pgbus_subscriptions WHERE declared_at < statement_timestamp() - interval '1 minute' "
                        "AND handler LIKE %s",
                        [f"{__name__}.%"],
                    )
                )
            )


# --- claims that are damaged, or cannot be stamped ----------------------------------------------------


def test_a_message_that_was_renewed_is_confirmed_though_its_claim_could_not_be_stamped(monkeypatch):
    delivery = picked_up(uuid.uuid4())
    before = delivery.confirmed_at

    def fails(deliveries):
        raise RuntimeError("the table of the claims is locked")

    monkeypatch.setattr(heartbeat, "on_renewed", [fails])
    with pytest.raises(RuntimeError):
        heartbeat.renew(holding(delivery), LEASE)
    assert delivery.confirmed_at > before


@pytest.mark.parametrize("constraints", ["{}", '{"idempotent": false}', '"yes"', '{"new": 1}'])
def test_a_copy_whose_constraints_do_not_say_so_claims_nothing_and_completes_nothing(constraints):
    event = publish_once()
    publish_once(event)
    execute("UPDATE pgbus_messages SET constraints = %s::json", [constraints])
    deliveries = claim_events()
    assert pick_up(*deliveries).taken == deliveries
    assert succeed(*deliveries) == {delivery.id for delivery in deliveries}
    assert not ProcessedEvent.objects.exists()


def test_a_pending_claim_without_a_lease_is_silent():
    event = publish_once()
    execute(
        "INSERT INTO pgbus_processed_events (event_id, handler, message_id, delivery) VALUES (%s, %s, 0, 1)",
        [event, ONCE],
    )
    (delivery,) = claim_events()
    assert pick_up(delivery).taken == [delivery]
    execute("DELETE FROM pgbus_messages")
    execute("UPDATE pgbus_processed_events SET leased_until = NULL")
    assert purge_deserted() == 1
