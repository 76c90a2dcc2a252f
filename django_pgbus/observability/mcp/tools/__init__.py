"""What may be asked, by name, in the order in which it is offered."""

from __future__ import annotations

from typing import Final

from django_pgbus.observability.mcp.tool import Tool
from django_pgbus.observability.mcp.tools.batches import pgbus_batches
from django_pgbus.observability.mcp.tools.events import pgbus_event, pgbus_events
from django_pgbus.observability.mcp.tools.health import pgbus_health
from django_pgbus.observability.mcp.tools.jobs import pgbus_dead_letters, pgbus_job, pgbus_jobs
from django_pgbus.observability.mcp.tools.locks import pgbus_concurrency, pgbus_locks
from django_pgbus.observability.mcp.tools.queues import pgbus_queue, pgbus_queues
from django_pgbus.observability.mcp.tools.streams import pgbus_stream, pgbus_streams
from django_pgbus.observability.mcp.tools.throughput import pgbus_throughput
from django_pgbus.observability.mcp.tools.why import pgbus_why
from django_pgbus.observability.mcp.tools.workers import pgbus_workers

TOOLS: Final[dict[str, Tool]] = {
    function.__name__: Tool.of(function)
    for function in (
        pgbus_health,
        pgbus_why,
        pgbus_queues,
        pgbus_queue,
        pgbus_jobs,
        pgbus_job,
        pgbus_dead_letters,
        pgbus_locks,
        pgbus_concurrency,
        pgbus_batches,
        pgbus_events,
        pgbus_event,
        pgbus_streams,
        pgbus_stream,
        pgbus_workers,
        pgbus_throughput,
    )
}
