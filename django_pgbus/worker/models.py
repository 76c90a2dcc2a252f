"""Who works: one row per living process, and who is the dispatcher."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp


class Worker(models.Model):
    """A worker process, one row per incarnation (semantics 1.7)."""

    id = models.UUIDField(_("ID"), primary_key=True)
    supervisor = models.UUIDField(_("supervisor"), null=True)
    name = models.CharField(_("name"), max_length=200)
    host = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process ID"))
    version = models.CharField(_("version"), max_length=50)
    queues = models.TextField(_("queues"))
    streams = models.TextField(_("streams"), db_default="")  # the groups it follows, STREAM/GROUP
    capacity = models.IntegerField(_("threads"))
    running = models.IntegerField(_("running jobs"), db_default=0)
    superseded = models.IntegerField(_("superseded runs"), db_default=0)
    state = models.CharField(_("state"), max_length=20)
    listening = models.BooleanField(_("listening"), null=True)
    lease = models.DurationField(_("lease"))
    started_at = models.DateTimeField(_("started at"), db_default=ClockTimestamp())
    beat_at = models.DateTimeField(_("last beat"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_workers"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Election(models.Model):
    """Who does the work that one process of the cluster is enough for, and until when."""

    office = models.CharField(max_length=50, primary_key=True)
    worker = models.UUIDField()
    until = models.DateTimeField()

    class Meta:
        db_table = "pgbus_election"
        default_permissions = ()

    def __str__(self) -> str:
        return self.office
