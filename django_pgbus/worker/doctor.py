"""
`pgbus_doctor`: what could keep jobs from running here, each look in one line.

The system checks come first, since most of what can be wrong can be known without a worker. Then the looks at the
living system: they read and change nothing, are bounded (rows and seconds), and know nothing of each other; one that
cannot be made says so, and the next is made all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

from django.core import checks
from django.core.checks import CheckMessage
from django.db import DatabaseError, connections

from django_pgbus.conf import database, get_settings
from django_pgbus.events import subscriptions
from django_pgbus.postgres.listen import Listener
from django_pgbus.postgres.own_connection import IMPATIENT, close, own_connection
from django_pgbus.tasks.runnable import kind_of, load_path
from django_pgbus.worker import doctor_sql as sql
from django_pgbus.worker import doctor_streams
from django_pgbus.worker.findings import Finding as Finding
from django_pgbus.worker.findings import Grade as Grade
from django_pgbus.worker.plan import Capsule, parse_queues

LOOK_TAKES: Final = 5.0  # seconds
CLOCK_OFF: Final = 2.0  # seconds
OLD: Final = 300.0  # seconds that a transaction or a snapshot may last
FAR_BEHIND: Final = 1_000_000  # transactions that a replication slot may hold back
MANY_DEAD: Final = 10_000  # rows
BACKLOG_COUNTED: Final = 10_000
TASK_ROWS: Final = 10_000
HOT_TABLES: Final = ("pgbus_messages", "pgbus_delayed", "pgbus_workers", "pgbus_levels")
WORSE_HERE: Final = {"pgbus.W010"}  # missing migrations must not keep `migrate` from running, but a worker


Findings = Iterator[Finding]


def examine() -> Findings:
    """Yield what is found, one look after the other."""
    yield from _look("configuration", _configuration)
    alias = database()
    before = connections[alias]
    connection = own_connection("doctor")
    try:
        connection.connect()
        IMPATIENT.tuples(milliseconds=str(int(LOOK_TAKES * 1000)))
    except Exception as error:
        yield Finding(Grade.FAIL, "database", f"alias {alias!r} cannot be reached: {_line(error)}", "Check DATABASES.")
    else:
        for subject, look in LOOKS.items():
            yield from _look(subject, look)
    finally:
        close(connection)
        connections[alias] = before


def _look(subject: str, look: Callable[[], Findings]) -> Findings:
    try:
        yield from look()
    except Exception as error:
        grade = Grade.WARN if isinstance(error, DatabaseError) else Grade.FAIL
        yield Finding(grade, subject, f"could not be looked at: {_line(error)}")


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


# --- what is declared ---------------------------------------------------------------------------------


def _configuration() -> Findings:
    yield from _checked("configuration", checks.run_checks(), "the system checks have nothing to say")


def _migrations() -> Findings:
    found = checks.run_checks(tags=[checks.Tags.database], databases=[database()])
    yield from _checked("schema", found, "version and migrations are as they should be")


def _checked(subject: str, messages: list[CheckMessage], fine: str) -> Findings:
    ours = [message for message in messages if (message.id or "").startswith("pgbus.") and not message.is_silenced()]
    for message in ours:
        bad = message.is_serious() or message.id in WORSE_HERE
        grade = Grade.FAIL if bad else Grade.WARN if message.level >= checks.WARNING else Grade.OK
        yield Finding(grade, subject, f"{message.msg} ({message.id})", str(message.hint or ""))
    if not ours:
        yield Finding(Grade.OK, subject, fine)


# --- the server ---------------------------------------------------------------------------------------


def _server() -> Findings:
    before = time.time()
    row = sql.SERVER.row()
    after = time.time()
    if row.standby:
        yield Finding(
            Grade.FAIL,
            "database",
            f"alias {database()!r} is a standby, which takes no writes",
            "Name the primary in DATABASES, or wait for its promotion.",
        )
    else:
        yield Finding(Grade.OK, "database", f"PostgreSQL {row.version} on alias {database()!r}")
    offset = row.clock - (before + after) / 2
    if abs(offset) > CLOCK_OFF + (after - before):
        yield Finding(
            Grade.WARN,
            "clock",
            f"the database's is {abs(offset):.1f} s {'ahead of' if offset > 0 else 'behind'} this host's",
            "Leases and due times go by the database's; run_after is computed by the caller's. Check NTP.",
        )
    else:
        yield Finding(Grade.OK, "clock", f"{abs(offset):.3f} s between database and host")


def _notifications() -> Findings:
    alias = get_settings().LISTEN_DATABASE or database()
    listener = Listener()
    with closing(listener):
        listener.open()
        hears, _ = listener.hears_itself()
    if hears:
        yield Finding(Grade.OK, "notifications", f"arrive on alias {alias!r}")
        return
    yield Finding(
        Grade.WARN,
        "notifications",
        f"do not arrive on alias {alias!r}: workers only poll, every {get_settings().POLL_INTERVAL:g} s",
        "A transaction pooler stands between. Name a direct connection in PGBUS['LISTEN_DATABASE'].",
    )


def _tables() -> Findings:
    rows = sql.TABLES.rows(names=list(HOT_TABLES))
    off = [row.name for row in rows if not row.vacuumed]
    dead = [f"{row.name} ({row.dead} dead, {row.live} live)" for row in rows if row.dead > max(MANY_DEAD, row.live)]
    if off:
        yield Finding(
            Grade.FAIL,
            "autovacuum",
            f"is off for {', '.join(off)}: claims become slower with every job",
            "ALTER TABLE ... RESET (autovacuum_enabled), or autovacuum = on in postgresql.conf.",
        )
    if dead:
        yield Finding(
            Grade.WARN,
            "autovacuum",
            f"lags behind: {', '.join(dead)}",
            "See whether an old transaction holds it back (below), or give it more to spend "
            "(autovacuum_vacuum_cost_limit).",
        )
    if not off and not dead:
        yield Finding(Grade.OK, "autovacuum", f"on, and {sum(row.dead for row in rows)} dead rows in the hot tables")


def _transactions() -> Findings:
    rows = sql.TRANSACTIONS.rows()
    oldest = next((row for row in rows if row.kind != "replication slot"), None)
    if oldest is not None and oldest.seconds > OLD:
        yield Finding(
            Grade.WARN,
            "transactions",
            f"{_holder(oldest)} has been open for {oldest.seconds:.0f} s: keys it holds are waited for",
            "End it, and set idle_in_transaction_session_timeout."
            if oldest.kind == "session"
            else "COMMIT PREPARED or ROLLBACK PREPARED it.",
        )
    else:
        yield Finding(Grade.OK, "transactions", f"the oldest is {oldest.seconds if oldest else 0:.0f} s old")
    holding = [
        row
        for row in rows
        if row.holds_snapshot and (row.behind > FAR_BEHIND if row.kind == "replication slot" else row.seconds > OLD)
    ]
    if holding:
        worst = max(holding, key=lambda row: row.behind)
        yield Finding(
            Grade.WARN,
            "snapshots",
            f"{_holder(worst)} holds back vacuum by {worst.behind} transactions",
            "Dead rows stay until it ends: end it, or drop a replication slot nobody uses.",
        )
    else:
        yield Finding(Grade.OK, "snapshots", "none is held for long")


def _holder(row: Any) -> str:
    return f"{row.kind} {row.name} ({row.text})"


# --- the work -----------------------------------------------------------------------------------------


def _queues() -> Findings:
    backlogs = sql.BACKLOGS.rows(counted=BACKLOG_COUNTED)
    workers = sql.LIVING_WORKERS.rows()
    capsules = [capsule for worker in workers for capsule in _capsules(worker.queues)]
    deaf = [worker.name for worker in workers if worker.listening is False]
    served = 0
    for row in backlogs:
        jobs = f"{row.jobs}{'+' if row.jobs == BACKLOG_COUNTED else ''} jobs"
        if row.paused_at is not None:
            yield Finding(
                Grade.WARN,
                "queues",
                f"{row.queue!r} is paused{f' by {row.paused_by}' if row.paused_by else ''}, {jobs} wait",
                "Resume it on the page Queues of the admin.",
            )
        elif not any(capsule.serves(row.queue) for capsule in capsules):
            yield Finding(
                Grade.FAIL,
                "queues",
                f"{row.queue!r} has {jobs} and no living worker",
                f"Start one: manage.py runworker --queues {row.queue!r}",
            )
        else:
            served += 1
    if workers or not backlogs:
        yield Finding(Grade.OK, "queues", f"{len(workers)} living workers, {served} queues with work served")
    if deaf:
        yield Finding(
            Grade.WARN, "workers", f"{', '.join(deaf)} hear no notifications and only poll", "See notifications, above."
        )


def _capsules(text: str) -> tuple[Capsule, ...]:
    try:
        return parse_queues(text, threads=1)
    except ValueError:  # A worker of another version.
        return ()


def _tasks() -> Findings:
    """Import what waits, as a worker of this code would."""
    rows = sql.TASKS.rows(rows=TASK_ROWS)
    unknown: dict[str, Exception] = {}
    for row in rows:
        try:
            load_path(row.task, kind_of(row.topic))
        except Exception as error:
            unknown[row.task] = error
    for path, reason in unknown.items():
        yield Finding(
            Grade.FAIL,
            "tasks",
            f"{path} waits and cannot be imported: {_line(reason)}",
            "Deploy the code that has it, or discard these jobs: each of their attempts fails.",
        )
    if not unknown:
        yield Finding(Grade.OK, "tasks", f"all {len(rows)} that wait can be imported")


def _subscriptions() -> Findings:
    """Look for what is published to handlers that are not there."""
    paths = {row.handler for row in subscriptions.stored()}
    unknown = subscriptions.unknown(paths)
    for path in unknown:
        yield Finding(
            Grade.WARN,
            "events",
            f"{path} is subscribed, and this code does not have it",
            f"If no other does: manage.py pgbus_subscriptions --unbind {path}",
        )
    if not unknown:
        yield Finding(Grade.OK, "events", f"all {len(paths)} subscribed handlers are in this code")


LOOKS: Final[dict[str, Callable[[], Findings]]] = {
    "database": _server,
    "schema": _migrations,
    "notifications": _notifications,
    "queues": _queues,
    "tasks": _tasks,
    "events": _subscriptions,
    "streams": doctor_streams.look,
    "autovacuum": _tables,
    "transactions": _transactions,
}
