"""
System checks: what can be known to be wrong before anything runs.

    E001  a setting of PGBUS                     W001  Channels' `runworker` comes first
    E002  not PostgreSQL                         W002  USE_TZ is off
    E003  psycopg 2                              W003  transactional tasks, and models elsewhere
    E004  an alias that does not exist           W004  no TASKS: work is done inside the request
    E005  reads and writes routed apart          W005  the backport is not in INSTALLED_APPS
    E006  backend without the app                W006  OPTIONS have no effect
    E007  no django.tasks and no backport        W007  a transaction pooler keeps notifications away
    E008  DATABASE is not the routers' alias     W008  the connection pool is smaller than the threads
    E009  the router creates no tables there     W009  hooks after commit do not run
    E010  transactional tasks on another alias   W010  migrations are missing
    E011  a queue name in TASKS                  I001  Channels' `runworker` is hidden
    E012  LISTEN_DATABASE is another database
    E013  PostgreSQL is too old
    E014  a limit that parks some and refuses others
    E015  a module of handlers or streams that cannot be imported
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any, Final

import django
from django.apps import apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import connections, router

from django_pgbus.conf import database, get_settings, problems

OLDEST_POSTGRES: Final = 15

# Threads of a worker process beside those of its jobs that use the alias: completer, mover and sweeps.
OWN_CONNECTIONS: Final = 3


@register
def check_settings(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check the dict PGBUS itself."""
    return [Error(text, hint=hint, id="pgbus.E001") for text, hint in problems(getattr(settings, "PGBUS", None) or {})]


@register
def check_project(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check how the project and its databases fit pgbus; nothing connects."""
    if any(problems(getattr(settings, "PGBUS", None) or {})):
        return []  # the settings cannot be read: E001 says so
    found = [*_tasks_api(), *_channels(), *_time_zones(), *_aliases()]
    if not any(message.id == "pgbus.E004" for message in found):
        found += [
            *_engine(database()),
            *_routing(),
            *_listening(),
            *_connections(database()),
            *_handlers(),
            *_declared_tasks(),
        ]
    return found


@register(Tags.database)
def check_database(
    app_configs: Any = None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check the database itself, with `check --database` and before `migrate`."""
    if not databases or any(problems(getattr(settings, "PGBUS", None) or {})):
        return []
    alias = database()
    if alias not in databases or alias not in settings.DATABASES or connections[alias].vendor != "postgresql":
        return []
    return [*_server(alias), *_migrations(alias)]


# --- the project --------------------------------------------------------------------------------------


def _tasks_api() -> Iterator[CheckMessage]:
    if django.VERSION < (6, 0):
        if find_spec("django_tasks") is None:
            yield Error(
                f"Django {django.get_version()} has no Task API, and its backport is not installed.",
                hint='Install it with `pip install "django-pgbus[tasks]"` and add "django_tasks" to INSTALLED_APPS.',
                id="pgbus.E007",
            )
            return
        if not apps.is_installed("django_tasks"):
            yield Warning(
                "The django-tasks backport is not in INSTALLED_APPS: its checks and log lines are missing.",
                hint='Add "django_tasks" to INSTALLED_APPS.',
                id="pgbus.W005",
            )
    if not settings.is_overridden("TASKS"):  # type: ignore[misc]
        yield Warning(
            "TASKS is not set, so tasks run at once, inside the request that enqueues them.",
            hint='Set TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}}.',
            id="pgbus.W004",
        )


def _handlers() -> Iterator[CheckMessage]:
    """Import the modules of handlers and streams, as a worker does: before what they declare is looked at."""
    if django.VERSION >= (6, 0) or find_spec("django_tasks") is not None:
        from django_pgbus.tasks.discovery import autodiscover

        for module, error in autodiscover(announce=False).items():
            yield Error(
                f"{module} cannot be imported: {type(error).__name__}: {error}",
                hint="Correct it: until then `migrate`, `runworker` and other commands of manage.py refuse to run.",
                id="pgbus.E015",
            )


def _declared_tasks() -> Iterator[CheckMessage]:
    if django.VERSION >= (6, 0) or find_spec("django_tasks") is not None:
        from django_pgbus.tasks.checks import check_limits, check_transactional

        yield from check_transactional()
        yield from check_limits()


def _channels() -> Iterator[CheckMessage]:
    names = [config.name for config in apps.get_app_configs()]
    if "channels" not in names:
        return
    if names.index("channels") < names.index("django_pgbus"):
        yield Warning(
            "`manage.py runworker` is the command of Channels, which stands first in INSTALLED_APPS.",
            hint='Start workers with `manage.py pgbus_worker`, or list "django_pgbus" before "channels".',
            id="pgbus.W001",
        )
    else:
        yield Info(
            "`manage.py runworker` is the command of pgbus, which stands before Channels in INSTALLED_APPS.",
            hint='If you need the one of Channels, list "channels" first and use `manage.py pgbus_worker` for ours.',
            id="pgbus.I001",
        )


def _time_zones() -> Iterator[CheckMessage]:
    if not settings.USE_TZ:
        yield Warning(
            "USE_TZ is off: the hour that a change to winter time repeats is ambiguous in run_after and in results.",
            hint="Set USE_TZ = True.",
            id="pgbus.W002",
        )


# --- its databases ------------------------------------------------------------------------------------


def _aliases() -> Iterator[CheckMessage]:
    declared = get_settings()
    for name in ("DATABASE", "LISTEN_DATABASE"):
        alias = getattr(declared, name)
        if alias is not None and alias not in settings.DATABASES:
            yield Error(
                f"PGBUS[{name!r}] names the alias {alias!r}, which is not in DATABASES.",
                hint=f"DATABASES has {', '.join(map(repr, settings.DATABASES))}.",
                id="pgbus.E004",
            )


def _engine(alias: str) -> Iterator[CheckMessage]:
    if connections[alias].vendor != "postgresql":
        yield Error(
            f"The tables of pgbus are on the alias {alias!r}, which is no PostgreSQL ({connections[alias].vendor}).",
            hint="Name a PostgreSQL alias in PGBUS['DATABASE'], and list PgbusRouter in DATABASE_ROUTERS.",
            id="pgbus.E002",
        )
    elif not _is_psycopg3():
        yield Error(
            "Django uses psycopg 2; pgbus needs psycopg 3.",
            hint='Install it with `pip install "psycopg[binary]"`: Django prefers it as soon as it is there.',
            id="pgbus.E003",
        )


def _is_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)


def _routing() -> Iterator[CheckMessage]:
    model: Any = apps.get_model("pgbus", "Message")
    wanted, writes, reads = database(), router.db_for_write(model), router.db_for_read(model)
    hint = "Add 'django_pgbus.routers.PgbusRouter' as the first of DATABASE_ROUTERS."
    if reads != writes:
        yield Error(
            f"The routers send reads of pgbus to {reads!r} and writes to {writes!r}: the admin would show a replica, "
            "late, and decide on it.",
            hint=hint,
            id="pgbus.E005",
        )
    elif writes != wanted:
        yield Error(
            f"PGBUS['DATABASE'] is {wanted!r}, but the routers send pgbus to {writes!r}.", hint=hint, id="pgbus.E008"
        )
    if not router.allow_migrate_model(wanted, model):
        yield Error(
            f"The routers let no table of pgbus be created on {wanted!r}.",
            hint=hint,
            id="pgbus.E009",
        )


def _listening() -> Iterator[CheckMessage]:
    alias, listen = database(), get_settings().LISTEN_DATABASE
    if listen is None:
        if settings.DATABASES[alias].get("DISABLE_SERVER_SIDE_CURSORS"):
            yield Warning(
                f"The alias {alias!r} seems to go through a transaction pooler (DISABLE_SERVER_SIDE_CURSORS), which "
                "notifications do not pass: workers would only poll.",
                hint="Name an alias with a direct connection in PGBUS['LISTEN_DATABASE'].",
                id="pgbus.W007",
            )
        return
    if listen == alias:
        return
    yield from _engine(listen)
    ours, theirs = (settings.DATABASES[name].get("NAME") for name in (alias, listen))
    if ours != theirs:
        yield Error(
            f"PGBUS['LISTEN_DATABASE'] ({listen!r}) is the database {theirs!r}, the tables are in {ours!r}: "
            "PostgreSQL's notifications stay within one database.",
            hint="Let both aliases name the same database.",
            id="pgbus.E012",
        )


def _connections(alias: str) -> Iterator[CheckMessage]:
    configured = settings.DATABASES[alias]
    pool = configured.get("OPTIONS", {}).get("pool")
    if pool:
        options = pool if isinstance(pool, dict) else {}
        size = options.get("max_size") or options.get("min_size", 4)  # psycopg_pool's default
        wanted = get_settings().THREADS + OWN_CONNECTIONS
        if size < wanted:
            yield Warning(
                f"The pool of {alias!r} has at most {size} connections, a worker process with {get_settings().THREADS} "
                f"threads uses up to {wanted}: jobs would wait for a connection, and fail.",
                hint=f"Set OPTIONS['pool'] = {{'max_size': {wanted}}} or more, or lower PGBUS['THREADS'].",
                id="pgbus.W008",
            )
    if configured.get("AUTOCOMMIT") is False:
        yield Warning(
            f"AUTOCOMMIT is off for {alias!r}: nothing runs after a commit, so workers are woken by polling only.",
            hint="Leave AUTOCOMMIT on and use transaction.atomic().",
            id="pgbus.W009",
        )


# --- the server ---------------------------------------------------------------------------------------


def _server(alias: str) -> Iterator[CheckMessage]:
    version = connections[alias].pg_version  # type: ignore[attr-defined]
    if version < OLDEST_POSTGRES * 10000:
        yield Error(
            f"The server of {alias!r} is PostgreSQL {version // 10000}; pgbus needs {OLDEST_POSTGRES} or later.",
            hint="Upgrade the server.",
            id="pgbus.E013",
        )


def _migrations(alias: str) -> Iterator[CheckMessage]:
    from django.db.migrations.loader import MigrationLoader

    # A warning, since an error would keep `migrate` itself from running; which need not be told to run itself.
    if sys.argv[1:2] == ["migrate"]:
        return
    loader = MigrationLoader(connections[alias])
    applied = loader.applied_migrations or {}
    missing = sorted(name for app, name in loader.disk_migrations if app == "pgbus" and (app, name) not in applied)
    if missing:
        yield Warning(
            f"The tables of pgbus on {alias!r} lack {len(missing)} migrations, from {missing[0]} on.",
            hint=f"Run `manage.py migrate pgbus --database {alias}`.",
            id="pgbus.W010",
        )
