"""Workers on the test's own database, which is emptied after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connection

from django_pgbus.queues import wake
from tests.processes.harness import RunWorker, described, prepare_runs, started


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
    with started(tmp_path, described(connection.settings_dict)) as start:
        yield start
