"""What a small project would write; the database is told by the benchmark."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

import django

_url = urlsplit(os.environ["BENCH_DSN"])
_options = {name: values[0] for name, values in parse_qs(_url.query).items()}

SECRET_KEY = "only for benchmarks"
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    *(["django_tasks"] if django.VERSION < (6,) else []),
    "django_pgbus",
    *(["tests.benchmarks.project.followed"] if "BENCH_STREAMS" in os.environ else []),
    *(["tests.benchmarks.project.stages.Stages"] if "BENCH_STAGES" in os.environ else []),
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(_url.path[1:]),
        "USER": unquote(_url.username or ""),
        "PASSWORD": unquote(_url.password or ""),
        "HOST": _options.get("host") or _url.hostname or "",
        "PORT": _options.get("port") or str(_url.port or ""),
    }
}
TASKS = {"default": {"BACKEND": "django_pgbus.PgbusBackend", "QUEUES": []}}
