"""The tables of the line and what surrounds it; their promise stands in `queues/__init__.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.utils.translation import gettext_lazy as _


class JsonDocument(models.TextField[Any, Any] if TYPE_CHECKING else models.TextField):  # type: ignore[misc]
    """
    A JSON document kept as it was written.

    `jsonb` would turn 1e22 into an integer and -0.0 into 0.0; and nothing searches inside a payload.
    """

    def db_type(self, connection: Any) -> str:
        """Return the column type."""
        return "json"

    def get_placeholder(self, value: Any, compiler: Any, connection: Any) -> str:
        """Return the placeholder with its cast; Django before 6.1 asks for it here."""
        return "%s::json"

    def get_placeholder_sql(self, value: Any, compiler: Any, connection: Any) -> tuple[str, Any]:
        """Return the placeholder with its cast, and its parameters."""
        if hasattr(value, "as_sql"):
            sql, params = compiler.compile(value)
            return f"{sql}::json", params
        return "%s::json", (value,)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return the stored text."""
        return value

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        """Read as text: psycopg would decode `json`, and a payload that cannot be decoded must still be shown."""
        return f"{sql}::text", params


class NextId(models.Func):
    """The next id of a task, the same wherever it goes."""

    template = "nextval('pgbus_task_id')"
    output_field = models.BigIntegerField()


class ClockTimestamp(models.Func):
    """The database's clock at the start of the statement."""

    template = "statement_timestamp()"
    output_field = models.DateTimeField()


class NextPosition(models.Func):
    """
    The next place in the line, for a transaction that has its id already.

    Whoever has a place has an older transaction id than whoever looks later: that is what lets a look prove
    that nothing can still appear below its mark (docs/architecture, the floor).
    """

    template = "nextval(CASE WHEN pg_current_xact_id() IS NOT NULL THEN 'pgbus_position'::regclass END)"
    output_field = models.BigIntegerField()


def members_index(name: str) -> models.Index:
    """Return the index that finds the members of a batch; jobs that belong to none are not in it."""
    return models.Index(fields=["batch_id", "id"], name=name, condition=models.Q(batch_id__isnull=False))


def events_index(name: str) -> models.Index:
    """Return the index that finds the copies of an event, newest first: most of their ids tell the time."""
    return models.Index(fields=["event_id", "id"], name=name, condition=models.Q(event_id__isnull=False))


class Work(models.Model):
    """What a task takes with it wherever it goes (semantics 1.3)."""

    id = models.BigIntegerField(_("ID"), primary_key=True, db_default=NextId())
    queue = models.CharField(_("queue"), max_length=200)
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    task = models.TextField(_("task"))
    backend = models.CharField(_("backend"), max_length=200, db_default="default")
    payload = JsonDocument(_("arguments"))
    delivery = models.IntegerField(_("delivery"), db_default=0)
    attempts = models.IntegerField(_("attempts"), db_default=0)
    errors = models.JSONField(_("errors"), null=True, blank=True)
    # What must hold while it runs (tasks/constraints.py): None for a task that anybody may run at any time.
    constraints = JsonDocument(_("constraints"), null=True)
    batch_id = models.BigIntegerField(_("batch"), null=True)  # that counts it when it ends
    # Both stand for a handler's copy of an event, whose path stands in `task`; neither for a task.
    event_id = models.UUIDField(_("event"), null=True)
    topic = models.CharField(_("topic"), max_length=255, null=True)  # noqa: DJ001  (empty is no topic either)
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=ClockTimestamp())

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.task} #{self.id}"


class Message(Work):
    """A task in the line: ready, or leased to a worker."""

    position = models.BigIntegerField(_("position"), db_default=NextPosition())
    suspect = models.BooleanField(_("suspect"), db_default=False)
    started = models.BooleanField(_("started"), db_default=False)
    discard_requested = models.BooleanField(_("discard requested"), db_default=False)
    leased_until = models.DateTimeField(_("leased until"), null=True)
    # Since when it stands in the line: `enqueued_at` of one that was delayed or redriven says nothing about its wait.
    ready_at = models.DateTimeField(_("in line since"), db_default=ClockTimestamp())
    claimed_at = models.DateTimeField(_("claimed at"), null=True)
    worker = models.UUIDField(_("worker"), null=True)

    class Meta:
        db_table = "pgbus_messages"
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions = [
            ("discard_job", _("Can discard jobs")),
            ("hand_back_job", _("Can hand back jobs")),
            ("run_job_now", _("Can run jobs before their time")),
        ]
        # No index may contain lease, delivery or attempts: a claim would no longer be a HOT update.
        indexes = [
            models.Index(fields=["queue", "priority", "suspect", "position"], name="pgbus_messages_line"),
            members_index("pgbus_messages_batch"),
            events_index("pgbus_messages_event"),
        ]


class Delayed(Work):
    """A task that waits for its time: scheduled, to be tried again, or snoozed."""

    class Reason(models.TextChoices):
        SCHEDULED = "scheduled", _("scheduled")
        RETRY = "retry", _("waiting for its next attempt")
        SNOOZED = "snoozed", _("snoozed")
        OWNED = "owned", _("an earlier delivery may still run")

    due_at = models.DateTimeField(_("due at"))
    reason = models.CharField(_("reason"), max_length=20, choices=Reason, db_default="scheduled")

    class Meta:
        db_table = "pgbus_delayed"
        verbose_name = _("delayed job")
        verbose_name_plural = _("delayed jobs")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["queue", "due_at"], name="pgbus_delayed_due"),
            members_index("pgbus_delayed_batch"),
            events_index("pgbus_delayed_event"),
        ]


class Archived(Work):
    """What finished: succeeded, discarded by a person, or skipped since another delivery of the event did it."""

    class Outcome(models.TextChoices):
        SUCCEEDED = "succeeded", _("succeeded")
        DISCARDED = "discarded", _("discarded")
        SKIPPED = "skipped", _("skipped")

    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome)
    result = JsonDocument(_("result"), null=True)
    note = models.TextField(_("note"), db_default="")
    worker = models.UUIDField(_("worker"), null=True)
    started_at = models.DateTimeField(_("started at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_archive"
        verbose_name = _("finished job")
        verbose_name_plural = _("finished jobs")
        default_permissions = ("view",)
        indexes = [
            models.Index(fields=["finished_at"], name="pgbus_archive_finished"),
            members_index("pgbus_archive_batch"),
            events_index("pgbus_archive_event"),
        ]


class DeadLetter(Work):
    """A task that gave up, with its reason."""

    class Reason(models.TextChoices):
        EXHAUSTED = "exhausted", _("no attempts left")
        GAVE_UP = "gave_up", _("gave up before its last attempt")

    reason = models.CharField(_("reason"), max_length=20, choices=Reason)
    worker = models.UUIDField(_("worker"), null=True)
    started_at = models.DateTimeField(_("started at"), null=True)
    died_at = models.DateTimeField(_("died at"), db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_dead_letters"
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)
        permissions = [
            ("redrive_dead_letter", _("Can redrive dead letters")),
            ("discard_dead_letter", _("Can discard dead letters")),
        ]
        indexes = [
            models.Index(fields=["died_at"], name="pgbus_dead_letters_died"),
            models.Index(fields=["queue", "died_at"], name="pgbus_dead_letters_queue"),
            members_index("pgbus_dead_letters_batch"),
            events_index("pgbus_dead_letters_event"),
        ]


class QueueState(models.Model):
    """What a person decided about a queue."""

    queue = models.CharField(_("queue"), max_length=200, primary_key=True)
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_by = models.CharField(_("paused by"), max_length=200, db_default="")

    class Meta:
        db_table = "pgbus_queue_states"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = [("pause_queue", _("Can pause and resume queues"))]

    def __str__(self) -> str:
        return self.queue


class Level(models.Model):
    """A part of the line that has been used: workers look there (semantics 2.1)."""

    pk = models.CompositePrimaryKey("queue", "priority", "suspect")
    queue = models.CharField(max_length=200)
    priority = models.SmallIntegerField()
    suspect = models.BooleanField()
    seen_at = models.DateTimeField(db_default=ClockTimestamp())

    class Meta:
        db_table = "pgbus_levels"
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.queue} {self.priority}"
