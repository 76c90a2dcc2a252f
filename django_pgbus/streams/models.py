"""The tables beside the logs; their promise stands in `streams/__init__.py`. Each log is a table of its own (`logs.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgbus.queues.models import ClockTimestamp, JsonDocument


class TransactionId(models.PositiveBigIntegerField[Any, Any] if TYPE_CHECKING else models.PositiveBigIntegerField):  # type: ignore[misc]
    """A transaction id with its epoch: PostgreSQL's `xid8`, which never wraps around."""

    def db_type(self, connection: Any) -> str:
        """Return the column type."""
        return "xid8"

    def db_check(self, connection: Any) -> None:
        """Return no constraint: an `xid8` is never negative."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> int | None:
        """Return the number; psycopg leaves an `xid8` as text."""
        return None if value is None else int(value)


class StreamLog(models.Model):
    """One stream. Its entries stand in `pgbus_stream_<id>`, which `streams/logs.py` makes and partitions."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("stream"), max_length=100, unique=True)
    # Positions of one partition; entries are never moved, so it never changes.
    partition_size = models.BigIntegerField(_("partition size"))
    retention = models.DurationField(_("kept for"), null=True)
    # A person's decision, not the code's: retention may drop what a group has not handled.
    drops_unhandled = models.BooleanField(_("drops what is not handled"), db_default=False)
    created_at = models.DateTimeField(_("created at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_streams"
        verbose_name = _("stream")
        verbose_name_plural = _("streams")
        default_permissions = ("view",)
        permissions = [
            ("rewind_group", _("Can rewind consumer groups")),
            ("pause_group", _("Can pause and resume consumer groups")),
            ("redrive_entry", _("Can redrive failed entries")),
            ("discard_entry", _("Can discard failed entries")),
            ("override_retention", _("Can let retention drop what is not handled")),
        ]

    def __str__(self) -> str:
        return self.name


class ConsumerGroup(models.Model):
    """Who reads a stream, as a worker declared it from its code."""

    id = models.BigAutoField(primary_key=True)
    stream = models.ForeignKey(StreamLog, models.CASCADE, related_name="groups", verbose_name=_("stream"))
    name = models.CharField(_("group"), max_length=100)
    handler = models.TextField(_("handler"))
    keyed = models.BooleanField(_("in order of a key"), db_default=False)
    routes = models.BooleanField(_("routes into queues"), db_default=False)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    created_at = models.DateTimeField(_("created at"), db_default=ClockTimestamp())
    declared_at = models.DateTimeField(_("last declared at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_stream_groups"
        verbose_name = _("consumer group")
        verbose_name_plural = _("consumer groups")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["stream", "name"], name="pgbus_stream_groups_once")]

    def __str__(self) -> str:
        return self.name


class Cursor(models.Model):
    """
    How far a group is.

    Positions up to `committed` are done, those up to `claimed` are leased, failed or done. `settled_head` was proven once,
    `pending_head` will be when everything older than `pending_xid` has ended. All of it holds in the log it was
    seen in only: that is the `epoch`.
    """

    group = models.OneToOneField(ConsumerGroup, models.CASCADE, primary_key=True, related_name="cursor")
    claimed = models.BigIntegerField(_("claimed"), db_default=0)
    committed = models.BigIntegerField(_("committed"), db_default=0)
    settled_head = models.BigIntegerField(db_default=0)
    pending_head = models.BigIntegerField(db_default=0)
    pending_xid = TransactionId(null=True)
    fence = models.SmallIntegerField()
    epoch = models.TextField()
    rewinds = models.IntegerField(_("rewinds"), db_default=0)

    class Meta:
        db_table = "pgbus_stream_cursors"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.group_id}: {self.committed} to {self.claimed}"


class RangeLease(models.Model):
    """A range (low, high] of entries, and who handles it until when."""

    id = models.BigAutoField(primary_key=True)
    token = models.UUIDField(unique=True)  # made by the worker: a claim whose answer was lost is found again by it
    group = models.ForeignKey(ConsumerGroup, models.CASCADE, related_name="leases")
    low = models.BigIntegerField(_("after"))
    high = models.BigIntegerField(_("to"))
    worker = models.UUIDField(_("worker"))
    until = models.DateTimeField(_("leased until"))
    reclaims = models.IntegerField(_("claimed again"), db_default=0)
    claimed_at = models.DateTimeField(_("claimed at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_stream_leases"
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        default_permissions = ()

    def __str__(self) -> str:
        return f"({self.low}, {self.high}]"


class KeyLease(models.Model):
    """A key that entries of an open range have: later entries of it wait."""

    id = models.BigAutoField(primary_key=True)
    lease = models.ForeignKey(RangeLease, models.CASCADE, related_name="keys")
    group = models.ForeignKey(ConsumerGroup, models.CASCADE, db_index=False, related_name="+")
    key = models.TextField(_("key"))

    class Meta:
        db_table = "pgbus_stream_keys"
        default_permissions = ()
        indexes = [models.Index(fields=["group", "key"], name="pgbus_stream_keys_held")]

    def __str__(self) -> str:
        return self.key


class EntryException(models.Model):
    """An entry that needs care of its own: it failed, or waits for one of its key that did."""

    class Status(models.TextChoices):
        READY = "ready", _("waits")
        RUNNING = "running", _("running")
        DEAD = "dead", _("dead letter")

    id = models.BigAutoField(primary_key=True)
    group = models.ForeignKey(ConsumerGroup, models.CASCADE, db_index=False, related_name="exceptions")
    position = models.BigIntegerField(_("position"))
    status = models.CharField(_("status"), max_length=10, choices=Status, db_default=Status.READY)
    attempts = models.IntegerField(_("attempts"), db_default=0)
    due_at = models.DateTimeField(_("due at"), db_default=ClockTimestamp())
    key = models.TextField(_("key"), null=True)  # noqa: DJ001  (an entry without a key waits for none)
    token = models.UUIDField(null=True)
    until = models.DateTimeField(_("leased until"), null=True)
    exception = models.TextField(_("exception"), db_default="")
    traceback = models.TextField(_("traceback"), db_default="")
    failed_at = models.DateTimeField(_("failed at"), null=True)
    created_at = models.DateTimeField(_("since"), db_default=ClockTimestamp())
    # Copied when the entry becomes a dead letter: from then on it keeps nothing of the log.
    payload = JsonDocument(_("payload"), null=True)
    appended_at = models.DateTimeField(_("appended at"), null=True)

    class Meta:
        db_table = "pgbus_stream_exceptions"
        verbose_name = _("failed entry")
        verbose_name_plural = _("failed entries")
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["group", "position"], name="pgbus_stream_exceptions_once")]
        indexes = [
            models.Index(fields=["group", "status", "due_at"], name="pgbus_stream_exceptions_due"),
            # Those that are not done with: dead letters may be many.
            models.Index(
                fields=["group", "position"],
                name="pgbus_stream_exceptions_open",
                condition=models.Q(status__in=["ready", "running"]),
            ),
            models.Index(
                fields=["group", "key", "position"],
                name="pgbus_stream_exceptions_key",
                condition=models.Q(key__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.position}: {self.status}"


class RoutedEntry(models.Model):
    """An entry above the mark of a group that has been routed already; forgotten when the mark passes it."""

    pk = models.CompositePrimaryKey("group", "position")
    group = models.ForeignKey(ConsumerGroup, models.CASCADE, db_index=False, related_name="+")
    position = models.BigIntegerField()

    class Meta:
        db_table = "pgbus_stream_routed"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.group_id}: {self.position}"
