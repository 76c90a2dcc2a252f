"""What the tests of `pgbus_doctor` share: rows it looks at, and what it finds beside what is of the tests' server."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import django_pgbus
from django_pgbus.queues.models import Message
from django_pgbus.worker import doctor
from django_pgbus.worker.findings import Finding, Grade
from django_pgbus.worker.models import Worker
from tests.jobs import noop

# The server of the tests need not survive a crash; what is said of that is tested by name.
OF_THE_TESTS = {"fsync", "full_page_writes", "synchronous_commit"}


def worker_row(**fields: Any) -> Worker:
    row = {
        "id": uuid.uuid4(),
        "name": "w",
        "host": "h",
        "pid": 1,
        "version": django_pgbus.__version__,
        "queues": "*: 1",
        "capacity": 1,
        "state": "running",
        "lease": timedelta(seconds=30),
    }
    return Worker.objects.create(**{**row, **fields})


def message(**fields: Any) -> Message:
    return Message.objects.create(**{"queue": "default", "task": noop.module_path, "payload": "{}", **fields})


def complaints() -> list[Finding]:
    """Return what is wrong, but for what is of the tests' server."""
    return [one for one in doctor.examine() if one.grade is not Grade.OK and one.where not in OF_THE_TESTS]


def complaint(subject: str, where: str) -> Finding:
    """Return the only complaint there is about this thing, and be sure that it names what to do."""
    found = complaints()
    (one,) = [one for one in found if (one.subject, one.where) == (subject, where)] or [None]
    assert one is not None, found
    assert one.remedy
    return one
