"""An event is stored once for each handler that subscribed, in one statement and in the transaction of who publishes."""

from __future__ import annotations

import inspect
import json
import uuid
from datetime import timedelta
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_pgbus import InvalidPayload, apublish, apublish_many, publish, publish_many, signals
from django_pgbus.events import event as event_module
from django_pgbus.events import subscriptions
from django_pgbus.events.publishing import CHUNK
from django_pgbus.events.running import event_of, opened
from django_pgbus.exceptions import InvalidTopic
from django_pgbus.idempotency.sweeps import sum_counts
from django_pgbus.models import Delayed, EventCount, Message
from django_pgbus.models import Level as LevelRow
from django_pgbus.queues import wake
from tests.events import examples
from tests.events.examples import a_handler, many_handlers, nobody_subscribed, run_all, seen, take  # noqa: F401
from tests.line import COMMITTED, long_up  # noqa: F401
from tests.sessions import execute, sessions

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nobody_subscribed")]


def heard(signal):
    """Return a list to which the signal's arguments are added, and what has to be kept for that."""
    calls = []

    def hear(*, sender, signal, **kwargs):
        calls.append(kwargs)

    signal.connect(hear)
    return calls, hear


def payload(row):
    return opened(row.payload if isinstance(row.payload, str) else json.dumps(row.payload))[0]


def copies():
    return list(Message.objects.filter(event_id__isnull=False).order_by("id"))


# --- one statement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 10, 100])
def test_one_statement_however_many_handlers_there_are(number):
    paths = many_handlers(number, "orders.#")
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        assert publish("orders.created", {"id": 1}) == number
    statements = [query["sql"] for query in queries if "SAVEPOINT" not in query["sql"]]
    assert len(statements) == 1
    assert sorted(copy.task for copy in copies()) == paths
    assert len({copy.event_id for copy in copies()}) == 1


def test_one_statement_for_many_events_and_the_counts_in_their_order():
    many_handlers(3, "orders.#")
    subscriptions.declare([a_handler("nowhere.else", "*.paid", "orders.paid")])
    with CaptureQueriesContext(connection) as queries:
        counts = publish_many([("orders", 0), ("else", 1), ("orders.paid", 2), ("x.paid", 3), ("orders", 4)])
    assert counts == [3, 0, 4, 1, 3]
    assert len(queries) == 1
    stored = {(copy.topic, payload(copy)) for copy in copies()}
    assert stored == {("orders", 0), ("orders.paid", 2), ("x.paid", 3), ("orders", 4)}


def test_more_than_fit_into_one_statement_are_published_all_or_none():
    many_handlers(1, "orders.*")
    number = CHUNK * 2 + 1
    with CaptureQueriesContext(connection) as queries:
        assert publish_many((f"orders.n{n}", n) for n in range(number)) == [1] * number
    assert len([query for query in queries if "pgbus_subscriptions" in query["sql"]]) == 3
    assert [payload(copy) for copy in copies()] == list(range(number))
    with pytest.raises(InvalidTopic):
        publish_many([*[("orders.a", 1)] * CHUNK, ("orders..a", 2)])
    assert Message.objects.count() == number


def test_nothing_is_asked_of_the_database_for_no_event():
    with CaptureQueriesContext(connection) as queries:
        assert publish_many([]) == []
        assert publish_many([], event_ids=[]) == []
        assert publish_many(iter(())) == []
    assert not queries.captured_queries


@pytest.mark.proves("each-handler-has-its-own-copy")
def test_a_handler_gets_one_copy_however_many_of_its_patterns_match():
    subscriptions.declare([a_handler("nowhere.once", "#", "orders.#", "*.created", "orders.created", "#.created.#")])
    assert publish("orders.created") == 1
    assert publish_many([("orders.created", 1), ("orders.created", 1)]) == [1, 1]
    assert len(copies()) == 3


def test_the_publisher_needs_none_of_the_handlers_code():
    many_handlers(1, "orders")
    assert publish("orders") == 1
    assert copies()[0].task == "nowhere.handler_00000"


def test_the_queue_is_that_of_the_subscription():
    subscriptions.declare([a_handler("nowhere.a", "orders", queue="@mail"), a_handler("nowhere.b", "orders")])
    publish("orders")
    assert {copy.task: copy.queue for copy in copies()} == {"nowhere.a": "@mail", "nowhere.b": "@events"}


def test_only_copies_for_idempotent_handlers_are_marked_as_such():
    subscriptions.declare([a_handler("nowhere.a", "orders", idempotent=True), a_handler("nowhere.b", "orders")])
    publish("orders")
    publish("orders", delay=60)
    for model in (Message, Delayed):
        marked = {row.task: bool(row.constraints) for row in model.objects.all()}
        assert marked == {"nowhere.a": True, "nowhere.b": False}


# --- the caller's transaction -------------------------------------------------------------------------


@pytest.mark.proves("publish-in-the-callers-transaction")
def test_rolled_back_nothing_was_published():
    many_handlers(2, "orders")
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert publish("orders") == 2
        assert publish("nobody") == 0
        1 / 0  # noqa: B018
    assert not copies()
    assert not EventCount.objects.exists()


def test_rolled_back_to_a_savepoint_the_rest_stays():
    many_handlers(2, "orders")
    with transaction.atomic():
        publish("orders", "before")
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            publish("orders", "within")
            1 / 0  # noqa: B018
        publish("orders", "after")
    assert [payload(copy) for copy in copies()] == ["before", "before", "after", "after"]


@pytest.mark.proves("publish-in-the-callers-transaction")
@COMMITTED
def test_nobody_sees_it_before_the_commit():
    many_handlers(1, "orders")
    with sessions() as other, transaction.atomic():
        publish("orders")
        assert other.sql("SELECT count(*) FROM pgbus_messages") == [(0,)]
    assert len(copies()) == 1


@COMMITTED
def test_publishers_do_not_wait_for_each_other_nor_for_who_subscribes():
    """One has its transaction open; the others, and a worker that starts, go on."""
    many_handlers(3, "orders")
    with sessions(2) as (one, two):
        one.open()
        one.do(publish, "orders")
        one.do(publish, "nobody")
        assert two.do(publish, "orders") == 3
        assert two.do(publish, "nobody") == 0
        two.do(many_handlers, 3, "orders", "bills")
        assert two.do(publish, "bills") == 3
        one.commit()


# --- what a copy carries ------------------------------------------------------------------------------


def test_the_priority_is_the_subscription_s_unless_one_is_given():
    subscriptions.declare([a_handler("nowhere.a", "orders", priority=-5), a_handler("nowhere.b", "orders", priority=9)])
    for given, stored in ((None, {-5, 9}), (3, {3}), (0, {0}), (-100, {-100}), (100, {100})):
        Message.objects.all().delete()
        publish("orders", priority=given)
        assert {copy.priority for copy in copies()} == stored


@pytest.mark.parametrize("delay", [90, 90.0, timedelta(seconds=90)])
def test_with_a_delay_it_is_due_by_the_clock_of_the_database(delay):
    many_handlers(2, "orders")
    assert publish("orders", {"n": 1}, delay=delay, priority=4) == 2
    assert not copies()
    for row in Delayed.objects.all():
        assert row.due_at - row.enqueued_at == timedelta(seconds=90)
        assert (row.reason, row.priority, row.topic, row.queue) == ("scheduled", 4, "orders", "@events")
    assert Delayed.objects.values("event_id").distinct().count() == 1


@pytest.mark.parametrize("delay", [None, 0, 0.0, timedelta(0)])
def test_without_a_delay_it_is_in_the_line_at_once(delay):
    many_handlers(1, "orders")
    publish("orders", delay=delay)
    assert copies()
    assert not Delayed.objects.exists()


def test_published_at_is_the_clock_of_the_database_and_the_same_for_all_copies(monkeypatch):
    monkeypatch.setattr(event_module.time, "time_ns", lambda: 0)  # whatever the clock here says
    many_handlers(20, "orders", "bills")
    (before,) = execute("SELECT clock_timestamp()")[0]
    publish_many([("orders", 1), ("bills", 2)], event_ids=[uuid.uuid4(), uuid.uuid4()])
    (after,) = execute("SELECT clock_timestamp()")[0]
    (published_at,) = {event_of(delivery).published_at for delivery in take()}
    assert before <= published_at <= after


def test_an_event_id_may_be_given():
    many_handlers(2, "orders", "bills")
    first, second = uuid.uuid4(), uuid.uuid5(uuid.NAMESPACE_URL, "order/42")
    publish("orders", event_id=first)
    publish("orders", event_id=first)
    publish_many([("orders", 1), ("bills", 2)], event_ids=[first, second])
    assert [copy.event_id for copy in copies()] == [first] * 6 + [second] * 2


def test_ids_are_of_version_7_and_rise_with_time(monkeypatch):
    moments = [0, 1, 2**47, 2**48 - 1]
    ids = []
    for moment in moments:
        monkeypatch.setattr(event_module.time, "time_ns", lambda moment=moment: moment * 1_000_000 + 999_999)
        ids.append(event_module.new_id() if not hasattr(uuid, "uuid7") else own_id())
    assert [id.int >> 80 for id in ids] == moments
    assert ids == sorted(ids)
    for id in [*ids, *(event_module.new_id() for _ in range(100))]:
        assert id.version == 7
        assert id.variant == uuid.RFC_4122
    assert len({event_module.new_id() for _ in range(1000)}) == 1000


def own_id() -> UUID:
    """Make one as a Python before 3.14 does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(uuid, "uuid7")
        return event_module.new_id()


def test_what_was_published_reads_back_as_it_was_written():
    many_handlers(1, "orders")
    payload = {"näme": [1, 2.5, None, True, "\\u0000 \U0001f600"], "nested": {"a": [{}]}}
    publish("orders", payload, headers={"tenant": "ä", "n": 1})
    (event,) = map(event_of, take())
    assert (event.payload, event.headers, event.topic, event.attempt) == (
        payload,
        {"tenant": "ä", "n": 1},
        "orders",
        1,
    )


@pytest.mark.parametrize("payload", [None, 0, "", "text", [], {}, [1], False])
def test_a_payload_may_be_any_json(payload):
    many_handlers(1, "orders")
    publish("orders", payload)
    (event,) = map(event_of, take())
    assert event.payload == payload
    assert type(event.payload) is type(payload)
    assert event.headers == {}


def test_headers_and_correlation_id_travel_with_it():
    many_handlers(1, "orders")
    publish("orders")
    publish("orders", correlation_id="c-1", headers={"correlation_id": "overridden", "x": 1})
    publish("orders", headers={"correlation_id": "c-2"})
    plain, given, header = map(event_of, take())
    assert plain.correlation_id == str(plain.id)
    assert (given.correlation_id, given.headers) == ("c-1", {"correlation_id": "c-1", "x": 1})
    assert header.correlation_id == "c-2"


@pytest.mark.parametrize("correlation", [None, "request-1"])
def test_what_a_handler_publishes_knows_what_led_to_it(correlation):
    """Plain and async; the next but one has the same correlation id, and its own cause."""
    examples.declare()
    publish("examples.chain.first", "p", correlation_id=correlation)
    run_all()
    second, third = seen
    first_id = UUID(second.headers["causation_id"])
    assert second.correlation_id == third.correlation_id == (correlation or str(first_id))
    assert UUID(third.headers["causation_id"]) == second.id
    assert second.headers["tenant"] == "a"
    assert "tenant" not in third.headers
    assert second.payload == {"after": "p"}


def test_after_a_handler_has_run_nothing_is_inherited_any_more():
    examples.declare()
    publish("examples.chain.first")
    run_all()
    publish("examples.note")
    (delivery,) = take()
    assert event_of(delivery).headers == {}


# --- for nobody ---------------------------------------------------------------------------------------


@pytest.mark.proves("what-is-skipped-or-met-nobody-is-counted")
def test_what_meets_no_handler_is_told_and_counted():
    unrouted, _keep = heard(signals.event_unrouted)
    published, _also = heard(signals.event_published)
    id = uuid.uuid4()
    assert publish("nobody", event_id=id) == 0
    assert publish_many([("nobody", 1), ("nothing.here", 2), ("nobody", 3)]) == [0, 0, 0]
    assert unrouted[0] == {"topic": "nobody", "event_id": id}
    assert [call["topic"] for call in unrouted] == ["nobody", "nobody", "nothing.here", "nobody"]
    assert not published
    assert not copies()
    kinds = EventCount.objects.order_by("id").values_list("status", "reason", "name", "amount")
    assert list(kinds) == [
        ("unrouted", "", "nobody", 1),
        ("unrouted", "", "nobody", 2),
        ("unrouted", "", "nothing.here", 1),
    ]


def test_the_rows_of_one_topic_are_summed_by_a_sweep():
    for _ in range(5):
        publish_many([("nobody", 1), ("nobody", 1), ("nothing.here", 1)])
    last = EventCount.objects.filter(name="nobody").latest("last_at").last_at
    assert sum_counts() > 0
    assert set(EventCount.objects.values_list("name", "amount")) == {("nobody", 10), ("nothing.here", 5)}
    assert EventCount.objects.get(name="nobody").last_at == last
    assert sum_counts() == 0


def test_a_delayed_event_for_nobody_is_counted_too():
    assert publish("nobody", delay=60) == 0
    assert EventCount.objects.get().name == "nobody"
    assert not Delayed.objects.exists()


def test_who_publishes_hears_how_many_get_it():
    published, _keep = heard(signals.event_published)
    unrouted, _also = heard(signals.event_unrouted)
    many_handlers(3, "orders")
    id = uuid.uuid4()
    publish("orders", event_id=id)
    publish("orders", delay=5)
    assert published[0] == {"topic": "orders", "event_id": id, "handlers": 3}
    assert published[1]["handlers"] == 3
    assert not unrouted


def test_a_receiver_that_fails_does_not_harm_who_publishes():
    many_handlers(1, "orders")

    def fails(**kwargs):
        raise ValueError("no")

    for signal in (signals.event_published, signals.event_unrouted):
        signal.connect(fails)
    assert publish_many([("orders", 1), ("nobody", 1)]) == [1, 0]


# --- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "given", "kind", "sentence"),
    [
        (("orders..x",), {}, InvalidTopic, r"The topic 'orders\.\.x' has an empty word"),
        ((None,), {}, InvalidTopic, "A topic is a text, not a NoneType"),
        (("orders", {1, 2}), {}, InvalidPayload, r"^payload is a set, which JSON cannot hold\."),
        (("orders", {"a": [object()]}), {}, InvalidPayload, r"^payload\['a'\]\[0\] is an object"),
        (("orders", float("nan")), {}, InvalidPayload, r"^payload is nan"),
        (("orders", "a\x00"), {}, InvalidPayload, r"^payload .*NUL"),
        (("orders", {"\udc80": 1}), {}, InvalidPayload, r"^payload has a key"),
        (("orders", "x" * 2_000_000), {}, InvalidPayload, r"^The payload takes 2,000,002 bytes"),
        (("orders",), {"headers": {"a": {1}}}, InvalidPayload, r"^headers\['a'\] is a set"),
        (("orders",), {"headers": {1: 2}}, InvalidPayload, r"^headers has the key 1 of type int"),
        (("orders",), {"headers": [("a", 1)]}, InvalidPayload, "headers is a dict, not a list"),
        (("orders",), {"headers": "a"}, InvalidPayload, "headers is a dict, not a str"),
        (("orders",), {"headers": {"a": "\x00"}}, InvalidPayload, r"^headers\['a'\] .*NUL"),
        (("orders",), {"headers": {"a": "x" * 2_000_000}}, InvalidPayload, "^The headers take 2,000,008 bytes"),
        (("orders",), {"correlation_id": ""}, InvalidPayload, "correlation_id is a text that is not empty"),
        (("orders",), {"correlation_id": 1}, InvalidPayload, "correlation_id is a text that is not empty, not 1"),
        (("orders",), {"correlation_id": "\x00"}, InvalidPayload, r"correlation_id.*NUL"),
        (("orders",), {"priority": 101}, ValueError, "priority is a whole number from -100 to 100, not 101"),
        (("orders",), {"priority": -101}, ValueError, "priority is"),
        (("orders",), {"priority": "5"}, ValueError, "priority is"),
        (("orders",), {"priority": 1.0}, ValueError, "priority is"),
        (("orders",), {"priority": True}, ValueError, "priority is"),
        (("orders",), {"delay": -1}, ValueError, "delay is a number of seconds from 0 or a timedelta, not -1"),
        (("orders",), {"delay": timedelta(seconds=-1)}, ValueError, "delay is"),
        (("orders",), {"delay": "5"}, ValueError, "delay is"),
        (("orders",), {"delay": True}, ValueError, "delay is"),
        (("orders",), {"delay": float("nan")}, ValueError, "delay is"),
        (("orders",), {"delay": float("inf")}, ValueError, "delay is"),
        (("orders",), {"delay": 10**400}, ValueError, "delay is"),
        (("orders",), {"delay": timedelta.max}, ValueError, "delay is"),
        (("orders",), {"event_id": "0192"}, TypeError, r"event_id is a uuid\.UUID, not '0192'"),
        (("orders",), {"event_id": 1}, TypeError, "event_id is"),
    ],
)
def test_what_is_wrong_is_refused_by_name_before_any_sql(arguments, given, kind, sentence):
    many_handlers(1, "orders")
    with transaction.atomic():
        with CaptureQueriesContext(connection) as queries, pytest.raises(kind, match=sentence) as caught:
            publish(*arguments, **given)
        assert not queries.captured_queries
        str(caught.value).encode()  # It can be logged anywhere.
        assert len(str(caught.value)) < 1000
        assert publish("orders") == 1  # The transaction can be used still.


@pytest.mark.parametrize(
    ("events", "given", "kind", "sentence"),
    [
        (["orders"], {}, InvalidPayload, r"events\[0\] is not a pair \(topic, payload\)"),
        ([("orders", 1), ("orders",)], {}, InvalidPayload, r"events\[1\] is not a pair"),
        ([("orders", 1), ("orders", 1, 2)], {}, InvalidPayload, r"events\[1\] is not a pair"),
        ({"orders": 1}, {}, InvalidPayload, r"events\[0\] is not a pair"),
        (["ab"], {}, InvalidPayload, r"events\[0\] is not a pair"),
        ([("orders", 1), ("orders", {1})], {}, InvalidPayload, r"^events\[1\]: payload is a set"),
        ([("orders", 1), ("or ders", 1)], {}, InvalidTopic, r"^events\[1\]: The topic 'or ders'"),
        ([("orders", 1)], {"event_ids": []}, ValueError, "event_ids holds 0 ids for 1 events"),
        ([], {"event_ids": [uuid.uuid4()]}, ValueError, "event_ids holds 1 ids for 0 events"),
        ([("orders", 1)], {"event_ids": ["x"]}, TypeError, r"event_id is a uuid\.UUID, not 'x'"),
        ([("orders", 1)], {"delay": -1}, ValueError, "delay is"),
        ([("orders", 1)], {"priority": 101}, ValueError, "priority is"),
    ],
)
def test_many_are_refused_together(events, given, kind, sentence):
    with CaptureQueriesContext(connection) as queries, pytest.raises(kind, match=sentence):
        publish_many(events, **given)
    assert not queries.captured_queries


def test_of_many_the_one_that_is_wrong_is_named():
    with pytest.raises(InvalidPayload) as caught:
        publish_many([("orders", 1), ("orders", {"a": {1}})])
    assert caught.value.path == "events[1].payload['a']"
    assert str(caught.value).startswith("events[1]: payload['a'] is a set")
    with pytest.raises(InvalidTopic, match=r"^events\[1\]: The topic"):
        publish_many([("orders", 1), ("orders.", 1)])


def test_what_is_refused_tells_no_value():
    with pytest.raises(InvalidPayload) as caught:
        publish("orders", {"token": {"hunter2"}})
    assert "hunter2" not in str(caught.value)


# --- async, waking, autocommit ------------------------------------------------------------------------


def test_the_async_twins_do_the_same_in_the_same_transaction():
    many_handlers(2, "orders")

    async def publishes():
        with pytest.raises(InvalidTopic):
            await apublish("orders.")
        return await apublish("orders", {"n": 1}, priority=3, headers={"a": 1}), await apublish_many(
            [("orders", 1), ("nobody", 2)], delay=60
        )

    assert async_to_sync(publishes)() == (2, [2, 0])
    assert {(copy.priority, copy.topic) for copy in copies()} == {(3, "orders")}
    assert Delayed.objects.count() == 2


def test_the_async_twins_take_what_the_others_take():
    for one, twin in ((publish, apublish), (publish_many, apublish_many)):
        assert inspect.signature(one) == inspect.signature(twin)
        assert inspect.iscoroutinefunction(twin)


@pytest.fixture
def notes(monkeypatch):
    sent = []
    monkeypatch.setattr(wake, "notify", sent.extend)
    return sent


@COMMITTED
def test_workers_are_woken_after_the_commit_once_for_each_queue_and_priority(notes):
    subscriptions.declare([a_handler("nowhere.a", "orders", queue="@mail", priority=3)])
    many_handlers(5, "orders")
    with transaction.atomic():
        publish("orders")
        publish("orders")
        assert not notes
    lowest = {(copy.queue, copy.priority): copy.position for copy in reversed(Message.objects.order_by("position"))}
    assert sorted(notes) == sorted(["ready", *level, False, position] for level, position in lowest.items())
    assert set(LevelRow.objects.values_list("queue", "priority")) == {("@mail", 3), ("@events", 0)}


@COMMITTED
def test_nobody_is_woken_for_what_was_rolled_back_or_is_for_nobody(notes):
    many_handlers(1, "orders")
    with transaction.atomic():
        publish("orders")
        transaction.set_rollback(True)
    publish("nobody")
    assert not notes
    assert not LevelRow.objects.exists()


@COMMITTED
def test_workers_are_told_when_a_delayed_event_is_due_soon(notes):
    many_handlers(3, "orders")
    publish("orders", delay=0.25)
    publish("orders", delay=3600)
    assert notes == [["due", "@events", pytest.approx(0.25, abs=0.2)]]
    assert LevelRow.objects.get().queue == "@events"


@COMMITTED
def test_a_wake_up_that_fails_costs_a_poll_and_nothing_else(monkeypatch):
    many_handlers(1, "orders")

    def fails(notes):
        raise RuntimeError("no")

    monkeypatch.setattr(wake, "notify", fails)
    assert publish("orders") == 1
    with transaction.atomic():
        assert publish("orders") == 1
    assert len(copies()) == 2


@COMMITTED
def test_with_autocommit_off_it_is_published_with_the_caller_s_commit(notes):
    many_handlers(1, "orders")
    with sessions() as other:

        def off():
            transaction.set_autocommit(False)
            return publish("orders"), publish_many([("orders", n) for n in range(CHUNK + 1)])[-1]

        assert other.do(off) == (1, 1)
        assert not copies()
        other.do(transaction.commit)
        assert len(copies()) == CHUNK + 2
        other.do(off)
        other.do(transaction.rollback)
        other.do(transaction.set_autocommit, True)
    assert len(copies()) == CHUNK + 2
    assert not notes  # Django runs no hooks there; a poll finds it.


@pytest.mark.django_db(databases=["default", "other"])
def test_it_is_published_where_our_tables_are_whatever_else_is_open():
    many_handlers(1, "orders")
    with transaction.atomic(using="other"), CaptureQueriesContext(connections["other"]) as queries:
        assert publish("orders") == 1
    assert not [query for query in queries if "pgbus" in query["sql"]]
