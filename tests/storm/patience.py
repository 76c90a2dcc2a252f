"""Statements of who watches a storm, while the database comes and goes."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from django.db import Error, connection

from tests.processes.harness import execute


def patiently(statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """Run a statement, again if the database goes away meanwhile."""
    for _ in range(100):
        with contextlib.suppress(Error):
            return execute(statement, *values)
        connection.close()
        time.sleep(0.1)
    return execute(statement, *values)
