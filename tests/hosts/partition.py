"""One host of three is cut off for three leases and comes back; what that adds up to."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.hosts import tasks
from tests.hosts.net import Host
from tests.processes.harness import JOBS, RunWorker, execute, until, value
from tests.storm import books, tables

OPTIONS: Final = ("--processes=2", "--threads=6", "--grace=2")
TOLD: Final = ("one", "three_alone", "unique")  # what is limited or unique is ended by TaskSuperseded
KINDS: Final = (*TOLD, "plain", "calm", "entered")
LEDGER: Final = "CREATE TABLE hosts_ledger (id bigint NOT NULL)"
OPEN: Final = """
    SELECT (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)
         + (SELECT count(*) FROM pgbus_blocked_executions)
"""
THERE: Final = """
    SELECT application_name
    FROM pg_stat_activity
    WHERE client_addr = %s::inet
      AND backend_start < to_timestamp(%s)
      AND application_name <> %s
"""
REFUSED: Final = "was superseded"  # so the log says it, for each result that is not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is sent, and for how long the host is away."""

    seconds: float = 30.0  # that jobs are sent
    lease: float = 6.0
    leases: float = 3.0  # that the host is away
    limited_keys: int = 4
    unique_keys: int = 20
    seed: int = 1
    patience: float = 150.0


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of it."""

    sent: int = 0
    dropped: int = 0
    runs: int = 0
    in_flight: dict[str, int] = field(default_factory=dict)  # by task, on the host when it was cut off, to be away for
    taken_over: int = 0  # of these, elsewhere
    told: int = 0  # sync runs in which TaskSuperseded was raised
    cancelled: int = 0  # async runs
    refused: int = 0  # results that came too late
    sessions: int = 0  # of the host at the server when it was cut off
    sessions_left: dict[str, int] = field(default_factory=dict)  # of these, at the last look
    own_sessions_ended_after: float | None = None  # seconds; those of jobs depend on the project's settings
    went_on_after: float | None = None  # seconds from the return to the first run on the host
    runs_after_return: int = 0
    full: int = 0
    unsettled: int = 0
    lost: int = 0
    dead: int = 0
    held: int = 0  # slots and keys that nobody should hold any more
    over_the_limit: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)
    not_told: list[str] = field(default_factory=list)  # runs that nobody ended though the host was away for leases
    not_run_again: list[str] = field(default_factory=list)
    not_once: list[str] = field(default_factory=list)  # effects of transactional jobs


class Seen(NamedTuple):
    """A line of the file of a host."""

    what: str
    id: int
    kind: str
    delivery: int
    pid: int
    at: float


def _follows(line: Seen, was: Seen) -> bool:
    return line.what == "began" and line.id == was.id and line.delivery > was.delivery


class Partition:
    """Three workers on a host each, and what happens to the second."""

    def __init__(self, plan: Plan, hosts: tuple[Host, ...], start: Callable[..., RunWorker], folder: Path) -> None:
        self.plan = plan
        self.hosts = hosts
        self.away = hosts[1]
        self.found = Found()
        self._random = random.Random(plan.seed)
        self._folder = folder
        self._start = start
        self._ids: set[int] = set()
        self._long: set[int] = set()
        self._number = 0

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        execute(tables.CREATE)
        execute(LEDGER)
        workers = []
        try:
            workers = [self._worker(host) for host in self.hosts]
            self._logs = {host.name: worker for host, worker in zip(self.hosts, workers, strict=True)}
            for worker in workers:
                worker.ready(2)
            self._happen()
            self._read()
            for worker in workers:
                assert worker.stop() == 0, worker.log[-3000:]
        finally:
            for worker in workers:
                worker.end()
            execute(tables.DROP)
            execute("DROP TABLE hosts_ledger")
        return self.found

    def _worker(self, host: Host) -> RunWorker:
        pgbus = {"VISIBILITY_TIMEOUT": self.plan.lease, "BACKOFF_BASE": 0.2}
        more = {"HOSTS_FILE": str(self._file(host))}
        return self._start(*OPTIONS, prefix=host.prefix, pgbus=pgbus, settings=more, sweep_every=2)

    def _file(self, host: Host) -> Path:
        return self._folder / f"{host.name}.jsonl"

    # --- what happens -----------------------------------------------------------------------------------

    def _happen(self) -> None:
        began = time.monotonic()
        self._send_until(began + self.plan.seconds / 6)
        until(self._have_long_runs_there)
        self._cut_at = time.time()
        self.away.cut_off()
        away_since = time.monotonic()
        self._were_there = self._runs_there()
        self.found.sessions = sum(self._sessions().values())
        while time.monotonic() < away_since + self.plan.leases * self.plan.lease:
            self._send_until(time.monotonic() + 0.2)
            self._look_for_sessions()
        self._back_at = time.time()
        self.away.bring_back()
        while time.monotonic() < began + self.plan.seconds or self.found.went_on_after is None:
            self._send_until(time.monotonic() + 0.2)
            self._look_for_sessions()
            after = [line.at for line in self._lines(self.away) if line.what == "began" and line.at > self._back_at]
            if after and self.found.went_on_after is None:
                self.found.went_on_after = round(min(after) - self._back_at, 1)
            assert time.monotonic() < began + self.plan.patience, "The host does not work again."
        last = time.monotonic()
        while value(OPEN) and time.monotonic() < last + self.plan.patience:
            time.sleep(0.1)

    def _look_for_sessions(self) -> None:
        self.found.sessions_left = self._sessions()
        if self.found.own_sessions_ended_after is None and not self.found.sessions_left.keys() - {JOBS}:
            self.found.own_sessions_ended_after = round(time.time() - self._cut_at, 1)

    def _sessions(self) -> dict[str, int]:
        """Return the sessions that the host had when it was cut off and the server still has, by name."""
        rows = execute(THERE, self.away.address, self._cut_at, tasks.NOTES)
        return dict(Counter(name for (name,) in rows))

    def _send_until(self, end: float) -> None:
        while time.monotonic() < end:
            self._send()
            time.sleep(0.2)

    def _send(self) -> None:
        for _ in range(4):
            self._enqueue(self._random.uniform(0.02, 0.3))

    def _have_long_runs_there(self) -> bool:
        """Send what will still run when the host comes back, until it has one of each kind; each has keys of its own."""
        missing = set(KINDS) - {line.kind for line in self._runs_there()}
        for kind in sorted(missing):
            self._long.add(self._enqueue((self.plan.leases + 1) * self.plan.lease, kind, f"long-{self._number}"))
        self._send_until(time.monotonic() + 0.5)
        return not missing

    def _enqueue(self, seconds: float, kind: str | None = None, key: str | None = None) -> int:
        self._number += 1
        kind = kind or self._random.choice(KINDS)
        limited = key or f"{kind}-{self._random.randrange(self.plan.limited_keys)}"
        only = key or f"only-{kind}-{self._number % self.plan.unique_keys}"
        arguments = {"one": (limited,), "three_alone": (limited, only), "unique": (only,)}.get(kind, ())
        result = getattr(tasks, kind).enqueue(*arguments, seconds)
        if int(result.id) in self._ids:
            self.found.dropped += 1
        self._ids.add(int(result.id))
        self.found.sent = len(self._ids)
        return int(result.id)

    # --- what was seen ----------------------------------------------------------------------------------

    def _lines(self, host: Host) -> Iterator[Seen]:
        file = self._file(host)
        for line in file.read_text().splitlines() if file.exists() else ():
            yield Seen(**json.loads(line))

    def _runs_there(self) -> list[Seen]:
        """Return the long runs on the host that is cut off which have begun and not ended."""
        lines = [line for line in self._lines(self.away) if line.id in self._long]
        over = {(line.id, line.delivery) for line in lines if line.what != "began"}
        return [line for line in lines if (line.id, line.delivery) not in over]

    def _read(self) -> None:
        found, seen = self.found, books.read(execute, tasks.unique.module_path)
        found.runs, found.full = len(seen.runs), seen.full()
        found.over_the_limit, found.together = seen.over_the_limit(), seen.together()
        found.unsettled = int(value(OPEN))
        archived = {id for (id,) in execute("SELECT id FROM pgbus_archive")}
        dead = {id for (id,) in execute("SELECT id FROM pgbus_dead_letters")}
        found.dead, found.lost = len(dead), len(self._ids - archived - dead) + len(archived & dead)
        found.held = value(
            "SELECT (SELECT count(*) FROM pgbus_semaphore_slots) + (SELECT count(*) FROM pgbus_uniqueness_keys)"
        )
        lines = list(self._lines(self.away))
        found.in_flight = dict(Counter(line.kind for line in self._were_there))
        ends = {(line.id, line.delivery): line for line in lines if line.what in {"told", "cancelled"}}
        found.told = sum(line.what == "told" for line in lines)
        found.cancelled = sum(line.what == "cancelled" for line in lines)
        found.not_told = [
            f"{line.kind} #{line.id}"
            for line in self._were_there
            if line.kind in (*TOLD, "calm") and (line.id, line.delivery) not in ends
        ]
        later = [(line, host) for host in self.hosts for line in self._lines(host) if line.at > self._cut_at]
        again = {
            (line.id, was.delivery): host for was in self._were_there for line, host in later if _follows(line, was)
        }
        found.not_run_again = [
            f"{was.kind} #{was.id}" for was in self._were_there if (was.id, was.delivery) not in again
        ]
        found.taken_over = sum(host is not self.away for host in again.values())
        found.refused = self._logs[self.away.name].log.count(REFUSED)
        found.runs_after_return = sum(line.what == "began" and line.at > self._back_at for line in lines)
        entered = {id for (id,) in execute("SELECT id FROM pgbus_archive WHERE task = %s", tasks.entered.module_path)}
        effects = Counter(id for (id,) in execute("SELECT id FROM hosts_ledger"))
        found.not_once = [
            f"#{id}: {effects[id]} times" for id in entered | effects.keys() if effects[id] != (id in entered)
        ]


def checks(found: Found) -> dict[str, int]:
    """Return what must be 0."""
    return {
        "over_the_limit": len(found.over_the_limit),
        "together": len(found.together),
        "lost": found.lost,
        "dead": found.dead,
        "unsettled": found.unsettled,
        "held": found.held,
        "not_told": len(found.not_told),
        "not_run_again": len(found.not_run_again),
        "not_once": len(found.not_once),
        "own_sessions_left": int(found.own_sessions_ended_after is None),
        "nothing_was_tried": int(not (found.full and found.told and found.refused and found.taken_over)),
    }
