"""A project that has only what the tutorial names passes the checks of every Django, as `runworker` demands."""

from __future__ import annotations

from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.core import checks
from django.db import models

from django_pgbus.insights.models import Counts


def test_models_pass_without_further_apps() -> None:
    assert not apps.is_installed("django.contrib.postgres")
    found = checks.run_checks(app_configs=[apps.get_app_config("pgbus")])
    assert [message for message in found if message.level >= checks.ERROR] == []


def test_an_array_is_still_checked() -> None:
    related = models.ForeignKey("pgbus.RunCount", models.CASCADE)
    assert "postgres.E002" in {message.id for message in of_a_model(Counts(related)).check()}


def test_a_database_sees_an_array() -> None:
    _, path, _, values = Counts(models.BigIntegerField()).deconstruct()
    _, expected, _, plain = ArrayField(models.BigIntegerField()).deconstruct()
    assert (path, values.keys()) == (expected, plain.keys())


def of_a_model(field: Counts) -> Counts:
    field.set_attributes_from_name("counts")
    field.model = apps.get_model("pgbus", "RunCount")
    return field
