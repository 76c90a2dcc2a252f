"""
A plugin of pytest that takes guards away while the program runs, and runs the tests of their rules once for each.

`-p tests.evidence.broken`, with the names of the guards in PGBUS_BROKEN_GUARDS and in PGBUS_BROKEN_REPORT the file that
gets what failed. It changes statements and the code of functions; what is read from files, by another process or by
a migration, is changed in a copy of the tree instead.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from django_pgbus.postgres import Statement
from django_pgbus.streams.log_statement import LogStatement, _statement
from tests.chaos.shadow import ROOT, Edit
from tests.evidence.guards import all_guards
from tests.evidence.rules import imported

NO_FAILURES = ("syntax error", "UndefinedColumn", "does not exist", "SyntaxError", "NameError", "ImportError")
RED: dict[str, dict[str, str]] = {}


@cache
def asked() -> dict[str, Any]:
    """Return the guards that are asked for, by name."""
    wanted = json.loads(os.environ["PGBUS_BROKEN_GUARDS"])
    return {guard.name: guard for guard in all_guards() if guard.name in wanted}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each guard of its rules that it is expected to see."""
    node = metafunc.definition.nodeid.partition("[")[0]
    names = [name for name, guard in asked().items() if node in guard.tests]
    metafunc.parametrize("broken_guard", names, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases in which a test breaks a rule by itself."""
    apart = [item for item in items if "fails " in item.name]
    config.hook.pytest_deselected(items=apart)
    items[:] = [item for item in items if item not in apart]


@pytest.fixture(scope="session", autouse=True)
def broken_guard(request: pytest.FixtureRequest, django_db_setup: None) -> Iterator[None]:
    """Take the guard away for the tests of its rules."""
    with without(asked()[request.param].guard.edits):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """Note what failed."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and report.when == "call":
        line = " ".join(str(call.excinfo.exconly(tryshort=True)).split("\n")[0].split())
        if is_a_failure(line):
            node = item.nodeid.partition("[")[0]
            RED.setdefault(item.callspec.params["broken_guard"], {}).setdefault(node, line[:200])
            Path(os.environ["PGBUS_BROKEN_REPORT"]).write_text(json.dumps(RED))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool | None:
    """Leave out what can tell nothing new: further cases of a test that has failed, and what one failure is enough for."""
    name = item.callspec.params["broken_guard"]
    seen = RED.get(name, {})
    if item.nodeid.partition("[")[0] in seen or (seen and not asked()[name].all_must):
        item.session._setupstate.teardown_exact(nextitem)
        return True
    return None


def is_a_failure(line: str) -> bool:
    """Return whether a test failed for what it looks at, and not since what is left of a statement makes no sense."""
    return not any(word in line for word in NO_FAILURES)


@contextmanager
def without(edits: tuple[Edit, ...]) -> Iterator[None]:
    """Make these edits for the time of this block."""
    undo = []
    try:
        for edit in edits:
            undo.append(_made(edit))
        yield
    finally:
        for one in reversed(undo):
            one()


def _made(edit: Edit) -> Any:
    found = imported(edit.at)
    if isinstance(found, (Statement, LogStatement)):
        assert found.sql.count(edit.old) == 1, f"{edit.at} does not contain {edit.old!r} once"
        return _replaced(found, replace(found, sql=found.sql.replace(edit.old, edit.new)))
    function = inspect.unwrap(found)
    assert isinstance(function, FunctionType)
    file, text = edit.applied(ROOT)
    before, function.__code__ = function.__code__, _code(compile(text, str(file), "exec"), function.__qualname__)

    def undo() -> None:
        function.__code__ = before

    return undo


def _code(code: CodeType, name: str) -> CodeType:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_qualname == name:
                return constant
            if name.startswith(f"{constant.co_qualname}."):
                return _code(constant, name)
    raise LookupError(name)


def _replaced(old: Any, new: Any) -> Any:
    """Put a statement in the place of another wherever a module of the package has it by a name."""
    places = [
        (module, name)
        for module in list(sys.modules.values())
        if getattr(module, "__name__", "").startswith(("django_pgbus", "tests"))
        for name, value in list(vars(module).items())
        if value is old
    ]
    _statement.cache_clear()
    for module, name in places:
        setattr(module, name, new)

    def undo() -> None:
        _statement.cache_clear()
        for module, name in places:
            setattr(module, name, old)

    return undo
