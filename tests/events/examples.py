"""Handlers for the tests of this folder, and ways to run what was published without a worker."""

from __future__ import annotations

from typing import Any

from django_pgbus.events.handlers import Handler
from django_pgbus.events.topics import compiled
from django_pgbus.tasks.policy import Policy


def nothing(event: Any) -> None: ...


def a_handler(path: str, *patterns: str, **more: Any) -> Handler:
    """Return a handler as `subscribe` would declare it, of any path."""
    declared: dict[str, Any] = {
        "queue": "@events",
        "priority": 0,
        "idempotent": False,
        "policy": Policy(max_attempts=0),
    }
    texts = tuple(dict.fromkeys(compiled(pattern).text for pattern in patterns))
    return Handler(path=path, target=nothing, patterns=texts, **{**declared, **more})
