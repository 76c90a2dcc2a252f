"""The tutorial does what it says, command by command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import django
import pytest

from tests.docs.pages import ROOT, Block, blocks_of

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(300)]

PATIENCE = 60.0


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command with the lines the page shows below it."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *output = part.rstrip("\n").split("\n")
        yield command, output


def shows(expected: list[str], output: str) -> bool:
    """Return whether the output has these lines in their order; dots stand for any others."""
    lines = iter(output.splitlines())
    return all(any(wanted == line for line in lines) for wanted in expected if wanted != "...")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "postroom"
    folder.mkdir()
    return folder


@pytest.fixture
def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PGBUS_TEST"))}
    return {
        **ours,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "default",
    }


def test_the_tutorial(place: Path, environment: dict[str, str]) -> None:
    workers: list[subprocess.Popen[bytes]] = []

    def run(command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=place,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    try:
        for block in blocks_of("tutorial.md"):
            kind, _, file = block.mark.partition(": ")
            match kind:
                case "file":
                    (place / file).write_text(block.text)
                case "append":
                    more = 'INSTALLED_APPS += ["django_tasks"]\n' if django.VERSION < (6,) else ""
                    with (place / file).open("a") as settings:
                        settings.write(f"\n{block.text}{more}")
                case "background":
                    for command, _output in commands(block):
                        workers.append(subprocess.Popen(command.split(), cwd=place, env=environment))
                case "run" | "run until":
                    for command, expected in commands(block):
                        deadline = time.monotonic() + (PATIENCE if kind == "run until" else 0)
                        done = run(command)
                        while time.monotonic() < deadline and not shows(expected, done.stdout + done.stderr):
                            time.sleep(0.5)
                            done = run(command)
                        told = f"$ {command}\n{done.stdout}{done.stderr}"
                        assert done.returncode == 0, told
                        assert shows(expected, done.stdout + done.stderr), told
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            assert worker.wait(60) == 0
