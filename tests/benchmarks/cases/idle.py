"""
P9, idle: what a worker costs that has nothing to do.

Statements are counted by pg_stat_statements and transactions by pg_stat_database, both of this database alone; memory is
the resident set of each process after the warm-up, during which it has run some jobs. Connections are looked at four
times a second. One worker process, its supervisor beside it.

All systems idle at the same time, each in a database of its own, one worker each. What they cost is not the same work: ours
renews a heartbeat, looks for expired leases and due tasks; django-tasks-db only asks for a task once a second. Celery's
statements and transactions are commands to Redis, and its connections those to Redis.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import medians, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.redis import Keys
from tests.benchmarks.report import Report
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import System, Worker

SECONDS = 20.0
WARM_UP = 12.0  # more than the ten seconds within which PostgreSQL tells what an idle session did before
PATIENCE = 60.0  # until the jobs of the warm-up are done
JOBS = 2000
STATEMENTS = """
    SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
"""
BUSIEST = """
    SELECT calls, left(regexp_replace(query, '\\s+', ' ', 'g'), 100) FROM pg_stat_statements
    WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s) ORDER BY calls DESC LIMIT 6
"""
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s"


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    busiest: list[Any] = []
    for _ in bench.each_run():
        bench.counters.clear()
        with contextlib.ExitStack() as stack:
            idlers = []
            for system in bench.systems():
                with bench.sparing(system):
                    idlers.append(idler(bench, system, stack))
            time.sleep(WARM_UP)
            found = together(bench, idlers, seconds)
            busiest = rows_of(bench.server, BUSIEST, idlers[0].store)
        runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, statements=[f"{calls} x {query}" for calls, query in busiest]),
        runs=runs,
        goals=reached(
            "idle",
            P9=middle.get("pgbus_statements_s"),
            P9__memory=middle.get("pgbus_largest_mb"),
            P9__connections_vary=middle.get("pgbus_connections_vary"),
        ),
        checks={"lost": 0},
    )


@dataclass(slots=True)
class Idler:
    """A worker that has nothing to do any more, and how many connections it was seen with."""

    system: System
    store: Any
    worker: Worker
    connections: list[int] = field(default_factory=list)


class Reading(NamedTuple):
    """What was served and used up to a moment; of Redis, commands are both statements and transactions."""

    moment: float
    statements: int
    transactions: int
    processor: float


def idler(bench: Bench, system: System, stack: contextlib.ExitStack) -> Idler:
    """Start a worker and let it run some jobs."""
    store = stack.enter_context(bench.fresh(system))
    worker = stack.enter_context(Worker(system, bench.counters, store))
    system.run(bench.counters, store, "send_many", max(50, int(JOBS * system.share)))
    deadline = time.monotonic() + PATIENCE
    with store.asking(system.pending) as pending:
        while pending():
            worker.check()
            if time.monotonic() > deadline:
                raise worker.failed("does not come to an end")
            time.sleep(0.1)
    return Idler(system, store, worker)


def together(bench: Bench, idlers: list[Idler], seconds: float) -> dict[str, Any]:
    """Watch all of them for as long, and return what they cost."""
    bench.server.admin.execute("SELECT pg_stat_statements_reset()")
    before = [reading(bench.server, one) for one in idlers]
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for one in idlers:
            one.connections.append(connections_of(bench.server, one.store))
        time.sleep(0.25)
    found: dict[str, Any] = {}
    for one, was in zip(idlers, before, strict=True):
        one.worker.check()
        now = reading(bench.server, one)
        took, looks = now.moment - was.moment, len(one.connections) + 1 if one.system.in_redis else 0
        resident = [memory for pid in machine.family(one.worker.pid) if (memory := machine.resident(pid))]
        figures = {
            "statements_s": rounded((now.statements - was.statements - looks) / took, 2),
            "transactions_s": rounded((now.transactions - was.transactions - looks) / took, 2),
            "processor_percent": rounded((now.processor - was.processor) / took * 100, 2),
            "processes": len(resident),
            "largest_mb": rounded(max(resident), 1),
            "all_mb": rounded(sum(resident), 1),
            "connections": max(one.connections),
            "connections_vary": max(one.connections) - min(one.connections),
        }
        found |= {f"{one.system.name}_{name}": value for name, value in figures.items()}
    return found


def reading(server: Server, one: Idler) -> Reading:
    """Return what a store has served and a worker has used until now."""
    if isinstance(one.store, Keys):
        statements = transactions = int(one.store.told("total_commands_processed"))
    else:
        statements = int(rows_of(server, STATEMENTS, one.store)[0][0])
        transactions = int(rows_of(server, TRANSACTIONS, one.store)[0][0])
    return Reading(time.monotonic(), statements, transactions, machine.processor_seconds(one.worker.pid))


def connections_of(server: Server, store: Any) -> int:
    """Return how many connections a store has beside the one that asks."""
    if isinstance(store, Keys):
        return int(store.told("connected_clients")) - 1
    return int(rows_of(server, CONNECTIONS, store)[0][0])


def rows_of(server: Server, sql: str, database: Database) -> list[Any]:
    """Return what the server knows of a database, asked from another one."""
    return server.admin.execute(sql, [database.name]).fetchall()
