"""
Testing code that enqueues tasks.

    run_enqueued()                          run what was enqueued, in the test's thread and transaction
    assert_enqueued(task, args=[42])        and assert_not_enqueued: what waits to be run
    enqueued(task)                          ... as a list of results
    deliver_published()                     run the handlers of what was published
    assert_published("orders.*", {...})     and assert_not_published: what was published
    published("orders.#")                   ... as a list of events
    consume_stream("ledger")                let the groups of a stream handle what was appended
    PgbusTestMixin                          the same as methods of a TestCase
    pgbus_run_enqueued, pgbus_enqueued,     the same as fixtures of pytest
    pgbus_deliver_published, pgbus_consume_stream

All of it works in a `TestCase`, in a `TransactionTestCase` and with pytest-django. Tasks go through the claims,
the execution and the settlements that a worker uses, on the connections of the test: none is closed or reset, and a
task whose SQL failed leaves the test's transaction usable. What needs a worker is not covered: timeouts, leases,
several tasks at once.

The names are imported when they are first asked for: pytest loads the plugin before Django is set up.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_pgbus.testing.assertions import (
        PgbusTestMixin,
        aassert_enqueued,
        aassert_not_enqueued,
        aenqueued,
        assert_enqueued,
        assert_not_enqueued,
        enqueued,
    )
    from django_pgbus.testing.events import (
        Delivered,
        aassert_not_published,
        aassert_published,
        adeliver_published,
        apublished,
        assert_not_published,
        assert_published,
        declare_subscriptions,
        deliver_published,
        published,
        subscribed,
    )
    from django_pgbus.testing.inline import arun_enqueued, run_enqueued
    from django_pgbus.testing.streams import aconsume_stream, consume_stream

__all__ = [
    "Delivered",
    "PgbusTestMixin",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "aassert_not_published",
    "aassert_published",
    "aconsume_stream",
    "adeliver_published",
    "aenqueued",
    "apublished",
    "arun_enqueued",
    "assert_enqueued",
    "assert_not_enqueued",
    "assert_not_published",
    "assert_published",
    "consume_stream",
    "declare_subscriptions",
    "deliver_published",
    "enqueued",
    "published",
    "run_enqueued",
    "subscribed",
]


def _home(name: str) -> str:
    if name.endswith("run_enqueued"):
        return "inline"
    if name.endswith("consume_stream"):
        return "streams"
    return "assertions" if name == "PgbusTestMixin" or name.endswith("enqueued") else "events"


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_home(name)}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
