"""Consumers for the tests of `consume_stream`; they are there while a test of them runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

from django_pgbus import Stream, consume, publish
from django_pgbus.models import QueueState
from tests.streams.following import nothing_declared

seen: list[Any] = []
broken: set[int] = set()  # the numbers of entries that fail


@contextmanager
def declared() -> Iterator[Stream]:
    """Declare the groups below, and yield their stream, which is there."""
    seen.clear()
    broken.clear()
    with nothing_declared():
        helped = Stream("helped")
        helped.ensure()
        for group, func, options in (
            ("single", single, {"max_attempts": 2}),
            ("batch", batch, {"batch_size": 3}),
            ("sums", sums, {"batch_size": 3, "transactional": True}),
            ("keyed", keyed, {"key": lambda entry: entry.payload["n"] % 2}),
            ("routed", routed, {"route_to": lambda entry: "big" if entry.payload["n"] > 2 else None}),
            ("forgotten", forgets_to_await, {"route_to": "forgotten", "max_attempts": 1}),
            ("echo", echo, {}),
            ("spoils", spoils, {}),
        ):
            consume("helped", group=group, **options)(func)
        consume("helped-late", group="late", start="end")(late)
        yield helped


def note(name: str, entry: Any) -> None:
    seen.append((name, entry.payload["n"]))
    if entry.payload["n"] in broken:
        raise ConnectionError(f"{name} {entry.payload['n']}, attempt {entry.attempt}")


def single(entry: Any) -> None:
    note("single", entry)


def batch(entries: Any) -> None:
    seen.append(("batch", [entry.payload["n"] for entry in entries]))
    if any(entry.payload["n"] in broken for entry in entries):
        raise ConnectionError("batch")


def sums(entries: Any) -> None:
    for entry in entries:
        QueueState.objects.create(queue=f"helped-{entry.payload['n']}")
    for entry in entries:
        note("sums", entry)


async def keyed(entry: Any) -> None:
    seen.append(("keyed", entry.payload["n"], await QueueState.objects.acount()))
    if entry.payload["n"] in broken:
        raise ConnectionError("keyed")


def routed(entry: Any) -> None:
    note("routed", entry)
    publish("from.routed", entry.payload)


def forgets_to_await(entry: Any) -> Any:
    return keyed(entry)


def echo(entry: Any) -> None:
    """Append to the stream that it reads: 2 and 3 after a 1, for ever after a 99."""
    if entry.payload["n"] < 3 or entry.payload["n"] == 99:
        Stream("helped").append({"n": entry.payload["n"] + (entry.payload["n"] != 99)})


def spoils(entry: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def late(entry: Any) -> None:
    note("late", entry)
