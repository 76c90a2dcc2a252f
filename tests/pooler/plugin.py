"""What pytest does otherwise when it runs through a pooler; loaded by `run.py`."""

from __future__ import annotations

import os

import pytest

from django_pgbus import conf

LISTEN = os.environ.get("PGBUS_TEST_LISTEN", "none")


def pytest_configure() -> None:
    """Let LISTEN_DATABASE stay what it is in tests that set PGBUS anew."""
    if LISTEN != "direct":
        return
    load = conf._load
    conf._load = lambda declared: load({"LISTEN_DATABASE": "direct", **declared})
    conf._cached.cache_clear()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what needs a session of its own."""
    left_out = [item for item in items if _reason(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not _reason(item)]
    config.stash[LEFT_OUT] = [(item.nodeid, _reason(item)) for item in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was left out, and why."""
    left_out = config.stash.get(LEFT_OUT, [])
    terminalreporter.section(f"through the pooler, LISTEN {LISTEN}: {len(left_out)} left out, each needs a session")
    for reason in sorted({reason for _, reason in left_out}):
        names = [name for name, why in left_out if why == reason]
        terminalreporter.line(f"{len(names):4}  {reason}")
        for name in names:
            terminalreporter.line(f"        {name}")


LEFT_OUT = pytest.StashKey[list[tuple[str, str]]]()


def _reason(item: pytest.Item) -> str:
    """Return why a test is not for a pooler, empty if it is."""
    marker = item.get_closest_marker("needs_session")
    return str(marker.args[0]) if marker and marker.kwargs.get("listen", LISTEN) == LISTEN else ""
