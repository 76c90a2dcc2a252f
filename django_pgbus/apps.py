"""How Django finds pgbus."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class PgbusConfig(AppConfig):
    """The app; its label is part of table and permission names."""

    name = "django_pgbus"
    label = "pgbus"
    verbose_name = _("Background work")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks and log lines; no query."""
        from django_pgbus import checks, log  # noqa: F401
