"""
Fixtures of pytest, found through the entry point `pytest11`.

pytest loads this before Django is set up, and in projects that never use it: nothing is imported until asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def pgbus_run_enqueued(db: None) -> Callable[..., Any]:
    """Return `run_enqueued`: runs what was enqueued, in the transaction of the test."""
    from django_pgbus.testing import run_enqueued

    return run_enqueued


@pytest.fixture
def pgbus_enqueued(db: None) -> Callable[..., Any]:
    """Return `enqueued`: the results of what waits to be run."""
    from django_pgbus.testing import enqueued

    return enqueued


@pytest.fixture
def pgbus_deliver_published(db: None) -> Callable[..., Any]:
    """Return `deliver_published`: runs the handlers of what was published, in the transaction of the test."""
    from django_pgbus.testing import deliver_published

    return deliver_published


@pytest.fixture
def pgbus_consume_stream(db: None) -> Callable[..., Any]:
    """Return `consume_stream`: lets the groups of a stream handle what was appended, in the transaction of the test."""
    from django_pgbus.testing import consume_stream

    return consume_stream
