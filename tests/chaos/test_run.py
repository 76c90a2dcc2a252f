"""The chaos as it is run by hand, once and short: it ends, it is green, and it says what was done."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from django_pgbus.embedded import EmbeddedPostgresError, find_binaries
from tests.chaos.faults import FAULTS
from tests.chaos.producers import KINDS
from tests.processes.harness import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEED = os.environ.get("PGBUS_TEST_SEED", "1")
FEW = ("kill_child", "drop", "end_pgbus_sessions")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if not name.startswith("PGBUS_TEST_")}
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "chaos" / "run.py"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )


@pytest.mark.timeout(300)
@pytest.mark.proves("every-job-ends")
def test_a_short_chaos_is_green_and_says_what_it_did():
    try:
        find_binaries()
    except EmbeddedPostgresError as error:
        pytest.skip(str(error))
    done = run("--minutes=0.12", "--every=1.5", f"--only={','.join(FEW)}", f"--seed={SEED}", "--json")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert set(said) == {"settings", "faults", "workload", "seen", "checks", "wrong", "seconds"}
    assert set(said["checks"].values()) == {0}
    assert said["wrong"] == {}
    assert set(said["faults"]) >= set(FEW)
    assert sum(said["faults"].values()) >= 2
    assert said["workload"]["plain"]["sent"] > 0
    assert said["workload"]["streams"]["sent"] > 0
    assert said["seen"]["connections through the proxy"] > 0


@pytest.mark.parametrize(("option", "known"), [("--only", FAULTS), ("--without", FAULTS), ("--kinds", KINDS)])
def test_an_unknown_name_is_refused_with_those_that_are_known(option, known):
    done = run(f"{option}=nothing")
    assert done.returncode == 2
    assert f"unknown: nothing; known are {', '.join(known)}" in " ".join(done.stderr.split())
