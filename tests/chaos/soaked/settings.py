"""What a project would write; the database and the retention are told by the soak."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

import django

_url = urlsplit(os.environ["SOAK_DSN"])
_retention = float(os.environ["SOAK_RETENTION"])

SECRET_KEY = "only for the soak"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "django_pgbus",
    "tests.chaos.soaked.apps.SoakedConfig",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(_url.path[1:]),
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": parse_qs(_url.query).get("host", [_url.hostname or ""])[0],
        "PORT": parse_qs(_url.query).get("port", [str(_url.port or "")])[0],
        "CONN_MAX_AGE": 60,
        "OPTIONS": {"application_name": os.environ.get("SOAK_ROLE", "jobs")},
    }
}
TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}}
PGBUS = {"ARCHIVE_RETENTION": _retention, "DEAD_LETTER_RETENTION": _retention, "IDEMPOTENCY_TTL": _retention}
