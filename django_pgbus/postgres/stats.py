"""Read-only numbers of tables and transactions, for people: metrics and MCP read these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from django_pgbus.postgres import stats_sql


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStats:
    """One table as the server's statistics have it; `vacuumed` in seconds, None if it never was."""

    name: str
    live: int
    dead: int
    size: int
    vacuumed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """
    What keeps vacuum from its work.

    `oldest` is how long the oldest transaction of this database is open, in seconds; of other roles only with the rights of
    `pg_read_all_stats`. `held_back` is how many transactions ago the oldest snapshot was taken, by anybody in the cluster.
    """

    oldest: float
    held_back: int


def tables(names: Iterable[str]) -> list[TableStats]:
    """Return these tables, by name; one that is not there is left out."""
    return [TableStats(**row._asdict()) for row in stats_sql.TABLES.rows(names=sorted(names))]


def transactions() -> Transactions:
    """Return how old the oldest transaction and the oldest snapshot are; our own count for nothing."""
    return Transactions(**stats_sql.TRANSACTIONS.row()._asdict())
