"""One host of three is cut off for three leases and returns: nothing is lost, its runs are fenced out, limits hold."""

from __future__ import annotations

import os

import pytest

from django_pgbus.embedded import EmbeddedPostgresError, find_binaries
from tests.hosts.net import why_not
from tests.hosts.partition import Plan, checks
from tests.hosts.three import cut_one_off

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEED = int(os.environ.get("PGBUS_TEST_SEED", "1"))


@pytest.mark.timeout(400)
def test_a_host_that_was_cut_off_has_done_no_harm(django_db_blocker, tmp_path):
    if reason := why_not():
        pytest.skip(
            f"no hosts here: {reason}"
        )  # what a proxy between one worker and the server does stands in tests/chaos
    try:
        find_binaries()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    with django_db_blocker.unblock():
        found = cut_one_off(Plan(seconds=20, seed=SEED), tmp_path)
    print(found)
    assert set(checks(found).values()) == {0}, found
