"""Publishing, and handlers that do nothing but say that they started."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_pgbus import publish, publish_many
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import Handler
from django_pgbus.tasks.policy import Policy
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.project import driver, event_handlers

CHUNK = 500
BLOCKS = 4
MATCHING = (1, 10, 100)
SUBSCRIPTIONS = 10_000
# One event goes to one handler. Of the last two no index tells the patterns apart.
KINDS: dict[str, Callable[[int], str]] = {
    "exact": lambda n: f"orders.eu.shop{n}.created",
    "leading_wildcard": lambda n: f"#.shop{n}.created",
    "shared_prefix": lambda n: f"orders.*.shop{n}.#",
    "both_ends": lambda n: f"#.shop{n}.#",
}
assert driver  # has set Django up


def _declare(patterns: list[str]) -> None:
    """Make as many handlers, whose code is nowhere."""
    subscriptions.declare(
        Handler(
            path=f"nowhere.handler_{n}",
            target=event_handlers.plain,
            patterns=(pattern,),
            queue="@unused",
            priority=0,
            idempotent=False,
            policy=Policy(max_attempts=0),
        )
        for n, pattern in enumerate(patterns)
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE pgbus_subscriptions")


def _clear() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgbus_messages")
        found = int(cursor.fetchone()[0])
        cursor.execute("TRUNCATE pgbus_messages, pgbus_subscriptions, pgbus_event_counts")
    return found


def _rate(call: Callable[[], Any], seconds: float) -> tuple[float, int]:
    call()
    began = time.perf_counter()
    done = 0
    while (took := time.perf_counter() - began) < seconds:
        call()
        done += 1
    return done / took, done + 1


def rates(seconds: float) -> dict[str, float]:
    """Return events a second to 1, 10 and 100 matching handlers, and how many statements each took; copies that are gone."""
    found: dict[str, float] = {}
    lost = 0
    for number in MATCHING:
        _declare(["orders.#"] * number)
        with CaptureQueriesContext(connection) as queries:
            publish("orders.created", ARGUMENTS)
        statements = [query["sql"] for query in queries if "pgbus_subscriptions" in query["sql"]]
        found[f"statements_{number}"] = len(statements)
        _clear()
        _declare(["orders.#"] * number)
        found[f"publish_{number}"], done = _rate(lambda: publish("orders.created", ARGUMENTS), seconds)
        lost += done * number - _clear()
    _declare(["orders.#"])
    events = [("orders.created", ARGUMENTS)] * CHUNK
    rate, done = _rate(lambda: publish_many(events), seconds)
    lost += done * CHUNK - _clear()
    return {**found, "publish_many": rate * CHUNK, "lost": lost}


def routing(seconds: float) -> dict[str, float]:
    """
    Return events a second to one of ten thousand handlers in one transaction, for each kind of pattern.

    And how many copies went astray.
    """
    found: dict[str, float] = {}
    lost = 0
    for kind, pattern_of in KINDS.items():
        _declare([pattern_of(n) for n in range(SUBSCRIPTIONS)])
        number = 0

        def call() -> None:
            nonlocal number
            number += 1
            publish(f"orders.eu.shop{number * 7919 % SUBSCRIPTIONS}.created", ARGUMENTS)

        with transaction.atomic():  # Of one statement after the other, not of commits.
            found[f"route_{kind}"], done = _rate(call, seconds)
        lost += done - _clear()
    return {**found, "lost": lost}


def fill(count: int, idempotent: int) -> float:
    """Publish so many events to one handler and return how many seconds it took."""
    subscriptions.declare(event_handlers.declared())
    topic = "drain.once" if idempotent else "drain.plain"
    began = time.perf_counter()
    for start in range(0, count, CHUNK):
        publish_many([(topic, ARGUMENTS)] * min(CHUNK, count - start))
    return time.perf_counter() - began
