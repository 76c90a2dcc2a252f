"""How Django finds pgbus."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import django
from django.apps import AppConfig
from django.apps import apps as installed
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class PgbusConfig(AppConfig):
    """The app; its label is part of table and permission names."""

    name = "django_pgbus"
    label = "pgbus"
    verbose_name = _("Background work")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register checks, log lines and the loader of handlers; no query."""
        from django_pgbus import checks, log  # noqa: F401

        if django.VERSION < (6, 0) and find_spec("django_tasks") is None:
            return  # E007 says so.
        from django_pgbus.events import running as events  # noqa: F401
        from django_pgbus.streams import running as streams  # noqa: F401

        post_migrate.connect(_announce_anew, sender=self, dispatch_uid="pgbus.levels")
        post_migrate.connect(_declare_subscriptions, sender=self, dispatch_uid="pgbus.subscriptions")
        post_migrate.connect(_declare_streams, sender=self, dispatch_uid="pgbus.streams")


def _announce_anew(**kwargs: Any) -> None:
    """Let this process announce its levels anew: `flush` says that it has migrated, too, and has emptied their table."""
    from django_pgbus.queues import wake

    wake.forget_announced()


def _declare_subscriptions(*, using: str, apps: Any = installed, **kwargs: Any) -> None:
    """Write the subscriptions of this code: the tables are there now, and perhaps no worker starts here."""
    from django_pgbus.conf import database
    from django_pgbus.events import handlers, subscriptions

    try:
        apps.get_model("pgbus", "Subscription")
    except LookupError:  # migrated back to before there were events
        return
    if using == database():
        handlers.autodiscover()
        subscriptions.declare()


def _declare_streams(*, using: str, apps: Any = installed, **kwargs: Any) -> None:
    """Make the streams of this code, whose modules the receiver before this one has imported."""
    from django_pgbus.conf import database
    from django_pgbus.streams import stream

    try:
        apps.get_model("pgbus", "StreamLog")
    except LookupError:  # migrated back to before there were streams
        return
    if using == database():
        if "plan" in kwargs:
            stream.declare()
        else:  # `flush` says that it has migrated, too, but not what
            stream.declare_anew()
