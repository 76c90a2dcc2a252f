"""
P9, idle: what a worker costs that has nothing to do.

Statements are counted by pg_stat_statements and transactions by pg_stat_database, both of this database alone; memory is
the resident set of each process after the warm-up, during which it has run some jobs. Connections are looked at four
times a second. One worker process, its supervisor beside it.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from tests.benchmarks import machine
from tests.benchmarks.bench import Bench
from tests.benchmarks.figures import medians, rounded
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.server import Database, Server
from tests.benchmarks.systems import OURS, System, Worker

SECONDS = 20.0
WARM_UP = 12.0  # more than the ten seconds within which PostgreSQL tells what an idle session did before
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
        found: dict[str, Any] = {}
        for system in bench.systems():
            with bench.server.fresh(system.name, partial(bench.install, system)) as database:
                with Worker(system, bench.counters, database) as worker:
                    found |= one(bench, system, database, worker, seconds)
                if system is OURS:
                    busiest = rows_of(bench.server, BUSIEST, database)
        runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, statements=[f"{calls} x {query}" for calls, query in busiest]),
        runs=runs,
        goals={
            "P9": Goal(middle.get("pgbus_statements_s"), 1.5, at_most=True),
            "P9.memory": Goal(middle.get("pgbus_largest_mb"), 80.0, at_most=True),
            "P9.connections_vary": Goal(middle.get("pgbus_connections_vary"), 0.0, at_most=True),
        },
        checks={"lost": 0},
    )


def one(bench: Bench, system: System, database: Database, worker: Worker, seconds: float) -> dict[str, Any]:
    """Let it run some jobs, then nothing."""
    bench.counters.clear()
    system.run(bench.counters, database, "send_many", max(50, int(JOBS * system.share)))
    while database.value(system.pending):
        worker.check()
        time.sleep(0.1)
    time.sleep(WARM_UP)
    bench.server.admin.execute("SELECT pg_stat_statements_reset()")
    transactions = rows_of(bench.server, TRANSACTIONS, database)[0][0]
    spent = machine.processor_seconds(worker.pid)
    began = time.monotonic()
    connections = []
    while (took := time.monotonic() - began) < seconds:
        connections.append(rows_of(bench.server, CONNECTIONS, database)[0][0])
        time.sleep(0.25)
    resident = [memory for pid in machine.family(worker.pid) if (memory := machine.resident(pid))]
    found = {
        "statements_s": rounded(rows_of(bench.server, STATEMENTS, database)[0][0] / took, 2),
        "transactions_s": rounded((rows_of(bench.server, TRANSACTIONS, database)[0][0] - transactions) / took, 2),
        "processor_percent": rounded((machine.processor_seconds(worker.pid) - spent) / took * 100, 2),
        "processes": len(resident),
        "largest_mb": rounded(max(resident), 1),
        "all_mb": rounded(sum(resident), 1),
        "connections": max(connections),
        "connections_vary": max(connections) - min(connections),
    }
    return {f"{system.name}_{name}": value for name, value in found.items()}


def rows_of(server: Server, sql: str, database: Database) -> list[Any]:
    """Return what the server knows of a database, asked from another one."""
    return server.admin.execute(sql, [database.name]).fetchall()
