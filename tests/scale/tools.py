"""
What the tools of the MCP server take over many rows, each with the questions that cost most.

They read on a connection of their own, so that rows of a transaction that is rolled back are not there, and nobody counts
their queries.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from django_pgbus.models import Delayed
from tests.scale.measure import TIMES, Visit
from tests.scale.pages import Examples, NoExample


def questions(rows: Examples) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what each tool is asked, by a label."""
    delayed = Delayed.objects.earliest("due_at").pk
    return {
        "pgbus_health": {"": {}},
        "pgbus_why": {"parked": {"id": rows.parked.pk}, "delayed": {"id": delayed}, "copy": {"id": rows.copy.pk}},
        "pgbus_queues": {"": {}, "searched": {"text": "q0"}},
        "pgbus_queue": {"": {"name": "q001"}},
        "pgbus_jobs": {
            "": {},
            **{state: {"state": state} for state in ("ready", "running", "delayed", "parked", "succeeded", "dead")},
            "searched": {"text": "import"},
            "searched for nothing": {"text": "no such thing"},
            "of a queue": {"queue": "q001"},
        },
        "pgbus_job": {"": {"id": rows.parked.pk}},
        "pgbus_dead_letters": {"": {}, "searched for nothing": {"text": "no such thing"}},
        "pgbus_locks": {"": {}},
        "pgbus_concurrency": {"": {}, "of a key": {"key": rows.parked.key}},
        "pgbus_batches": {"": {}, "one": {"id": rows.batch.pk}},
        "pgbus_events": {where: {"where": where} for where in ("pending", "dead", "processed")}
        | {"searched": {"text": "orders"}},
        "pgbus_event": {"": {"id": str(rows.copy.event_id)}},
        "pgbus_streams": {"": {}},
        "pgbus_stream": {"": {"name": "ledger"}},
        "pgbus_workers": {"": {}},
        "pgbus_throughput": {window: {"window": window} for window in ("1h", "24h", "7d")}
        | {"queues": {"of": "queues"}},
    }


def visit_tools() -> Iterator[Visit]:
    """Yield a visit of every tool; its status is 200 for an answer, 500 for a refusal."""
    from django_pgbus.observability.mcp.server import answer
    from django_pgbus.observability.mcp.tools import TOOLS

    asked = questions(Examples())
    for name in TOOLS:
        if name not in asked:
            raise NoExample(f"the tool {name}: say in tests/scale/tools.py what to ask it")
        for label, given in asked[name].items():
            took, answered = [], None
            for _ in range(TIMES):
                began = time.perf_counter()
                answered = answer(name, given)
                took.append((time.perf_counter() - began) * 1000)
            assert answered is not None
            yield Visit(
                page=f"{name} {label}".rstrip(),
                address="",
                status=500 if answered.is_error else 200,
                expected=200,
                milliseconds=round(median(took), 1),
                cpu=None,
                queries=0,
                slowest=str(answered.content)[:200] if answered.is_error else "",
                most_milliseconds=1000,
            )
