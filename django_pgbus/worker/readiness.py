"""Waiting for the migrations: in a deploy the worker may start before `migrate` has run."""

from __future__ import annotations

import time
from typing import Final

from django.apps import apps
from django.db import OperationalError, connections
from django.db.migrations.executor import MigrationExecutor

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.postgres.own_connection import close, own_connection
from django_pgbus.worker.shutdown import Demands, Level

PATIENCE: Final = 60.0
LOOK_EVERY: Final = 1.0


def missing_migrations() -> list[str]:
    """Return the migrations of the project that the pgbus database lacks, as app.name; raises OperationalError."""
    alias = database()
    before = connections[alias]
    connection = own_connection("start")
    try:
        executor = MigrationExecutor(connection)
        plan = executor.migration_plan(executor.loader.graph.leaf_nodes())
        return [f"{migration.app_label}.{migration.name}" for migration, _ in plan]
    finally:
        close(connection)
        connections[alias] = before


def wait_for_migrations(wishes: Demands, *, seconds: float = PATIENCE) -> list[str]:
    """
    Wait until the database has all migrations, and return those of pgbus that it still lacks.

    Says once what it waits for. Returns early when asked to stop. Migrations of other apps are waited for as long
    but are no reason not to start: somebody may leave them out for good. Raises OperationalError when the database
    is not there after all that time.
    """
    deadline = time.monotonic() + seconds
    ours = f"{apps.get_app_config('pgbus').label}."
    said = False
    while True:
        try:
            missing, away = missing_migrations(), None
        except OperationalError as error:
            missing, away = [], error
        if not (missing or away) or wishes.level > Level.RUN:
            return []
        if not said:
            said = True
            if away:
                signals.database_lost.send_robust(wait_for_migrations, part="supervisor", exception=away)
            else:
                signals.migrations_awaited.send_robust(wait_for_migrations, missing=missing, database=database())
        if time.monotonic() >= deadline:
            if away:
                raise away
            return [name for name in missing if name.startswith(ours)]
        wishes.wait(LOOK_EVERY)
