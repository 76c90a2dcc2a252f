"""The core of the suite through PgBouncer: a short run of each variant; `run.py` makes the long ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.pooler.bouncer import is_installed
from tests.pooler.run import ROOT

pytestmark = [
    pytest.mark.processes,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_installed(), reason="there is no PgBouncer here: apt-get install pgbouncer"),
    pytest.mark.skipif("PGBUS_TEST_DIRECT_URL" in os.environ, reason="a run through the pooler runs this not again"),
]


@pytest.mark.parametrize("listen", ["direct", "none"])
def test_the_core_works_through_a_transaction_pooler(listen):
    command = [sys.executable, "tests/pooler/run.py", "--listen", listen, "--short", "-q", "--tb=short"]
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("PYTEST_", "DATABASE_URL"))}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    assert " passed" in done.stdout
