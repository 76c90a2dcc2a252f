"""What cannot be a consumer is refused when it is declared, with a sentence that says what was wrong and what to write."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_pgbus import InvalidStream, Stream, consume, task
from django_pgbus.exceptions import InvalidHandler
from django_pgbus.streams.consumers import consumers
from django_pgbus.streams.stream import streams
from tests.streams.following import nothing_declared


@pytest.fixture(autouse=True)
def _nothing_declared():
    with nothing_declared():
        yield


def handler(entry: Any) -> None: ...


async def ahandler(entry: Any) -> None: ...


@task
def a_task(entry: Any) -> None: ...


def no_argument() -> None: ...


def two_arguments(entry: Any, more: Any) -> None: ...


def yields(entry: Any) -> Any:
    yield entry


async def ayields(entry: Any) -> Any:
    yield entry


async def akey(entry: Any) -> str:
    return "a"


class Handler:
    def method(self, entry: Any) -> None: ...

    def __call__(self, entry: Any) -> None: ...

    @staticmethod
    def static(entry: Any) -> None: ...


def refused(
    sentence: str, func: Any = handler, stream: Any = "ledger", kind: Any = InvalidHandler, **options: Any
) -> str:
    """Return what was said, a whole sentence; nothing was declared."""
    options.setdefault("group", "totals")
    with pytest.raises(kind, match=sentence) as caught:
        consume(stream, **options)(func)
    assert not consumers
    assert not streams
    assert str(caught.value)[-1] in ".)"
    return str(caught.value)


# --- what is declared -----------------------------------------------------------------------------------


def test_a_consumer_is_declared_under_its_stream_and_group_and_stays_a_function():
    assert consume("ledger", group="totals", batch_size=10, timeout=timedelta(minutes=1))(handler) is handler
    found = consumers["ledger", "totals"]
    assert (found.name, found.path, found.limit, found.timeout) == (
        "ledger/totals",
        f"{__name__}.handler",
        10,
        60.0,
    )
    assert "ledger" in streams, "it is made with the groups, if nobody else declares it"


def test_one_function_may_be_the_handler_of_several_groups():
    consume("ledger", group="one")(consume("ledger", group="two")(consume("other", group="one")(handler)))
    assert sorted(consumers) == [("ledger", "one"), ("ledger", "two"), ("other", "one")]


def test_a_static_method_is_a_function():
    consume("ledger", group="totals")(Handler.static)
    assert consumers["ledger", "totals"].path == f"{__name__}.Handler.static"


def test_a_stream_keeps_what_was_declared_of_it():
    Stream("ledger", retention=60)
    consume("ledger", group="totals")(handler)
    assert streams["ledger"].retention == timedelta(minutes=1)


def test_a_stream_may_be_given_instead_of_its_name():
    consume(Stream("ledger"), group="totals")(handler)
    assert consumers["ledger", "totals"].stream == "ledger"
    assert streams["ledger"].by_hand
    consume("orders", group="totals")(handler)
    assert not streams["orders"].by_hand


def test_the_same_function_may_be_declared_anew_and_the_last_word_holds():
    """As when its module is loaded again."""
    consume("ledger", group="totals", batch_size=5)(handler)
    consume("ledger", group="totals", batch_size=6)(handler)
    assert consumers["ledger", "totals"].batch_size == 6


# --- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", ["", "a/b", 7, None, "a" * 101])
def test_the_name_of_the_stream_is_checked(stream):
    refused("1 to 100 letters", stream=stream, kind=InvalidStream)


@pytest.mark.parametrize("group", ["", "a/b", 7, None, "a" * 101, "a\nb", "a\x00"])
def test_the_name_of_the_group_is_checked(group):
    assert repr(group) in refused("group is a name of 1 to 100 printable characters without a slash", group=group)


def test_two_functions_are_two_groups():
    consume("ledger", group="totals")(handler)
    with pytest.raises(
        InvalidHandler, match=r"two handlers, .*handler and .*ahandler\. Two functions .* are two groups"
    ):
        consume("ledger", group="totals")(ahandler)
    assert consumers["ledger", "totals"].func is handler


# --- functions ------------------------------------------------------------------------------------------


def test_a_task_is_told_from_a_handler():
    refused(r"a_task is a task\. A handler of a stream is a plain function; let it enqueue the task", a_task)


@pytest.mark.parametrize(
    "func", [None, 7, "handler", Handler, Handler(), Handler().method, functools.partial(handler), print]
)
def test_what_is_no_function_is_refused(func):
    refused(r"consume\(\) takes a function", func)


def test_a_function_inside_a_function_cannot_be_imported():
    def inner(entry):
        pass

    refused("write the handler at the top level of a module", inner)
    refused("write the handler at the top level of a module", lambda entry: None)


@pytest.mark.parametrize("func", [no_argument, two_arguments])
def test_a_handler_takes_one_argument(func):
    assert func.__name__ in refused("A handler takes one argument", func)


@pytest.mark.parametrize("func", [yields, ayields])
def test_a_generator_would_do_nothing(func):
    refused("contains a yield", func)


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, -1, 100_001, 1.5, "10", True])
def test_batch_size_is_checked(size):
    assert repr(size) in refused("batch_size is a whole number from 1 to 100,000", batch_size=size)


@pytest.mark.parametrize("start", ["now", "", 0, -1, True, 1.5, None, timedelta(1)])
def test_start_is_checked(start):
    refused('start is "beginning", "end", a position from 1 or a datetime', start=start)


def test_a_datetime_without_a_time_zone_names_no_moment():
    refused("has no time zone, so it names no moment", start=datetime(2026, 1, 1))


@pytest.mark.parametrize("start", ["beginning", "end", 1, 10**12, datetime(2026, 1, 1, tzinfo=UTC)])
def test_where_a_group_may_begin(start):
    consume("ledger", group="totals", start=start)(handler)
    assert consumers["ledger", "totals"].start == start


@pytest.mark.parametrize("key", ["account", 7, akey])
def test_key_is_a_function(key):
    refused("key is a plain function that takes an entry", key=key)


@pytest.mark.parametrize("name", ["key", "route_to"])
def test_functions_are_called_with_one_entry(name):
    refused(f"{name} is called with one entry", **{name: lambda: "a"})
    refused(f"{name} is called with one entry", **{name: lambda entry, more: "a"})


@pytest.mark.parametrize("route", [7, akey, ("mail",)])
def test_route_to_is_a_name_or_a_function(route):
    refused("route_to is a plain function that takes an entry", route_to=route)


@pytest.mark.parametrize("route", ["", "a,b", "*", "@", "a" * 200])
def test_the_name_of_a_queue_is_checked(route):
    refused("route_to: ", route_to=route)


@pytest.mark.parametrize("route", ["mail", "@mail"])
def test_a_queue_of_entries_is_one_of_events(route):
    consume("ledger", group="totals", route_to=route)(handler)
    assert consumers["ledger", "totals"].route_to == "@mail"


@pytest.mark.parametrize(("name", "value"), [("batch_size", 10), ("key", lambda entry: "a"), ("transactional", True)])
def test_what_has_no_meaning_with_route_to_is_refused(name, value):
    refused(f"{name} has no meaning with route_to: each entry becomes a job", route_to="mail", **{name: value})


def test_an_async_handler_is_not_transactional():
    refused("Django's transactions are synchronous", ahandler, transactional=True)


@pytest.mark.parametrize("value", ["yes", 1, None])
def test_transactional_is_checked(value):
    refused("transactional is True or False", transactional=value)


@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True])
def test_max_attempts_is_checked(value):
    refused("max_attempts is a whole number from 1", max_attempts=value)


@pytest.mark.parametrize("value", [0, -1, "3", True, timedelta(0)])
def test_timeout_is_checked(value):
    refused("timeout is a number of seconds above 0 or a timedelta", timeout=value)


@pytest.mark.parametrize("value", [10, "10", akey, lambda: 10, lambda exception: 10])
def test_backoff_is_checked_and_named_as_it_is_called(value):
    refused(r"backoff is a function \(exception, entry\)", backoff=value)


@pytest.mark.parametrize("value", ["card", 7, None])
def test_sensitive_is_a_tuple(value):
    refused("sensitive is a tuple of keys of the payload", sensitive=value)


def test_sensitive_holds_names():
    refused("sensitive holds keys of the payload, not 7", sensitive=("card", 7))
