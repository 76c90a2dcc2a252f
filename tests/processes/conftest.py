"""Workers on the test's own database, which is emptied after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_pgbus.embedded import EmbeddedPostgresError, find_binaries
from django_pgbus.queues import wake
from tests.processes.harness import RunWorker, prepare_runs, started
from tests.processes.server import Server, own_server


@pytest.fixture
def runworker(
    transactional_db: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RunWorker]]:
    """
    Start `manage.py runworker` with these options on the test's database.

    `pgbus` and `settings` are settings of it, `database_more` is added to its DATABASES, `hard_margin` and
    `sweep_every` are seconds.
    """
    monkeypatch.setattr(wake, "_sent", wake._Sent())  # this process has announced nothing yet
    prepare_runs()
    with started(tmp_path, connection.settings_dict) as start:
        yield start


@pytest.fixture
def server(django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Let the database be a server of the test's own."""
    try:
        find_binaries()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(wake, "_sent", wake._Sent())
    with django_db_blocker.unblock(), own_server() as server:
        yield server


@pytest.fixture
def runworker_there(server: Server, tmp_path: Path) -> Iterator[Callable[..., RunWorker]]:
    """Start `manage.py runworker` on that server."""
    with started(tmp_path, server.settings) as start:
        yield start
