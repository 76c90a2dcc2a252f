"""The tables of the batches; their promise stands in `batches/__init__.py`."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp, JsonDocument, NextId


class Batch(models.Model):
    """Tasks that have one end, and what is enqueued then."""

    # Of the sequence of the tasks: a uniqueness key names its holder by one number.
    id = models.BigIntegerField(_("ID"), primary_key=True, db_default=NextId())
    description = models.TextField(_("description"), db_default="")
    properties = JsonDocument(_("properties"))
    callbacks = JsonDocument(_("callbacks"))
    key = models.TextField(_("key"), db_default="")
    # What has been folded in so far; the rest stands in `BatchCount`.
    total = models.BigIntegerField(_("members"), db_default=0)
    succeeded = models.BigIntegerField(_("succeeded"), db_default=0)
    failed = models.BigIntegerField(_("failed"), db_default=0)
    created_at = models.DateTimeField(_("opened at"), db_default=ClockTimestamp())
    finished_at = models.DateTimeField(_("finished at"), null=True)

    class Meta:
        db_table = "pgbus_batches"
        verbose_name = _("batch")
        verbose_name_plural = _("batches")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["id"], name="pgbus_batches_unfinished", condition=Q(finished_at__isnull=True)),
            models.Index(fields=["finished_at"], name="pgbus_batches_finished", condition=Q(finished_at__isnull=False)),
        ]

    def __str__(self) -> str:
        return self.description or f"#{self.id}"


class BatchCount(models.Model):
    """Members of a batch that one statement added or settled."""

    id = models.BigAutoField(primary_key=True)
    batch_id = models.BigIntegerField()
    added = models.IntegerField(db_default=0)
    succeeded = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)

    class Meta:
        db_table = "pgbus_batch_counts"
        default_permissions = ()
        indexes = [models.Index(fields=["batch_id", "id"], name="pgbus_batch_counts_batch")]

    def __str__(self) -> str:
        return f"{self.batch_id}: +{self.added}, {self.succeeded} succeeded, {self.failed} failed"
