"""A worker follows streams: what handlers are given, what becomes of what fails, and what people may do meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import override_settings

from django_pgbus import Entry, signals
from django_pgbus.models import Archived, Cursor, DeadLetter, EntryException, Message, RangeLease
from django_pgbus.streams import exceptions, groups, logs
from django_pgbus.tasks import runnable
from tests.events.test_publishing import heard
from tests.line import long_up  # noqa: F401
from tests.running import a_worker, run_burst
from tests.sessions import execute, sessions, until
from tests.streams.following import a_group, a_stream, nothing_declared

pytestmark = [pytest.mark.django_db(transaction=True, available_apps=["django_pgbus", "django.contrib.auth"])]

FOLLOW: dict[str, Any] = {"streams": ("*",), "poll": 0.05}
UNREADABLE = "1" * 5000  # JSON, and longer than a number that Python reads


@pytest.fixture(autouse=True)
def _only_these():
    with nothing_declared():
        logs.forget()
        runnable.forget()
        yield
        runnable.forget()
        logs.forget()


def follow() -> int | None:
    """Let a worker follow everything until it has caught up."""
    return run_burst(**FOLLOW)


def at_once(exception: BaseException, entry: Entry) -> float:
    return 0.0


def top(function: Any) -> Any:
    """Return a function as if it stood at the top level of this module."""
    function.__qualname__ = function.__name__
    return function


def numbers(entries: Any) -> list[int]:
    return [entry.payload["n"] for entry in entries]


def failed(**which: Any) -> list[EntryException]:
    return list(EntryException.objects.filter(**which).order_by("position"))


def cursor() -> tuple[int, int]:
    found = Cursor.objects.get()
    return found.claimed, found.committed


def all_done(upto: int) -> None:
    """Nothing is open, and the cursor stands at the end."""
    assert cursor() == (upto, upto)
    assert not RangeLease.objects.exists()
    assert not failed()


def effects() -> list[int]:
    return sorted(int(name) for name in Group.objects.values_list("name", flat=True))


# --- what a handler is given ----------------------------------------------------------------------------


def test_a_handler_of_batches_gets_lists_of_at_most_its_size_in_order():
    stream = a_stream(entries=25)
    seen = []

    @top
    def handler(entries):
        seen.append(numbers(entries))

    a_group(handler, batch_size=10)
    assert follow() == 0
    assert seen == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]
    assert stream.lag("totals").entries == 0
    all_done(25)


def test_a_handler_of_entries_gets_one_after_the_other():
    stream = a_stream(entries=250)
    seen: list[Entry] = []

    @top
    def handler(entry):
        seen.append(entry)

    a_group(handler)
    assert follow() == 0
    assert numbers(seen) == list(range(1, 251))
    assert [entry.position for entry in seen] == list(range(1, 251))
    assert {(entry.stream, entry.attempt) for entry in seen} == {("ledger", 1)}
    assert seen[0].appended_at == stream.read(0, 1)[0].appended_at
    all_done(250)


@pytest.mark.parametrize("size", [None, 10])
def test_a_handler_may_be_async(size):
    a_stream(entries=25)
    seen = []

    @top
    async def handler(given):
        await asyncio.sleep(0)
        seen.extend(numbers([given] if size is None else given))

    a_group(handler, batch_size=size)
    assert follow() == 0
    assert seen == list(range(1, 26))
    all_done(25)


def test_groups_read_the_same_entries_each_for_itself():
    a_stream(entries=5)
    a_stream("other", entries=2)
    seen: dict[str, list[int]] = {"one": [], "two": [], "three": []}

    @top
    def one(entry):
        seen["one"].append(entry.payload["n"])

    @top
    def two(entry):
        seen["two"].append(entry.payload["n"])

    @top
    def three(entry):
        seen["three"].append(entry.payload["n"])

    a_group(one, group="one")
    a_group(two, group="two")
    a_group(three, stream="other", group="three")
    assert follow() == 0
    assert seen == {"one": [1, 2, 3, 4, 5], "two": [1, 2, 3, 4, 5], "three": [1, 2]}


def test_only_the_groups_that_are_named_are_followed():
    a_stream(entries=3)
    seen = []

    @top
    def one(entry):
        seen.append("one")

    @top
    def two(entry):
        seen.append("two")

    a_group(one, group="one")
    a_group(two, group="two")
    assert run_burst(streams=("*/two",), poll=0.05) == 0
    assert seen == ["two"] * 3


def test_what_is_appended_while_a_worker_follows_is_handled_at_once(long_up):  # noqa: F811
    stream = a_stream()
    seen: list[tuple[int, float]] = []

    @top
    def handler(entry):
        seen.append((entry.payload["n"], time.monotonic()))

    a_group(handler)
    with a_worker(streams=("*",), poll=5.0):
        until(lambda: execute("SELECT 1 FROM pg_stat_activity WHERE application_name = 'pgbus listen'"))
        for n in range(20):
            with transaction.atomic():
                stream.append({"n": n})
            time.sleep(0.02)
        until(lambda: len(seen) == 20)
    assert [n for n, _ in seen] == list(range(20))
    all_done(20)


def test_what_waits_for_a_hole_waits_for_that_transaction_only():
    stream = a_stream()
    seen = []

    @top
    def handler(entry):
        seen.append(entry.payload["n"])

    a_group(handler)
    with a_worker(**FOLLOW), sessions(2) as (old, other):
        old.open()
        old.do(stream.append, {"n": 1})
        stream.append({"n": 2})
        other.open()
        other.sql("SELECT pg_current_xact_id()")
        time.sleep(0.3)
        assert seen == []
        old.commit()
        until(lambda: seen == [1, 2])
        other.commit()
    all_done(2)


def test_positions_that_were_rolled_back_are_passed():
    stream = a_stream()
    seen = []

    @top
    def handler(entries):
        seen.extend(numbers(entries))

    a_group(handler, batch_size=10)
    for n in range(6):
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            stream.append_many([{"n": n}] * 30)
            assert 1 // (n % 2)
    with a_worker(**FOLLOW):
        until(lambda: cursor()[0] == 180)
        until(lambda: not RangeLease.objects.exists())
    assert seen == [1] * 30 + [3] * 30 + [5] * 30
    all_done(180)


# --- where a group begins -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("beginning", [1, 2, 3, 4, 5, 6]),
        ("end", [6]),
        (1, [1, 2, 3, 4, 5, 6]),
        (4, [4, 5, 6]),
        (100, [6]),
        (datetime(2020, 1, 1, tzinfo=UTC), [1, 2, 3, 4, 5, 6]),
        (datetime(2100, 1, 1, tzinfo=UTC), [6]),
        ("since", [3, 4, 5, 6]),
    ],
)
def test_a_new_group_begins_where_it_says(start, expected):
    stream = a_stream(entries=5)
    execute(f"UPDATE pgbus_stream_{stream.id()} SET appended_at = appended_at - interval '1 day' WHERE position < 3")
    seen = []

    @top
    def handler(entry):
        seen.append(entry.payload["n"])

    a_group(handler, start=datetime.now(UTC) - timedelta(hours=1) if start == "since" else start)
    stream.append({"n": 6})
    assert follow() == 0
    assert seen == expected


def test_where_a_group_began_holds_when_it_is_declared_anew():
    stream = a_stream(entries=3)
    seen = []

    @top
    def handler(entry):
        seen.append(entry.payload["n"])

    a_group(handler, start="end")
    stream.append({"n": 4})
    a_group(handler, start="beginning")
    assert follow() == 0
    assert seen == [4]


# --- what fails -----------------------------------------------------------------------------------------


def test_an_entry_that_fails_does_not_stop_the_others_and_is_tried_again():
    a_stream(entries=5)
    seen = []

    @top
    def handler(entry):
        seen.append((entry.payload["n"], entry.attempt))
        if entry.payload["n"] == 2 and entry.attempt < 3:
            raise ValueError("not yet")

    a_group(handler, max_attempts=3, backoff=at_once)
    calls, _kept = heard(signals.entry_failed)
    assert follow() == 1
    assert seen == [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (2, 2), (2, 3)]
    assert [call["position"] for call in calls] == [2, 2]
    all_done(5)


def test_a_batch_that_fails_is_tried_entry_by_entry():
    a_stream(entries=5)
    seen = []

    @top
    def handler(entries):
        seen.append(numbers(entries))
        if 3 in numbers(entries):
            raise ValueError("three")

    a_group(handler, batch_size=10, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert seen == [[1, 2, 3, 4, 5], [1], [2], [3], [4], [5], [3]]
    ((letter,),) = [failed()]
    assert (letter.position, letter.status, letter.attempts) == (3, "dead", 2)
    assert cursor() == (5, 5), "a dead letter keeps nothing of the log"


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_what_failed_as_often_as_it_may_is_a_dead_letter_with_a_copy_of_its_entry(attempts):
    stream = a_stream()
    stream.append({"n": 1, "text": "Zürich"})
    seen = []

    @top
    def handler(entry):
        seen.append(entry.attempt)
        raise KeyError("account")

    a_group(handler, max_attempts=attempts, backoff=at_once)
    calls, _kept = heard(signals.entry_dead_lettered)
    at = stream.read()[0].appended_at
    assert follow() == 1
    assert seen == list(range(1, attempts + 1))
    ((letter,),) = [failed()]
    assert (letter.status, letter.attempts, letter.exception) == ("dead", attempts, "builtins.KeyError")
    assert json.loads(letter.payload) == {"n": 1, "text": "Zürich"}
    assert letter.appended_at == at
    assert "KeyError: 'account'" in letter.traceback
    assert "in handler" in letter.traceback
    assert "handling.py" not in letter.traceback
    assert [call["position"] for call in calls] == [1]
    assert cursor() == (1, 1)


def test_the_default_number_of_attempts_is_the_setting():
    a_stream(entries=1)

    @top
    def handler(entry):
        raise ValueError

    a_group(handler, backoff=at_once)
    with override_settings(PGBUS={"MAX_ATTEMPTS": 3}):
        follow()
    ((letter,),) = [failed()]
    assert (letter.status, letter.attempts) == ("dead", 3)


def test_backoff_is_asked_and_taken_at_its_word():
    a_stream(entries=3)
    asked = []

    @top
    def handler(entry):
        raise ValueError(entry.payload["n"])

    def backoff(exception, entry):
        asked.append((str(exception), entry.position, entry.attempt))
        match entry.payload["n"]:
            case 1:
                return 3600
            case 2:
                return None
            case _:
                raise RuntimeError("no idea")

    a_group(handler, backoff=backoff)
    broken, _kept = heard(signals.backoff_broken)
    with override_settings(PGBUS={"BACKOFF_BASE": 100.0}):
        follow()
    assert asked == [("1", 1, 1), ("2", 2, 1), ("3", 3, 1)]
    first, second, third = failed()
    now = datetime.now(UTC)
    assert (first.status, second.status, third.status) == ("ready", "dead", "ready")
    assert timedelta(minutes=59) < first.due_at - now < timedelta(minutes=61)
    assert timedelta(seconds=80) < third.due_at - now < timedelta(seconds=120)
    assert [call["task"].rpartition(".")[2] for call in broken] == ["handler"]
    assert cursor() == (3, 0), "what is not done with keeps its entry"


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("size", [None, 10])
def test_a_handler_that_ends_its_thread_has_failed_and_others_go_on(ends, size):
    stream = a_stream(entries=3)
    seen = []

    @top
    def handler(given):
        for entry in [given] if size is None else given:
            if entry.payload["n"] == 2:
                raise ends
            seen.append(entry.payload["n"])

    a_group(handler, batch_size=size, max_attempts=2, backoff=at_once)
    with a_worker(**FOLLOW):
        until(lambda: failed(status="dead"))
        stream.append({"n": 4})
        until(lambda: 4 in seen)
    assert {1, 3, 4} == set(seen)
    ((letter,),) = [failed()]
    assert (letter.position, letter.attempts) == (2, 2)
    assert letter.exception.endswith(ends.__name__)


@pytest.mark.parametrize("ends", [SystemExit, KeyboardInterrupt, asyncio.CancelledError])
def test_an_async_handler_that_ends_its_loop_has_failed_and_others_go_on(ends):
    a_stream(entries=3)
    seen = []

    @top
    async def handler(entry):
        await asyncio.sleep(0)
        if entry.payload["n"] == 2:
            raise ends
        seen.append(entry.payload["n"])

    a_group(handler, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert seen == [1, 3]
    ((letter,),) = [failed()]
    assert (letter.position, letter.status, letter.attempts) == (2, "dead", 2)


@pytest.mark.parametrize("is_async", [False, True])
def test_timeout_ends_an_entry_and_the_others_go_on(is_async):
    a_stream(entries=3)
    seen = []

    @top
    def handler(entry):
        deadline = time.monotonic() + 20
        while entry.payload["n"] == 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        seen.append(entry.payload["n"])

    @top
    async def ahandler(entry):
        await asyncio.sleep(20 if entry.payload["n"] == 2 else 0)
        seen.append(entry.payload["n"])

    a_group(ahandler if is_async else handler, timeout=0.3, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert seen == [1, 3]
    ((letter,),) = [failed()]
    assert (letter.position, letter.attempts, letter.exception) == (2, 2, "django_pgbus.exceptions.TaskTimeout")


def test_what_cannot_be_read_fails_alone():
    stream = a_stream(entries=1)
    execute(f"INSERT INTO pgbus_stream_{stream.id()} (payload) VALUES ('{UNREADABLE}')")
    stream.append({"n": 3})
    seen = []

    @top
    def handler(entries):
        seen.append(numbers(entries))

    a_group(handler, batch_size=10, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert seen == [[1, 3]]
    ((letter,),) = [failed()]
    assert (letter.position, letter.status, letter.exception) == (2, "dead", "django_pgbus.exceptions.InvalidPayload")
    assert execute("SELECT payload::text FROM pgbus_stream_exceptions") == [(UNREADABLE,)]
    assert UNREADABLE not in letter.traceback


@pytest.mark.parametrize("text", ["a\x00b", "\ud800", "x" * 100_000])
def test_an_exception_that_cannot_be_stored_as_it_is_fails_like_any(text):
    a_stream(entries=2)
    seen = []

    @top
    def handler(entry):
        if entry.payload["n"] == 1:
            raise ValueError(text)
        seen.append(entry.payload["n"])

    a_group(handler, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert seen == [2]
    ((letter,),) = [failed()]
    assert (letter.position, letter.attempts) == (1, 2)


def test_values_of_sensitive_keys_are_in_no_traceback():
    stream = a_stream()
    stream.append({"n": 1, "card": "4111-1111", "nested": [{"pin": "9876"}]})

    @top
    def handler(entry):
        raise ValueError(f"refused: {entry.payload}")

    a_group(handler, max_attempts=2, backoff=at_once, sensitive=("card", "pin"))
    follow()
    ((letter,),) = [failed()]
    assert "refused" in letter.traceback
    assert "4111" not in letter.traceback
    assert "9876" not in letter.traceback
    assert json.loads(letter.payload)["card"] == "4111-1111", "the copy is whole: it is to be redriven"


def test_a_decorator_that_is_not_async_around_an_async_handler_is_a_failure_that_says_so():
    a_stream(entries=1)

    def logged(function):
        @wraps(function)
        def wrapper(entry):
            return function(entry)

        return wrapper

    @logged
    @top
    async def handler(entry): ...

    a_group(top(handler), max_attempts=1)
    follow()
    ((letter,),) = [failed()]
    assert "a decorator around an async handler not async" in letter.traceback


# --- what a handler leaves behind -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 2])
@pytest.mark.parametrize("leaves", ["atomic", "autocommit", "begun"])
def test_a_transaction_that_a_handler_leaves_open_takes_nothing_of_the_others_with_it(leaves, size):
    """It is rolled back with its connection; the next entry begins as if nothing had been."""
    a_stream(entries=4)

    @top
    def handler(given):
        for entry in [given] if size is None else given:
            n = entry.payload["n"]
            if n == 2:
                if leaves == "atomic":
                    transaction.atomic().__enter__()
                elif leaves == "autocommit":
                    transaction.set_autocommit(False)
                else:
                    execute("BEGIN")
            Group.objects.create(name=str(n))

    a_group(handler, batch_size=size, max_attempts=2, backoff=at_once)
    assert follow() == 0
    # What was written inside the transaction that nobody ended is gone, as in a request; what came later is there.
    assert effects() == [1, 3, 4]
    all_done(4)


@pytest.mark.parametrize("leaves", ["atomic", "autocommit"])
def test_an_entry_on_its_own_that_leaves_a_transaction_open_is_done_nevertheless(leaves):
    a_stream(entries=2)
    seen = []

    @top
    def handler(entry):
        seen.append((entry.payload["n"], entry.attempt))
        if entry.payload["n"] == 1 and entry.attempt == 1:
            raise ValueError
        if entry.payload["n"] == 1:
            if leaves == "atomic":
                transaction.atomic().__enter__()
            else:
                transaction.set_autocommit(False)

    a_group(handler, max_attempts=3, backoff=at_once)
    assert follow() == 1
    assert seen == [(1, 1), (2, 1), (1, 2)]
    all_done(2)


def test_a_connection_that_is_lost_fails_one_entry_and_not_the_rest_of_its_range():
    a_stream(entries=10)

    @top
    def handler(entry):
        if entry.payload["n"] == 3 and entry.attempt == 1:
            with contextlib.suppress(Exception):
                execute("SELECT pg_terminate_backend(pg_backend_pid())")
        Group.objects.create(name=str(entry.payload["n"]))

    a_group(handler, max_attempts=2, backoff=at_once)
    calls, _kept = heard(signals.entry_failed)
    assert follow() == 1
    assert [call["position"] for call in calls] == [3]
    assert effects() == list(range(1, 11))
    all_done(10)


# --- transactional --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [None, 1, 4, 100])
def test_a_transactional_handler_and_its_range_are_one_transaction(size):
    a_stream(entries=10)
    ids = set()

    @top
    def handler(given):
        ids.add(execute("SELECT pg_current_xact_id()::text")[0][0])
        for entry in [given] if size is None else given:
            Group.objects.create(name=str(entry.payload["n"]))

    a_group(handler, batch_size=size, transactional=True)
    assert follow() == 0
    assert effects() == list(range(1, 11))
    all_done(10)
    assert len(ids) == {None: 1, 1: 10, 4: 3, 100: 1}[size]


@pytest.mark.parametrize("size", [None, 10])
@pytest.mark.parametrize("how", ["raises", "sql", "exits"])
def test_an_entry_that_fails_in_a_transaction_takes_its_own_effects_with_it_and_no_others(size, how):
    a_stream(entries=6)
    runs = []

    @top
    def handler(given):
        entries = [given] if size is None else given
        runs.append(numbers(entries))
        for entry in entries:
            Group.objects.create(name=str(entry.payload["n"]))
            if entry.payload["n"] == 4 and entry.attempt < 3:
                match how:
                    case "sql":
                        execute("SELECT 1 / 0")
                    case "exits":
                        raise SystemExit
                    case _:
                        raise ValueError

    a_group(handler, batch_size=size, transactional=True, max_attempts=3, backoff=at_once)
    assert follow() == 1
    assert effects() == [1, 2, 3, 4, 5, 6]
    all_done(6)
    if size is not None:
        assert runs == [[1, 2, 3, 4, 5, 6], [1], [2], [3], [4], [5], [6], [4], [4]]


def test_a_dead_letter_of_a_transactional_handler_has_no_effect():
    a_stream(entries=3)

    @top
    def handler(entries):
        for entry in entries:
            Group.objects.create(name=str(entry.payload["n"]))
        if any(n == 2 for n in numbers(entries)):
            raise ValueError

    a_group(handler, batch_size=10, transactional=True, max_attempts=2, backoff=at_once)
    assert follow() == 1
    assert effects() == [1, 3]
    ((letter,),) = [failed()]
    assert (letter.position, letter.status, letter.attempts) == (2, "dead", 2)


def test_a_transactional_handler_that_has_lost_its_lease_writes_nothing():
    a_stream(entries=3)
    runs = []

    @top
    def handler(entries):
        runs.append(numbers(entries))
        for entry in entries:
            Group.objects.create(name=str(entry.payload["n"]))
        if len(runs) == 1:
            with sessions() as other:
                other.do(groups.rewind, "ledger", "totals", 0)

    a_group(handler, batch_size=10, transactional=True)
    lost, _kept = heard(signals.range_lost)
    follow()
    assert len(runs) == 2
    assert effects() == [1, 2, 3]
    assert [(call["low"], call["high"]) for call in lost] == [(0, 3)]
    all_done(3)


def test_a_connection_that_is_lost_in_a_transaction_costs_no_attempt():
    a_stream(entries=3)
    attempts = []

    @top
    def handler(entries):
        attempts.append([entry.attempt for entry in entries])
        for entry in entries:
            Group.objects.create(name=str(entry.payload["n"]))
        if len(attempts) == 1:
            execute("SELECT pg_terminate_backend(pg_backend_pid())")

    a_group(handler, batch_size=10, transactional=True, max_attempts=1)
    assert follow() == 0
    assert attempts == [[1, 1, 1]] * 2
    assert effects() == [1, 2, 3]
    all_done(3)


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_postgresql_ended_for_another_one_runs_again_without_an_attempt(state):
    a_stream(entries=3)
    runs = []

    @top
    def handler(entries):
        runs.append([entry.attempt for entry in entries])
        for entry in entries:
            Group.objects.create(name=str(entry.payload["n"]))
        if len(runs) < 3:
            execute(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{state}'; END $$")

    a_group(handler, batch_size=10, transactional=True, max_attempts=1)
    assert follow() == 0
    assert runs == [[1, 1, 1]] * 3
    assert effects() == [1, 2, 3]


@pytest.mark.parametrize("size", [None, 10])
def test_a_transactional_handler_that_leaves_a_transaction_open_has_its_effects_once_or_fails(size):
    a_stream(entries=3)

    @top
    def handler(given):
        for entry in [given] if size is None else given:
            if entry.payload["n"] == 2:
                transaction.atomic().__enter__()
            Group.objects.create(name=str(entry.payload["n"]))

    a_group(handler, batch_size=size, transactional=True, max_attempts=2, backoff=at_once)
    follow()
    dead = [letter.position for letter in failed()]
    assert sorted(effects() + dead) == [1, 2, 3]
    assert cursor() == (3, 3)


# --- entries on their own -------------------------------------------------------------------------------


def a_dead_letter(**options: Any) -> EntryException:
    """Return the dead letter of the first of two entries; the handler fails while `broken` holds."""
    a_stream(entries=2)

    @top
    def handler(entry):
        seen.append((entry.payload["n"], entry.attempt))
        if entry.payload["n"] == 1 and broken:
            raise ValueError

    seen: list[Any] = []
    broken = [True]
    a_group(handler, max_attempts=2, backoff=at_once, **options)
    follow()
    (letter,) = failed()
    assert letter.status == "dead"
    handler.seen, handler.broken = seen, broken
    seen.clear()
    letter.handler = handler
    return letter


def test_a_dead_letter_that_is_redriven_has_all_its_attempts_again():
    letter = a_dead_letter()
    calls, _kept = heard(signals.entries_redriven)
    assert exceptions.redrive([letter.id, 4711], by="anna") == 1
    assert calls == [{"count": 1, "by": "anna"}]
    assert exceptions.redrive([letter.id]) == 0, "it is no dead letter now"
    assert follow() == 1
    assert letter.handler.seen == [(1, 1), (1, 2)]
    (again,) = failed()
    assert (again.status, again.attempts) == ("dead", 2)
    letter.handler.broken.clear()
    assert exceptions.redrive([again.id]) == 1
    assert follow() == 0
    all_done(2)


def test_a_dead_letter_is_redriven_from_its_copy_where_the_log_has_dropped_its_entry():
    letter = a_dead_letter()
    letter.handler.broken.clear()
    execute(f"DELETE FROM pgbus_stream_{groups.find('ledger', 'totals').stream}")
    assert exceptions.redrive([letter.id]) == 1
    assert follow() == 0
    assert letter.handler.seen == [(1, 1)]
    assert not failed()


def test_what_is_discarded_is_done_with():
    letter = a_dead_letter()
    calls, _kept = heard(signals.entries_discarded)
    assert exceptions.discard([letter.id], by="anna") == 1
    assert exceptions.discard([letter.id]) == 0
    assert calls == [{"count": 1, "by": "anna"}]
    assert follow() == 0
    assert letter.handler.seen == []
    all_done(2)


def test_an_entry_that_waits_for_its_next_attempt_can_be_discarded():
    a_stream(entries=2)

    @top
    def handler(entry):
        if entry.payload["n"] == 1:
            raise ValueError

    a_group(handler, backoff=lambda exception, entry: 3600)
    follow()
    assert cursor() == (2, 0)
    (waits,) = failed()
    assert exceptions.discard([waits.id]) == 1
    groups.roll_forward()
    all_done(2)


def test_an_entry_that_the_log_does_not_have_any_more_is_a_dead_letter_that_says_so():
    stream = a_stream(entries=1)

    @top
    def handler(entry):
        raise ValueError

    a_group(handler, backoff=lambda exception, entry: 3600)
    follow()
    execute(f"DELETE FROM pgbus_stream_{stream.id()}")
    execute("UPDATE pgbus_stream_exceptions SET due_at = statement_timestamp()")
    follow()
    (letter,) = failed()
    assert letter.status == "dead"
    assert "retention dropped it" in letter.traceback


def test_only_a_run_that_has_begun_counts_as_an_attempt():
    """A process that is killed by the first of twenty has not tried the others."""
    a_stream(entries=20)
    seen = []

    @top
    def handler(entry):
        if entry.attempt == 1 and len(seen) < 20:
            seen.append(entry.payload["n"])
            raise ValueError
        seen.append((entry.payload["n"], entry.attempt))

    a_group(handler, max_attempts=2, backoff=lambda exception, entry: 3600)
    follow()
    group = groups.find("ledger", "totals")
    for _ in range(5):
        execute(
            "UPDATE pgbus_stream_exceptions"
            " SET due_at = statement_timestamp(), until = statement_timestamp() - interval '1 second'"
        )
        assert len(exceptions.claim(group, limit=20, token=uuid.uuid4(), lease=30.0)) == 20
    execute("UPDATE pgbus_stream_exceptions SET until = statement_timestamp() - interval '1 second'")
    assert follow() == 0
    assert seen[20:] == [(n, 2) for n in range(1, 21)]
    all_done(20)


# --- order of keys --------------------------------------------------------------------------------------


def by_account(entry: Entry) -> Any:
    return entry.payload["account"]


@pytest.mark.parametrize("size", [None, 5, 100])
@pytest.mark.parametrize("transactional", [False, True])
def test_entries_of_a_key_are_done_in_order_also_where_one_fails(size, transactional):
    stream = a_stream()
    stream.append_many([{"n": n, "account": n % 4} for n in range(40)])
    runs: dict[int, int] = {}

    @top
    def handler(given):
        entries = [given] if size is None else given
        if len(entries) == 1:
            (entry,) = entries
            runs[entry.payload["n"]] = runs.get(entry.payload["n"], 0) + 1
            if entry.payload["n"] in {5, 6, 22} and runs[entry.payload["n"]] < 3:
                raise ValueError
        elif {5, 6, 22} & set(numbers(entries)):
            raise ValueError
        for entry in entries:
            Group.objects.create(name=f"{entry.payload['account']}-{entry.payload['n']}")

    a_group(
        handler,
        batch_size=size,
        key=by_account,
        transactional=transactional,
        max_attempts=5,
        backoff=at_once,
    )
    with a_worker(**FOLLOW):
        until(
            lambda: (
                Group.objects.count() == 40 and cursor()[0] == 40 and not failed() and not RangeLease.objects.exists()
            )
        )
    done = [tuple(map(int, group.name.split("-"))) for group in Group.objects.order_by("id")]
    for account in range(4):
        assert [n for which, n in done if which == account] == list(range(account, 40, 4))
    assert execute("SELECT count(*) FROM pgbus_stream_keys") == [(0,)]
    all_done(40)


def test_a_dead_letter_lets_the_others_of_its_key_pass():
    stream = a_stream()
    stream.append_many([{"n": n, "account": "a"} for n in range(6)])
    done = []

    @top
    def handler(entry):
        if entry.payload["n"] == 1:
            raise ValueError
        done.append(entry.payload["n"])

    a_group(handler, key=by_account, max_attempts=2, backoff=at_once)
    with a_worker(**FOLLOW):
        until(lambda: len(done) == 5 and not failed(status="ready") and not failed(status="running"))
    assert done == [0, 2, 3, 4, 5]
    ((letter,),) = [failed()]
    assert (letter.position, letter.key, letter.attempts) == (2, "a", 2)


def test_what_waits_for_its_key_holds_up_no_other_key():
    stream = a_stream()
    stream.append_many([{"n": n, "account": "ab"[n % 2]} for n in range(6)])
    done = []

    @top
    def handler(entry):
        if entry.payload["n"] == 0:
            raise ValueError
        done.append(entry.payload["n"])

    a_group(handler, key=by_account, backoff=lambda exception, entry: 3600)
    follow()
    assert done == [1, 3, 5]
    assert [(waits.position, waits.attempts, waits.key) for waits in failed()] == [
        (1, 1, "a"),
        (3, 0, "a"),
        (5, 0, "a"),
    ]
    assert cursor() == (6, 0)


@pytest.mark.parametrize("value", ["raises", "exits", "null", "surrogate", "list", "sql"])
def test_an_entry_whose_key_cannot_be_told_waits_for_nobody(value):
    stream = a_stream()
    stream.append_many([{"n": n} for n in range(4)])
    done = []

    @top
    def handler(entry):
        done.append(entry.payload["n"])

    def key(entry):
        if entry.payload["n"] == 1:
            match value:
                case "raises":
                    raise KeyError("account")
                case "exits":
                    raise SystemExit
                case "null":
                    return "a\x00b"
                case "surrogate":
                    return "\ud800"
                case "sql":
                    return execute("SELECT 1 / 0")
                case _:
                    return [1, {"any": "thing"}]
        return "a"

    a_group(handler, key=key)
    broken, _kept = heard(signals.key_broken)
    assert follow() == 0
    assert sorted(done) == [0, 1, 2, 3]
    if value not in {"list", "null", "surrogate"}:
        assert [call["position"] for call in broken] == [2]
    all_done(4)


def test_a_key_may_be_none_and_is_otherwise_the_text_of_what_is_returned():
    stream = a_stream()
    stream.append_many([{"n": 0, "account": 7}, {"n": 1, "account": "7"}, {"n": 2, "account": None}])

    @top
    def handler(entry):
        raise ValueError

    a_group(handler, key=by_account, backoff=lambda exception, entry: 3600)
    follow()
    assert [(waits.key, waits.attempts) for waits in failed()] == [("7", 1), ("7", 0), (None, 1)]


# --- what people do -------------------------------------------------------------------------------------


def test_a_group_that_is_paused_claims_nothing_until_it_is_resumed():
    stream = a_stream(entries=3)
    seen = []

    @top
    def handler(entry):
        seen.append(entry.payload["n"])

    a_group(handler)
    calls, _kept = heard(signals.group_paused)
    assert groups.pause("ledger", "totals", by="anna")
    assert not groups.pause("ledger", "totals")
    with a_worker(**FOLLOW):
        stream.append({"n": 4})
        time.sleep(0.4)
        assert seen == []
        assert groups.resume("ledger", "totals")
        until(lambda: len(seen) == 4)
        groups.pause("ledger", "totals")
        time.sleep(0.2)
        stream.append({"n": 5})
        time.sleep(0.4)
        assert len(seen) == 4
    assert [(call["paused"], call["by"]) for call in calls] == [(True, "anna"), (False, ""), (True, "")]
    assert cursor()[0] == 4


def test_a_group_that_is_rewound_handles_again_what_comes_after():
    a_stream(entries=10)
    seen = []

    @top
    def handler(entries):
        seen.append(numbers(entries))

    a_group(handler, batch_size=100)
    assert follow() == 0
    calls, _kept = heard(signals.group_rewound)
    with pytest.raises(ValueError, match="has claimed up to 10"):
        groups.rewind("ledger", "totals", 11)
    assert groups.rewind("ledger", "totals", 10) == 0
    assert groups.rewind("ledger", "totals", 7, by="anna") == 3
    assert [(call["position"], call["positions"], call["by"]) for call in calls] == [(7, 3, "anna")]
    assert follow() == 0
    assert seen == [list(range(1, 11)), [8, 9, 10]]
    all_done(10)


def test_a_rewind_while_a_worker_handles_takes_its_range_from_it():
    a_stream(entries=5)
    runs = []
    go_on = []

    @top
    def handler(entries):
        runs.append(numbers(entries))
        while not go_on:
            time.sleep(0.01)

    a_group(handler, batch_size=10)
    lost, _kept = heard(signals.range_lost)
    with a_worker(**FOLLOW):
        until(lambda: runs)
        assert groups.rewind("ledger", "totals", 2) == 3
        go_on.append(True)
        until(lambda: len(runs) == 3)
        until(lambda: not RangeLease.objects.exists())
    # Nobody knows how far it was: what lies below is not done with either.
    assert (runs[0], sorted(runs[1:])) == ([1, 2, 3, 4, 5], [[1, 2], [3, 4, 5]])
    assert len(lost) == 1
    assert cursor() == (5, 5)


def test_a_cursor_of_another_log_is_refused_and_accepted_again_when_it_is_repaired():
    stream = a_stream(entries=3)
    seen = []

    @top
    def handler(entry):
        seen.append(entry.payload["n"])

    a_group(handler)
    Cursor.objects.update(epoch="1/2")
    refused, _kept = heard(signals.group_refused)
    accepted, _kept_too = heard(signals.group_accepted)
    with a_worker(**FOLLOW):
        until(lambda: refused)
        time.sleep(0.2)
        assert seen == []
        assert groups.repair("ledger", "totals") == (0, 0)
        until(lambda: len(seen) == 3)
        stream.append({"n": 4})
        until(lambda: len(seen) == 4)
    assert len(refused) == 1
    assert "--repair-cursor ledger/totals" in refused[0]["reason"]
    assert len(accepted) == 1


# --- fan-out --------------------------------------------------------------------------------------------


def test_route_to_a_queue_stores_one_message_for_each_entry_and_runs_it_as_a_job():
    a_stream(entries=5)
    seen: list[Entry] = []

    def handler(entry):
        seen.append(entry)

    routed(handler, route_to="mail")
    assert run_burst("@mail", **FOLLOW) == 0
    until(lambda: len(seen) == 5)
    assert sorted(numbers(seen)) == [1, 2, 3, 4, 5]
    assert {(entry.stream, entry.attempt) for entry in seen} == {("ledger", 1)}
    assert Archived.objects.filter(queue="@mail", topic="ledger/totals").count() == 5
    all_done(5)


def routed(handler: Any, **options: Any) -> None:
    """Declare a group that routes, with its handler where jobs find it."""
    handler.__name__ = handler.__qualname__ = f"routed_{uuid.uuid4().hex}"
    globals()[handler.__name__] = handler
    a_group(handler, **options)


def test_route_to_a_function_chooses_the_queue_and_none_skips():
    a_stream(entries=6)
    routed(nobody, route_to=lambda entry: [None, "mail", "@print"][entry.payload["n"] % 3])
    with a_worker("nowhere", **FOLLOW):
        until(lambda: cursor()[0] == 6)
    assert sorted(Message.objects.values_list("queue", flat=True)) == ["@mail", "@mail", "@print", "@print"]
    found = {json.loads(message.payload)["position"]: message.queue for message in Message.objects.all()}
    assert found == {1: "@mail", 2: "@print", 4: "@mail", 5: "@print"}
    all_done(6)


def nobody(entry: Entry) -> None: ...


@pytest.mark.parametrize("how", ["raises", "exits", "no name", "bad name"])
def test_an_entry_whose_route_cannot_be_told_goes_where_it_is_seen(how):
    a_stream(entries=2)

    def route(entry):
        if entry.payload["n"] == 1:
            match how:
                case "raises":
                    raise KeyError("country")
                case "exits":
                    raise SystemExit
                case "no name":
                    return 7
                case _:
                    return "a,b"
        return "mail"

    routed(nobody, route_to=route)
    broken, _kept = heard(signals.route_broken)
    with a_worker("nowhere", **FOLLOW):
        until(lambda: cursor()[0] == 2)
    assert sorted(Message.objects.values_list("queue", flat=True)) == ["@mail", "@unrouted"]
    assert [call["position"] for call in broken] == [1]


def test_what_is_routed_fails_and_dies_as_jobs_do_with_secrets_hidden():
    stream = a_stream()
    stream.append({"n": 1, "card": "4111-1111"})

    def handler(entry):
        raise ValueError(f"refused {entry.payload}")

    routed(handler, route_to="mail", max_attempts=2, backoff=at_once, sensitive=("card",))
    assert run_burst("@mail", **FOLLOW) == 1
    (letter,) = DeadLetter.objects.all()
    assert letter.attempts == 2
    assert "refused" in str(letter.errors)
    assert "4111" not in str(letter.errors)


def test_entries_above_a_hole_are_routed_at_once_and_only_once():
    stream = a_stream()
    routed(nobody, route_to="mail")
    with a_worker("nowhere", **FOLLOW), sessions() as old:
        old.open()
        old.do(stream.append, {"n": 1})
        stream.append({"n": 2})
        until(lambda: Message.objects.count() == 1)
        assert cursor() == (0, 0)
        old.commit()
        until(lambda: cursor() == (2, 2))
        assert Message.objects.count() == 2
    assert execute("SELECT count(*) FROM pgbus_stream_routed") == [(0,)]


# --- how it ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transactional", [False, True])
def test_a_worker_that_is_asked_to_end_finishes_its_entry_and_hands_the_rest_back(transactional):
    a_stream(entries=10)
    seen = []
    waits = [True]

    @top
    def handler(entry):
        seen.append(entry.payload["n"])
        while waits and entry.payload["n"] == 3:
            time.sleep(0.01)

    a_group(handler, transactional=transactional)
    with a_worker(**FOLLOW) as worker:
        until(lambda: 3 in seen)
        worker.process._follower.drain()
        waits.clear()
    assert seen == [1, 2, 3]
    (lease,) = RangeLease.objects.all()
    assert (lease.low, lease.high, lease.reclaims) == (3, 10, -1)
    assert lease.until < datetime.now(UTC)
    assert cursor() == (10, 3)
    reclaimed, _kept = heard(signals.range_reclaimed)
    assert follow() == 0
    assert seen == list(range(1, 11))
    assert reclaimed == [], "it was not lost, but given back"
    all_done(10)


def test_a_worker_that_has_ended_leaves_no_thread_or_session_behind():
    import threading

    a_stream(entries=3)

    @top
    def handler(entry):
        execute("SELECT 1")

    a_group(handler)
    follow()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("pgbus-ledger")])
