"""
Testing code that enqueues tasks.

    run_enqueued()                          run what was enqueued, in the test's thread and transaction
    assert_enqueued(task, args=[42])        and assert_not_enqueued: what waits to be run
    enqueued(task)                          ... as a list of results
    PgbusTestMixin                          the same as methods of a TestCase
    pgbus_run_enqueued, pgbus_enqueued      the same as fixtures of pytest

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
    from django_pgbus.testing.inline import arun_enqueued, run_enqueued

__all__ = [
    "PgbusTestMixin",
    "aassert_enqueued",
    "aassert_not_enqueued",
    "aenqueued",
    "arun_enqueued",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued",
    "run_enqueued",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "inline" if name.endswith("run_enqueued") else "assertions"
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
