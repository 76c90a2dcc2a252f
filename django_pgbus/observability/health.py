"""
Whether a web process may get requests.

It may not while the database is away, or a standby, or lacks our migrations: whatever it enqueues would fail. That no worker
is there is told, but no failure: jobs wait, and taking the web processes away too would make an outage of it.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Final

from django.apps import apps
from django.db import connections, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from django_pgbus.conf import database
from django_pgbus.postgres import Statement, is_connection_loss
from django_pgbus.postgres.time_limit import time_limited
from django_pgbus.worker import stats

STATEMENT_TAKES: Final = 1_000  # milliseconds

SERVER = Statement(sql="SELECT pg_is_in_recovery() AS standby")


@dataclass(slots=True)
class Readiness:
    """What was found. `reasons` are against getting requests, `warnings` are not; `workers` by their health."""

    reasons: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    workers: dict[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Return whether requests may come."""
        return not self.reasons

    def details(self) -> dict[str, Any]:
        """Return what may be told to whoever may see it."""
        return {"ok": self.ok, "reasons": self.reasons, "warnings": self.warnings, "workers": self.workers}


def readiness() -> Readiness:
    """
    Return whether this process may get requests; each statement has a second.

    A connection from before may have been ended by a failover: then a new one is tried before the database counts as away.
    """
    try:
        connection = connections[database()]
        is_old = connection.connection is not None and not connection.in_atomic_block
        try:
            return _looked()
        except Exception as error:
            if not is_old or not is_connection_loss(error):
                raise
            connection.close()
            return _looked()
    except Exception as error:  # an answer in any case: whoever probes knows no tracebacks
        return Readiness(reasons=[f"database away ({type(error).__name__})"])


def _looked() -> Readiness:
    found = Readiness()
    with transaction.atomic(using=database()), time_limited(STATEMENT_TAKES):
        _database(found)
        if found.ok:
            _workers(found)
    return found


def _database(found: Readiness) -> None:
    if SERVER.row().standby:
        found.reasons.append("database is a standby")
    applied = {name for app, name in MigrationRecorder(connections[database()]).applied_migrations() if app == "pgbus"}
    if missing := len(_wanted() - applied):
        found.reasons.append(f"{missing} migrations of pgbus are missing")


def _workers(found: Readiness) -> None:
    workers = stats.workers()
    found.workers = {health.value: sum(worker.health is health for worker in workers) for health in stats.Health}
    if not any(worker.takes_jobs for worker in workers):
        found.warnings.append("no worker takes jobs")


@cache
def _wanted() -> frozenset[str]:
    """Return the migrations of this code."""
    module, _ = MigrationLoader.migrations_module(apps.get_app_config("pgbus").label)
    if module is None:  # the project makes the tables without migrations
        return frozenset()
    return frozenset(
        found.name for found in pkgutil.iter_modules(import_module(module).__path__) if found.name[0] not in "_~"
    )
