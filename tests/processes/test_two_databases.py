"""A database for each tenant: workers of one code on two aliases, of which each works on its own."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.db import connections
from django.test import override_settings

from tests.processes import tasks
from tests.processes.harness import described, until

ALIASES = ("default", "other")
pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, databases=ALIASES)]


def test_each_worker_works_on_the_jobs_of_its_alias(runworker):
    databases = {alias: described(connections[alias].settings_dict, {}) for alias in ALIASES}
    # The example's transactional tasks need the alias of its models.
    apps = [app for app in settings.INSTALLED_APPS if app != "shop"]
    for alias in ALIASES:
        routed = {"DATABASES": databases, "INSTALLED_APPS": [*apps, "tests.processes"]}
        routed["DATABASE_ROUTERS"] = ["django_pgbus.routers.PgbusRouter"]
        runworker(pgbus={"DATABASE": alias}, settings=routed)
    results = {}
    for alias in ALIASES:
        with override_settings(PGBUS={"DATABASE": alias}):
            results[alias] = tasks.nothing.enqueue()
    for alias in ALIASES:
        with connections[alias].cursor() as cursor:

            def archived(cursor=cursor):
                cursor.execute("SELECT array_agg(id) FROM pgbus_archive")
                return cursor.fetchone()[0]

            until(archived, 100)
            assert archived() == [int(results[alias].id)]
