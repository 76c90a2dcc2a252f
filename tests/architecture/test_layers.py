"""The layers of `pyproject.toml` hold; and the check that says so does go red."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT_IMPORTS = "from importlinter.cli import lint_imports_command; lint_imports_command()"


def lint(folder: Path) -> tuple[int, str]:
    """Return the exit code and the report of import-linter for the package in `folder`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", LINT_IMPORTS, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, re.sub(r"\s+", " ", done.stdout + done.stderr)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the package and its contracts, to break."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "django_pgbus", tmp_path / "django_pgbus", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def add(house: Path, file: str, line: str) -> None:
    path = house / "django_pgbus" / file
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as out:
        out.write(f"\n{line}\n")


def test_imports_point_downward():
    code, report = lint(ROOT)
    assert code == 0, report
    assert "2 kept, 0 broken" in report


@pytest.mark.parametrize(
    ("file", "line", "complaint"),
    [
        (
            "queues/queue.py",
            "import django_pgbus.worker",
            "django_pgbus.queues is not allowed to import django_pgbus.worker",
        ),
        (
            "conf.py",
            "import django_pgbus.exceptions",
            "django_pgbus.conf is not allowed to import django_pgbus.exceptions",
        ),
        ("services/__init__.py", "", "not listed as layers: - django_pgbus.services"),
        (
            "queues/queue.py",
            "import django_pgbus.queues.models",
            "django_pgbus.queues.queue is not allowed to import django_pgbus.queues.models",
        ),
        (
            "exceptions.py",
            "def late():\n    import django_pgbus.worker.models",
            "django_pgbus.tasks is not allowed to import django_pgbus.worker.models",
        ),
    ],
    ids=["upward", "sideways", "no place", "verb imports models", "verb imports models by a detour"],
)
def test_a_breach_is_seen(house, file, line, complaint):
    add(house, file, line)
    code, report = lint(house)
    assert code == 1
    assert complaint in report
