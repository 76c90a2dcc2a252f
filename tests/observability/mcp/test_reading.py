"""Nothing is written, nothing takes long, and nothing is left open: what every tool stands on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import DatabaseError, InternalError, OperationalError, connection, connections, transaction

from django_pgbus.models import Message
from django_pgbus.observability.mcp import reading as guard
from django_pgbus.observability.mcp import server
from django_pgbus.observability.mcp.reading import reading
from django_pgbus.observability.mcp.tool import Tool
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.line import COMMITTED
from tests.observability.mcp.asking import ask, refusal
from tests.sessions import execute, until

pytestmark = COMMITTED

READ_ONLY_TRANSACTION = "25006"


def writes_by_the_orm() -> None:
    rows.a_message()


def writes_by_a_verb() -> None:
    lifecycle.pause_queue("default")


def locks_a_row() -> None:
    list(Message.objects.select_for_update())


def takes_an_id() -> None:
    execute("SELECT nextval('pgbus_task_id')")


def turns_it_off_and_writes() -> None:
    execute("SELECT set_config('transaction_read_only', 'off', true)")
    rows.a_message()


@pytest.mark.parametrize(
    "attempt", [writes_by_the_orm, writes_by_a_verb, locks_a_row, takes_an_id, turns_it_off_and_writes]
)
def test_postgres_refuses_what_would_write(attempt: Callable[[], None]) -> None:
    rows.a_message()
    with pytest.raises(DatabaseError) as refused, reading():
        attempt()
    # 25001: it cannot be turned off once anything was asked
    assert sqlstate(refused.value) in {READ_ONLY_TRANSACTION, "25001"}
    assert Message.objects.count() == 1


def test_a_tool_that_would_write_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def pgbus_writes() -> int:
        """Write."""
        return int(rows.a_message().pk)

    monkeypatch.setitem(server.TOOLS, "pgbus_writes", Tool.of(pgbus_writes))
    assert refusal("pgbus_writes") == "The database could not answer: InternalError. The log of the server says more."
    assert not Message.objects.exists()
    assert "pgbus_writes could not be answered." in caplog.text


def test_a_statement_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def pgbus_sleeps() -> int:
        """Sleep."""
        return len(execute("SELECT pg_sleep(60)"))

    monkeypatch.setattr(guard, "PATIENCE", 50)
    monkeypatch.setitem(server.TOOLS, "pgbus_sleeps", Tool.of(pgbus_sleeps))
    assert "was given up" in refusal("pgbus_sleeps")


def sessions() -> int:
    return int(execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbus mcp'")[0][0])


def test_the_connection_is_its_own_and_closed_afterwards() -> None:
    mine = connections["default"]
    with reading():
        assert connections["default"] is not mine
        assert sessions() == 1
        assert execute("SELECT current_setting('application_name')") == [("pgbus mcp",)]
    assert connections["default"] is mine
    until(lambda: sessions() == 0)
    with pytest.raises(ZeroDivisionError), reading():
        _ = 1 / 0
    assert connections["default"] is mine
    until(lambda: sessions() == 0)


def test_it_stands_beside_a_transaction_of_the_caller() -> None:
    with transaction.atomic():
        rows.a_message()
        assert ask("pgbus_jobs")["jobs"] == []  # not committed
        rows.a_message()  # and this transaction may go on writing
    assert len(ask("pgbus_jobs")["jobs"]) == 2


def test_only_a_few_are_answered_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "turns", threading.BoundedSemaphore(1))
    monkeypatch.setattr(server, "TURN_COMES", 0.0)
    assert server.turns.acquire()
    assert refusal("pgbus_queues") == "Too much is asked at once. Ask again in a moment."
    server.turns.release()
    ask("pgbus_queues")


@pytest.fixture
def without_tables() -> Iterator[None]:
    execute("ALTER TABLE pgbus_messages RENAME TO pgbus_messages_away")
    yield
    execute("ALTER TABLE pgbus_messages_away RENAME TO pgbus_messages")


@pytest.mark.usefixtures("without_tables")
def test_missing_tables_are_named() -> None:
    assert "`manage.py migrate`" in refusal("pgbus_jobs")
    assert "could not be looked at" in str(ask("pgbus_health")["reasons"])


def test_a_database_that_is_away_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any, **options: Any) -> Any:
        raise OperationalError("connection to server at 10.0.0.7 failed: password=hunter2")

    monkeypatch.setattr(guard, "own_connection", away)
    assert refusal("pgbus_queues") == "The database cannot be reached."


def test_what_nobody_foresaw_is_not_told(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def pgbus_fails() -> int:
        """Fail."""
        raise ValueError("hunter2")

    monkeypatch.setitem(server.TOOLS, "pgbus_fails", Tool.of(pgbus_fails))
    assert refusal("pgbus_fails") == "It could not be answered: ValueError. The log of the server says more."
    assert "hunter2" in caplog.text


def test_the_guard_is_what_refuses() -> None:
    """Without it the same write goes through: these tests can fail."""
    writes_by_the_orm()
    assert Message.objects.count() == 1
    assert issubclass(InternalError, DatabaseError)
    assert connection.vendor == "postgresql"
