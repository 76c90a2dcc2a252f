"""
What a pooler must not notice of us, and what we must notice of it; only `run.py` collects this.

With `--listen none` a worker's own sessions go through the pooler too, with `direct` past it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from django_pgbus import signals
from django_pgbus.postgres import Statement
from django_pgbus.postgres.listen import Listener
from django_pgbus.postgres.own_connection import IMPATIENT, PIN_PLANS, close, own_connection, prepare_statements
from django_pgbus.worker import doctor_server
from django_pgbus.worker.findings import Grade
from tests import jobs
from tests.line import COMMITTED, long_up  # noqa: F401  (a fixture for all tests here)
from tests.pooler.plugin import LISTEN
from tests.running import a_worker
from tests.sessions import execute, until

pytestmark = COMMITTED

# What somebody would get from us with a session that we had before; the pooler itself sees to the first names.
TRACES = """
    SELECT pg_backend_pid(),
           (SELECT array_agg(name || ' = ' || setting)
            FROM pg_settings
            WHERE source = 'session'
              AND name NOT IN ('application_name', 'TimeZone', 'client_encoding')),
           (SELECT array_agg(statement) FROM pg_prepared_statements),
           (SELECT array_agg(channel) FROM pg_listening_channels() AS channel)
"""
ASK = Statement(
    sql="""
    SELECT current_setting('enable_seqscan') AS seqscan,
           current_setting('statement_timeout') AS timeout,
           %(number)s::int AS number
    """
)


@contextmanager
def a_client(**more: Any) -> Iterator[psycopg.Connection]:
    """Yield another client of the pooler."""
    known = connections.settings["default"]
    params = {"host": known["HOST"], "port": known["PORT"], "user": known["USER"], "dbname": known["NAME"]} | more
    with closing(psycopg.connect(**params, autocommit=True, cursor_factory=psycopg.ClientCursor)) as client:
        yield client


def servers() -> int:
    """Return how many sessions the pooler has at the server for this database."""
    with a_client(dbname="pgbouncer") as console:
        database = connection.settings_dict["NAME"]
        cursor = console.execute("SHOW SERVERS")
        place = [column.name for column in cursor.description].index("database")
        return sum(row[place] == database for row in cursor)


def traces() -> dict[int, list[object]]:
    """Return what stands on each session that the pooler has, all of them held at once."""
    found = {}
    connections.close_all()
    with ExitStack() as held:
        for _ in range(servers()):
            client = held.enter_context(a_client())
            client.execute("BEGIN")
            backend, *rest = client.execute(TRACES).fetchone()
            found[backend] = [one for one in rest if one]
    return found


def work_through_it() -> None:
    """Let a worker run jobs until it knows whether it hears."""
    with a_worker(threads=4) as worker:
        results = [jobs.noop.enqueue() for _ in range(30)]
        until(lambda: worker.process._listener.hears is not None)
        until(lambda: all(result.is_finished or result.refresh() for result in results))


def test_a_worker_leaves_nothing_behind_on_the_sessions_of_the_pool():
    work_through_it()
    found = traces()
    assert len(found) > 1 or LISTEN == "direct"
    assert {backend: left for backend, left in found.items() if left} == {}


@pytest.mark.skipif(LISTEN != "none", reason="its own sessions go past the pooler")
def test_it_would_leave_its_settings_behind_if_they_did_not_travel(monkeypatch):
    monkeypatch.setattr("django_pgbus.postgres.own_connection.carrier_of", lambda connection: None)
    monkeypatch.setattr("django_pgbus.worker.connected.prepare_statements", lambda connection: None)
    work_through_it()
    found = traces()
    assert any(found.values())
    execute("SELECT pg_terminate_backend(pid) FROM unnest(%s) AS pid WHERE pid <> pg_backend_pid()", [list(found)])
    connections.close_all()


def test_settings_travel_with_each_statement_and_end_with_it():
    here = connections["default"]
    own = own_connection("test")
    try:
        own.connect()
        PIN_PLANS.hold()
        IMPATIENT.hold(milliseconds="4321")
        prepare_statements(own)
        assert ASK.tuples(number=7) == [("off", "4321ms", 7)]
        with transaction.atomic():
            assert ASK.tuples(number=8) == [("off", "4321ms", 8)]
            with transaction.atomic():  # a savepoint
                assert ASK.row(number=9).number == 9
        with a_client() as other:
            assert other.execute("SHOW enable_seqscan").fetchone() == ("on",)
    finally:
        close(own)
        connections["default"] = here


def test_a_statement_that_takes_too_long_is_cancelled_through_it():
    here = connections["default"]
    own = own_connection("test")
    try:
        own.connect()
        IMPATIENT.hold(milliseconds="50")
        with pytest.raises(Exception, match="statement timeout"):
            Statement(sql="SELECT pg_sleep(20)").tuples()
        assert Statement(sql="SELECT 1").tuples() == [(1,)]
    finally:
        close(own)
        connections["default"] = here


def test_a_worker_says_whether_it_hears():
    said = []

    def deaf(**_):
        said.append("deaf")

    signals.listener_deaf.connect(deaf)
    try:
        with a_worker() as worker:
            until(lambda: worker.process._listener.hears is not None)
            heard = worker.process._listener.hears
    finally:
        signals.listener_deaf.disconnect(deaf)
    assert (heard, said) == ((True, []) if LISTEN == "direct" else (False, ["deaf"]))


def test_the_doctor_tells_the_same():
    (found,) = doctor_server.notifications()
    if LISTEN == "direct":
        assert found.grade is Grade.OK
        assert "arrive on alias 'direct', through a pooler" in found.text
    else:
        assert found.grade is Grade.WARN
        assert "workers only poll" in found.text


@pytest.mark.skipif(LISTEN != "none", reason="LISTEN goes past the pooler")
def test_what_arrives_on_the_session_that_sent_it_is_no_proof(monkeypatch):
    """It comes with the reply, whoever is lent the session: through an idle pooler a deaf worker would hear itself."""
    monkeypatch.setattr("django_pgbus.postgres.listen.SELF_TEST_WAIT", 0.2)
    with closing(Listener()) as listener:
        listener.open()
        listener._listen()
        assert any(listener._hears(listener._session)[0] for _ in range(servers()))  # they take turns
        assert listener.hears_itself() == (False, [])
        for _ in range(servers()):
            listener._session.execute("UNLISTEN *")


def test_a_worker_that_is_deaf_polls():
    with a_worker(poll=0.2) as worker:
        until(lambda: worker.process._listener.hears is not None)
        result = jobs.note.enqueue("through")
        until(lambda: result.is_finished or result.refresh())
        assert result.return_value == "through"
