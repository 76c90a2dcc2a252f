"""Which handler gets which topics."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp


class Subscription(models.Model):
    """One pattern of one handler, as a worker declared it from its code."""

    id = models.BigAutoField(primary_key=True)
    pattern = models.CharField(_("pattern"), max_length=255)
    handler = models.TextField(_("handler"))
    queue = models.CharField(_("queue"), max_length=200)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    idempotent = models.BooleanField(_("idempotent"), db_default=False)
    # What the pattern is looked up and matched by (events/topics.py).
    prefix = models.CharField(max_length=255, db_default="")
    suffix = models.CharField(max_length=255, db_default="")
    regex = models.TextField()
    created_at = models.DateTimeField(_("subscribed at"), db_default=ClockTimestamp())
    declared_at = models.DateTimeField(_("last declared at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_subscriptions"
        verbose_name = _("subscription")
        verbose_name_plural = _("events")  # the page that shows them, and what becomes of events beside them
        default_permissions = ("view",)
        permissions = [("unbind_subscription", _("Can remove subscriptions"))]
        constraints = [models.UniqueConstraint(fields=["handler", "pattern"], name="pgbus_subscriptions_once")]
        indexes = [models.Index(fields=["prefix", "suffix"], name="pgbus_subscriptions_route")]

    def __str__(self) -> str:
        return f"{self.pattern} → {self.handler}"
