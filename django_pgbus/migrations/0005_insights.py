import django.contrib.postgres.fields
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("pgbus", "0004_streams"),
    ]

    operations = [
        migrations.CreateModel(
            name="RunCount",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "resolution",
                    models.CharField(
                        choices=[
                            ("raw", "as written"),
                            ("minute", "a minute"),
                            ("ten_minutes", "ten minutes"),
                            ("hour", "an hour"),
                            ("total", "since the beginning"),
                        ],
                        max_length=20,
                        verbose_name="resolution",
                    ),
                ),
                ("bucket", models.DateTimeField(verbose_name="from")),
                ("queue", models.CharField(max_length=200, verbose_name="queue")),
                ("task", models.TextField(verbose_name="task")),
                ("event", models.BooleanField(db_default=False, verbose_name="handler of events")),
                ("succeeded", models.BigIntegerField(db_default=0, verbose_name="succeeded")),
                ("failed", models.BigIntegerField(db_default=0, verbose_name="failed")),
                ("dead", models.BigIntegerField(db_default=0, verbose_name="dead")),
                ("snoozed", models.BigIntegerField(db_default=0, verbose_name="snoozed")),
                ("superseded", models.BigIntegerField(db_default=0, verbose_name="superseded")),
                ("handed_back", models.BigIntegerField(db_default=0, verbose_name="handed back")),
                ("run_seconds", models.FloatField(db_default=0.0, verbose_name="seconds of runs")),
                ("wait_seconds", models.FloatField(db_default=0.0, verbose_name="seconds of waiting")),
                ("longest", models.FloatField(db_default=0.0, verbose_name="longest run")),
                (
                    "run",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None, verbose_name="durations"
                    ),
                ),
                (
                    "wait",
                    django.contrib.postgres.fields.ArrayField(
                        base_field=models.BigIntegerField(), size=None, verbose_name="waits"
                    ),
                ),
            ],
            options={
                "verbose_name": "insight",
                "verbose_name_plural": "insights",
                "db_table": "pgbus_run_counts",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["resolution", "bucket"], name="pgbus_run_counts_span")],
            },
        ),
    ]
