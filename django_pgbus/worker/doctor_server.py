"""The looks of `pgbus_doctor` at the server: its version and clock, and what it lets us do."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from typing import Any, Final

from django.db import connections

from django_pgbus.conf import database, get_settings
from django_pgbus.postgres.listen import CHANNEL, SELF_TEST_WAIT, Listener
from django_pgbus.worker import doctor_server_sql as sql
from django_pgbus.worker import doctor_sql
from django_pgbus.worker.findings import Finding, Findings, Grade

NEWEST_POSTGRES: Final = 18  # that the tests run with; the oldest is a system check
CLOCK_OFF: Final = 2.0  # seconds
BESIDE_ITS_THREADS: Final = 6  # connections of a worker process: heart, claims, completer, mover, sweeps, LISTEN
NEARLY_FULL: Final = 0.9  # of the connections


def server() -> Findings:
    """Look at version, role and clock of the server."""
    before = time.time()
    row = sql.SERVER.row()
    after = time.time()
    alias = database()
    if row.standby:
        yield Finding(
            Grade.FAIL,
            "database",
            f"alias {alias!r} is a standby, which takes no writes",
            "Name the primary in DATABASES, or wait for its promotion.",
            alias,
        )
    elif row.number // 10_000 > NEWEST_POSTGRES:
        yield Finding(
            Grade.WARN,
            "database",
            f"PostgreSQL {row.version} on alias {alias!r} is newer than what this version of pgbus was tested with",
            f"Use {NEWEST_POSTGRES}, or a later version of pgbus.",
            alias,
        )
    else:
        yield Finding(Grade.OK, "database", f"PostgreSQL {row.version} on alias {alias!r}", "", alias)
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


# --- connections --------------------------------------------------------------------------------------


def room() -> Findings:
    """Look whether the living workers get their connections when all their threads work."""
    row = sql.ROOM.row()
    limits = {
        "max_connections": row.server_limit,
        "the limit of the role": row.role_limit,
        "the limit of the database": row.database_limit,
    }
    cause, most = min(((name, limit) for name, limit in limits.items() if limit >= 0), key=lambda pair: pair[1])
    workers = doctor_sql.LIVING_WORKERS.rows()
    needed = sum(worker.capacity + BESIDE_ITS_THREADS for worker in workers)
    short = needed > most
    full = row.used > most * NEARLY_FULL
    if short:
        yield Finding(
            Grade.WARN,
            "connections",
            f"{len(workers)} living workers use up to {needed} when all their threads work, {cause} leaves {most}",
            "Fewer --threads or --processes, a higher limit, or a pooler with PGBUS['LISTEN_DATABASE'] past it.",
            cause,
        )
    if full:
        yield Finding(
            Grade.WARN,
            "connections",
            f"{row.used} of {most} are in use ({cause}): soon a worker, or a request, gets none",
            "See who holds them in pg_stat_activity. Raise the limit, or put a pooler between.",
            cause,
        )
    if not short and not full:
        yield Finding(Grade.OK, "connections", f"{row.used} of {most} in use, living workers take up to {needed}")


def notifications() -> Findings:
    """Look whether what an enqueuer sends arrives where a worker listens."""
    alias, listen = database(), get_settings().LISTEN_DATABASE or database()
    with closing(Listener()) as listener:
        listener.open()
        hears, _ = listener.hears_itself()
        arrives, pooled = _arrives(listener) if hears else (False, False)
    pooler = ", through a pooler" if pooled else ""
    if arrives:
        yield Finding(Grade.OK, "notifications", f"arrive on alias {listen!r}{pooler}", "", listen)
    elif hears:
        yield Finding(
            Grade.FAIL,
            "notifications",
            f"sent on alias {alias!r} do not arrive on {listen!r}, which hears only itself: it is another database",
            f"Let {listen!r} name the host and the database of {alias!r}, past the pooler.",
            listen,
        )
    else:
        yield Finding(
            Grade.WARN,
            "notifications",
            f"do not arrive on alias {listen!r}: workers only poll, every {get_settings().POLL_INTERVAL:g} s",
            "A transaction pooler stands between. Name a direct connection in PGBUS['LISTEN_DATABASE'].",
            listen,
        )


def _arrives(listener: Listener) -> tuple[bool, bool]:
    """Return whether what is sent as an enqueuer does arrives, and whether that went through a pooler."""
    sender: Any = connections.create_connection(database())
    test = ["test", uuid.uuid4().hex]
    try:
        with sender.cursor() as cursor:
            cursor.execute(sql.NOTIFY.sql, {"channel": CHANNEL, "kind": test[0], "token": test[1]})
            (backend, *_), *_ = cursor.fetchall()
        # A pooler answers with a number of its own; two answers of one server tell the same.
        pooled = sender.connection.info.backend_pid != backend
    finally:
        sender.close()
    deadline = time.monotonic() + SELF_TEST_WAIT
    while (left := deadline - time.monotonic()) > 0:
        if test in listener.wait(left):
            return True, pooled
    return False, pooled


# --- rights -------------------------------------------------------------------------------------------


def permissions() -> Findings:
    """Look whether the role may do what a worker does."""
    role, found = sql.ROLE.row().role, []
    for row in sql.LACKING.rows():
        if row.lacking:
            found.append(
                Finding(
                    Grade.FAIL,
                    "permissions",
                    f"the role {role} may not {', '.join(row.lacking)} on {row.name}",
                    f'GRANT {", ".join(row.lacking)} ON {row.name} TO "{role}";',
                    row.name,
                )
            )
        if row.hides_rows:
            found.append(
                Finding(
                    Grade.FAIL,
                    "permissions",
                    f"row level security may hide rows of {row.name} from the role {role}",
                    f'ALTER TABLE {row.name} DISABLE ROW LEVEL SECURITY, or ALTER ROLE "{role}" BYPASSRLS.',
                    row.name,
                )
            )
        if row.foreign_log:
            found.append(
                Finding(
                    Grade.WARN,
                    "permissions",
                    f"the role {role} does not own {row.name}: partitions are neither made ahead nor dropped",
                    f'ALTER TABLE {row.name} OWNER TO "{role}", and its partitions, or GRANT the owner\'s role to it.',
                    row.name,
                )
            )
    yield from found
    if not found:
        sees = (
            ""
            if sql.ROLE.row().sees_all
            else "; of the sessions of other roles it sees no age (GRANT pg_read_all_stats)"
        )
        yield Finding(Grade.OK, "permissions", f"the role {role} may do what a worker does{sees}")
