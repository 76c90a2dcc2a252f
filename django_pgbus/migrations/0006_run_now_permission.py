from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [
        ("pgbus", "0005_insights"),
    ]

    operations = [
        migrations.AlterModelOptions(
            name="message",
            options={
                "default_permissions": ("view",),
                "permissions": [
                    ("discard_job", "Can discard jobs"),
                    ("hand_back_job", "Can hand back jobs"),
                    ("run_job_now", "Can run jobs before their time"),
                ],
                "verbose_name": "job",
                "verbose_name_plural": "jobs",
            },
        ),
    ]
