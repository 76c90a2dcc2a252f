"""The demonstration from end to end: real workers, a real kill, on a database of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "example_project"
REAL = EXAMPLE.parents[1] / "shared" / "data" / "orders.csv"

pytestmark = pytest.mark.processes


def demo(home: Path, *arguments: str, seconds: float) -> str:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PYTHONPATH": str(EXAMPLE.parent),  # the package may not be installed
        "SHOP_HOME": str(home),
    }
    environment.pop("DATABASE_URL", None)  # a demonstration empties its database
    done = subprocess.run(
        [sys.executable, "manage.py", "demo", *arguments],
        cwd=EXAMPLE,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    logs = "\n".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in sorted((home / "var/log").glob("*.log")))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout


def table(printed: str) -> dict[str, str]:
    lines = re.findall(r"^ {2,4}([a-z][a-z, ]*?)  +([\d,.]+)(?:  .*)?$", printed, re.MULTILINE)
    return {label.strip(): value for label, value in lines}


@pytest.mark.timeout(240)
def test_the_demonstration_adds_up_twice_in_a_row(tmp_path: Path) -> None:
    for _ in range(2):
        printed = demo(tmp_path, seconds=110)
        closing = table(printed)
        assert closing["orders written"] == "400"
        assert closing["rows that became dead letters"] == "7"
        assert closing["rows lost"] == "0"
        assert closing["refused as duplicates"] == "2"
        assert closing["of these refused"] == "409"
        assert closing["most charges of a customer at once"] == "1"
        assert 1 <= int(closing["most gateway calls at once"]) <= 4
        assert closing["worker processes killed"] == "1"
        assert int(closing["reports mailed"]) >= 1
        assert closing["events published"] == "798"
        assert closing["published once more"] == closing["skipped as duplicates"] == "20"
        assert (closing["copies for handlers"], closing["lost"]) == ("2,078", "0")
        assert closing["taken from stock"] == closing["quantity of these days"] == closing["quantity"]
        assert closing["amount of these days"] == closing["amount"]
        assert closing["entries of the audit"] == "798"
        assert (
            closing["entries of the ledger"] == closing["handled by totals"] == closing["handled by recount"] == "400"
        )
        assert closing["amount of totals"] == closing["amount of recount"] == closing["amount"]
        assert "A second group begins to read the ledger" in printed
        assert closing["customers welcomed"] == "109"
        assert closing["events of which one handler failed"] == "2"
        assert "RefusedError: 550 customer-50@example.com: no such mailbox" in printed
        assert "its report is mailed" in printed
        assert "Everything adds up." in printed
        assert "/admin/" in printed


@pytest.mark.slow
@pytest.mark.timeout(1860)
@pytest.mark.skipif(not REAL.exists(), reason=f"{REAL} is not here")
def test_the_real_file_with_a_kill_every_second(tmp_path: Path) -> None:
    closing = table(demo(tmp_path, "--file", str(REAL), "--kill-every", "1", seconds=1800))
    assert closing["orders written"] == "6,919"
    assert closing["customers"] == "2,357"
    assert closing["amount"] == "244,091.94"
    assert closing["quantity"] == "16,479"
    assert closing["rows lost"] == closing["lost"] == "0"
    assert closing["taken from stock"] == closing["quantity of these days"] == "16,479"
    assert closing["amount of these days"] == "244,091.94"
    assert closing["amount of totals"] == closing["amount of recount"] == "244,091.94"
    assert closing["skipped as duplicates"] == "20"
    assert closing["events of which one handler failed"] == "47"
    assert closing["most charges of a customer at once"] == "1"
    assert 1 <= int(closing["most gateway calls at once"]) <= 4
    assert int(closing["worker processes killed"]) > 3
