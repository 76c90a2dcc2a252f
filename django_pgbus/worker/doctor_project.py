"""The looks of `pgbus_doctor` at what a project declares; nothing here connects."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

from django.apps import apps
from django.conf import settings as project
from django.core import checks
from django.core.checks import CheckMessage
from django.db import connections, router

from django_pgbus.conf import database, get_settings
from django_pgbus.worker.findings import Finding, Findings, Grade

WORSE_HERE: Final = {"pgbus.W010"}  # missing migrations must not keep `migrate` from running, but a worker
APP_LABEL: Final = "pgbus"
NAMED: Final = 5  # models of a finding


def configuration() -> Findings:
    """Look at settings, aliases and tasks by the system checks."""
    yield from checked("configuration", checks.run_checks(), "the system checks have nothing to say")


def checked(subject: str, messages: list[CheckMessage], fine: str) -> Findings:
    """Yield what checks of ours have said, or that they have nothing to say."""
    ours = [message for message in messages if (message.id or "").startswith("pgbus.") and not message.is_silenced()]
    for message in ours:
        bad = message.is_serious() or message.id in WORSE_HERE
        grade = Grade.FAIL if bad else Grade.WARN if message.level >= checks.WARNING else Grade.OK
        yield Finding(grade, subject, f"{message.msg} ({message.id})", str(message.hint or ""), str(message.id))
    if not ours:
        yield Finding(Grade.OK, subject, fine)


def routing() -> Findings:
    """Look whether all our models are read and written on one alias, in tests too."""
    found = [*_split(), *_second_test_database()]
    yield from found
    if not found:
        yield Finding(Grade.OK, "routing", f"all models are read and written on alias {database()!r}")


def _split() -> Findings:
    alias = database()
    first = _route(apps.get_model(APP_LABEL, "Message"))  # of which the system checks have spoken
    elsewhere: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for model in apps.get_app_config(APP_LABEL).get_models():
        if (route := _route(model)) not in {first, (alias, alias)}:
            elsewhere[route].append(model._meta.object_name or "")
    for (reads, writes), models in sorted(elsewhere.items()):
        more = f" and {len(models) - NAMED} more" if len(models) > NAMED else ""
        yield Finding(
            Grade.FAIL,
            "routing",
            f"{', '.join(models[:NAMED])}{more} are read on {reads!r} and written on {writes!r}, the others on {alias!r}",
            "Add 'django_pgbus.routers.PgbusRouter' as the first of DATABASE_ROUTERS: one transaction needs them all.",
            models[0],
        )


def _route(model: Any) -> tuple[str, str]:
    return router.db_for_read(model), router.db_for_write(model)


def _second_test_database() -> Findings:
    """Find an alias for LISTEN of which Django would make a test database of its own: nothing would arrive there."""
    alias, listen = database(), get_settings().LISTEN_DATABASE
    if listen is None or listen == alias or listen not in project.DATABASES:
        return
    mirror = project.DATABASES[listen].get("TEST", {}).get("MIRROR")
    same = connections[alias].creation.test_db_signature() == connections[listen].creation.test_db_signature()
    if mirror != alias and not same:
        yield Finding(
            Grade.WARN,
            "routing",
            f"under tests Django makes a second database for alias {listen!r}: tests listen where nothing is sent",
            f"Set DATABASES[{listen!r}]['TEST'] = {{'MIRROR': {alias!r}}}.",
            listen,
        )
