"""Enqueueing writes in the caller's transaction, says so as Django does, and refuses before any SQL what could not run."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, date, datetime, timedelta

import django
import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgbus import PgbusBackend, aenqueue_many, enqueue_many
from django_pgbus.exceptions import InvalidPayload, InvalidPayloadType, InvalidQueue
from django_pgbus.models import Delayed, Message
from django_pgbus.tasks.compat import (
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
    task_backends,
    task_enqueued,
)
from tests.tasks import examples
from tests.tasks.examples import Shop, aadd, add, import_order, login

pytestmark = pytest.mark.django_db


@pytest.fixture
def announced():
    """The signals sent, as (sender, result)."""
    heard = []

    def hear(sender, task_result, **kwargs):
        heard.append((sender, task_result))

    task_enqueued.connect(hear)
    yield heard
    task_enqueued.disconnect(hear)


@pytest.fixture
def no_sql():
    """Whatever happens, it reaches no database."""
    with CaptureQueriesContext(connection) as queries:
        yield
    assert not queries.captured_queries


def stock(**values) -> Task:
    """Return a task of Django's own class."""
    return Task(
        **{
            "func": add.func,
            "priority": 0,
            "backend": "default",
            "queue_name": "default",
            "run_after": None,
            "takes_context": False,
        }
        | values
    )


# --- what is stored, and what is returned -------------------------------------------------------------


def test_the_backend_says_what_it_can():
    backend = task_backends["default"]
    assert isinstance(backend, PgbusBackend)
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_enqueue_stores_the_task_and_returns_its_result(announced):
    before = timezone.now()
    result = import_order.enqueue(42, token="x" * 8)
    stored = Message.objects.get()
    assert (stored.queue, stored.priority, stored.task, stored.backend) == (
        "imports",
        7,
        "tests.tasks.examples.import_order",
        "default",
    )
    assert json.loads(stored.payload) == {"args": [42], "kwargs": {"token": "x" * 8}}

    assert isinstance(result, TaskResult)
    assert result.id == str(stored.id)
    assert result.task is import_order
    assert result.status == TaskResultStatus.READY
    assert result.enqueued_at == stored.enqueued_at
    assert abs(result.enqueued_at - before) < timedelta(minutes=1)
    assert (result.args, result.kwargs) == ([42], {"token": "x" * 8})
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert (result.errors, result.worker_ids, result.attempts, result.backend) == ([], [], 0, "default")
    assert announced == [(PgbusBackend, result)]


def test_arguments_arrive_as_the_worker_will_see_them():
    assert add.enqueue((1, (2,)), b={"x": (3,)}).args == [[1, [2]]]


def test_one_statement_per_enqueue(django_assert_num_queries):
    with django_assert_num_queries(1):
        add.enqueue(1)


@pytest.mark.proves("enqueue-in-the-callers-transaction")
def test_a_rollback_leaves_nothing():
    with transaction.atomic():
        add.enqueue(1)
        add.using(run_after=timedelta(1)).enqueue(1)
        enqueue_many(add, [([1], {})] * 3)
        transaction.set_rollback(True)
    assert not Message.objects.exists()
    assert not Delayed.objects.exists()


def test_a_receiver_that_raises_reaches_the_caller():
    def hear(**kwargs):
        raise ZeroDivisionError

    task_enqueued.connect(hear)
    try:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            add.enqueue(1)
    finally:
        task_enqueued.disconnect(hear)
    assert not Message.objects.exists()


def test_every_kind_of_task_can_be_enqueued():
    for one in (add, aadd, login, import_order, Shop.close, stock()):
        assert one.enqueue("a").status == TaskResultStatus.READY
    assert Message.objects.count() == 6


@pytest.mark.django_db(transaction=True)
def test_enqueue_from_async_code():
    async def view():
        with pytest.raises(SynchronousOnlyOperation):
            add.enqueue(1)
        result = await aadd.aenqueue(1, b=2)
        again = await aadd.aget_result(result.id)
        many = await aenqueue_many(add, [([1], {}), ([2], {})])
        return result, again, many

    result, again, many = async_to_sync(view)()
    assert again.args == result.args == [1]
    assert [one.args for one in many] == [[1], [2]]
    assert Message.objects.count() == 3  # and the refused one left nothing


# --- later --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [add.using, stock])
def test_run_after_is_a_moment_or_the_time_from_now(make):
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    make(run_after=at).enqueue(1)
    assert Delayed.objects.get().due_at == at
    Delayed.objects.all().delete()

    make(run_after=timedelta(hours=2)).enqueue(1)
    stored = Delayed.objects.get()
    assert stored.due_at - stored.enqueued_at == timedelta(hours=2)


@pytest.mark.parametrize("run_after", [timedelta(0), timedelta(-1), datetime(2020, 1, 1, tzinfo=UTC)])
def test_what_is_due_already_is_ready(run_after):
    add.using(run_after=run_after).enqueue(1)
    assert Message.objects.count() == 1


@pytest.mark.parametrize("make", [add.using, stock])
@pytest.mark.parametrize(
    ("run_after", "message"),
    [
        (datetime(2030, 1, 1), "run_after must be an aware datetime."),
        (date(2030, 1, 1), "run_after must be a datetime or a timedelta, not a date."),
        (60, "run_after must be a datetime or a timedelta, not a int."),
        (timedelta.max, "outside the years 1 to 9999"),
        (datetime(9999, 12, 31, 23, 59, tzinfo=timezone.get_fixed_timezone(-60)), "outside the years 1 to 9999"),
    ],
)
def test_moments_that_cannot_be_kept_are_refused(make, run_after, message, no_sql):
    with pytest.raises(InvalidTask) as caught:
        make(run_after=run_after)
    assert message in str(caught.value)


def test_without_use_tz_moments_are_of_the_project_s_time_zone(settings):
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    result = add.using(run_after=datetime(2030, 7, 1, 12)).enqueue(1)
    assert result.enqueued_at.tzinfo is None
    assert abs(result.enqueued_at - datetime.now()) < timedelta(hours=27)
    settings.USE_TZ = True
    assert Delayed.objects.get().due_at == datetime(2030, 7, 1, 10, tzinfo=UTC)


# --- refused before any SQL ---------------------------------------------------------------------------


def test_arguments_that_cannot_be_stored_are_refused(no_sql, announced):
    with pytest.raises(InvalidPayload, match=r"^kwargs\['b'\] contains a NUL character"):
        add.enqueue(1, b="\x00")
    with pytest.raises(TypeError, match=r"^args\[0\] is a set"):
        add.enqueue({1})
    assert not announced


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a" * 201,
        " mail",
        "mail ",
        "ma\nil",
        "mail\x00",
        "m\ud800",
        "*",
        "mail_*",
        "a,b",
        "a;b",
        "a:b",
        None,
        1,
        b"mail",
    ],
)
@pytest.mark.parametrize("make", [add.using, stock])
def test_queue_names_that_no_worker_could_be_told_are_refused(make, name, no_sql):
    if name is None and make is not stock:
        pytest.skip("None means unchanged")
    with pytest.raises(InvalidTask) as caught:
        make(queue_name=name)
    assert isinstance(caught.value, InvalidQueue)


@pytest.mark.parametrize("name", ["a", "a" * 200, "mail.high", "größe", "per tenant"])
def test_other_queue_names_are_fine(name):
    add.using(queue_name=name).enqueue(1)
    assert Message.objects.get().queue == name


def test_queues_of_the_settings_are_the_only_ones(settings, no_sql):
    settings.TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": ["mail"]}}
    add.using(queue_name="mail")
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid for backend"):
        add.enqueue(1)


@pytest.mark.parametrize("priority", [101, -101, 1.5, "5", float("nan"), float("inf"), [], None])
def test_priorities_that_are_none_are_refused(priority, no_sql):
    with pytest.raises(InvalidTask, match="priority must be a whole number between -100 and 100"):
        stock(priority=priority)


@pytest.mark.parametrize(("priority", "stored"), [(-100, -100), (100, 100), (True, 1), (2.0, 2)])
def test_priorities_as_django_takes_them(priority, stored):
    stock(priority=priority).enqueue(1)
    assert Message.objects.get().priority == stored


@pytest.mark.parametrize(
    ("name", "there"),
    [("another_name", "there is a function"), ("replaced_first", "there is another task")],
)
def test_a_task_that_a_worker_would_not_find_is_refused(name, there, no_sql, announced):
    lost = getattr(examples, name)
    for enqueue in (lost.enqueue, lambda: enqueue_many(lost, [((), {})])):
        with pytest.raises(InvalidTask) as caught:
            enqueue()
        assert f"Workers look for this task at {lost.module_path}, where {there}" in str(caught.value)
        assert f"bind the task to its function's own name, {lost.func.__name__!r}" in str(caught.value)
    assert not announced


def test_a_task_of_a_script_is_refused(monkeypatch, no_sql):
    def here(): ...

    here.__module__, here.__qualname__ = "__main__", "here"
    made = stock(func=here)
    monkeypatch.setattr(sys.modules["__main__"], "here", made, raising=False)
    with pytest.raises(InvalidTask, match="Workers cannot import 'here' from a script"):
        made.enqueue()


def test_a_task_whose_module_is_gone_is_refused(no_sql):
    def here(): ...

    here.__module__, here.__qualname__ = "nowhere.at.all", "here"
    with pytest.raises(InvalidTask, match=r"nowhere.at.all.here, where there is nothing"):
        stock(func=here).enqueue()


# --- many ---------------------------------------------------------------------------------------------


def test_many_are_stored_in_order_by_one_statement(django_assert_num_queries, announced):
    rows = (([n], {"b": n}) for n in range(1000))
    with django_assert_num_queries(1):
        results = enqueue_many(add, rows)
    stored = Message.objects.in_bulk([int(result.id) for result in results])
    assert [json.loads(stored[int(result.id)].payload)["args"] for result in results] == [[n] for n in range(1000)]
    assert [result.args for result in results] == [[n] for n in range(1000)]
    assert [int(result.id) for result in results] == sorted(stored)
    assert announced == [(PgbusBackend, result) for result in results]


def test_more_than_a_thousand_are_still_all_or_none():
    results = enqueue_many(add, [([n], {}) for n in range(2500)])
    assert [result.args[0] for result in results] == list(range(2500))
    assert Message.objects.count() == 2500


def test_many_of_none_is_none(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert enqueue_many(add, []) == []


def test_many_may_be_later():
    results = enqueue_many(import_order.using(run_after=timedelta(hours=1)), [([n], {}) for n in range(3)])
    assert sorted(Delayed.objects.values_list("id", flat=True)) == [int(result.id) for result in results]


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (([{1}], {}), InvalidPayloadType, "rows[1]: args[0] is a set"),
        (([], {"a": "\x00"}), InvalidPayload, "rows[1]: kwargs['a'] contains a NUL"),
        (([],), InvalidPayload, "rows[1] is not a pair (args, kwargs)"),
        (("ab", {}), InvalidPayload, "rows[1] is not a pair (args, kwargs)"),
        (42, InvalidPayload, "rows[1] is not a pair (args, kwargs)"),
        ({"order_id": 1}, InvalidPayload, "rows[1] is not a pair (args, kwargs)"),
    ],
)
def test_a_row_that_cannot_be_stored_is_named_and_nothing_is(row, error, message, no_sql, announced):
    with pytest.raises(error) as caught:
        enqueue_many(add, [([1], {}), row])
    assert message in str(caught.value)
    assert caught.value.path.startswith("rows[1]")
    assert not announced


def test_other_backends_get_the_rows_one_by_one(settings):
    home = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{home}.backends.dummy.DummyBackend"}}
    assert [result.args for result in enqueue_many(add, [((1,), {}), ((2,), {})])] == [[1], [2]]


# --- results by id ------------------------------------------------------------------------------------


def test_a_result_is_found_by_its_id():
    result = add.enqueue(1)
    assert add.get_result(result.id).args == [1]
    assert asyncio.iscoroutinefunction(task_backends["default"].aget_result)
    with pytest.raises(TaskResultMismatch):
        import_order.get_result(result.id)


@pytest.mark.parametrize(
    "result_id",
    [
        *["", "x", "-1", "0", "01", "1.0", " 1", "1\x00", "²", "٣", str(2**63), "9" * 20, "9" * 5000],
        *[None, -1, 2**63, True, 1.0, b"1"],
    ],
)
def test_what_is_no_id_is_not_found_without_a_look(result_id, no_sql):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


@pytest.mark.parametrize("result_id", [str(2**63 - 1), 2**63 - 1, "123456789"])
def test_what_could_be_an_id_is_looked_for(result_id):
    with pytest.raises(TaskResultDoesNotExist):
        task_backends["default"].get_result(result_id)


def test_a_rolled_back_task_has_no_result():
    with transaction.atomic():
        result = add.enqueue(1)
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
