"""Workers killed over events again and again: each handler has done each event, and none of them twice without a reason."""

from __future__ import annotations

import os

import pytest

from tests.storm.events import Plan, Storm, checks

pytestmark = [pytest.mark.processes, pytest.mark.slow]

EVENTS = int(os.environ.get("PGBUS_TEST_EVENTS", "300"))
SEED = int(os.environ.get("PGBUS_TEST_SEED", "1"))
PLAN = Plan(events=EVENTS, seconds=(0.0, 0.03), kill_every=0.8, most_kills=15, restart=2, seed=SEED, patience=60)


@pytest.mark.timeout(180)
def test_events_are_done_in_a_storm_of_kills(server, runworker_there):
    def restart() -> None:
        server.stop("immediate")
        server.start()

    found = Storm(PLAN, runworker_there, restart).run()
    print(found)
    assert set(checks(found).values()) == {0}, found
    assert found.kills >= 3
    assert found.restarts == 1
