"""The looks of `pgbus_doctor` at dead rows: whether autovacuum removes them, and who keeps it from that."""

from __future__ import annotations

from typing import Any, Final

from django_pgbus.worker import doctor_sql as sql
from django_pgbus.worker.findings import Finding, Findings, Grade

OLD: Final = 300.0  # seconds that a transaction or a snapshot may last
FAR_BEHIND: Final = 1_000_000  # transactions that a replication slot may hold back
MANY_DEAD: Final = 10_000  # rows
# Room on each page for the versions of its rows; a test reads the migrations.
FILLFACTORS: Final = {"pgbus_messages": 45, "pgbus_stream_cursors": 20, "pgbus_stream_leases": 50}


def tables() -> Findings:
    """Look whether autovacuum comes to our tables and keeps up, and whether their pages have the room they need."""
    rows = sql.TABLES.rows()
    found = [one for row in rows for one in _table(row)]
    if rows and not rows[0].autovacuum:
        yield Finding(
            Grade.FAIL,
            "autovacuum",
            "is off: claims become slower with every job, and the tables grow",
            "Set autovacuum = on in postgresql.conf.",
            "autovacuum",
        )
    yield from found
    if not found and rows and rows[0].autovacuum:
        yield Finding(
            Grade.OK, "autovacuum", f"on, and {sum(row.dead for row in rows):,} dead rows in {len(rows)} tables"
        )


def _table(row: Any) -> Findings:
    if row.switched_off:
        yield Finding(
            Grade.FAIL,
            "autovacuum",
            f"is off for {row.name}: claims become slower with every job",
            f"ALTER TABLE {row.name} RESET (autovacuum_enabled, toast.autovacuum_enabled);",
            row.name,
        )
    if row.dead > max(MANY_DEAD, row.live):
        last = (
            f"last vacuumed {row.since:,.0f} s ago"
            if row.since is not None
            else "not vacuumed since the statistics began"
        )
        yield Finding(
            Grade.WARN,
            "autovacuum",
            f"lags behind: {row.name} has {row.dead:,} dead rows beside {row.live:,} living ones, {last}",
            "See whether an old transaction holds it back (below), or give it more to spend "
            "(autovacuum_vacuum_cost_limit, autovacuum_max_workers).",
            row.name,
        )
    wanted = FILLFACTORS.get(row.name)
    if wanted is not None and row.fillfactor != wanted:
        yield Finding(
            Grade.WARN,
            "autovacuum",
            f"{row.name} has fillfactor {row.fillfactor} instead of {wanted}: updates find no room on their page, and "
            "change every index",
            f"ALTER TABLE {row.name} SET (fillfactor = {wanted}); then VACUUM FULL in a quiet hour, or let the rows pass.",
            row.name,
        )


def transactions() -> Findings:
    """Look for what has been open for long, and for what holds back vacuum."""
    rows = sql.TRANSACTIONS.rows()
    oldest = next((row for row in rows if row.kind in {"session", "prepared transaction"}), None)
    if oldest is not None and oldest.seconds > OLD:
        yield Finding(
            Grade.WARN,
            "transactions",
            f"{_holder(oldest)} has been open for {oldest.seconds:.0f} s: keys it holds are waited for",
            _end(oldest),
            oldest.name,
        )
    else:
        yield Finding(Grade.OK, "transactions", f"the oldest is {oldest.seconds if oldest else 0:.0f} s old")
    holding = [row for row in rows if row.holds_snapshot and _is_long(row)]
    if holding:
        worst = max(holding, key=lambda row: row.behind)
        yield Finding(
            Grade.WARN,
            "snapshots",
            f"{_holder(worst)} holds back vacuum by {worst.behind:,} transactions",
            f"Dead rows stay until it ends. {_end(worst)}",
            worst.name,
        )
    else:
        yield Finding(Grade.OK, "snapshots", "none is held for long")


def _is_long(row: Any) -> bool:
    """Return whether it is; of what has no beginning, by how many transactions it is behind."""
    is_long: bool = row.behind > FAR_BEHIND if row.kind in {"replication slot", "standby"} else row.seconds > OLD
    return is_long


def _holder(row: Any) -> str:
    return f"{row.kind} {row.name} ({row.text})"


def _end(row: Any) -> str:
    match row.kind:
        case "session":
            return f"End it (SELECT pg_terminate_backend({row.name});), and set idle_in_transaction_session_timeout."
        case "prepared transaction":
            return f"COMMIT PREPARED '{row.name}' or ROLLBACK PREPARED '{row.name}'."
        case "replication slot":
            return f"If nobody reads it: SELECT pg_drop_replication_slot('{row.name}');"
        case _:
            return "End the long query on the standby, or set hot_standby_feedback = off there."
