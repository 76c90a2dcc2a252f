"""With PgbusRouter our tables live on the alias of the settings, and nobody else's do because of it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from django.db import router

from django_pgbus.conf import database
from django_pgbus.models import Message
from tests.tasks.examples import add


@pytest.fixture(autouse=True)
def routed(settings):
    settings.DATABASE_ROUTERS = ["django_pgbus.routers.PgbusRouter"]
    settings.PGBUS = {"DATABASE": "other"}


def test_our_models_go_there():
    assert router.db_for_read(Message) == router.db_for_write(Message) == database() == "other"
    assert router.allow_migrate("other", "pgbus")
    assert not router.allow_migrate("default", "pgbus")


def test_other_models_do_not():
    assert router.db_for_write(User) == "default"
    assert router.allow_migrate("other", "auth")
    assert router.allow_migrate("default", "auth")


def test_without_the_setting_it_has_no_opinion(settings):
    settings.PGBUS = {}
    assert database() == router.db_for_write(Message) == "default"
    assert router.allow_migrate("other", "pgbus")


@pytest.mark.django_db(databases=["default", "other"])
def test_tasks_are_enqueued_there():
    result = add.enqueue(1)
    assert Message.objects.using("other").get().id == int(result.id)
    assert not Message.objects.using("default").exists()
    assert add.get_result(result.id).args == [1]


class ByTenant:
    """Answers by what somebody has chosen meanwhile."""

    chosen = "default"

    def db_for_write(self, model, **hints):
        return self.chosen


def test_a_router_that_answers_by_tenant_is_asked_once(settings, monkeypatch):
    """A process has one alias: tables of pgbus for each tenant need a process, or a setting, for each."""
    settings.PGBUS = {}
    settings.DATABASE_ROUTERS = [f"{__name__}.ByTenant"]
    assert database() == "default"
    monkeypatch.setattr(ByTenant, "chosen", "other")
    assert router.db_for_write(Message) == "other"
    assert database() == "default"
