"""People with and without permissions, and a job in every place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_pgbus.concurrency import stats_sql
from django_pgbus.models import (
    Archived,
    Batch,
    BlockedExecution,
    DeadLetter,
    Delayed,
    EntryException,
    Message,
    Semaphore,
    StreamLog,
    Subscription,
    UniquenessKey,
    Worker,
)
from django_pgbus.postgres import Statement
from tests.admin import rows
from tests.admin.stream_rows import a_dead, a_group, a_lease, a_stream

Login = Callable[..., Client]
UP_SINCE = "pg_postmaster_start_time()"


@dataclass(frozen=True)
class Places:
    ready: Message
    running: Message
    delayed: Delayed
    archived: Archived
    dead: DeadLetter
    worker: Worker
    parked: BlockedExecution
    semaphore: Semaphore
    lock: UniquenessKey
    batch: Batch
    subscription: Subscription
    stream: StreamLog
    failed: EntryException


@pytest.fixture
def long_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the server seem to have been up for long: right after its start nobody counts as silent."""
    for name in ("KEYS", "HOLDERS"):
        sql = getattr(stats_sql, name).sql
        assert UP_SINCE in sql
        longer = sql.replace(UP_SINCE, "(statement_timestamp() - interval '1 day')")
        monkeypatch.setattr(stats_sql, name, Statement(sql=longer))


@pytest.fixture
def places() -> Places:
    worker = rows.a_worker()
    ready, delayed = rows.a_message(), rows.a_delayed()
    rows.a_slot(ready.pk)
    stream = a_stream(entries=9)
    group = a_group(stream, claimed=7)
    a_lease(group, 5, 7)
    return Places(
        ready,
        rows.a_running(worker.id),
        delayed,
        rows.an_archived(),
        rows.a_dead_letter(),
        worker,
        rows.a_parked(),
        rows.a_limit(),
        rows.a_lock(delayed.pk),
        rows.a_batch(1),
        rows.a_subscription(),
        stream,
        a_dead(group, 3),
    )


@pytest.fixture
def login() -> Login:
    """`login("view_message", ...)` returns the client of a staff member with these permissions."""

    def member(*codenames: str, **fields: Any) -> Client:
        user = get_user_model().objects.create_user(**{"username": "anna", "is_staff": True, **fields})
        found = Permission.objects.filter(content_type__app_label="pgbus", codename__in=codenames)
        assert {permission.codename for permission in found} == set(codenames)
        user.user_permissions.set(found)
        client = Client()
        client.force_login(user)
        return client

    return member
