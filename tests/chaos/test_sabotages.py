"""The list of sabotages fits the code as it is now, and each is run in a copy that nothing else gets into."""

from __future__ import annotations

import ast
import json
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.chaos import sabotage_run, sabotages
from tests.chaos.sabotages import SABOTAGES
from tests.chaos.shadow import ROOT, DoesNotFit, Edit, Shadow, edited, fits, shadow

LEAST = 20
LEAST_WITH_CHAOS = 12


@pytest.mark.parametrize("name", SABOTAGES)
def test_it_fits_the_present_code(name):
    fits(SABOTAGES[name].edits)


def test_names_are_unique():
    parts = (getattr(sabotages, part) for part in ("QUEUES", "LIMITS", "KEYS", "EVENTS", "STREAMS", "WORKER"))
    names = Counter(sabotage.name for part in parts for sabotage in part)
    assert names.keys() == SABOTAGES.keys()
    assert set(names.values()) == {1}
    assert len(SABOTAGES) >= LEAST


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse(Path(ROOT, file).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("name", SABOTAGES)
def test_its_tests_are_there(name):
    assert SABOTAGES[name].tests
    for test in SABOTAGES[name].tests:
        file, function = test.split("::")
        assert function.partition("[")[0] in functions(file), test


def test_an_edit_must_fit_exactly_once(tmp_path):
    twice = Edit("queues.sql.RETURN_TO_LINE", "message.delivery", "x")
    nowhere = Edit("queues.sql.RETURN_TO_LINE", "no such text", "x")
    no_place = Edit("queues.sql.NO_SUCH_STATEMENT", "message.delivery", "x")
    for edit in (twice, nowhere, no_place):
        with pytest.raises(DoesNotFit):
            fits([edit])


def test_an_edit_changes_its_place_and_nothing_else(tmp_path):
    file = tmp_path / "django_pgbus" / "somewhere.py"
    file.parent.mkdir()
    file.write_text("A = 'old'\n\n\nclass B:\n    def c(self):\n        return 'old'\n")
    before = file.read_text(), file.stat().st_mtime_ns
    with edited([Edit("somewhere.B.c", "old", "new")], tmp_path):
        assert file.read_text() == "A = 'old'\n\n\nclass B:\n    def c(self):\n        return 'new'\n"
    assert (file.read_text(), file.stat().st_mtime_ns) == before


WHERE = """
import multiprocessing, sys
import django_pgbus

def tell():
    import django_pgbus
    print("child", django_pgbus.__file__, flush=True)

if __name__ == "__main__":
    print("itself", django_pgbus.__file__, flush=True)
    child = multiprocessing.get_context("spawn").Process(target=tell)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""


@pytest.fixture(scope="module")
def copy():
    with shadow() as made:
        yield made


def test_what_runs_in_a_copy_imports_the_copy(copy: Shadow):
    (copy.root / "where.py").write_text(WHERE)
    ended = copy.run(["where.py"], timeout=60)
    expected = str(copy.root / "django_pgbus" / "__init__.py")
    assert dict(line.split() for line in ended.stdout.splitlines()) == {"itself": expected, "child": expected}


def test_a_worker_command_of_a_copy_is_that_of_the_copy(copy: Shadow):
    text = '"""No command."""\n\nraise SystemExit("of the copy")\n'
    (copy.root / "django_pgbus" / "management" / "commands" / "runworker.py").write_text(text)
    ended = copy.run(["tests/processes/manage.py", "runworker"], timeout=60)
    assert ended.stdout.splitlines()[-1:] == ["of the copy"]


def test_a_process_that_would_import_another_one_ends(copy: Shadow):
    """However the other one came first on its path."""
    say = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import django_pgbus"
    ended = subprocess.run(
        copy.command(["-c", say]), cwd="/", env=copy.environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode != 0
    assert "and not from the copy" in ended.stderr


@pytest.mark.skipif(not sabotage_run.RECORD.exists(), reason="nothing is recorded yet")
def test_what_is_recorded_is_red_and_of_the_present_list():
    """`python tests/chaos/run.py --sabotage NAME --tests --json` brings it up to date."""
    recorded = {one["name"]: one for one in json.loads(sabotage_run.RECORD.read_text())}
    assert recorded.keys() == SABOTAGES.keys()
    for name, one in recorded.items():
        if not one["tests"]:
            continue  # not run yet
        sabotage = SABOTAGES[name]
        assert [(test["id"], test["red"]) for test in one["tests"]] == [(id, True) for id in sabotage.tests]
        assert (one["rule"], one["guard"], one["statement"]) == (sabotage.rule, sabotage.guard, sabotage.statement)


def test_enough_are_shown_by_chaos_too():
    assert sum(sabotage.chaos is not None for sabotage in SABOTAGES.values()) >= LEAST_WITH_CHAOS
