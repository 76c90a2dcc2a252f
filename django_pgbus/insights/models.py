"""The table of runs that were counted; its promise stands in `insights/__init__.py`."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.checks import CheckMessage
from django.db import models
from django.utils.translation import gettext_lazy as _


class Counts(ArrayField):  # type: ignore[type-arg]  # generic for the type checker only
    """
    Numbers in a row, without `django.contrib.postgres` among the apps of a project.

    Django 6.1 asks for it wherever there is an ArrayField. What it brings are lookups, forms and types of other fields.
    """

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """Return what else is wrong with it."""
        return [message for message in super().check(**kwargs) if message.id != "postgres.E005"]

    def deconstruct(self) -> tuple[str, str, list[Any], dict[str, Any]]:
        """Return it as the ArrayField that it is to a database, so that no migration knows of this class."""
        name, _, args, kwargs = super().deconstruct()
        return name, f"{ArrayField.__module__.rpartition('.')[0]}.ArrayField", list(args), kwargs


class RunCount(models.Model):
    """What runs of one task in one queue came to in a span of time; who reads adds up rows of the same span."""

    class Resolution(models.TextChoices):
        RAW = "raw", _("as written")
        MINUTE = "minute", _("a minute")
        TEN_MINUTES = "ten_minutes", _("ten minutes")
        HOUR = "hour", _("an hour")
        TOTAL = "total", _("since the beginning")

    id = models.BigAutoField(primary_key=True)
    resolution = models.CharField(_("resolution"), max_length=20, choices=Resolution)
    # The begin of the span; of a row as it was written when that was, of a total what was counted last.
    bucket = models.DateTimeField(_("from"))
    queue = models.CharField(_("queue"), max_length=200)
    task = models.TextField(_("task"))
    event = models.BooleanField(_("handler of events"), db_default=False)
    succeeded = models.BigIntegerField(_("succeeded"), db_default=0)
    failed = models.BigIntegerField(_("failed"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    snoozed = models.BigIntegerField(_("snoozed"), db_default=0)
    superseded = models.BigIntegerField(_("superseded"), db_default=0)
    handed_back = models.BigIntegerField(_("handed back"), db_default=0)
    run_seconds = models.FloatField(_("seconds of runs"), db_default=0.0)
    wait_seconds = models.FloatField(_("seconds of waiting"), db_default=0.0)
    longest = models.FloatField(_("longest run"), db_default=0.0)
    # How many took how long, by `histogram.BOUNDS`.
    run = Counts(models.BigIntegerField(), verbose_name=_("durations"))
    wait = Counts(models.BigIntegerField(), verbose_name=_("waits"))

    class Meta:
        db_table = "pgbus_run_counts"
        verbose_name = _("insight")
        verbose_name_plural = _("insights")
        default_permissions = ("view",)
        indexes = [models.Index(fields=["resolution", "bucket"], name="pgbus_run_counts_span")]

    def __str__(self) -> str:
        return f"{self.task} {self.resolution} {self.bucket}"
