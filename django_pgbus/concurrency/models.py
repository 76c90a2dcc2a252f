"""The tables of the limits; their promise stands in `concurrency/__init__.py`."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp, Work, members_index


class Semaphore(models.Model):
    """A key that is limited. The row decides between running and parking: whoever locks it may hand out slots."""

    key = models.TextField(_("key"), primary_key=True)
    name = models.TextField(_("key as it was chosen"), db_default="")  # of a key that is stored as its hash
    # As last declared; the code that promotes has the last word.
    capacity = models.IntegerField(_("limit"))

    class Meta:
        db_table = "pgbus_semaphores"
        verbose_name = _("concurrency key")
        verbose_name_plural = _("locks")  # the page that shows them, and uniqueness keys beside them
        default_permissions = ("view",)
        permissions = [
            ("release_slot", _("Can release slots")),
            ("discard_parked", _("Can discard parked jobs")),
        ]

    def __str__(self) -> str:
        return self.name or self.key


class Slot(models.Model):
    """A place under a limit and the message that holds it; leased while the message runs."""

    message_id = models.BigIntegerField(_("job"), primary_key=True)
    key = models.TextField(_("key"))
    ordinal = models.IntegerField(_("number"))
    duration = models.FloatField(_("silence allowed, in seconds"))
    leased_until = models.DateTimeField(_("leased until"), null=True)
    taken_at = models.DateTimeField(_("held since"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_semaphore_slots"
        verbose_name = _("slot")
        verbose_name_plural = _("slots")
        default_permissions = ("view",)
        constraints = [
            # The second line of defence: even a wrong count cannot let two take the same place.
            models.UniqueConstraint(fields=["key", "ordinal"], name="pgbus_slots_once"),
            models.CheckConstraint(condition=Q(ordinal__gte=1), name="pgbus_slots_from_one"),
        ]
        indexes = [
            models.Index(fields=["leased_until"], name="pgbus_slots_leased", condition=Q(leased_until__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.key} {self.ordinal}"


class BlockedExecution(Work):
    """A task that is parked, whole, with the one thing it waits for."""

    class WaitsFor(models.TextChoices):
        SEMAPHORE = "semaphore", _("a slot")
        KEY = "key", _("a uniqueness key")

    waits_for = models.CharField(_("waits for"), max_length=20, choices=WaitsFor)
    key = models.TextField(_("key"))
    # The semaphore it needs a slot of to run, if any, while it waits for a uniqueness key.
    semaphore = models.TextField(_("limited by"), null=True)  # noqa: DJ001
    due_at = models.DateTimeField(_("due at"), null=True)  # until then it is no candidate
    suspect = models.BooleanField(_("suspect"), db_default=False)
    parked_at = models.DateTimeField(_("parked since"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_blocked_executions"
        verbose_name = _("parked job")
        verbose_name_plural = _("parked jobs")
        default_permissions = ("view",)
        indexes = [
            # The candidates of a key stand in the order in which they are promoted: due ones have no `due_at`.
            models.Index(
                F("waits_for"), F("key"), F("due_at"), F("priority").desc(), F("id"), name="pgbus_blocked_line"
            ),
            models.Index(fields=["queue", "due_at"], name="pgbus_blocked_due", condition=Q(due_at__isnull=False)),
            models.Index(fields=["parked_at"], name="pgbus_blocked_parked"),
            members_index("pgbus_blocked_batch"),
        ]
