"""The fixtures of pytest, and that the plugin costs nothing until one is used."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.testing import tasks

ROOT = Path(__file__).parents[2]
PLUGIN = "django_pgbus.testing.pytest_plugin"


def test_the_fixtures_need_no_mark(pgbus_run_enqueued, pgbus_enqueued):
    tasks.log.clear()
    tasks.note.enqueue(1)
    assert [result.args for result in pgbus_enqueued(tasks.note)] == [[1]]
    assert [result.return_value for result in pgbus_run_enqueued()] == [1]
    assert pgbus_enqueued() == []


@pytest.mark.django_db(transaction=True)
def test_they_work_where_tests_commit(pgbus_run_enqueued):
    tasks.log.clear()
    tasks.on_commit_enqueues.enqueue(7)
    assert len(pgbus_run_enqueued()) == 2


def test_hooks_after_commit(pgbus_run_enqueued, django_capture_on_commit_callbacks):
    tasks.log.clear()
    tasks.on_commit_enqueues.enqueue(7)
    with django_capture_on_commit_callbacks(execute=True):
        pgbus_run_enqueued()
    pgbus_run_enqueued()
    assert tasks.log == [7]


def test_the_entry_point_names_the_plugin():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert declared == {"django_pgbus": PLUGIN}
    assert PLUGIN in {found.value for found in entry_points(group="pytest11")}


def test_loading_the_plugin_imports_nothing_of_django():
    code = f"import sys, {PLUGIN}; print([name for name in sys.modules if name.partition('.')[0] == 'django'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
