"""`--database`: this process and its children work on the pgbus tables of another alias than the settings name."""

from __future__ import annotations

from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections

from django_pgbus.conf import database


def use_database(alias: str) -> None:
    """Make `alias` the database of pgbus in this process; raises ValueError with a sentence."""
    if alias not in connections:
        raise ValueError(f"There is no database {alias!r}; DATABASES has {', '.join(sorted(connections))}.")
    if alias == database():
        return
    changed = {**(getattr(settings, "PGBUS", None) or {}), "DATABASE": alias}
    settings.PGBUS = changed
    setting_changed.send(use_database, setting="PGBUS", value=changed, enter=True)
