"""The table of uniqueness keys; its promise stands in `uniqueness/__init__.py`."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp


class UniquenessKey(models.Model):
    """A key that is held, and by which message."""

    class Strategy(models.TextChoices):
        UNTIL_EXECUTED = "until_executed", _("until executed")
        WHILE_EXECUTING = "while_executing", _("while executing")
        UNTIL_FINISHED = "until_finished", _("until the batch is finished")

    key = models.TextField(_("key"), primary_key=True)
    name = models.TextField(_("key as it was chosen"), db_default="")  # of a key that is stored as its hash
    message_id = models.BigIntegerField(_("job"))  # or the batch, under `until_finished`
    delivery = models.IntegerField(_("delivery"), null=True)
    strategy = models.CharField(_("strategy"), max_length=20, choices=Strategy)
    queue = models.CharField(_("queue"), max_length=200)
    created_at = models.DateTimeField(_("held since"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_uniqueness_keys"
        verbose_name = _("uniqueness key")
        verbose_name_plural = _("uniqueness keys")
        default_permissions = ("view",)
        permissions = [("discard_lock", _("Can discard uniqueness locks"))]
        indexes = [
            models.Index(fields=["message_id"], name="pgbus_uniqueness_message"),
            models.Index(fields=["created_at"], name="pgbus_uniqueness_created"),
        ]

    def __str__(self) -> str:
        return self.name or self.key
