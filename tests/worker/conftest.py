"""What the tests of `pgbus_doctor` look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from django_pgbus.worker.models import Worker
from tests.sessions import execute
from tests.streams.following import nothing_declared
from tests.worker.doctors import complaints, worker_row


@pytest.fixture
def healthy(transactional_db: None) -> Iterator[None]:
    """A database about which there is nothing to complain: what other tests have left is swept away."""
    execute("VACUUM")
    Worker.objects.all().delete()
    worker_row()
    with nothing_declared():
        assert complaints() == []
        yield


@pytest.fixture
def session_options(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return what gives every new session of our alias such options as `-c jit=off`."""

    def give(options: str) -> None:
        connection.ensure_connection()  # ours stays as it is
        monkeypatch.setitem(connection.settings_dict["OPTIONS"], "options", options)

    return give
