"""Jobs in the line and what becomes of them, without a worker: the transitions called by hand."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from django_pgbus.batches import sql as batches_sql
from django_pgbus.concurrency import sql as concurrency_sql
from django_pgbus.idempotency import sql as idempotency_sql
from django_pgbus.postgres import Statement
from django_pgbus.queues import sql, wake
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.streams import sql as streams_sql
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks import sql as tasks_sql
from django_pgbus.tasks.outcomes import GaveUp, NewWork, PutOff, Success
from django_pgbus.uniqueness import sql as uniqueness_sql
from tests.sessions import execute

LEASE = 30.0
DEFAULT = Level("default", 0)
SUSPECTS = Level("default", 0, True)
ERROR = '{"exception": "builtins.ValueError", "traceback": "no", "worker": "w", "attempt": 1}'

# Commits, and is undone by emptying our tables only: a tenth of the time that all tables of all apps take.
COMMITTED = pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])
UP_SINCE = "pg_postmaster_start_time()"
MODULES: dict[str, Any] = {
    "queues": sql,
    "concurrency": concurrency_sql,
    "uniqueness": uniqueness_sql,
    "batches": batches_sql,
    "idempotency": idempotency_sql,
    "streams": streams_sql,
    "tasks": tasks_sql,
}


@pytest.fixture(autouse=True)
def long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server seem to have been up for long, and this process to have announced nothing yet."""
    monkeypatch.setattr(wake, "_sent", wake._Sent())
    server_started(monkeypatch, "1 day")


def server_started(monkeypatch: pytest.MonkeyPatch, ago: str) -> None:
    """Let the statements of the line believe that PostgreSQL was started so long ago."""
    since = f"(statement_timestamp() - interval '{ago}')"
    for component, module in MODULES.items():
        for name, statement in list(vars(module).items()):
            if isinstance(statement, Statement) and UP_SINCE in statement.sql:
                monkeypatch.setattr(module, name, changed(f"{component}.{name}", UP_SINCE, since))


def work(queue: str = "default", priority: int = 0, **more: Any) -> NewWork:
    return NewWork(task="tests.jobs.noop", payload='{"args": [], "kwargs": {}}', queue=queue, priority=priority, **more)


def put(number: int = 1, **more: Any) -> list[int]:
    """Enqueue and return the ids."""
    asked = work(**more)
    return [one.id for one in lifecycle.enqueue_many(asked, [asked.payload] * number)]


def claim(
    line: Line | None = None, limit: int = 100, levels: Iterable[Level] = (DEFAULT, SUSPECTS), worker: Any = None
) -> list[Delivery]:
    return lifecycle.claim(line or Line(), list(levels), limit, worker or uuid.uuid4(), LEASE)


def claim_one(**more: Any) -> Delivery:
    (delivery,) = claim(**more)
    return delivery


def succeed(*deliveries: Delivery, result: str = "null") -> set[int]:
    now = time.monotonic()
    return lifecycle.succeed([Success(delivery=d, result=result, ran_for=0.1, ended=now) for d in deliveries], now)


def fail(*deliveries: Delivery, delay: float = 0.0, reason: str = "retry") -> dict[int, bool]:
    now = time.monotonic()
    error = None if reason == "snoozed" else ERROR
    return lifecycle.put_off(
        [PutOff(delivery=d, delay=delay, reason=reason, error=error, ran_for=0.1, ended=now) for d in deliveries], now
    )


def snooze(*deliveries: Delivery, delay: float = 60.0) -> dict[int, bool]:
    return fail(*deliveries, delay=delay, reason="snoozed")


def give_up(*deliveries: Delivery, reason: str = "exhausted") -> dict[int, bool]:
    now = time.monotonic()
    return lifecycle.give_up(
        [GaveUp(delivery=d, reason=reason, error=ERROR, ran_for=0.1, ended=now) for d in deliveries], now
    )


def hand_back(*deliveries: Delivery) -> list[int]:
    return lifecycle.hand_back([(d.id, d.delivery) for d in deliveries])


def holding(*deliveries: Delivery) -> Held:
    held = Held()
    held.add(deliveries)
    return held


def lapse(*ids: int) -> None:
    """Let the leases of these messages have run out a second ago."""
    execute(
        "UPDATE pgbus_messages SET leased_until = statement_timestamp() - interval '1 second' WHERE id = ANY (%s)",
        [list(ids)],
    )


def release(*ids: int) -> list[int]:
    return lifecycle.release_lapsed(ids, LEASE)


def make_due(*ids: int) -> None:
    """Let these delayed messages be due."""
    execute(
        "UPDATE pgbus_delayed SET due_at = statement_timestamp() - interval '1 second' WHERE id = ANY (%s)", [list(ids)]
    )


def state(id: int) -> str | None:
    found = lifecycle.find(id)
    return found and found.state


def leased_for(id: int) -> float | None:
    """Return how long the lease of a message still is, by the database's clock."""
    ((seconds,),) = execute(
        "SELECT extract(epoch FROM leased_until - clock_timestamp()) FROM pgbus_messages WHERE id = %s", [id]
    )
    return None if seconds is None else float(seconds)


def changed(name: str, old: str, new: str = "") -> Any:
    """Return a statement (of `queues/sql.py`, or named like `concurrency.FREE`) with a part of its text replaced."""
    module, name = placed(name)
    statement: Any = getattr(module, name)
    assert old in statement.sql, f"{name} does not contain {old!r}"
    return replace(statement, sql=statement.sql.replace(old, new))


def placed(name: str) -> tuple[Any, str]:
    """Return the module in which a statement stands, and its name there."""
    component, _, name = name.rpartition(".")
    return MODULES[component or "queues"], name


def fails_without(name: str, guard: str, instead: str = "") -> Callable[[Callable[[], None]], Callable[..., None]]:
    """Run a test twice: as it is, and with a guard taken out of a statement, when it has to fail."""

    def decorate(test: Callable[[], None]) -> Callable[..., None]:
        @pytest.mark.parametrize("guarded", [True, False], ids=["holds", "fails without its guard"])
        def run(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
            if guarded:
                test()
                return
            monkeypatch.setattr(*placed(name), changed(name, guard, instead))
            with pytest.raises(AssertionError):
                test()

        functools.update_wrapper(run, test)
        del run.__wrapped__  # pytest reads the signature of `run`
        return run

    return decorate
