"""`deliver_published` runs handlers in the transaction of the test; `assert_published` tells what was published."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import TestCase, TransactionTestCase

from django_pgbus import apublish, publish
from django_pgbus.models import Archived, DeadLetter, Delayed, Message, Subscription
from django_pgbus.testing import (
    PgbusTestMixin,
    aassert_published,
    adeliver_published,
    assert_enqueued,
    assert_not_published,
    assert_published,
    declare_subscriptions,
    deliver_published,
    enqueued,
    published,
    run_enqueued,
    subscribed,
)
from tests.testing import handlers, tasks


class _Clean(PgbusTestMixin):
    def setUp(self) -> None:
        declare_subscriptions()
        handlers.seen.clear()
        tasks.log.clear()


class InATestCase(_Clean, TestCase):
    def test_delivers_to_each_handler_and_what_they_publish_in_turn(self) -> None:
        assert publish("helped.first", {"n": 1}) == 2
        delivered = deliver_published()
        assert sorted(handlers.seen) == [
            ("audit", "helped.first", {"n": 1}),
            ("audit", "helped.second", {"n": 1}),
            ("step", "helped.first", {"n": 1}),
        ]
        assert [d.error for d in delivered] == [None] * 3
        assert {d.handler for d in delivered} == {"tests.testing.handlers.audit", "tests.testing.handlers.step"}
        assert not Message.objects.filter(topic__isnull=False).exists()

    def test_tasks_and_events_are_run_apart(self) -> None:
        publish("helped.first", {"n": 1})
        assert run_enqueued() == []
        assert enqueued() == []
        deliver_published()
        assert tasks.log == []
        assert_enqueued(tasks.note, args=["from the handler"])
        run_enqueued()
        assert tasks.log == ["from the handler"]
        with pytest.raises(ValueError, match="deliver_published"):
            run_enqueued("@steps")

    def test_delivers_from_the_queues_that_are_named(self) -> None:
        publish("helped.first", 1)
        deliver_published("steps")
        assert [handler for handler, *_ in handlers.seen] == ["step"]
        deliver_published("@events")
        assert [handler for handler, *_ in handlers.seen] == ["step", "audit", "audit"]

    def test_an_async_class_is_awaited_on_the_connection_of_the_test(self) -> None:
        publish("helped.async", None)
        deliver_published()
        assert ("later", "helped.async", 0) in handlers.seen

    def test_a_failure_is_stored_and_raised(self) -> None:
        publish("failing.here", "no")
        with pytest.raises(ConnectionError, match="no"):
            deliver_published()
        assert Delayed.objects.get().attempts == 1
        (delivered,) = deliver_published(include_delayed=True, raise_failures=False)
        assert isinstance(delivered.error, ConnectionError)
        assert delivered.event.attempt == 2
        assert DeadLetter.objects.get().topic == "failing.here"

    def test_an_event_published_again_runs_an_idempotent_handler_once(self) -> None:
        publish("helped.first", 1)
        (event,) = published("helped.first")
        deliver_published("steps")
        publish("helped.first", 1, event_id=event.id)
        assert deliver_published("steps") == []
        assert [handler for handler, *_ in handlers.seen] == ["step"]
        assert Archived.objects.filter(outcome="skipped").count() == 1

    def test_what_was_published_is_told_before_and_after_it_was_delivered(self) -> None:
        publish("helped.other", {"at": (1, 2)}, headers={"tenant": "a"})
        (event,) = assert_published("helped.*", {"at": (1, 2)}, count=1)
        assert (event.payload, event.headers["tenant"], event.attempt) == ({"at": [1, 2]}, "a", 0)
        deliver_published()
        self.assertPublished("helped.#", {"at": [1, 2]})
        self.assertNotPublished("helped.none")
        with pytest.raises(
            AssertionError, match=r"with 5 was published not at all\.\n    Published:\n    helped\.other"
        ):
            assert_published("helped.#", 5)
        with pytest.raises(AssertionError, match=r"was published once\."):
            assert_not_published("helped.other")
        with pytest.raises(AssertionError, match="once, not twice"):
            assert_published("helped.other", count=2)

    def test_an_event_for_nobody_counts_but_its_payload_is_not_kept(self) -> None:
        with pytest.raises(AssertionError, match="Nothing was published"):
            assert_published("nobody.hears")
        assert publish("nobody.hears", 1) == 0
        assert assert_published("nobody.*", count=1) == []
        with pytest.raises(AssertionError, match=r"nobody\.hears: once, for nobody"):
            assert_published("nobody.hears", 1)

    def test_a_subscription_for_a_block_keeps_the_payload(self) -> None:
        before = Subscription.objects.count()
        with subscribed("nobody.#"):
            assert publish("nobody.hears", 1) == 1
            assert_published("nobody.hears", 1)
        assert Subscription.objects.count() == before
        deliver_published()

    async def test_the_async_twins(self) -> None:
        await apublish("helped.other", 1)
        await aassert_published("helped.other", 1)
        assert len(await adeliver_published()) == 1


class InATransactionTestCase(_Clean, TransactionTestCase):
    available_apps = ["django_pgbus"]

    def test_delivers_too(self) -> None:
        publish("helped.other", 1)
        deliver_published()
        assert handlers.seen == [("audit", "helped.other", 1)]


@pytest.mark.django_db
def test_the_fixture_delivers(pgbus_deliver_published: Any) -> None:
    declare_subscriptions()
    handlers.seen.clear()
    publish("helped.other", 1)
    pgbus_deliver_published()
    assert handlers.seen == [("audit", "helped.other", 1)]
