"""django-tasks-db on Django's own task API: `db_worker`, one thread, its default interval of a second."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any
from urllib.parse import parse_qs, urlsplit

import django
from django.conf import settings

from tests.benchmarks import counters
from tests.benchmarks.payload import ARGUMENTS
from tests.benchmarks.peers import DSN

_url = urlsplit(DSN)
_options = {name: values[0] for name, values in parse_qs(_url.query).items()}
settings.configure(
    SECRET_KEY="only for benchmarks",
    USE_TZ=True,
    INSTALLED_APPS=["django.contrib.contenttypes", "django_tasks_db"],
    LOGGING_CONFIG=None,
    TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _url.path[1:],
            "USER": _url.username,
            "PASSWORD": _url.password or "",
            "HOST": _options.get("host") or _url.hostname or "",
            "PORT": _options.get("port") or str(_url.port or ""),
        }
    },
)
django.setup()

from django.core.management import call_command  # noqa: E402
from django.tasks import task  # noqa: E402

BULK = False  # it has no call that sends many


@task()
def noop(**kwargs: Any) -> None:
    counters.hit()


@task()
def stamp(number: int, **kwargs: Any) -> None:
    counters.stamp(number)


def install() -> str:
    call_command("migrate", verbosity=0)
    return version("django-tasks-db")


def send_many(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        noop.enqueue(**ARGUMENTS)
    return time.perf_counter() - began


@contextlib.contextmanager
def sender() -> Iterator[Callable[[int], None]]:
    def send(number: int) -> None:
        stamp.enqueue(number=number, **ARGUMENTS)

    send(-1)
    yield send


def work() -> None:
    call_command("db_worker", interval=1.0, startup_delay=False, reload=False, verbosity=0)
