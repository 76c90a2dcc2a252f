"""`consume_stream` lets the groups of a stream handle in the test what was appended, as a worker would."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase, TransactionTestCase

from django_pgbus import ConsumeRefused, Stream, consume
from django_pgbus.models import Cursor, DeadLetter, EntryException, Message, QueueState, RangeLease
from django_pgbus.streams import groups
from django_pgbus.streams.consumers import consumers
from django_pgbus.testing import (
    PgbusTestMixin,
    aconsume_stream,
    assert_published,
    consume_stream,
    deliver_published,
    published,
)
from tests.streams.following import let_others_end
from tests.testing import streams


def cursor(group: str, stream: str = "helped") -> tuple[int, int]:
    """Return claimed and committed, from the head of the log."""
    row = Cursor.objects.get(group__name=group, group__stream__name=stream)
    head = Stream(stream).head()
    return row.claimed - head, row.committed - head


class _Declared:
    def setUp(self) -> None:
        self.helped = self.enterContext(streams.declared())  # type: ignore[attr-defined]

    def append(self, *numbers: int) -> None:
        self.helped.append_many([{"n": n} for n in numbers])


class Handling(_Declared, PgbusTestMixin, TestCase):
    def test_one_by_one_and_in_order(self) -> None:
        self.append(1, 2, 3)
        assert self.consume_stream("helped", "single") == 3
        assert streams.seen == [("single", 1), ("single", 2), ("single", 3)]
        assert cursor("single") == (0, 0)
        assert not RangeLease.objects.exists()

    def test_what_was_handled_is_not_handled_again(self) -> None:
        self.append(1)
        consume_stream(self.helped, "single")
        assert consume_stream(self.helped, "single") == 0
        self.append(2)
        assert consume_stream(self.helped, "single") == 1
        assert streams.seen == [("single", 1), ("single", 2)]

    def test_in_batches_of_the_size_that_is_declared(self) -> None:
        self.append(1, 2, 3, 4)
        assert consume_stream("helped", "batch") == 4
        assert streams.seen == [("batch", [1, 2, 3]), ("batch", [4])]

    def test_positions_that_were_rolled_back_are_passed(self) -> None:
        self.append(1)
        with transaction.atomic():
            self.append(2)
            transaction.set_rollback(True)
        self.append(3)
        assert consume_stream("helped", "batch") == 2
        assert streams.seen == [("batch", [1, 3])]
        assert cursor("batch") == (0, 0)

    def test_a_handler_that_is_not_synchronous_is_in_the_same_transaction(self) -> None:
        QueueState.objects.create(queue="here")
        self.append(1, 2)
        assert consume_stream("helped", "keyed") == 2
        assert streams.seen == [("keyed", 1, 1), ("keyed", 2, 1)]

    def test_all_groups_of_the_stream_that_this_code_has(self) -> None:
        for name in ("echo", "spoils", "routed", "forgotten"):
            del consumers["helped", name]
        self.append(1)
        assert consume_stream("helped") == 4
        assert {name for name, *_ in streams.seen} == {"single", "batch", "sums", "keyed"}

    def test_what_a_handler_appends_is_handled_too(self) -> None:
        self.append(1)
        assert consume_stream("helped", "echo") == 3
        assert cursor("echo") == (0, 0)

    def test_a_handler_that_feeds_itself_is_found_out(self) -> None:
        self.append(99)
        with pytest.raises(
            AssertionError, match=r"21 entries to helped/echo, which are more than 20\. Does the handler"
        ):
            consume_stream("helped", "echo", limit=20)

    def test_a_group_that_starts_at_the_end_begins_with_the_first_call(self) -> None:
        late = Stream("helped-late")
        late.ensure()
        late.append({"n": 1})
        assert consume_stream(late) == 0
        late.append({"n": 2})
        assert consume_stream(late) == 1
        assert streams.seen == [("late", 2)]

    def test_a_paused_group_is_left_alone(self) -> None:
        self.append(1)
        consume_stream("helped", "single")
        self.append(2)
        groups.pause("helped", "single")
        assert consume_stream("helped", "single") == 0
        groups.resume("helped", "single")
        assert consume_stream("helped", "single") == 1

    def test_after_a_rewind_entries_are_handled_again(self) -> None:
        self.append(1, 2)
        consume_stream("helped", "single")
        groups.rewind("helped", "single", self.helped.head() - 1)
        assert consume_stream("helped", "single") == 1
        assert streams.seen[-1] == ("single", 2)

    def test_a_stream_or_a_group_that_no_code_declares_is_named(self) -> None:
        with pytest.raises(ValueError, match="the group 'nobody' of the stream 'helped'; there is .*helped/single"):
            consume_stream("helped", "nobody")
        with pytest.raises(ValueError, match="no consumer for a group of the stream 'helpt'"):
            consume_stream("helpt")

    def test_a_group_that_would_refuse_to_work_says_so(self) -> None:
        consume_stream("helped", "single")
        Cursor.objects.update(epoch="of/another")
        with pytest.raises(ConsumeRefused, match="helped/single: its cursor belongs to another log"):
            consume_stream("helped", "single")

    async def test_from_asynchronous_code(self) -> None:
        await self.helped.aappend({"n": 1})
        assert await aconsume_stream("helped", "single") == 1


class Failing(_Declared, TestCase):
    def test_what_fails_is_raised_and_the_rest_of_its_range_is_handled(self) -> None:
        self.append(1, 2, 3)
        streams.broken.add(2)
        with pytest.raises(ConnectionError, match="single 2, attempt 1"):
            consume_stream("helped", "single")
        assert streams.seen == [("single", 1), ("single", 2), ("single", 3)]
        row = EntryException.objects.get()
        assert (row.status, row.attempts, row.exception) == ("ready", 1, "builtins.ConnectionError")
        assert cursor("single") == (0, -2)

    def test_an_entry_is_tried_again_when_it_is_asked_for(self) -> None:
        self.append(1, 2)
        streams.broken.add(1)
        assert consume_stream("helped", "single", raise_failures=False) == 1
        assert consume_stream("helped", "single") == 0  # not due yet
        streams.broken.clear()
        assert consume_stream("helped", "single", include_delayed=True) == 1
        assert not EntryException.objects.exists()
        assert cursor("single") == (0, 0)

    def test_an_entry_that_fails_to_the_end_is_a_dead_letter(self) -> None:
        self.append(1)
        streams.broken.add(1)
        assert consume_stream("helped", "single", include_delayed=True, raise_failures=False) == 0
        assert streams.seen == [("single", 1)] * 2
        row = EntryException.objects.get()
        assert (row.status, row.attempts) == ("dead", 2)
        assert cursor("single") == (0, 0)

    def test_a_second_failure_is_raised_too(self) -> None:
        self.append(1)
        streams.broken.add(1)
        consume_stream("helped", "single", raise_failures=False)
        with pytest.raises(ConnectionError, match="single 1, attempt 2"):
            consume_stream("helped", "single", include_delayed=True)

    def test_a_batch_that_fails_is_tried_entry_by_entry(self) -> None:
        self.append(1, 2, 3)
        streams.broken.add(2)
        assert consume_stream("helped", "batch", raise_failures=False) == 2
        assert streams.seen == [("batch", [1, 2, 3]), ("batch", [1]), ("batch", [2]), ("batch", [3])]

    def test_a_transactional_batch_leaves_nothing_of_what_fails(self) -> None:
        self.append(1, 2, 3)
        streams.broken.add(2)
        with pytest.raises(ConnectionError, match="sums 2, attempt 1"):
            consume_stream("helped", "sums")
        assert set(QueueState.objects.values_list("queue", flat=True)) == {"helped-1", "helped-3"}
        assert cursor("sums") == (0, -2)

    def test_later_entries_of_a_key_wait_for_the_one_that_failed(self) -> None:
        self.append(1, 2, 3)
        streams.broken.add(1)
        with pytest.raises(ConnectionError, match="keyed"):
            consume_stream("helped", "keyed")
        assert [n for _, n, _ in streams.seen] == [1, 2]
        streams.broken.clear()
        assert consume_stream("helped", "keyed", include_delayed=True) == 2
        assert [n for _, n, _ in streams.seen] == [1, 2, 1, 3]

    def test_a_handler_whose_sql_failed_leaves_the_transaction_of_the_test_usable(self) -> None:
        self.append(1)
        with pytest.raises(Exception, match="division by zero"):
            consume_stream("helped", "spoils")
        assert EntryException.objects.get().exception == "django.db.utils.DataError"

    def test_an_entry_that_cannot_be_read_is_said(self) -> None:
        with connection.cursor() as db:
            db.execute(f"INSERT INTO pgbus_stream_{self.helped.id()} (payload) VALUES (%s)", ["1" * 5000])
        with pytest.raises(AssertionError, match="helped/single cannot handle the entry at"):
            consume_stream("helped", "single")


class Routing(_Declared, TestCase):
    def test_what_is_routed_is_a_message_and_runs_as_one(self) -> None:
        self.append(1, 2, 3, 4)
        assert consume_stream("helped", "routed") == 2
        assert list(Message.objects.order_by("id").values_list("queue", "topic")) == [("@big", "helped/routed")] * 2
        assert cursor("routed") == (0, 0)
        assert published() == []
        delivered = deliver_published("big")
        assert [(one.event.payload, one.error) for one in delivered] == [({"n": 3}, None), ({"n": 4}, None)]
        assert streams.seen == [("routed", 3), ("routed", 4)]
        assert_published("from.routed", count=2)
        assert consume_stream("helped", "routed") == 0

    def test_a_routed_entry_that_fails_is_tried_like_a_job(self) -> None:
        self.append(3)
        streams.broken.add(3)
        consume_stream("helped", "routed")
        deliver_published("big", include_delayed=True, raise_failures=False)
        assert DeadLetter.objects.get().topic == "helped/routed"

    def test_a_routed_entry_whose_handler_nobody_awaits_has_failed(self) -> None:
        self.append(3)
        consume_stream("helped", "forgotten")
        with pytest.raises(TypeError, match="a coroutine that nobody awaits"):
            deliver_published("forgotten")
        assert streams.seen == []
        assert DeadLetter.objects.get().topic == "helped/forgotten"

    def test_of_a_function_with_several_groups_the_one_that_routes_counts(self) -> None:
        consume("helped", group="before", max_attempts=1)(streams.routed)
        consumers["helped", "routed"] = consumers.pop(("helped", "routed"))  # the last
        self.append(3)
        streams.broken.add(3)
        consume_stream("helped", "routed")
        deliver_published("big", raise_failures=False)
        assert not DeadLetter.objects.exists()

    def test_where_the_function_fails_the_entry_is_routed_all_the_same(self) -> None:
        self.helped.append({"m": 1})
        assert consume_stream("helped", "routed") == 1
        assert Message.objects.get().queue == "@unrouted"


class Committing(_Declared, TransactionTestCase):
    def test_in_a_transaction_of_its_own_a_claim_waits_for_who_is_still_writing(self) -> None:
        self.append(1)
        consume_stream("helped", "single")
        appended, go_on = threading.Event(), threading.Event()

        def write() -> None:
            try:
                with transaction.atomic():
                    self.append(2)
                    appended.set()
                    go_on.wait(30)
            finally:
                connections.close_all()

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert appended.wait(30)
            self.append(3)
            assert consume_stream("helped", "single") == 0
        finally:
            go_on.set()
            writer.join()
        assert consume_stream("helped", "single") == 2
        assert streams.seen == [("single", 1), ("single", 2), ("single", 3)]

    def test_what_was_rolled_back_is_passed_by_the_proof(self) -> None:
        self.append(1)
        with transaction.atomic():
            self.append(2)
            transaction.set_rollback(True)
        self.append(3)
        let_others_end()
        assert consume_stream("helped", "single") == 2
        assert cursor("single") == (0, 0)

    def test_each_kind_of_group(self) -> None:
        self.append(1, 2, 3)
        for group, count in (("batch", 3), ("sums", 3), ("keyed", 3), ("routed", 1)):
            assert consume_stream("helped", group) == count
        assert QueueState.objects.filter(queue__startswith="helped").count() == 3
        assert len(deliver_published("big")) == 1

    def test_a_claim_inside_atomic_counts_what_it_sees(self) -> None:
        with transaction.atomic():
            self.append(1, 2)
            assert consume_stream("helped", "single") == 2
        assert cursor("single") == (0, 0)


def test_the_fixture(pgbus_consume_stream: Any) -> None:
    with streams.declared() as helped:
        helped.append({"n": 7})
        assert pgbus_consume_stream("helped", "single") == 1
