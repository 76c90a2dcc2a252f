"""A database router for projects that keep the tables of pgbus on an alias of their own."""

from __future__ import annotations

from typing import Any

from django_pgbus.conf import get_settings

APP_LABEL = "pgbus"


class PgbusRouter:
    """
    Send our models to `PGBUS["DATABASE"]`, and nothing else there.

    List it first in DATABASE_ROUTERS. Without the setting it has no opinion.
    """

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the alias of our tables for our models."""
        return get_settings().DATABASE if model._meta.app_label == APP_LABEL else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Return whether our tables are created on `db`; of other apps say nothing."""
        alias = get_settings().DATABASE
        return None if alias is None or app_label != APP_LABEL else db == alias
