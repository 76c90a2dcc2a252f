"""The record shop: what is an order, what the importer does with the rest, and that an order is written once."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.contrib.auth import get_user_model
from django.core import mail
from django.core.management import CommandError, call_command
from django.core.management.base import OutputWrapper
from django.db import connections, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.urls import reverse
from shop import (
    bookkeeping,
    closing,
    closing_events,
    events,
    handlers,
    importing,
    jobs,
    orders,
    payments,
    receipts,
    reports,
    rows,
    runs,
    streams,
    tasks,
    welcomes,
)
from shop.demo import repeats
from shop.demo.fresh import empty_shop
from shop.demo.progress import Progress
from shop.gateway import Gateway
from shop.models import (
    AuditEntry,
    Customer,
    DayTotal,
    Order,
    Payment,
    Receipt,
    Run,
    SalesDay,
    StockMovement,
    Welcome,
)

from django_pgbus import Batch, Event, TaskSuperseded, publish
from django_pgbus.events.handlers import handlers as declared
from django_pgbus.idempotency import claims
from django_pgbus.models import (
    Archived,
    BatchCount,
    BlockedExecution,
    DeadLetter,
    EventCount,
    Message,
    ProcessedEvent,
    UniquenessKey,
)
from django_pgbus.models import Batch as BatchRow
from django_pgbus.streams.consumers import consumers
from django_pgbus.testing import (
    assert_not_published,
    assert_published,
    consume_stream,
    declare_subscriptions,
    deliver_published,
    published,
    run_enqueued,
)

GOOD = {"order_id": "17", "customer_id": "3", "placed_on": "1997-01-18", "quantity": "2", "amount": "29.73"}
HEADER = "order_id,customer_id,placed_on,quantity,amount\n"
SAMPLE = Path(rows.__file__).resolve().parents[1] / "orders_sample.csv"
REAL = SAMPLE.parents[2] / "shared" / "data" / "orders.csv"


@contextmanager
def order_file(text: str | bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders.csv"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        yield path


def enqueued(name: str) -> list[Message]:
    return list(Message.objects.filter(task=f"shop.tasks.{name}").order_by("id"))


def enqueued_copies() -> list[str]:
    copies = Message.objects.filter(task__startswith=jobs.HANDLERS).order_by("task")
    return [each.task.removeprefix(jobs.HANDLERS) for each in copies]


def parked() -> list[str]:
    return list(BlockedExecution.objects.order_by("id").values_list("task", flat=True))


def row(**changes: str) -> rows.OrderRow:
    return rows.validate({**GOOD, **changes})


class Validation(SimpleTestCase):
    def test_a_good_row_gets_its_types(self) -> None:
        order = rows.validate(GOOD)
        assert (order.order_id, order.customer_id, order.quantity) == (17, 3, 2)
        assert (order.placed_on, order.amount) == (date(1997, 1, 18), Decimal("29.73"))
        assert rows.validate({name: str(value) for name, value in order.as_json().items()}) == order

    def test_an_order_may_be_free_of_charge(self) -> None:
        assert row(amount="0.00").amount == 0

    def test_each_fault_is_named(self) -> None:
        for column, text, reason in [
            ("placed_on", "1997-02-30", "not a date"),
            ("placed_on", "18/01/1997", "not a date"),
            ("placed_on", "19970118", "not a date"),
            ("quantity", "-3", "quantity -3 is negative"),
            ("quantity", "0", "quantity 0 is zero"),
            ("quantity", "two", "not a whole number"),
            ("quantity", "1_000", "not a whole number"),
            ("quantity", "\u0662", "not a whole number"),
            ("quantity", "", "not a whole number"),
            ("amount", "-5.00", "amount -5.00 is negative"),
            ("amount", "NaN", "not an amount"),
            ("amount", "1e3", "not an amount"),
            ("amount", "1.999", "not an amount"),
            ("customer_id", "5\\x00", "not a whole number"),
            ("order_id", "99999999999", "not a whole number"),
        ]:
            with self.subTest(column=column, text=text), pytest.raises(rows.BrokenRowError, match=reason):
                row(**{column: text})

    def test_too_few_and_too_many_columns(self) -> None:
        with pytest.raises(rows.BrokenRowError, match="amount is missing"):
            rows.validate({name: text for name, text in GOOD.items() if name != "amount"})
        with pytest.raises(rows.BrokenRowError, match="beyond its 5 columns"):
            rows.validate({**GOOD, rows.EXTRA: ["6"]})


class Reading(SimpleTestCase):
    def read(self, text: str | bytes) -> list[tuple[int, dict[str, Any]]]:
        with order_file(text) as path:
            return list(rows.read(path))

    def test_columns_may_stand_in_any_order_and_blank_lines_are_no_rows(self) -> None:
        found = self.read("\ufeffamount,quantity,placed_on,customer_id,order_id\r\n29.73,2,1997-01-18,3,17\r\n\r\n")
        assert found == [(2, GOOD)]

    def test_a_stray_quote_breaks_its_own_row_only(self) -> None:
        found = self.read(HEADER + '16,"3,1997-01-18,2,29.73\n17,3,1997-01-18,2,29.73\n')
        assert [line for line, _ in found] == [2, 3]
        assert found[1][1] == GOOD

    def test_a_field_beyond_the_csv_limit_is_a_broken_row(self) -> None:
        ((_, found),) = self.read(HEADER + "9" * 200_000 + "\n")
        with pytest.raises(rows.BrokenRowError):
            rows.validate(found)

    def test_other_columns_are_refused(self) -> None:
        with pytest.raises(rows.HeaderError, match="order_id"):
            self.read("id,name\n1,x\n")
        with pytest.raises(rows.HeaderError):
            self.read("")


class Importer(TestCase):
    def load(self, text: str | bytes, **options: Any) -> importing.Imported:
        with order_file(text) as path:
            return importing.import_file(path, **options)

    def test_one_task_per_row_in_order(self) -> None:
        text = HEADER + "".join(f"{number},3,1997-01-18,2,29.73\n" for number in range(1, 8))
        imported = self.load(text, chunk=3)
        assert (imported.read, imported.enqueued, imported.escaped, imported.refused) == (7, 7, [], [])
        waiting = enqueued("import_order")
        assert [f'"order_id":"{number}"' in job.payload for number, job in enumerate(waiting, 1)] == [True] * 7
        assert {job.queue for job in waiting} == {"imports"}

    def test_what_cannot_be_stored_is_written_out_and_its_neighbours_are_untouched(self) -> None:
        imported = self.load(
            HEADER.encode()
            + b"1,3,1997-01-18,2,29.73\n2,3\x00,1997-01-18,2,29.73\n3,\xff,1997-01-18,2,29.73\n4,3,1997-01-18,2,29.73\n"
        )
        assert (imported.read, imported.enqueued, imported.escaped, imported.refused) == (4, 4, [3, 4], [])
        payloads = [job.payload for job in enqueued("import_order")]
        assert "3\\\\x00" in payloads[1]
        assert "\\\\udcff" in payloads[2]

    @override_settings(PGBUS={"MAX_PAYLOAD_BYTES": 1000})
    def test_what_cannot_be_sent_at_all_is_refused_with_its_reason(self) -> None:
        imported = self.load(HEADER + "1,3,1997-01-18,2,29.73\n2,3,1997-01-18,2," + "9" * 2000 + "\n")
        assert (imported.read, imported.enqueued) == (2, 1)
        ((line, reason),) = imported.refused
        assert line == 3
        assert "MAX_PAYLOAD_BYTES" in reason

    def test_the_command_says_what_it_did(self) -> None:
        out = StringIO()
        call_command("import_orders", SAMPLE, stdout=out)
        assert "409 rows read, 407 enqueued, 2 there already, 0 refused" in out.getvalue()
        assert "written out" in out.getvalue()
        assert f"batch {BatchRow.objects.get().id}: a report is mailed" in out.getvalue()
        with order_file("nonsense\n") as path, pytest.raises(CommandError, match="begins with"):
            call_command("import_orders", path)

    def test_the_same_file_twice_is_imported_once(self) -> None:
        text = HEADER + "1,3,1997-01-18,2,29.73\n2,3,1997-02-30,2,29.73\n1,3,1997-01-18,2,29.73\n"
        first, second = self.load(text), self.load(text)
        assert (first.enqueued, first.duplicates) == (2, [4])
        assert (second.enqueued, second.duplicates) == (0, [2, 3, 4])
        assert len(enqueued("import_order")) == 2
        run_enqueued(queues=["imports", "orders"], raise_failures=False)
        third = self.load(text)  # done, so it goes through once more, and changes nothing
        assert (third.enqueued, third.duplicates) == (2, [4])
        run_enqueued(queues=["imports", "orders"], raise_failures=False)
        assert Order.objects.count() == 1
        assert Customer.objects.get().orders_placed == 1

    def test_a_broken_row_is_not_in_the_way_of_a_good_one_with_its_number(self) -> None:
        imported = self.load(HEADER + "1,3,1997-02-30,2,29.73\n1,3,1997-01-18,2,29.73\n")
        assert (imported.enqueued, imported.duplicates) == (2, [])

    def test_duplicates_beside_a_row_that_cannot_be_stored(self) -> None:
        imported = self.load(
            HEADER.encode() + b"1,3,1997-01-18,2,29.73\n1,3,1997-01-18,2,29.73\n2,3\x00,1997-01-18,2,1\n"
        )
        assert (imported.read, imported.enqueued) == (3, 2)
        assert (imported.duplicates, imported.escaped) == ([3], [4])

    def test_a_file_is_one_batch_of_the_rows_that_were_let_in(self) -> None:
        line = "{},3,1997-01-18,2,29.73\n"
        imported = self.load(HEADER + "".join(line.format(number) for number in (1, 2, 3, 2)), chunk=2)
        batch = BatchRow.objects.get()
        assert (imported.batch, batch.description) == (batch.id, "Import of orders.csv")
        assert {job.batch_id for job in enqueued("import_order")} == {batch.id}
        assert sum(BatchCount.objects.values_list("added", flat=True)) == imported.enqueued == 3

    def test_a_file_that_cannot_be_read_to_its_end_leaves_nothing(self) -> None:
        whole = [(2, GOOD), (3, {**GOOD, "order_id": "18"})]

        def broken_off(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
            yield from whole
            raise OSError("the disk is gone")

        with mock.patch.object(rows, "read", broken_off), pytest.raises(OSError, match="disk"):
            self.load("", chunk=1)
        assert not BatchRow.objects.exists()
        assert not enqueued("import_order")


@override_settings(MAILERS={"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}})  # Django 6.1
class Reports(TestCase):
    TEXT = HEADER + "1,3,1997-01-18,2,29.73\n2,3,1997-02-30,2,29.73\n3,3,1997-01-18,-2,29.73\n"

    def load(self, text: str) -> importing.Imported:
        with order_file(text) as path:
            imported = importing.import_file(path)
        run_enqueued(queues=["imports"], raise_failures=False)
        return imported

    def test_the_end_of_an_import_is_mailed_with_its_counts(self) -> None:
        imported = self.load(self.TEXT)
        assert len(enqueued("mail_report")) == len(enqueued("mail_broken_rows")) == 1
        batch = Batch.get(imported.batch)
        assert reports.arrived(batch) is None
        run_enqueued(queues=["mail"])
        report, broken = sorted(mail.outbox, key=lambda letter: "broken" in letter.subject)
        assert report.subject == reports.arrived(batch) == "Import of orders.csv: 1 of 3 rows are orders"
        assert report.message()["Message-ID"] == f"<import-{imported.batch}@shop.example.com>"
        assert broken.subject == "Import of orders.csv: 2 rows are broken"
        assert "line 3: placed_on '1997-02-30' is not a date" in broken.body
        assert "line 4: quantity -2 is negative" in broken.body

    def test_no_list_of_broken_rows_where_there_are_none(self) -> None:
        self.load(HEADER + "1,3,1997-01-18,2,29.73\n")
        assert len(enqueued("mail_report")) == 1
        assert not enqueued("mail_broken_rows")

    def test_nothing_is_reported_before_the_last_row_has_ended(self) -> None:
        with order_file(self.TEXT) as path:
            imported = importing.import_file(path)
        run_enqueued(queues=["mail", "orders"])
        assert not enqueued("mail_report")
        assert reports.arrived(Batch.get(imported.batch)) is None
        assert jobs.steps_to_come() == 3 * jobs.steps("shop.tasks.import_order") + 1

    def test_a_file_of_orders_that_are_being_imported_is_nothing_new(self) -> None:
        with order_file(self.TEXT) as path:
            importing.import_file(path)
            again = importing.import_file(path)
        run_enqueued(queues=["mail"])
        (report,) = mail.outbox
        assert report.subject == "Import of orders.csv: nothing new"
        assert receipts.mailed(Path("nowhere"), "import")[again.batch] == 0


class Orders(TestCase):
    def test_an_order_is_written_once_and_its_customer_with_it(self) -> None:
        assert orders.write(row())
        assert not orders.write(row())
        customer = Customer.objects.get()
        assert (customer.orders_placed, customer.spent) == (1, Decimal("29.73"))
        order = Order.objects.get()
        assert order.unit_price == Decimal("14.87")
        assert orders.as_row(order) == row()

    def test_the_same_number_with_other_values_is_broken_and_changes_nothing(self) -> None:
        orders.write(row())
        with pytest.raises(rows.BrokenRowError, match="other values"):
            orders.write(row(customer_id="4"))
        assert list(Customer.objects.values_list("pk", "orders_placed")) == [(3, 1)]


class Steps(TestCase):
    def test_import_order_hands_a_good_row_on(self) -> None:
        tasks.import_order.call(GOOD, line=2)
        (job,) = enqueued("write_order")
        assert '"amount":"29.73"' in job.payload

    def test_import_order_names_the_line_of_a_broken_row(self) -> None:
        with pytest.raises(rows.BrokenRowError, match="line 9: quantity -1 is negative"):
            tasks.import_order.call({**GOOD, "quantity": "-1"}, line=9)
        assert not enqueued("write_order")

    def test_write_order_charges_a_new_order_once(self) -> None:
        assert tasks.write_order.call(row().as_json()) == {"order": 17, "written": True}
        assert tasks.write_order.call(row().as_json()) == {"order": 17, "written": False}
        assert parked() == ["shop.tasks.charge_customer"]
        assert not enqueued("send_receipt")

    def test_an_order_free_of_charge_goes_straight_to_its_receipt(self) -> None:
        tasks.write_order.call(row(amount="0.00").as_json())
        assert not parked()
        assert len(enqueued("send_receipt")) == 1

    def test_a_payment_is_recorded_once_however_often_it_is_asked_for(self) -> None:
        orders.write(row())
        with Gateway(failures=0, latency=0) as gateway, override_settings(SHOP_GATEWAY_URL=gateway.url):
            first, second = tasks.call_gateway.call(17), tasks.call_gateway.call(17)
        assert (first["recorded"], second["recorded"]) == (True, False)
        assert gateway.charged == {17: 2973}
        assert gateway.asked == {17: 2}
        assert Payment.objects.get().amount == Decimal("29.73")
        assert len(enqueued("send_receipt")) == 1
        assert Run.objects.filter(task="call_gateway").count() == 2

    def test_a_gateway_that_fails_is_noted_too_and_anything_else_is_not(self) -> None:
        orders.write(row())
        for error, notes in ((payments.GatewayError, 1), (TaskSuperseded, 1)):
            with mock.patch("shop.payments.ask_gateway", side_effect=error), pytest.raises(error):
                tasks.call_gateway.call(17)
            assert Run.objects.count() == notes

    def test_charging_enters_the_order_in_the_customers_account(self) -> None:
        for number in ("17", "18"):
            orders.write(row(order_id=number))
            tasks.charge_customer.call(int(number), 3)
        assert Customer.objects.get().charged == Decimal("59.46")
        assert parked() == ["shop.tasks.call_gateway"] * 2
        assert set(Run.objects.values_list("task", "key")) == {("charge_customer", "customer-3")}

    def test_jobs_are_limited_by_customer_and_gateway(self) -> None:
        charge, call = tasks.charge_customer.limit, tasks.call_gateway.limit
        assert (charge.to, charge.key(17, 3), charge.key(18, 3)) == (1, "customer-3", "customer-3")
        assert (call.to, call.key(17), call.key(18)) == (4, "gateway", "gateway")

    @override_settings(MAILERS={"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}})  # Django 6.1
    def test_a_receipt_is_mailed_once(self) -> None:
        orders.write(row())
        assert tasks.send_receipt.call(17)["mailed"]
        assert not tasks.send_receipt.call(17)["mailed"]
        assert Receipt.objects.get().sent_to == "customer-3@example.com"
        (letter,) = mail.outbox
        assert letter.message()["Message-ID"] == "<order-17@shop.example.com>"
        assert "2 x 14.87 = 29.73" in letter.body

    def test_mails_are_counted_by_their_order(self) -> None:
        orders.write(row())
        text = receipts.letter(Order.objects.get()).message().as_bytes()
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "1.log").write_bytes(text + b"\n" + b"-" * 79 + b"\n" + text)
            assert receipts.mailed(Path(folder)) == {17: 2}

    def test_only_broken_rows_give_up_at_once(self) -> None:
        assert tasks.unless_broken(rows.BrokenRowError("x"), None) is None
        assert tasks.unless_broken(OSError(), None) == 0.5


class Telling(TestCase):
    def setUp(self) -> None:
        declare_subscriptions()

    def test_a_new_order_is_told_once_with_what_it_was_written_from(self) -> None:
        for _ in range(2):
            tasks.write_order.call(row().as_json())
        (event,) = assert_published(events.CREATED, {**row().as_json(), "nth_of_customer": 1}, count=1)
        assert rows.from_json(event.payload) == row()
        assert len(enqueued_copies()) == 4

    def test_an_order_is_told_with_its_place_among_those_of_its_customer(self) -> None:
        for number, customer in (("17", "3"), ("18", "3"), ("19", "4")):
            tasks.write_order.call(row(order_id=number, customer_id=customer).as_json())
        told = {event.payload["order_id"]: event.payload["nth_of_customer"] for event in published()}
        assert told == {17: 1, 18: 2, 19: 1}

    def test_an_order_that_is_not_written_is_not_told(self) -> None:
        orders.write(row())
        with pytest.raises(rows.BrokenRowError):
            tasks.write_order.call(row(quantity="3").as_json())
        assert_not_published("orders.#")

    def test_what_is_rolled_back_was_not_told(self) -> None:
        with transaction.atomic():
            tasks.write_order.call(row().as_json())
            transaction.set_rollback(True)
        assert_not_published("orders.#")

    def test_a_payment_is_told_once_when_it_is_recorded(self) -> None:
        orders.write(row())
        with Gateway(failures=0, latency=0) as gateway, override_settings(SHOP_GATEWAY_URL=gateway.url):
            for _ in range(2):
                tasks.call_gateway.call(17)
        paid = {"order_id": 17, "amount": "29.73", "reference": "charge-17"}
        assert_published(events.PAID, paid, count=1)
        assert enqueued_copies() == ["audit"]


@override_settings(MAILERS={"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}})  # Django 6.1
class Handlers(TestCase):
    def setUp(self) -> None:
        declare_subscriptions()

    def order(self, **changes: str) -> rows.OrderRow:
        order = row(**changes)
        events.order_created(order, nth_of_customer=orders.write(order))
        return order

    def again(self) -> None:
        """Publish everything once more, under the same ids."""
        for event in published():
            publish(event.topic, event.payload, event_id=event.id)

    def test_each_has_a_queue_to_itself_and_says_how_its_effect_counts_once(self) -> None:
        found = {
            name: (handler.queue, handler.idempotent, handler.policy.transactional)
            for name in ("take_from_stock", "count_sales", "welcome", "audit")
            for handler in [declared[f"{jobs.HANDLERS}{name}"]]
        }
        assert found == {
            "take_from_stock": ("@stock", False, True),
            "count_sales": ("@analytics", True, True),
            "welcome": ("@mail", False, False),
            "audit": ("@events", False, True),
        }

    def test_what_was_ordered_is_taken_from_the_stock_once(self) -> None:
        self.order()
        self.order(order_id="18", quantity="5")
        self.again()
        assert len(deliver_published("stock")) == 4
        assert dict(StockMovement.objects.values_list("order_id", "quantity")) == {17: 2, 18: 5}

    def test_sales_are_added_up_by_day_once_for_each_event(self) -> None:
        self.order()
        self.order(order_id="18", customer_id="4", quantity="1", amount="5.00")
        self.order(order_id="19", placed_on="1997-01-19")
        self.again()
        assert len(deliver_published("analytics")) == 3
        self.again()
        assert deliver_published("analytics") == []
        sales = SalesDay.objects.order_by("day").values_list("day", "orders", "quantity", "amount")
        assert list(sales) == [
            (date(1997, 1, 18), 2, 3, Decimal("34.73")),
            (date(1997, 1, 19), 1, 2, Decimal("29.73")),
        ]
        skipped = Archived.objects.filter(outcome=Archived.Outcome.SKIPPED)
        assert set(skipped.values_list("task", flat=True)) == {"shop.handlers.count_sales"}

    def test_adding_a_sale_twice_would_be_wrong(self) -> None:
        for _ in range(2):
            bookkeeping.count_sale(row())
        assert SalesDay.objects.get().orders == 2

    def test_a_customer_is_welcomed_at_the_first_order(self) -> None:
        self.order()
        self.order(order_id="18")
        deliver_published("mail")
        self.again()
        deliver_published("mail")
        (letter,) = mail.outbox
        assert letter.message()["Message-ID"] == "<welcome-3@shop.example.com>"
        assert Welcome.objects.get().sent_to == "customer-3@example.com"

    def test_a_customer_whom_the_host_does_not_know_is_the_failure_of_this_handler_alone(self) -> None:
        self.order(customer_id="50")
        delivered = deliver_published(include_delayed=True, raise_failures=False)
        errors = [one.error for one in delivered if one.handler == "shop.handlers.welcome"]
        assert [type(error) for error in errors] == [welcomes.RefusedError] * 6
        assert [one.error for one in delivered if one.handler != "shop.handlers.welcome"] == [None] * 3
        letter = DeadLetter.objects.get()
        assert (letter.task, letter.attempts) == ("shop.handlers.welcome", 6)
        assert jobs.last_error(letter).endswith("550 customer-50@example.com: no such mailbox")
        assert StockMovement.objects.exists()
        assert SalesDay.objects.get().orders == 1
        assert AuditEntry.objects.exists()
        assert not mail.outbox
        assert not Welcome.objects.exists()

    def test_the_host_is_asked_again_soon(self) -> None:
        (event,) = self.published_once()
        waits = [handlers.shortly(welcomes.RefusedError(), replace(event, attempt=nth)) for nth in (1, 2, 3, 6)]
        assert waits == pytest.approx([0.4, 0.8, 1.0, 1.0])

    def test_the_audit_has_every_event_once(self) -> None:
        (created,) = self.published_once()
        events.order_paid(Order.objects.get(), "charge-17")
        publish("orders.returned.partly", {"order_id": 17})  # a topic to come
        publish("customers.moved", {"customer_id": 3})
        self.again()
        deliver_published("events")
        kept = AuditEntry.objects.order_by("published_at")
        assert [each.topic for each in kept] == ["orders.created", "orders.paid", "orders.returned.partly"]
        assert (kept[0].pk, kept[0].payload, kept[0].published_at) == (
            created.id,
            created.payload,
            created.published_at,
        )

    def published_once(self) -> list[Event]:
        self.order()
        return assert_published(events.CREATED, count=1)


class Ledger(TestCase):
    def days(self, group: str) -> list[tuple[date, int, Decimal]]:
        return list(DayTotal.objects.filter(kept_by=group).order_by("day").values_list("day", "orders", "amount").all())

    def test_a_new_order_is_entered_once_by_the_transaction_that_writes_it(self) -> None:
        begin = streams.ledger.head()
        for _ in range(2):
            tasks.write_order.call(row().as_json())
        (entry,) = streams.ledger.read(begin)
        assert entry.payload == {"order_id": 17, "day": "1997-01-18", "amount": "29.73"}

    def test_what_is_rolled_back_is_not_entered(self) -> None:
        begin = streams.ledger.head()
        with transaction.atomic():
            tasks.write_order.call(row().as_json())
            transaction.set_rollback(True)
        assert streams.ledger.read(begin) == []

    def test_totals_are_kept_by_day_and_a_recount_arrives_at_the_same(self) -> None:
        for changes in ({}, {"amount": "5.10"}, {"placed_on": "1997-01-19"}):
            streams.enter(row(**changes))
        assert consume_stream(streams.ledger, streams.TOTALS) == 3
        streams.enter(row(placed_on="1997-01-19", amount="0.00"))
        assert consume_stream(streams.ledger, streams.TOTALS) == 1
        wanted = [(date(1997, 1, 18), 2, Decimal("34.83")), (date(1997, 1, 19), 2, Decimal("29.73"))]
        assert self.days(streams.TOTALS) == wanted
        assert self.days(streams.RECOUNT) == []
        assert streams.behind([streams.TOTALS, streams.RECOUNT]) >= 4
        assert consume_stream(streams.ledger, streams.RECOUNT) == 4
        assert self.days(streams.RECOUNT) == wanted
        assert streams.behind([streams.TOTALS, streams.RECOUNT]) == 0

    def test_both_commit_what_they_add_with_how_far_they_are(self) -> None:
        for group in (streams.TOTALS, streams.RECOUNT):
            consumer = consumers[streams.ledger.name, group]
            assert (consumer.transactional, consumer.start, consumer.key) == (True, "beginning", None)


class AtOnce(TestCase):
    def note(self, key: str, began: float, ended: float) -> None:
        start = datetime(2026, 1, 1, tzinfo=UTC)
        Run.objects.create(
            task="x", key=key, began=start + timedelta(seconds=began), ended=start + timedelta(seconds=ended)
        )

    def test_runs_of_one_key_that_overlap_are_counted(self) -> None:
        assert runs.most_at_once("x") == 0
        self.note("a", 0, 10)
        self.note("a", 10, 12)  # begins when the other ends
        self.note("b", 1, 11)
        assert runs.most_at_once("x") == 1
        self.note("a", 9, 11)
        assert runs.most_at_once("x") == 2
        assert runs.most_at_once("y") == 0


class FlakyGateway(TestCase):
    def setUp(self) -> None:
        orders.write(row())
        self.order = Order.objects.get()

    def test_the_same_questions_get_the_same_answers(self) -> None:
        answers = []
        for _ in range(2):
            gateway = Gateway(latency=0)
            answers.append([gateway.charge(order, 100)[0] for order in range(1000) for _ in range(2)])
            gateway._server.server_close()
        assert answers[0] == answers[1]
        assert 20 <= sum(status != 200 for status in answers[0]) <= 60

    def test_a_failure_is_an_error_that_can_be_tried_again(self) -> None:
        with Gateway(failures=1, latency=0) as gateway, override_settings(SHOP_GATEWAY_URL=gateway.url):
            with pytest.raises(payments.GatewayError, match=r"50[34]"):
                payments.ask_gateway(self.order)
            gateway.failures = 0
            assert payments.ask_gateway(self.order) == "charge-17"
        assert (gateway.failed, gateway.confirmed) == (1, 1)

    def test_another_amount_for_the_same_order_is_refused(self) -> None:
        with Gateway(failures=0, latency=0) as gateway, override_settings(SHOP_GATEWAY_URL=gateway.url):
            payments.ask_gateway(self.order)
            self.order.amount += 1
            with pytest.raises(payments.GatewayError, match="another amount"):
                payments.ask_gateway(self.order)

    def test_no_gateway_is_an_error_that_can_be_tried_again(self) -> None:
        gateway = Gateway()
        gateway._server.server_close()
        with (
            override_settings(SHOP_GATEWAY_URL=gateway.url),
            pytest.raises(payments.GatewayError, match="not answer"),
        ):
            payments.ask_gateway(self.order)


class WritingTogether(TransactionTestCase):
    def test_twenty_orders_of_new_customers_each_sent_twice(self) -> None:
        asked = [row(order_id=str(number), customer_id=str(1 + number % 2)) for number in range(1, 21)] * 2

        def write(order: rows.OrderRow) -> int:
            try:
                return orders.write(order)
            finally:
                connections.close_all()

        with ThreadPoolExecutor(8) as pool:
            nths = sorted(pool.map(write, asked))
        assert nths == [0] * 20 + sorted([*range(1, 11)] * 2)  # each is told which of its customer's orders it is
        assert list(Customer.objects.order_by("pk").values_list("orders_placed", flat=True)) == [10, 10]


@override_settings(MAILERS={"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}})  # Django 6.1
class ClosingTable(TestCase):
    """A shop whose jobs ended as they should, put there by hand; then one thing after another is off."""

    TEXT = HEADER + "17,3,1997-01-18,2,29.73\n18,3,1997-02-30,1,5.00\n17,3,1997-01-18,2,29.73\n"

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        batch = BatchRow.objects.create(
            properties="{}", callbacks="{}", total=3, succeeded=2, failed=1, finished_at=datetime.now(UTC)
        )
        mailed = ("order-17", f"import-{batch.id}", "welcome-3")
        mails = "".join(f"Message-ID: <{about}@shop.example.com>\n" for about in mailed)
        (Path(folder.name) / "1.log").write_text(mails)
        settings = override_settings(SHOP_MAIL_FOLDER=folder.name)
        settings.enable()
        self.addCleanup(settings.disable)
        self.gateway = Gateway(failures=0, latency=0)
        self.addCleanup(self.gateway._server.server_close)
        declare_subscriptions()
        events.order_created(row(), nth_of_customer=orders.write(row()))
        order = Order.objects.get()
        payments.charge(order)
        payments.record(order, "charge-17")
        events.order_paid(order, "charge-17")
        deliver_published()
        streams.enter(row())
        consume_stream(streams.ledger)
        self.gateway.charge(17, 2973)
        Receipt.objects.create(order=order, sent_to="x@example.com")
        self.ended("write_order", '{"order": 17, "written": true}')
        self.ended("write_order", '{"order": 17, "written": false}')
        DeadLetter.objects.create(
            task="shop.tasks.import_order",
            queue="imports",
            payload="{}",
            attempts=1,
            reason=DeadLetter.Reason.GAVE_UP,
            batch_id=batch.id,
            errors=[{"traceback": "Traceback ...\nshop.rows.BrokenRowError: line 3: placed_on is not a date\n"}],
        )
        self.imported = importing.Imported(batch=batch.id, read=3, enqueued=3)
        self.repeated = 0

    def ended(self, task: str, result: str) -> None:
        Archived.objects.create(
            task=f"shop.tasks.{task}",
            queue="orders",
            payload="{}",
            outcome=Archived.Outcome.SUCCEEDED,
            result=result,
        )

    def close(self) -> closing.Closing:
        with order_file(self.TEXT) as path:
            return closing.close(path, self.imported, self.gateway, killed=1, repeated=self.repeated)

    def values(self) -> dict[str, str]:
        return {entry.label.strip(): entry.value for entry in self.close().entries}

    def problems(self) -> str:
        return "\n".join(self.close().problems)

    def test_it_adds_up(self) -> None:
        table = self.close()
        assert table.problems == []
        assert {entry.label: entry.value for entry in table.entries}["amount"] == "29.73"
        values = self.values()
        assert (values["events published"], values["copies for handlers"], values["done"]) == ("2", "5", "5")
        assert (values["skipped as duplicates"], values["lost"]) == ("0", "0")
        assert (values["taken from stock"], values["amount of these days"]) == ("2", "29.73")
        assert (values["entries of the audit"], values["customers welcomed"]) == ("2", "1")
        assert (values["entries of the ledger"], values["amount of them"]) == ("1", "29.73")
        for group in (streams.TOTALS, streams.RECOUNT):
            assert (values[f"handled by {group}"], values[f"amount of {group}"]) == ("1", "29.73")
        (reason,) = table.reasons
        assert "line 3: placed_on is not a date" in reason
        assert "1 attempt:" in reason

    def test_a_row_that_vanished_is_lost(self) -> None:
        DeadLetter.objects.all().delete()
        assert "rows lost: 1" in self.problems()

    def test_an_order_written_by_two_runs_is_seen(self) -> None:
        self.ended("write_order", '{"order": 17, "written": true}')
        assert "runs that wrote each order" in self.problems()

    def test_an_order_that_differs_from_the_file_is_seen(self) -> None:
        Order.objects.update(quantity=3)
        assert "orders that are not in the file: [17]" in self.problems()

    def test_totals_raised_twice_are_seen(self) -> None:
        Customer.objects.update(orders_placed=2)
        assert "totals kept with the customers" in self.problems()

    def test_a_charge_that_another_overwrote_is_seen(self) -> None:
        Customer.objects.update(charged=0)
        assert "totals kept with the customers" in self.problems()

    def test_a_duplicate_that_was_refused_at_once_is_none_that_ran(self) -> None:
        Archived.objects.filter(result__contains="false").delete()
        BatchRow.objects.update(total=2, succeeded=1)
        batch = self.imported.batch
        self.imported = importing.Imported(batch=batch, read=3, enqueued=2, duplicates=[4])
        assert self.close().problems == []
        self.imported = importing.Imported(batch=batch, read=3, enqueued=2, duplicates=[3])
        assert "rows whose order was there: 0, but should be 1" in self.problems()

    def test_a_second_import_that_enqueues_is_seen(self) -> None:
        with order_file(self.TEXT) as path:
            again = importing.Imported(read=3, enqueued=1, duplicates=[2, 4])
            table = closing.close(path, self.imported, self.gateway, killed=1, again=again)
        assert "rows that a second import enqueued: 1" in "\n".join(table.problems)

    def test_a_customer_charged_by_two_at_once_is_seen(self) -> None:
        now = datetime.now(UTC)
        for task, times in (("charge_customer", 2), ("call_gateway", 5)):
            for _ in range(times):
                Run.objects.create(task=task, key="k", began=now, ended=now + timedelta(seconds=1))
        assert "charges of one customer at once: 2, but should be at most 1" in self.problems()
        assert "gateway calls at once: 5, but should be at most 4" in self.problems()

    def test_a_payment_that_was_never_charged_is_seen(self) -> None:
        self.gateway.charged.clear()
        assert "charges at the gateway" in self.problems()

    def test_a_receipt_that_was_never_mailed_is_seen(self) -> None:
        with tempfile.TemporaryDirectory() as empty, override_settings(SHOP_MAIL_FOLDER=empty):
            assert "receipts without a mail" in self.problems()

    def test_members_that_do_not_end_and_a_report_that_is_not_mailed_are_seen(self) -> None:
        BatchRow.objects.update(succeeded=1, finished_at=None)
        assert "members that ended: 2, but should be 3" in self.problems()
        assert "whether the batch is finished" in self.problems()
        with tempfile.TemporaryDirectory() as empty, override_settings(SHOP_MAIL_FOLDER=empty):
            assert "whether its report was mailed" in self.problems()

    def test_duplicates_are_counted_and_change_nothing(self) -> None:
        self.repeated = len(repeats.publish_again())
        deliver_published()
        assert self.close().problems == []
        values = self.values()
        assert (values["events published"], values["published once more"]) == ("2", "1")
        assert (values["copies for handlers"], values["done"], values["skipped as duplicates"]) == ("9", "8", "1")

    def test_a_duplicate_that_was_not_skipped_is_seen(self) -> None:
        self.repeated = len(repeats.publish_again())
        ProcessedEvent.objects.all().delete()
        claims.completed.clear()
        deliver_published()
        problems = self.problems()
        assert "copies skipped as duplicates: {}, but should be {'count_sales': 1}" in problems
        assert "sales by day" in problems

    def test_skips_that_were_counted_otherwise_are_seen(self) -> None:
        EventCount.objects.create(status="skipped", name="shop.handlers.count_sales", amount=2)
        assert "skipped copies, as pgbus counted them: 2, but should be 0" in self.problems()

    def test_a_copy_that_vanished_is_lost(self) -> None:
        Archived.objects.filter(task="shop.handlers.take_from_stock").delete()
        assert self.values()["lost"] == "1"
        assert "copies of each handler" in self.problems()

    def test_an_order_that_nobody_was_told_of_is_seen(self) -> None:
        Archived.objects.filter(topic=events.CREATED).delete()
        assert "events: Counter({'orders.paid': 1}), but should be" in self.problems()

    def test_an_order_that_was_told_twice_is_seen(self) -> None:
        events.order_created(row(), nth_of_customer=1)
        deliver_published()
        problems = self.problems()
        assert "events: Counter({'orders.created': 2" in problems
        assert "sales by day" in problems
        assert "orders and payments in the audit" in problems

    def test_a_stock_that_differs_from_the_orders_is_seen(self) -> None:
        StockMovement.objects.update(quantity=4)
        assert "quantities taken from stock: {17: 4}, but should be {17: 2}" in self.problems()

    def test_sales_that_were_added_twice_are_seen(self) -> None:
        bookkeeping.count_sale(row())
        assert "sales by day" in self.problems()

    def test_an_event_that_the_audit_has_not_is_seen(self) -> None:
        AuditEntry.objects.filter(topic=events.PAID).delete()
        problems = self.problems()
        assert "events in the audit" in problems
        assert "orders and payments in the audit" in problems

    def test_a_customer_who_was_not_welcomed_is_seen(self) -> None:
        Welcome.objects.all().delete()
        assert "customers welcomed: set(), but should be {3}" in self.problems()

    def test_a_welcome_that_was_never_mailed_is_seen(self) -> None:
        with tempfile.TemporaryDirectory() as empty, override_settings(SHOP_MAIL_FOLDER=empty):
            assert "welcomes without a mail" in self.problems()

    @mock.patch.object(welcomes, "UNKNOWN_EVERY", 3)
    def test_a_handler_that_failed_alone_is_told_with_its_reason(self) -> None:
        Welcome.objects.all().delete()
        copy = Archived.objects.get(task="shop.handlers.welcome")
        copy.delete()
        DeadLetter.objects.create(
            task=copy.task,
            queue=copy.queue,
            payload=copy.payload,
            event_id=copy.event_id,
            topic=copy.topic,
            attempts=4,
            reason=DeadLetter.Reason.EXHAUSTED,
            errors=[{"traceback": "Traceback ...\nshop.welcomes.RefusedError: 550 no such mailbox\n"}],
        )
        table = self.close()
        assert table.problems == []
        assert re.fullmatch(
            r"welcome #\d+, 4 attempts: shop.welcomes.RefusedError: 550 no such mailbox", table.reasons[1]
        )
        values = self.values()
        assert (values["events of which one handler failed"], values["handlers that had done theirs"]) == ("1", "3")
        with mock.patch.object(closing_events, "MOST_REASONS", 0):
            assert self.close().reasons[1:] == ["and 1 more of handlers"]
        Archived.objects.filter(task="shop.handlers.audit", event_id=copy.event_id).delete()
        assert "others that had done theirs: 2, but should be 3" in self.problems()

    def test_a_handler_that_fails_without_need_is_seen(self) -> None:
        with mock.patch.object(bookkeeping, "keep", side_effect=OSError("the disk is full")):
            events.order_paid(Order.objects.get(), "charge-17")
            deliver_published(include_delayed=True, raise_failures=False)
        assert "handlers that failed: {('audit', None)}, but should be set()" in self.problems()

    def test_a_copy_that_still_waits_is_seen(self) -> None:
        events.order_paid(Order.objects.get(), "charge-17")
        assert "jobs still waiting: 1" in self.problems()
        assert jobs.open_jobs() == {"shop.handlers.audit": 1}
        assert jobs.steps_to_come() == 1

    def test_an_order_that_the_ledger_has_twice_is_seen(self) -> None:
        streams.enter(row())
        consume_stream(streams.ledger)
        problems = self.problems()
        assert "orders in the ledger: Counter({17: 2})" in problems
        assert "the days of totals" in problems

    def test_an_entry_that_a_group_has_not_handled_is_seen(self) -> None:
        streams.enter(row())
        consume_stream(streams.ledger, streams.TOTALS)
        problems = self.problems()
        assert "positions that recount is behind: 1, but should be 0" in problems
        assert "positions that totals is behind" not in problems

    def test_an_entry_that_a_group_has_handled_twice_is_seen(self) -> None:
        bookkeeping.add_to_totals(streams.RECOUNT, [("1997-01-18", Decimal("29.73"))])
        problems = self.problems()
        assert "the days of recount" in problems
        assert "the days of totals" not in problems

    def test_a_job_that_still_waits_is_seen(self) -> None:
        tasks.send_receipt.enqueue(17)
        assert "jobs still waiting: 1" in self.problems()
        tasks.call_gateway.enqueue(17)  # parked
        assert jobs.open_jobs() == {"shop.tasks.send_receipt": 1, "shop.tasks.call_gateway": 1}
        assert jobs.steps_to_come() == 4

    def test_each_step_knows_what_comes_after_it(self) -> None:
        steps = [jobs.steps(f"{jobs.PATH}{name}") for name in ("import_order", "write_order", "charge_customer")]
        assert steps == [11, 10, 4]
        assert jobs.steps(f"{jobs.PATH}call_gateway") == 3
        assert jobs.steps(f"{jobs.HANDLERS}audit") == jobs.steps(f"{jobs.PATH}send_receipt") == 1


class Files(SimpleTestCase):
    def test_the_sample_is_what_its_readme_says(self) -> None:
        asked = closing.expected(SAMPLE)
        assert len(asked.orders) == 400
        assert sum(kinds.total() for kinds in asked.orders.values()) == 402
        assert asked.broken == 7

    @pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
    def test_the_real_file_is_all_orders(self) -> None:
        asked = closing.expected(REAL)
        assert asked.broken == 0
        found = [order for kinds in asked.orders.values() for order in kinds.elements()]
        assert len(found) == len(asked.orders) == 6919
        assert len({order.customer_id for order in found}) == 2357
        assert sum(order.amount for order in found) == Decimal("244091.94")
        assert sum(order.quantity for order in found) == 16479


class ProgressBar(SimpleTestCase):
    def test_without_a_terminal_a_line_every_ten_percent(self) -> None:
        out = StringIO()
        progress = Progress(OutputWrapper(out))
        for percent in range(101):
            progress.show(percent / 100)
        progress.end()
        assert len(out.getvalue().splitlines()) == 11
        assert "\r" not in out.getvalue()

    def test_on_a_terminal_one_line_that_is_drawn_over(self) -> None:
        out = StringIO()
        progress = Progress(OutputWrapper(out))
        progress.is_terminal = True
        progress.show(0.5)
        progress.say("killed")
        progress.show(1)
        progress.end()
        assert out.getvalue().count("\n") == 2
        assert "\rkilled" in out.getvalue()


class Demonstration(TestCase):
    def test_it_begins_with_an_empty_shop_and_nothing_held(self) -> None:
        declare_subscriptions()
        events.order_created(row(), nth_of_customer=orders.write(row()))
        publish("orders.of_no_interest")
        deliver_published(["stock", "analytics"])
        repeats.publish_again()
        tasks.import_order.enqueue(GOOD)
        tasks.call_gateway.enqueue(17)
        streams.enter(row())
        consume_stream(streams.ledger)
        with order_file(HEADER + "1,3,1997-01-18,2,29.73\n") as path:
            importing.import_file(path)
        with tempfile.TemporaryDirectory() as folder, override_settings(SHOP_MAIL_FOLDER=folder):
            empty_shop()
        assert jobs.open_jobs() == {}
        for model in (Message, Archived, ProcessedEvent, EventCount, UniquenessKey, BatchRow, BatchCount):
            assert not model.objects.exists()
        for model in (Order, Customer, StockMovement, SalesDay, DayTotal):
            assert not model.objects.exists()
        assert (streams.ledger.read(), streams.ledger.head()) == ([], 0)
        assert streams.enter(row()) == 1
        assert streams.behind([streams.TOTALS, streams.RECOUNT]) == 2


@override_settings(ROOT_URLCONF="config.urls")
class Pages(TestCase):
    def test_the_front_page_counts_and_leads_to_the_admin(self) -> None:
        orders.write(row())
        page = self.client.get("/").content.decode()
        assert "29.73" in page
        assert reverse("admin:index") in page

    def test_the_admin_lists_what_the_shop_has(self) -> None:
        self.client.force_login(get_user_model().objects.create_superuser("admin"))
        orders.write(row())
        for model in (
            "customer",
            "order",
            "payment",
            "receipt",
            "run",
            "stockmovement",
            "salesday",
            "daytotal",
            "welcome",
            "auditentry",
        ):
            with self.subTest(model=model):
                assert self.client.get(reverse(f"admin:shop_{model}_changelist")).status_code == 200

    def test_the_audit_is_searched_by_event_and_by_order(self) -> None:
        self.client.force_login(get_user_model().objects.create_superuser("admin"))
        declare_subscriptions()
        events.order_created(row(), nth_of_customer=orders.write(row()))
        deliver_published("events")
        for text, found in ((str(AuditEntry.objects.get().pk), 1), ("17", 1), ("18", 0)):
            page = self.client.get(reverse("admin:shop_auditentry_changelist"), {"q": text})
            assert page.context["cl"].result_count == found
