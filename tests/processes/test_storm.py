"""Kills and a restart over limited and unique jobs, seen from outside: limits and keys hold, each batch ends once."""

from __future__ import annotations

import os

import pytest

from tests.storm.storm import Plan, Storm, checks

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEED = int(os.environ.get("PGBUS_TEST_SEED", "1"))
JOBS = int(os.environ.get("PGBUS_TEST_STORM", "500"))
PLAN = Plan(
    jobs=JOBS,
    limited_keys=8,
    unique_keys=60,
    seconds=(0.01, 0.15),
    kill_every=0.8,
    kills=9,
    restart=3,
    seed=SEED,
    patience=60,
)


@pytest.mark.timeout(180)
def test_limits_and_keys_hold_in_a_storm(server, runworker_there):
    def restart() -> None:
        server.stop("immediate")
        server.start()

    found = Storm(PLAN, runworker_there, restart).run()
    print(found)
    assert set(checks(found).values()) == {0}, found
    assert found.full > 0
    assert found.batches > 0
    assert found.kills >= 3
