"""`ensures_uniqueness` and `limits_concurrency`: what is declared holds, and what is wrong is refused with what to write."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_pgbus import (
    ConcurrencyLimitExceeded,
    InvalidKey,
    JobNotUnique,
    aenqueue_many,
    enqueue_many,
    ensures_uniqueness,
    limits_concurrency,
    task,
)
from django_pgbus.concurrency.policy import Limit
from django_pgbus.models import Message, Semaphore, UniquenessKey
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.compat import InvalidTask
from django_pgbus.tasks.task import PgbusTask, limits
from django_pgbus.testing import run_enqueued
from django_pgbus.uniqueness.policy import Unique
from tests.constrained import claim_and_pick_up, parked, slots
from tests.line import COMMITTED, long_up, state, succeed  # noqa: F401

if django.VERSION >= (6, 0):
    from django.tasks import task as stock_task
else:
    from django_tasks import task as stock_task

ran: list[Any] = []


def by_first(first: Any, *args: Any, **kwargs: Any) -> str:
    return f"key-{first}"


unique_by_first = ensures_uniqueness(key=by_first)
two_by_first = limits_concurrency(to=2, key=by_first)


@unique_by_first
@two_by_first
@task
def above(first, *args): ...


@task
@unique_by_first
@two_by_first
def below(first, *args): ...


@unique_by_first
@task(queue_name="mail")
@two_by_first
def around(first, *args): ...


@stock_task
@unique_by_first
@two_by_first
def below_djangos(first, *args): ...


@unique_by_first
@two_by_first
@stock_task
def above_djangos(first, *args): ...


@task(unique=Unique(key=by_first), limit=Limit(to=2, key=by_first))
def as_options(first, *args): ...


@unique_by_first
@two_by_first
@task
async def asynchronous(first, *args): ...


@ensures_uniqueness()
@task
def without_arguments(): ...


@unique_by_first
@task(takes_context=True)
def with_context(context, first): ...


@ensures_uniqueness()
@task(takes_context=True)
def with_context_only(context): ...


@limits_concurrency(to=1)
@task
def one_for_all(number=0):
    ran.append(number)
    return number


ALL = [above, below, around, below_djangos, above_djangos, as_options, asynchronous]


def function(first, second=0, *, third=None): ...


def noted(first): ...


def noted_twice(first): ...


def noted_without_a_key(first): ...


def noted_without_a_key_too(first): ...


def context_and(context, first): ...


def nothing(): ...


# --- above and below ----------------------------------------------------------------------------------


@pytest.mark.parametrize("declared", ALL, ids=lambda declared: declared.name)
def test_both_are_heard_wherever_they_stand(declared):
    assert isinstance(declared, PgbusTask)
    assert declared.unique == Unique(key=by_first)
    assert declared.limit == Limit(to=2, key=by_first)
    assert limits[declared.module_path] == declared.limit


def test_what_else_is_declared_stays():
    assert around.queue_name == "mail"
    assert above.queue_name == "default"


@pytest.mark.parametrize("declared", ALL, ids=lambda declared: declared.name)
def test_using_and_pickling_keep_them(declared):
    for copy in (
        declared.using(priority=5, run_after=timedelta(hours=1)),
        pickle.loads(pickle.dumps(declared)),
        pickle.loads(pickle.dumps(declared.using(queue_name="other"))),
        declared.using().using(),
    ):
        assert (copy.unique, copy.limit) == (declared.unique, declared.limit)


def test_using_does_not_change_them():
    for change in ({"unique": None}, {"limit": Limit(to=9)}):
        with pytest.raises(TypeError):
            above.using(**change)


@pytest.mark.parametrize("backend", ["immediate.ImmediateBackend", "dummy.DummyBackend"])
def test_they_are_kept_under_another_backend_and_have_no_effect(settings, backend):
    home = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{home}.backends.{backend}"}}
    assert unique_by_first(task(noted_twice)).unique is not None
    assert [above.enqueue(1).args, above.enqueue(1).args] == [[1], [1]]
    assert [result.args for result in enqueue_many(above, [((1,), {}), ((1,), {})])] == [[1], [1]]


def test_a_decorated_function_can_still_be_called():
    assert unique_by_first(noted) is noted


# --- wrong declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (lambda: ensures_uniqueness()(task(function)), 'key=lambda first, second, third: f"function-{first}"'),
        (lambda: task(ensures_uniqueness()(noted_without_a_key)), "has no key, but the task takes arguments"),
        (lambda: stock_task(ensures_uniqueness()(noted_without_a_key_too)), "has no key, but the task takes arguments"),
        (lambda: task(unique=Unique())(function), "has no key, but the task takes arguments"),
        (
            lambda: ensures_uniqueness(strategy="while_executed"),
            "strategy is one of 'until_executed', 'while_executing'",
        ),
        (lambda: ensures_uniqueness(strategy=None), "strategy is one of"),
        (lambda: ensures_uniqueness(on_conflict="raise"), "on_conflict is one of 'reject', 'discard', 'log'"),
        (lambda: ensures_uniqueness(key="order"), "key is a function of the task's arguments that returns a text"),
        (lambda: limits_concurrency(to=0), "to is a whole number from 1"),
        (lambda: limits_concurrency(to=-1), "to is a whole number from 1"),
        (lambda: limits_concurrency(to=True), "to is a whole number from 1"),
        (lambda: limits_concurrency(to="4"), "to is a whole number from 1"),
        (lambda: limits_concurrency(to=1.5), "to is a whole number from 1"),
        (lambda: limits_concurrency(to=10**9), "to is a whole number from 1 to 10,000"),
        (lambda: limits_concurrency(to=1, on_conflict="reject"), "on_conflict is one of 'block', 'discard', 'raise'"),
        (lambda: limits_concurrency(to=1, key="gateway"), "key is a function"),
        (lambda: limits_concurrency(to=1, duration=0), "duration is above 0 seconds"),
        (lambda: limits_concurrency(to=1, duration=timedelta(-1)), "duration is above 0 seconds"),
        (lambda: limits_concurrency(to=1, duration="15m"), "duration is a number of seconds or a timedelta"),
        (lambda: limits_concurrency(to=1, duration=float("nan")), "duration is above 0 seconds"),
        (lambda: unique_by_first(above), "ensures_uniqueness is declared twice for above()"),
        (lambda: two_by_first(above), "limits_concurrency is declared twice for above(); a task has at most one"),
        (lambda: two_by_first(below), "limits_concurrency is declared twice"),
        (lambda: two_by_first(task(two_by_first(noted_twice))), "declared twice"),
        (lambda: two_by_first(two_by_first(lambda first: None)), "declared twice"),
        (lambda: two_by_first(as_options), "declared twice"),
        (lambda: two_by_first("function"), "limits_concurrency decorates a task or its function, not 'function'"),
        (lambda: task(unique={"key": by_first})(nothing), "unique is a Unique"),
        (lambda: task(limit=4)(nothing), "limit is Limit(to=...), as in limit=Limit(to=4), not 4"),
    ],
)
def test_a_wrong_declaration_is_refused_with_a_sentence(declare, says):
    with pytest.raises(InvalidTask) as caught:
        declare()
    assert says in str(caught.value)


@pytest.mark.parametrize("to", [None, ()])
def test_a_limit_says_how_many(to):
    with pytest.raises((TypeError, InvalidTask)):
        limits_concurrency(*(to or ()))


def test_no_key_is_needed_where_there_is_nothing_to_tell_jobs_apart():
    assert without_arguments.unique == Unique()
    assert with_context_only.unique == Unique()
    with pytest.raises(InvalidTask, match="key=lambda first: "):
        ensures_uniqueness()(task(takes_context=True)(context_and))


# --- keys ---------------------------------------------------------------------------------------------


def bad_key(value: Any) -> Any:
    def key(*args: Any, **kwargs: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    return key


# Module level: a task is found by its path.
BAD = {
    "raises": (LookupError("no such order"), "could not be computed (LookupError)"),
    "None": (None, "is a NoneType, not a text"),
    "empty": ("", "is empty"),
    "NUL": ("a\x00b", "contains a NUL byte"),
    "half a surrogate pair": ("a\ud800", "half of a surrogate pair"),
    "int": (42, "is a int, not a text"),
    "bytes": (b"a", "is a bytes, not a text"),
    "list": (["a"], "is a list, not a text"),
}
for _name, (_value, _) in BAD.items():
    _unique = ensures_uniqueness(key=bad_key(_value))
    _limited = limits_concurrency(to=1, key=bad_key(_value))
    for _decorator, _kind in ((_unique, "unique"), (_limited, "limited")):
        _path = f"bad_{_kind}_{_name}".replace(" ", "_")

        def _function(first=0): ...

        _function.__name__ = _function.__qualname__ = _path
        globals()[_path] = _decorator(task(_function))


@COMMITTED
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
@pytest.mark.parametrize("kind", ["unique", "limited"])
@pytest.mark.parametrize("name", BAD)
def test_a_key_that_cannot_be_is_refused_before_sql_and_the_transaction_stays_usable(name, kind, many):
    declared = globals()[f"bad_{kind}_{name}".replace(" ", "_")]
    with transaction.atomic():
        above.enqueue("before")
        with CaptureQueriesContext(connection) as queries, pytest.raises(InvalidKey) as caught:
            enqueue_many(declared, [((1,), {}), ((2,), {})]) if many else declared.enqueue(1)
        assert not queries.captured_queries
        above.enqueue("after")
    assert BAD[name][1] in str(caught.value)
    assert declared.module_path in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert set(UniquenessKey.objects.values_list("key", flat=True)) == {"key-before", "key-after"}
    if name == "raises":
        assert isinstance(caught.value.__cause__, LookupError)


@ensures_uniqueness(key=lambda *args, **kwargs: repr((args, kwargs)))
@task
def shows_its_arguments(*args, **kwargs): ...


@COMMITTED
def test_keys_are_computed_from_the_arguments_as_the_worker_sees_them():
    shows_its_arguments.enqueue((1, 2), nested={"pair": ("a", "b")})
    assert UniquenessKey.objects.get().key == "(([1, 2],), {'nested': {'pair': ['a', 'b']}})"
    with pytest.raises(JobNotUnique):
        shows_its_arguments.enqueue([1, 2], nested={"pair": ["a", "b"]})


@COMMITTED
def test_a_key_function_that_changes_its_arguments_changes_no_others():
    seen = [1, 2]

    def key(values):
        values.append(3)
        return "k"

    globals()["mutated"] = ensures_uniqueness(key=key)(task(_named(lambda values: None, "mutated")))
    mutated = globals()["mutated"]
    result = mutated.enqueue(seen)
    assert seen == [1, 2]
    assert lifecycle.find(int(result.id)).payload.count("3") == 0


def _named(func, name):
    func.__name__ = func.__qualname__ = name
    return func


@COMMITTED
def test_the_context_is_no_argument_of_the_key():
    with_context.enqueue("a")
    assert UniquenessKey.objects.get().key == "key-a"


@COMMITTED
def test_without_a_key_it_is_one_for_the_task():
    without_arguments.enqueue()
    one_for_all.enqueue(1)
    assert UniquenessKey.objects.get().key == without_arguments.module_path
    assert Semaphore.objects.get().key == one_for_all.module_path


@COMMITTED
def test_a_key_is_computed_once_when_it_is_enqueued():
    calls = []

    def key(first):
        calls.append(first)
        return "k"

    globals()["counted"] = limits_concurrency(to=1, key=key)(task(_named(lambda first: None, "counted")))
    globals()["counted"].enqueue(1)
    globals()["counted"].enqueue(2)
    for _ in range(2):
        succeed(*claim_and_pick_up().taken)
    assert calls == [1, 2]
    assert parked() == []


@COMMITTED
def test_using_changes_the_queue_and_not_the_key():
    above.enqueue("a")
    for other in (above.using(queue_name="other"), above.using(priority=5), above.using(run_after=timedelta(hours=1))):
        with pytest.raises(JobNotUnique):
            other.enqueue("a")


@COMMITTED
@pytest.mark.parametrize("declared", ALL, ids=lambda declared: declared.name)
def test_each_is_held_to_it(declared):
    first = declared.enqueue("a")
    with pytest.raises(JobNotUnique) as caught:
        declared.enqueue("a")
    assert (caught.value.key, caught.value.holder) == ("key-a", first.id)
    assert slots() == {int(first.id): 1}


# --- many, and async ----------------------------------------------------------------------------------


@limits_concurrency(to=2, key=by_first, on_conflict="raise")
@task
def two_or_error(first, *args): ...


@limits_concurrency(to=1, key=by_first, on_conflict="discard")
@task
def one_or_none(first, *args): ...


@ensures_uniqueness(key=by_first, on_conflict="discard")
@task
def unique_or_none(first, *args): ...


def rows(letters):
    return [((letter, number), {}) for number, letter in enumerate(letters)]


@COMMITTED
def test_each_row_of_many_has_an_outcome_of_its_own():
    outcomes = enqueue_many(above, rows("abcab"))
    assert [type(outcome) is JobNotUnique for outcome in outcomes] == [False, False, False, True, True]
    assert [outcome.args[0] for outcome in outcomes[:3]] == list("abc")
    assert outcomes[3].holder == outcomes[0].id
    outcomes = enqueue_many(two_or_error, rows("xxyxy"))
    assert [type(outcome) is ConcurrencyLimitExceeded for outcome in outcomes] == [False, False, False, True, False]


@COMMITTED
def test_many_that_are_dropped_stand_as_results():
    first, dropped = enqueue_many(unique_or_none, rows("aa"))
    assert dropped.id == first.id
    kept, refused = enqueue_many(one_or_none, rows("bb"))
    assert (kept.status, refused.status) == ("READY", "FAILED")
    assert refused.errors[0].exception_class is ConcurrencyLimitExceeded
    assert Message.objects.count() == 2


@COMMITTED
def test_many_in_a_transaction_that_rolls_back_leave_nothing():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        enqueue_many(above, rows("abc"))
        1 / 0  # noqa: B018
    assert not UniquenessKey.objects.exists()
    assert parked() == []


@COMMITTED
def test_no_rows_are_no_rows():
    assert enqueue_many(above, []) == []


@COMMITTED
def test_more_rows_than_one_statement_takes():
    outcomes = enqueue_many(two_or_error, [((number % 700,), {}) for number in range(2100)])
    assert sum(isinstance(outcome, ConcurrencyLimitExceeded) for outcome in outcomes) == 700
    assert all(isinstance(outcome, ConcurrencyLimitExceeded) for outcome in outcomes[1400:])
    assert len(slots()) == 1400


@COMMITTED
def test_aenqueue_is_held_to_it_too():
    async def twice():
        first = await above.aenqueue("a")
        with pytest.raises(JobNotUnique):
            await above.aenqueue("a")
        many = await aenqueue_many(two_or_error, rows("bbb"))
        return first, many

    first, many = async_to_sync(twice)()
    assert state(int(first.id)) == "ready"
    assert [isinstance(outcome, ConcurrencyLimitExceeded) for outcome in many] == [False, False, True]


# --- in tests of projects -----------------------------------------------------------------------------


@limits_concurrency(to=1, key=lambda value: "k")
@task
def notes_one_at_once(value):
    ran.append(value)


@ensures_uniqueness(key=lambda value: "k")
@task
def notes_once(value):
    ran.append(value)


@ensures_uniqueness(key=lambda value: "k", strategy="while_executing")
@task
def notes_alone(value):
    ran.append((value, list(UniquenessKey.objects.values_list("key", flat=True))))


class InATestCase(TestCase):
    def setUp(self):
        ran.clear()

    def test_limited_tasks_run(self):
        for value in (1, 2, 3):
            notes_one_at_once.enqueue(value)
        run_enqueued()
        assert ran == [1, 2, 3]
        assert (slots(), parked()) == ({}, [])

    def test_limited_tasks_run_after_the_callbacks(self):
        with self.captureOnCommitCallbacks(execute=True):
            notes_one_at_once.enqueue(1)
        run_enqueued()
        assert ran == [1]

    def test_unique_tasks_run_and_free_their_key(self):
        notes_once.enqueue(1)
        with pytest.raises(JobNotUnique):
            notes_once.enqueue(2)
        run_enqueued()
        notes_once.enqueue(3)
        run_enqueued()
        assert ran == [1, 3]

    def test_a_task_that_runs_alone_holds_its_key_meanwhile(self):
        notes_alone.enqueue(1)
        run_enqueued()
        assert ran == [(1, ["k"])]
        assert not UniquenessKey.objects.exists()


@COMMITTED
def test_run_enqueued_runs_limited_tasks_one_after_the_other():
    ran.clear()
    for value in (1, 2, 3):
        notes_one_at_once.enqueue(value)
    run_enqueued()
    assert ran == [1, 2, 3]
    assert (slots(), parked()) == ({}, [])
