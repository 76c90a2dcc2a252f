"""The tables, and what keeps vacuum from its work."""

from __future__ import annotations

from typing import Final

from django.apps import apps

from django_pgbus.observability.families import Metric, Readings, Section
from django_pgbus.postgres import stats

TABLE: Final = ("table",)

LIVE: Final = Metric("pgbus_table_live_tuples", "Live rows of a table, as the server's statistics have it.", TABLE)
DEAD: Final = Metric("pgbus_table_dead_tuples", "Dead rows of a table that vacuum has not removed yet.", TABLE)
SIZE: Final = Metric(
    "pgbus_table_size_bytes", "Size of a table with its indexes; those of streams are told with them.", TABLE
)
VACUUMED: Final = Metric(
    "pgbus_table_last_vacuum_age_seconds",
    "How long ago a table was vacuumed, by hand or by itself; left out for one that never was.",
    TABLE,
)
TRANSACTION: Final = Metric(
    "pgbus_oldest_transaction_age_seconds",
    "How long the oldest transaction of this database is open; prepared ones too.",
)
HELD_BACK: Final = Metric(
    "pgbus_vacuum_held_back_transactions",
    "How many transactions ago the oldest snapshot was taken (sessions, prepared transactions, replication slots): "
    "what died since cannot be removed.",
)


def read(readings: Readings) -> None:
    """Read the statistics of our tables and the transactions."""
    for table in stats.tables(model._meta.db_table for model in apps.get_app_config("pgbus").get_models()):
        readings.set(LIVE, table.live, table.name)
        readings.set(DEAD, table.dead, table.name)
        readings.set(SIZE, table.size, table.name)
        if table.vacuumed is not None:
            readings.set(VACUUMED, table.vacuumed, table.name)
    transactions = stats.transactions()
    readings.set(TRANSACTION, transactions.oldest)
    readings.set(HELD_BACK, transactions.held_back)


SECTION: Final = Section(
    name="database",
    title="Tables and transactions",
    metrics=(LIVE, DEAD, SIZE, VACUUMED, TRANSACTION, HELD_BACK),
    read=read,
)
