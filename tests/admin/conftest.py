"""People with and without permissions, and a job in every place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.test import Client

from django_pgbus.models import Archived, DeadLetter, Delayed, Message, Worker
from tests.admin import rows

Login = Callable[..., Client]


@dataclass(frozen=True)
class Places:
    ready: Message
    running: Message
    delayed: Delayed
    archived: Archived
    dead: DeadLetter
    worker: Worker


@pytest.fixture
def places() -> Places:
    worker = rows.a_worker()
    return Places(
        rows.a_message(),
        rows.a_running(worker.id),
        rows.a_delayed(),
        rows.an_archived(),
        rows.a_dead_letter(),
        worker,
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
