"""A project that is set up wrongly is told so before anything runs: what is wrong, and what to write instead."""

from __future__ import annotations

import inspect
import re
from importlib.util import find_spec as real_find_spec
from types import SimpleNamespace

import django
import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import Tags, run_checks
from django.db import connection, connections

from django_pgbus import Limit, checks
from django_pgbus.tasks import checks as task_checks
from django_pgbus.tasks.compat import task_backends


@pytest.fixture(autouse=True)
def no_declared_tasks(monkeypatch):
    """What other tests have declared does not count here."""
    monkeypatch.setattr(task_checks, "transactional_paths", set())
    monkeypatch.setattr(task_checks, "limits", {})


def found(**kwargs) -> dict[str, str]:
    """Return what our checks say, by id."""
    return {one.id: f"{one.msg} {one.hint}" for one in run_checks(**kwargs) if one.id.startswith("pgbus.")}


@pytest.fixture
def alias(monkeypatch):
    """Change what DATABASES says of an alias, without another connection."""

    def change(name: str = "default", **values) -> None:
        monkeypatch.setitem(django_settings.DATABASES, name, {**django_settings.DATABASES[name], **values})

    return change


class Router:
    """Sends things where the test says."""

    def __init__(self, read="default", write="default", migrate=None, models=None):
        self.read, self.write, self.migrate, self.models = read, write, migrate, models or {}

    def db_for_read(self, model, **hints):
        return self.read if model._meta.app_label == "pgbus" else self.models.get(model._meta.label)

    def db_for_write(self, model, **hints):
        return self.write if model._meta.app_label == "pgbus" else self.models.get(model._meta.label)

    def allow_migrate(self, db, app_label, **hints):
        return self.migrate if app_label == "pgbus" else None


def test_the_test_project_is_set_up_rightly():
    assert found() == {}


# --- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"MAX_ATTEMPT": 3}, "Did you mean 'MAX_ATTEMPTS'?"),
        ({"POLL_INTERVAL": "1"}, "PGBUS['POLL_INTERVAL'] must be a number of seconds or a timedelta"),
        ({"VISIBILITY_TIMEOUT": 30, "BEAT_INTERVAL": 15}, "one late beat would let a running job run twice"),
        (["nonsense"], "PGBUS is a list."),
    ],
)
def test_settings_that_cannot_be_read(settings, declared, message):
    settings.PGBUS = declared
    assert list(said := found()) == ["pgbus.E001"]  # and nothing else, since the rest would build on them
    assert message in said["pgbus.E001"]


@pytest.mark.parametrize("name", ["DATABASE", "LISTEN_DATABASE"])
def test_an_alias_that_does_not_exist(settings, name):
    settings.PGBUS = {name: "jobs"}
    said = found()
    assert f"PGBUS['{name}'] names the alias 'jobs'" in said["pgbus.E004"]
    assert "'default', 'other'" in said["pgbus.E004"]


# --- the project --------------------------------------------------------------------------------------


def installed(monkeypatch, *names: str) -> None:
    configs = [type("Config", (), {"name": name})() for name in names]
    monkeypatch.setattr(checks.apps, "get_app_configs", lambda: configs)


def test_who_owns_runworker_beside_channels(monkeypatch):
    installed(monkeypatch, "channels", "django_pgbus")
    assert [one.id for one in checks._channels()] == ["pgbus.W001"]
    installed(monkeypatch, "django_pgbus", "channels")
    assert [one.id for one in checks._channels()] == ["pgbus.I001"]
    installed(monkeypatch, "django_pgbus")
    assert list(checks._channels()) == []


def test_use_tz_off(settings):
    settings.USE_TZ = False
    assert list(found()) == ["pgbus.W002"]


def test_without_tasks_in_the_settings_work_is_done_at_once(monkeypatch):
    monkeypatch.setattr(checks, "settings", SimpleNamespace(is_overridden=lambda name: name != "TASKS"))
    assert [one.id for one in checks._tasks_api()] == ["pgbus.W004"]


@pytest.mark.skipif(django.VERSION >= (6, 0), reason="Django has its own Task API")
def test_the_backport_is_needed_and_installed(monkeypatch):
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert "django-pgbus[tasks]" in found()["pgbus.E007"]
    monkeypatch.setattr(checks, "find_spec", real_find_spec)
    monkeypatch.setattr(checks.apps, "is_installed", lambda name: name != "django_tasks")
    assert [one.id for one in checks._tasks_api()] == ["pgbus.W005"]


# --- TASKS --------------------------------------------------------------------------------------------


def test_the_backend_needs_its_app(monkeypatch):
    monkeypatch.setattr(apps, "is_installed", lambda name: False)
    assert 'Add "django_pgbus" to INSTALLED_APPS' in found()["pgbus.E006"]


def test_queue_names_of_the_backend(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": ["mail", "mail_*"]}}
    assert "TASKS['default']['QUEUES']: The queue name 'mail_*'" in found()["pgbus.E011"]


def test_options_of_the_backend(settings):
    settings.TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": [], "OPTIONS": {"lease": 3}}}
    assert "TASKS['default']['OPTIONS'] has no effect: lease." in found()["pgbus.W006"]
    assert task_backends["default"].check()


# --- databases ----------------------------------------------------------------------------------------


def test_another_database_than_postgresql(monkeypatch):
    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    assert "no PostgreSQL (sqlite)" in found()["pgbus.E002"]


def test_psycopg_2(monkeypatch):
    monkeypatch.setattr(checks, "_is_psycopg3", lambda: False)
    assert 'pip install "psycopg[binary]"' in found()["pgbus.E003"]


@pytest.mark.parametrize(
    ("router", "database", "ids"),
    [
        (Router(), None, set()),
        (Router(read="other"), None, {"pgbus.E005"}),
        (Router(read="other", write="other"), None, set()),
        (Router(), "other", {"pgbus.E008"}),
        (Router(migrate=False), None, {"pgbus.E009"}),
    ],
)
def test_what_the_routers_say(settings, router, database, ids):
    settings.PGBUS = {"DATABASE": database}
    settings.DATABASE_ROUTERS = [router]
    assert set(found()) == ids


def test_our_router_is_right_with_and_without_the_setting(settings):
    settings.DATABASE_ROUTERS = ["django_pgbus.routers.PgbusRouter"]
    assert found() == {}
    settings.PGBUS = {"DATABASE": "other"}
    assert found() == {}


def test_listening_through_a_transaction_pooler(settings, alias):
    alias(DISABLE_SERVER_SIDE_CURSORS=True)
    assert "PGBUS['LISTEN_DATABASE']" in found()["pgbus.W007"]
    settings.PGBUS = {"LISTEN_DATABASE": "default"}
    assert found() == {}


def test_listening_in_another_database(settings, alias):
    settings.PGBUS = {"LISTEN_DATABASE": "other"}
    alias("other", NAME="elsewhere")
    assert "is the database 'elsewhere'" in found()["pgbus.E012"]
    alias("other", NAME=django_settings.DATABASES["default"]["NAME"])
    assert found() == {}


@pytest.mark.parametrize(
    ("pool", "complains"),
    [(None, False), (True, True), ({"max_size": 5}, True), ({"min_size": 20}, False), ({"max_size": 13}, False)],
)
def test_a_pool_that_is_smaller_than_the_threads(alias, pool, complains):
    alias(OPTIONS={"pool": pool})
    assert ("pgbus.W008" in found()) is complains


def test_autocommit_off(alias):
    alias(AUTOCOMMIT=False)
    assert "woken by polling only" in found()["pgbus.W009"]


@pytest.mark.proves("no-common-transaction-is-said")
def test_transactional_tasks_and_models_elsewhere(settings, monkeypatch):
    monkeypatch.setattr(task_checks, "transactional_paths", {"shop.tasks.pay"})
    assert found() == {}
    settings.DATABASE_ROUTERS = [Router(models={"auth.User": "other"})]
    assert "(shop.tasks.pay) run in a transaction on 'default'; what they write to auth.User" in found()["pgbus.W003"]
    settings.DATABASE_ROUTERS = [Router(models={model._meta.label: "other" for model in apps.get_models()})]
    assert "where the project has no models" in found()["pgbus.E010"]


GATEWAY = "gateway"


def _gateway(order_id, *, region):
    """Say which; one line of text is no reason to think that it depends on anything."""
    return "gateway"


def _by_order(order_id):
    return f"order-{order_id}"


def _made(name):
    return lambda order_id: name


def _raises(order_id):
    return "gateway" + 1


async def _awaits(order_id):
    return "gateway"


@pytest.mark.parametrize("refused", ["discard", "raise"])
@pytest.mark.parametrize(
    ("waiting", "other", "shared"),
    [
        (lambda order_id: "gateway", lambda: "gateway", "gateway"),
        (_gateway, lambda *args, **kwargs: "gateway", "gateway"),
        (_gateway, lambda order_id, /, size=3: "gateway", "gateway"),
        (None, lambda order_id: "shop.tasks.parks", "shop.tasks.parks"),
        (lambda order_id: "gateway", lambda order_id: "other", None),
        (None, None, None),  # each has its own
        (_by_order, _by_order, None),
        (_made("gateway"), _made("gateway"), None),
        (lambda order_id: GATEWAY, lambda order_id: GATEWAY, None),  # may be another tomorrow
        (_raises, lambda order_id: "gateway", None),
        (_awaits, lambda order_id: "gateway", None),
        (str.lower, lambda order_id: "gateway", None),
    ],
)
def test_one_key_that_parks_some_and_refuses_others(monkeypatch, waiting, other, shared, refused):
    declared = {"shop.tasks.parks": Limit(to=4, key=waiting), "shop.tasks.asks": Limit(to=4, key=other)}
    monkeypatch.setattr(task_checks, "limits", declared)
    assert found() == {}  # both park
    declared["shop.tasks.asks"] = Limit(to=4, key=other, on_conflict=refused)
    said = found()
    assert list(said) == (["pgbus.E014"] if shared else [])
    if shared:
        assert f"The limit {shared!r} is shared" in said["pgbus.E014"]
        assert "full (shop.tasks.parks) and tasks that are refused then (shop.tasks.asks)" in said["pgbus.E014"]
        assert "keys of their own" in said["pgbus.E014"]


def test_tasks_that_are_all_refused_may_share_a_key(monkeypatch):
    both = [Limit(to=1, key=lambda order_id: "gateway", on_conflict=policy) for policy in ("discard", "raise")]
    monkeypatch.setattr(task_checks, "limits", dict(zip(("shop.tasks.a", "shop.tasks.b"), both, strict=True)))
    assert found() == {}


# --- the server ---------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_test_database_is_right():
    assert found(databases=["default"]) == {}
    assert found(databases=["other"]) == {}


@pytest.mark.django_db
def test_missing_migrations():
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'pgbus'")
    said = found(databases=["default"])
    assert "from 0001_initial on" in said["pgbus.W010"]
    assert "manage.py migrate pgbus --database default" in said["pgbus.W010"]


@pytest.mark.django_db
def test_migrate_is_not_told_to_run_migrate(monkeypatch):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'pgbus'")
    monkeypatch.setattr("sys.argv", ["manage.py", "migrate"])
    assert found(databases=["default"]) == {}


def test_nothing_connects_unless_asked_to():
    with connection.execute_wrapper(lambda *args: pytest.fail("a statement was run")):
        assert checks.check_database(databases=None) == []
        checks.check_project()
    assert Tags.database in checks.check_database.tags


@pytest.mark.django_db
def test_a_server_that_is_too_old(monkeypatch):
    monkeypatch.setattr(connection, "pg_version", 140012)
    assert "is PostgreSQL 14; pgbus needs 15" in found(databases=["default"])["pgbus.E013"]


def test_the_table_of_checks_is_complete():
    used = re.findall(r'id="pgbus\.([EWI]\d{3})"', inspect.getsource(checks) + inspect.getsource(task_checks))
    listed = re.findall(r"\b([EWI]\d{3})\b", checks.__doc__)
    assert sorted(set(used)) == sorted(listed)


def test_handlers_that_cannot_be_imported_are_named(settings):
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.events.broken_app"]
    (said,) = found().values()
    assert "tests.events.broken_app.handlers cannot be imported: ImportError" in said
    assert "SystemExit('no handlers today')" in said
