"""A storm over a stream: transactions of every kind while workers are killed; nothing is lost, and nothing done twice."""

from __future__ import annotations

import os

import pytest

from django_pgbus.embedded import EmbeddedPostgresError, find_binaries
from django_pgbus.queues import wake
from django_pgbus.streams import logs
from tests.processes.harness import started
from tests.processes.server import SETTINGS, own_server
from tests.storm.stream_books import checks
from tests.storm.streams import SERVER, Plan, Storm
from tests.streams.following import nothing_declared

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEED = int(os.environ.get("PGBUS_TEST_SEED", "1"))
SECONDS = float(os.environ.get("PGBUS_TEST_STREAM_STORM", "60"))


@pytest.mark.timeout(SECONDS + 300)
def test_a_stream_in_a_storm(tmp_path, django_db_blocker, monkeypatch):
    try:
        find_binaries()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(wake, "_sent", wake._Sent())
    logs.forget()
    with (
        nothing_declared(),
        django_db_blocker.unblock(),
        own_server(options={**SETTINGS, **SERVER}) as server,
        started(tmp_path, server.settings) as start,
    ):

        def restart() -> None:
            server.stop("immediate")
            server.start()

        plan = Plan(seconds=SECONDS, restart=int(SECONDS / 2), seed=SEED)
        found = Storm(plan, start, server, restart).run()
    logs.forget()
    print(found)
    assert set(checks(found).values()) == {0}, found
    assert found.kills >= SECONDS / 3
    assert found.restarts == 1
    assert found.alone > 0
    assert min(found.repeated.values()) >= 0
    assert found.committed > SECONDS * 20
