"""The tables of claims and counts; their promise stands in `idempotency/__init__.py`."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp


class ProcessedEvent(models.Model):
    """A claim of one handler on one event: pending while its holder runs, then completed."""

    pk = models.CompositePrimaryKey("event_id", "handler")
    event_id = models.UUIDField(_("event"))
    handler = models.TextField(_("handler"))
    message_id = models.BigIntegerField(_("held by"))
    delivery = models.IntegerField(_("delivery"))
    claimed_at = models.DateTimeField(_("claimed at"), db_default=ClockTimestamp())
    # Stamped by every beat of the holder while it runs, together with its lease.
    processed_at = models.DateTimeField(_("last sign of life"), db_default=ClockTimestamp())
    leased_until = models.DateTimeField(_("leased until"), null=True)
    completed_at = models.DateTimeField(_("completed at"), null=True)

    class Meta:
        db_table = "pgbus_processed_events"
        verbose_name = _("claim")
        verbose_name_plural = _("claims")
        default_permissions = ("view",)
        # The beat changes no indexed column.
        indexes = [
            models.Index(
                fields=["message_id"], name="pgbus_processed_events_pending", condition=Q(completed_at__isnull=True)
            ),
            models.Index(
                fields=["completed_at"], name="pgbus_processed_events_done", condition=Q(completed_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return f"{self.handler}: {self.event_id}"


class EventCount(models.Model):
    """Deliveries that were skipped and events that met no handler: rows of one kind are summed by a sweep."""

    class Status(models.TextChoices):
        SKIPPED = "skipped", _("skipped")
        UNROUTED = "unrouted", _("no handler")

    id = models.BigAutoField(primary_key=True)
    status = models.CharField(_("status"), max_length=20, choices=Status)
    reason = models.CharField(_("reason"), max_length=20, db_default="")
    # The handler of what was skipped, the topic of what met none.
    name = models.TextField(_("name"))
    amount = models.BigIntegerField(_("count"), db_default=1)
    last_at = models.DateTimeField(_("last seen"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_event_counts"
        default_permissions = ()
        indexes = [models.Index(fields=["status", "reason", "name"], name="pgbus_event_counts_kind")]

    def __str__(self) -> str:
        return f"{self.status} {self.name}: {self.amount}"
