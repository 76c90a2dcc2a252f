"""
P6, streams: a log of entries of a hundred bytes, and a group that follows it in one worker process.

    paced         32,000 entries a second for a minute, appended by the thousand by one process
    flat_out      as fast as one process appends; the rate is that of the handled ones, up to the last
    overlap       six producers that hold transactions of 50 to 150 ms, back to back: no moment is free of them
    foreign       200 entries a second, while a transaction in another database of the cluster writes for six seconds
    claim         entries a second through claims of a thousand, without a handler, and through bare reads of the same ranges
    claim_N       the same with the log cut into N partitions
    idle          statements a second of a worker whose groups have nothing to do

Lags are those of the oldest entry of each batch, counted for each of its entries, from the start of the statement that
appended it to the call of the handler: more than any entry waited. Missing and doubled are told by count and sum. `overlap`
and `foreign` are measured in the first three runs, what is below them in the first. No peer has a log that groups follow.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg

from tests.benchmarks.bench import Bench
from tests.benchmarks.cases.idle import STATEMENTS, rows_of
from tests.benchmarks.figures import median_ratio, medians, rounded
from tests.benchmarks.goals import reached
from tests.benchmarks.project.followed.records import Followed
from tests.benchmarks.report import Goal, Report
from tests.benchmarks.server import Database
from tests.benchmarks.systems import OURS, Worker

MODULE: Final = "tests.benchmarks.project.streaming"
SECONDS: Final = 60.0
RATE: Final = 32_000
BATCH: Final = 1000
SHORT: Final = 12.0  # seconds of the other parts
ENTRIES: Final = 200_000
PARTITIONS: Final = (1, 10, 100, 500)
PATIENCE: Final = 60.0
OPTIONS: Final = ("--streams", "bench")
IDLE: Final = 20.0


def run(bench: Bench) -> Report:
    seconds = bench.seconds or SECONDS
    runs: list[dict[str, Any]] = []
    checks = {"missing": 0, "doubled": 0, "out_of_order": 0, "idle_transaction_ids": 0}
    with _environment(BENCH_STREAMS="1"):
        for _ in bench.each_run():
            found: dict[str, Any] = {}
            found |= _paced(bench, seconds, checks)
            found |= _flat_out(bench, min(seconds, SHORT), checks)
            if bench.early:
                found |= _overlap(bench, min(seconds, SHORT), checks)
                found |= _foreign(bench, min(seconds, SHORT), checks)
            if not bench.counted:
                found |= _claims(bench)
                found |= _idle(bench, checks)
            runs.append(found)
    runs = bench.in_calm(runs)
    middle = medians(runs)
    return Report(
        bench=bench.name,
        settings=bench.settings(seconds=seconds, rate=RATE, batch=BATCH, entries=ENTRIES),
        runs=runs,
        ratios={
            "claim_vs_bare": median_ratio(runs, "claim_1", "bare_1"),
            **{f"claim_{n}_vs_1": median_ratio(runs, f"claim_{n}", "claim_1") for n in PARTITIONS[1:]},
        },
        goals={
            **reached(
                "streams",
                P6__rate=middle.get("paced_rate"),
                P6__missing=checks["missing"],
                P6__doubled=checks["doubled"],
                P6__lag_p99=middle.get("paced_p99_ms"),
                P6__flat_out=middle.get("flat_out"),
            ),
            "starvation_p99": Goal(middle.get("overlap_p99_ms"), 300.0, at_most=True),
            "foreign_p99": Goal(middle.get("foreign_p99_ms"), 100.0, at_most=True),
            "idle_statements": Goal(middle.get("idle_statements_s"), 1.5, at_most=True),
        },
        checks=checks,
    )


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _followed(bench: Bench, *options: str) -> Iterator[tuple[Database, Followed, Worker]]:
    """Run a worker that follows the stream, in a database of its own."""
    with bench.server.fresh("pgbus_streams", bench.install_ours) as database:
        OURS.run(bench.counters, database, "declare", module=MODULE)
        database.settle()
        bench.counters.clear()
        with Worker(OURS, bench.counters, database, *OPTIONS, *options) as worker:
            followed = Followed(bench.counters.folder)
            # One entry through all of it: from then on the worker is ready.
            OURS.run(bench.counters, database, "append_each", 0.001, 0.0, module=MODULE)
            _await(worker, followed, database)
            time.sleep(0.5)
            followed.skip()
            yield database, followed, worker


def _await(worker: Worker, followed: Followed, database: Database) -> None:
    """Wait until all is handled that the log has."""
    deadline = time.monotonic() + PATIENCE
    while followed.read().entries < database.value("SELECT count(*) FROM pgbus_stream_1"):
        worker.check()
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)


def _check(followed: Followed, database: Database, checks: dict[str, int]) -> None:
    books = followed.read()
    with database.connect() as connection:
        row = connection.execute("SELECT count(*), coalesce(sum(position), 0)::bigint FROM pgbus_stream_1").fetchone()
    assert row is not None
    count, total = row
    checks["missing"] += max(0, count - books.entries)
    checks["doubled"] += max(0, books.entries - count)
    checks["out_of_order"] += books.wrong
    if books.entries == count and books.total != total:
        checks["missing"] += 1
        checks["doubled"] += 1


def _paced(bench: Bench, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    with _followed(bench) as (database, followed, worker):
        sent = OURS.run(bench.counters, database, "append", seconds, RATE, BATCH, module=MODULE)
        _await(worker, followed, database)
        _check(followed, database, checks)
        return {
            "paced_rate": rounded(sent["count"] / sent["seconds"], 0),
            "paced_producer_late_ms": rounded(sent["late"] * 1000, 1),
            **followed.lags("paced"),
        }


def _flat_out(bench: Bench, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    with _followed(bench) as (database, followed, worker):
        began = time.time()
        sent = OURS.run(bench.counters, database, "append", seconds, 0, BATCH, module=MODULE)
        behind = database.value("SELECT count(*) FROM pgbus_stream_1") - followed.read().entries
        _await(worker, followed, database)
        ended = time.time()
        _check(followed, database, checks)
        took = ended - began - (ended - began - sent["seconds"] if behind <= BATCH * 4 else 0)
        return {
            "flat_out": rounded(sent["count"] / took, 0),
            "flat_out_appended": rounded(sent["count"] / sent["seconds"], 0),
            "flat_out_behind": behind,
        }


def _overlap(bench: Bench, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    with _followed(bench, "--interval", "0.02") as (database, followed, worker):
        sent = OURS.run(bench.counters, database, "overlap", seconds, 6, 0.05, 0.15, module=MODULE)
        during = followed.read().entries
        _await(worker, followed, database)
        _check(followed, database, checks)
        return {
            "overlap_entries": sent["count"],
            "overlap_behind": sent["count"] + 1 - during,
            **followed.lags("overlap"),
        }


def _foreign(bench: Bench, seconds: float, checks: dict[str, int]) -> dict[str, Any]:
    with _followed(bench) as (database, followed, worker):
        with psycopg.connect(bench.server.database("postgres").url) as elsewhere:
            elsewhere.execute("CREATE TEMP TABLE held (n int)")
            elsewhere.execute("SELECT pg_current_xact_id()")
            command = [OURS.python, "-m", "tests.benchmarks.driver", MODULE, "append_each", str(seconds), "0.005"]
            producer = subprocess.Popen(
                command, env=OURS.environment(bench.counters, database), stdout=subprocess.DEVNULL
            )
            time.sleep(min(seconds, 6.0) + 1.0)
            elsewhere.rollback()
        producer.wait()
        _await(worker, followed, database)
        _check(followed, database, checks)
        return followed.lags("foreign")


def _claims(bench: Bench) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number in PARTITIONS:
        size = ENTRIES // number + 1
        with _environment(BENCH_PARTITION=str(size)):
            with bench.server.fresh(f"pgbus_streams_{number}", bench.install_ours) as database:
                rates = OURS.run(bench.counters, database, "claims", ENTRIES, module=MODULE)
                found |= {
                    f"claim_{number}": rounded(rates["claim_rate"], 0),
                    f"bare_{number}": rounded(rates["bare_rate"], 0),
                }
    return found


def _idle(bench: Bench, checks: dict[str, int]) -> dict[str, Any]:
    with _followed(bench) as (database, _, _):
        time.sleep(12.0)  # more than the ten seconds within which PostgreSQL tells what an idle session did before
        bench.server.admin.execute("SELECT pg_stat_statements_reset()")
        began = time.monotonic()
        time.sleep(IDLE)
        took = time.monotonic() - began
        total = rows_of(bench.server, STATEMENTS, database)[0][0]
        of_streams = rows_of(bench.server, STATEMENTS + " AND query LIKE '%%pgbus_stream%%'", database)[0][0]
        return {"idle_statements_s": rounded(of_streams / took, 2), "idle_all_statements_s": rounded(total / took, 2)}
