"""The tables of the line, and who works."""

from django.db import migrations, models

import django_pgbus.queues.models

# Ids and positions come from sequences of their own; a cache would hand out old positions late.
SEQUENCES = migrations.RunSQL(
    sql=["CREATE SEQUENCE pgbus_task_id CACHE 1", "CREATE SEQUENCE pgbus_position CACHE 1"],
    reverse_sql=["DROP SEQUENCE pgbus_position", "DROP SEQUENCE pgbus_task_id"],
)
# Room on each page for the versions that claims and beats make: at 45 all of them are HOT updates, at 60 seven
# of ten, and the line is a fifth slower.
STORAGE = migrations.RunSQL(
    sql="""
        ALTER TABLE pgbus_messages SET (
            fillfactor = 45,
            autovacuum_vacuum_scale_factor = 0.01,
            autovacuum_vacuum_threshold = 2000,
            autovacuum_vacuum_cost_delay = 0
        )
    """,
    reverse_sql=migrations.RunSQL.noop,
)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        SEQUENCES,
        migrations.CreateModel(
            name="Election",
            fields=[
                ("office", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("worker", models.UUIDField()),
                ("until", models.DateTimeField()),
            ],
            options={
                "db_table": "pgbus_election",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="Level",
            fields=[
                (
                    "pk",
                    models.CompositePrimaryKey(
                        "queue", "priority", "suspect", blank=True, editable=False, primary_key=True, serialize=False
                    ),
                ),
                ("queue", models.CharField(max_length=200)),
                ("priority", models.SmallIntegerField()),
                ("suspect", models.BooleanField()),
                ("seen_at", models.DateTimeField(db_default=django_pgbus.queues.models.ClockTimestamp())),
            ],
            options={
                "db_table": "pgbus_levels",
                "default_permissions": (),
            },
        ),
        migrations.CreateModel(
            name="QueueState",
            fields=[
                ("queue", models.CharField(max_length=200, primary_key=True, serialize=False, verbose_name="queue")),
                ("paused_at", models.DateTimeField(null=True, verbose_name="paused at")),
                ("paused_by", models.CharField(db_default="", max_length=200, verbose_name="paused by")),
            ],
            options={
                "verbose_name": "queue",
                "verbose_name_plural": "queues",
                "db_table": "pgbus_queue_states",
                "permissions": [("pause_queue", "Can pause and resume queues")],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Semaphore",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False, verbose_name="key")),
                ("name", models.TextField(db_default="", verbose_name="key as it was chosen")),
                ("capacity", models.IntegerField(verbose_name="limit")),
            ],
            options={
                "verbose_name": "concurrency key",
                "verbose_name_plural": "locks",
                "db_table": "pgbus_semaphores",
                "permissions": [("release_slot", "Can release slots"), ("discard_parked", "Can discard parked jobs")],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.UUIDField(primary_key=True, serialize=False, verbose_name="ID")),
                ("supervisor", models.UUIDField(null=True, verbose_name="supervisor")),
                ("name", models.CharField(max_length=200, verbose_name="name")),
                ("host", models.CharField(max_length=255, verbose_name="host")),
                ("pid", models.IntegerField(verbose_name="process ID")),
                ("version", models.CharField(max_length=50, verbose_name="version")),
                ("queues", models.TextField(verbose_name="queues")),
                ("capacity", models.IntegerField(verbose_name="threads")),
                ("running", models.IntegerField(db_default=0, verbose_name="running jobs")),
                ("superseded", models.IntegerField(db_default=0, verbose_name="superseded runs")),
                ("state", models.CharField(max_length=20, verbose_name="state")),
                ("listening", models.BooleanField(null=True, verbose_name="listening")),
                ("lease", models.DurationField(verbose_name="lease")),
                (
                    "started_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="started at"
                    ),
                ),
                (
                    "beat_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="last beat"
                    ),
                ),
            ],
            options={
                "verbose_name": "worker",
                "verbose_name_plural": "workers",
                "db_table": "pgbus_workers",
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="Archived",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextId(),
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("task", models.TextField(verbose_name="task")),
                ("backend", models.CharField(db_default="default", max_length=200, verbose_name="backend")),
                ("payload", django_pgbus.queues.models.JsonDocument(verbose_name="arguments")),
                ("delivery", models.IntegerField(db_default=0, verbose_name="delivery")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("errors", models.JSONField(blank=True, null=True, verbose_name="errors")),
                ("constraints", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="constraints")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="enqueued at"
                    ),
                ),
                (
                    "outcome",
                    models.CharField(
                        choices=[("succeeded", "succeeded"), ("discarded", "discarded")],
                        max_length=20,
                        verbose_name="outcome",
                    ),
                ),
                ("result", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="result")),
                ("note", models.TextField(db_default="", verbose_name="note")),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                (
                    "finished_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="finished at"
                    ),
                ),
            ],
            options={
                "verbose_name": "finished job",
                "verbose_name_plural": "finished jobs",
                "db_table": "pgbus_archive",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["finished_at"], name="pgbus_archive_finished")],
            },
        ),
        migrations.CreateModel(
            name="BlockedExecution",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextId(),
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("task", models.TextField(verbose_name="task")),
                ("backend", models.CharField(db_default="default", max_length=200, verbose_name="backend")),
                ("payload", django_pgbus.queues.models.JsonDocument(verbose_name="arguments")),
                ("delivery", models.IntegerField(db_default=0, verbose_name="delivery")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("errors", models.JSONField(blank=True, null=True, verbose_name="errors")),
                ("constraints", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="constraints")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="enqueued at"
                    ),
                ),
                (
                    "waits_for",
                    models.CharField(
                        choices=[("semaphore", "a slot"), ("key", "a uniqueness key")],
                        max_length=20,
                        verbose_name="waits for",
                    ),
                ),
                ("key", models.TextField(verbose_name="key")),
                ("semaphore", models.TextField(null=True, verbose_name="limited by")),
                ("due_at", models.DateTimeField(null=True, verbose_name="due at")),
                ("suspect", models.BooleanField(db_default=False, verbose_name="suspect")),
                (
                    "parked_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="parked since"
                    ),
                ),
            ],
            options={
                "verbose_name": "parked job",
                "verbose_name_plural": "parked jobs",
                "db_table": "pgbus_blocked_executions",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        models.F("waits_for"),
                        models.F("key"),
                        models.F("due_at"),
                        models.OrderBy(models.F("priority"), descending=True),
                        models.F("id"),
                        name="pgbus_blocked_line",
                    ),
                    models.Index(
                        condition=models.Q(("due_at__isnull", False)),
                        fields=["queue", "due_at"],
                        name="pgbus_blocked_due",
                    ),
                    models.Index(fields=["parked_at"], name="pgbus_blocked_parked"),
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextId(),
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("task", models.TextField(verbose_name="task")),
                ("backend", models.CharField(db_default="default", max_length=200, verbose_name="backend")),
                ("payload", django_pgbus.queues.models.JsonDocument(verbose_name="arguments")),
                ("delivery", models.IntegerField(db_default=0, verbose_name="delivery")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("errors", models.JSONField(blank=True, null=True, verbose_name="errors")),
                ("constraints", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="constraints")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="enqueued at"
                    ),
                ),
                (
                    "reason",
                    models.CharField(
                        choices=[("exhausted", "no attempts left"), ("gave_up", "gave up before its last attempt")],
                        max_length=20,
                        verbose_name="reason",
                    ),
                ),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
                ("started_at", models.DateTimeField(null=True, verbose_name="started at")),
                (
                    "died_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="died at"
                    ),
                ),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "db_table": "pgbus_dead_letters",
                "permissions": [
                    ("redrive_dead_letter", "Can redrive dead letters"),
                    ("discard_dead_letter", "Can discard dead letters"),
                ],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["died_at"], name="pgbus_dead_letters_died"),
                    models.Index(fields=["queue", "died_at"], name="pgbus_dead_letters_queue"),
                ],
            },
        ),
        migrations.CreateModel(
            name="Delayed",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextId(),
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("task", models.TextField(verbose_name="task")),
                ("backend", models.CharField(db_default="default", max_length=200, verbose_name="backend")),
                ("payload", django_pgbus.queues.models.JsonDocument(verbose_name="arguments")),
                ("delivery", models.IntegerField(db_default=0, verbose_name="delivery")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("errors", models.JSONField(blank=True, null=True, verbose_name="errors")),
                ("constraints", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="constraints")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="enqueued at"
                    ),
                ),
                ("due_at", models.DateTimeField(verbose_name="due at")),
                (
                    "reason",
                    models.CharField(
                        choices=[
                            ("scheduled", "scheduled"),
                            ("retry", "waiting for its next attempt"),
                            ("snoozed", "snoozed"),
                        ],
                        db_default="scheduled",
                        max_length=20,
                        verbose_name="reason",
                    ),
                ),
            ],
            options={
                "verbose_name": "delayed job",
                "verbose_name_plural": "delayed jobs",
                "db_table": "pgbus_delayed",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["queue", "due_at"], name="pgbus_delayed_due")],
            },
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                (
                    "id",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextId(),
                        primary_key=True,
                        serialize=False,
                        verbose_name="ID",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("priority", models.SmallIntegerField(db_default=0, verbose_name="priority")),
                ("task", models.TextField(verbose_name="task")),
                ("backend", models.CharField(db_default="default", max_length=200, verbose_name="backend")),
                ("payload", django_pgbus.queues.models.JsonDocument(verbose_name="arguments")),
                ("delivery", models.IntegerField(db_default=0, verbose_name="delivery")),
                ("attempts", models.IntegerField(db_default=0, verbose_name="attempts")),
                ("errors", models.JSONField(blank=True, null=True, verbose_name="errors")),
                ("constraints", django_pgbus.queues.models.JsonDocument(null=True, verbose_name="constraints")),
                (
                    "enqueued_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="enqueued at"
                    ),
                ),
                (
                    "position",
                    models.BigIntegerField(
                        db_default=django_pgbus.queues.models.NextPosition(), verbose_name="position"
                    ),
                ),
                ("suspect", models.BooleanField(db_default=False, verbose_name="suspect")),
                ("started", models.BooleanField(db_default=False, verbose_name="started")),
                ("discard_requested", models.BooleanField(db_default=False, verbose_name="discard requested")),
                ("leased_until", models.DateTimeField(null=True, verbose_name="leased until")),
                (
                    "ready_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="in line since"
                    ),
                ),
                ("claimed_at", models.DateTimeField(null=True, verbose_name="claimed at")),
                ("worker", models.UUIDField(null=True, verbose_name="worker")),
            ],
            options={
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
                "db_table": "pgbus_messages",
                "permissions": [("discard_job", "Can discard jobs"), ("hand_back_job", "Can hand back jobs")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["queue", "priority", "suspect", "position"], name="pgbus_messages_line")
                ],
            },
        ),
        migrations.CreateModel(
            name="Slot",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False, verbose_name="job")),
                ("key", models.TextField(verbose_name="key")),
                ("ordinal", models.IntegerField(verbose_name="number")),
                ("duration", models.FloatField(verbose_name="silence allowed, in seconds")),
                ("leased_until", models.DateTimeField(null=True, verbose_name="leased until")),
                (
                    "taken_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="held since"
                    ),
                ),
            ],
            options={
                "verbose_name": "slot",
                "verbose_name_plural": "slots",
                "db_table": "pgbus_semaphore_slots",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("leased_until__isnull", False)),
                        fields=["leased_until"],
                        name="pgbus_slots_leased",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("key", "ordinal"), name="pgbus_slots_once"),
                    models.CheckConstraint(condition=models.Q(("ordinal__gte", 1)), name="pgbus_slots_from_one"),
                ],
            },
        ),
        migrations.CreateModel(
            name="UniquenessKey",
            fields=[
                ("key", models.TextField(primary_key=True, serialize=False, verbose_name="key")),
                ("name", models.TextField(db_default="", verbose_name="key as it was chosen")),
                ("message_id", models.BigIntegerField(verbose_name="job")),
                ("delivery", models.IntegerField(null=True, verbose_name="delivery")),
                (
                    "strategy",
                    models.CharField(
                        choices=[("until_executed", "until executed"), ("while_executing", "while executing")],
                        max_length=20,
                        verbose_name="strategy",
                    ),
                ),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                (
                    "created_at",
                    models.DateTimeField(
                        db_default=django_pgbus.queues.models.ClockTimestamp(), verbose_name="held since"
                    ),
                ),
            ],
            options={
                "verbose_name": "uniqueness key",
                "verbose_name_plural": "uniqueness keys",
                "db_table": "pgbus_uniqueness_keys",
                "permissions": [("discard_lock", "Can discard uniqueness locks")],
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["message_id"], name="pgbus_uniqueness_message"),
                    models.Index(fields=["created_at"], name="pgbus_uniqueness_created"),
                ],
            },
        ),
        STORAGE,
    ]
