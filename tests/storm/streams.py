"""
A storm over a stream: eight producers whose transactions end in every way and order, while the workers are killed with -9.

In the end each entry that was committed has been handled by each group, none that was rolled back, none again after it was
done with; the totals are exact, and entries of a key were handled in their order. `run_streams.py` runs it by hand.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final, NamedTuple

from django_pgbus import Stream
from django_pgbus.streams import appending
from django_pgbus.streams.log_statement import log_table
from tests.processes.harness import RunWorker, alive, execute, until
from tests.processes.server import Server
from tests.settings import INSTALLED_APPS
from tests.storm.patience import patiently
from tests.storm.producers import Producer, model_of
from tests.storm.stream_tables import CREATE, GROUPS, PARTITION, STREAM, queue_of

SERVER: Final = {"max_prepared_transactions": "32", "max_connections": "120"}
PGBUS: Final = {"VISIBILITY_TIMEOUT": 6, "POLL_INTERVAL": 0.5}
SETTINGS: Final = {"INSTALLED_APPS": [*INSTALLED_APPS, "tests.processes", "tests.storm.followers"]}
OPTIONS: Final = ("--processes=1", "--threads=2", "--streams=storm", "--queues=@storm_a,@storm_b", "--grace=2")
WHOLE: Final = 7  # each so manyth kill takes a worker with its supervisor
BACKLOG: Final = 1500  # entries: producers slow down
COPY_ABOVE: Final = 40  # entries, so that COPY is not rare
LATE: Final = timedelta(seconds=1)  # what a killed process had sent is executed still

OPEN: Final = """
    SELECT (SELECT count(*) FROM pgbus_stream_leases)
         + (SELECT count(*) FROM pgbus_stream_exceptions WHERE status <> 'dead')
         + (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)
         + (SELECT coalesce(sum(pg_sequence_last_value('{log}_position') - claimed), 1) FROM pgbus_stream_cursors AS cursors
            JOIN pgbus_stream_groups AS groups ON groups.id = group_id
            WHERE to_regclass('pgbus_stream_' || stream_id) = '{log}'::regclass)
"""

Kill = tuple[int, datetime, datetime]  # process, killed after, killed before


class Ran(NamedTuple):
    """A run that was noted."""

    position: int
    key: int
    pid: int
    began: datetime
    ended: datetime | None
    failed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long it lasts, and how often somebody is killed."""

    seconds: float
    producers: int = 8
    consumers: int = 3
    kill_every: float = 1.0
    restart: int | None = None  # after so many kills the server goes down, and is there again
    pace: float = 0.04  # seconds that a producer waits between transactions
    seed: int = 1
    patience: float = 120.0


@dataclass(slots=True, kw_only=True)
class Found:
    """What came of it."""

    tried: int = 0
    committed: int = 0
    by_kind: dict[str, str] = field(default_factory=dict)  # committed of tried
    kills: int = 0
    whole_workers: int = 0
    restarts: int = 0
    lost_connections: int = 0  # by producers
    seconds: float = 0.0
    settled_in: float = 0.0
    handled: dict[str, int] = field(default_factory=dict)  # different entries by group
    runs: dict[str, int] = field(default_factory=dict)
    repeated: dict[str, int] = field(default_factory=dict)
    ranges: int = 0
    alone: int = 0  # entries that were on their own for a while
    dead: int = 0
    unsettled: int = 0
    missing: list[str] = field(default_factory=list)
    evidence: list[str] = field(default_factory=list)  # of what is missing
    never_committed: list[str] = field(default_factory=list)  # handled though it was rolled back
    handled_after_commit: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)  # handled again, and no kill says why
    out_of_order: list[str] = field(default_factory=list)
    together: list[str] = field(default_factory=list)  # two of one key at once
    wrong_totals: list[str] = field(default_factory=list)
    wrong_messages: list[str] = field(default_factory=list)
    wrong_dead: list[str] = field(default_factory=list)
    wrong_cursors: list[str] = field(default_factory=list)
    broken_producers: list[str] = field(default_factory=list)


class Storm:
    """The producers, the workers, and what happens to them."""

    def __init__(
        self,
        plan: Plan,
        start: Callable[..., RunWorker],
        server: Server,
        restart: Callable[[], None] | None = None,
    ) -> None:
        self.plan = plan
        self.random = random.Random(plan.seed)
        self._start = lambda: start(*OPTIONS, pgbus=PGBUS, settings=SETTINGS, sweep_every=5)
        self._server = server
        self._restart = restart
        self._pace = plan.pace
        self.found = Found()

    def run(self) -> Found:
        """Let it happen and return what was seen."""
        execute(CREATE)
        Stream(STREAM, partition_size=PARTITION).ensure()
        self.log = log_table(Stream(STREAM).id())
        model = model_of(self.log)
        workers = [self._start() for _ in range(self.plan.consumers)]
        for worker in workers:
            worker.ready()
        before, appending.STATEMENT = appending.STATEMENT, COPY_ABOVE  # type: ignore[misc]
        producers = [
            Producer(number, self.plan.seed, self._server, self.log, model, lambda: self._pace)
            for number in range(1, self.plan.producers + 1)
        ]
        try:
            began = time.monotonic()
            for producer in producers:
                producer.start()
            self.strike(workers, began + self.plan.seconds)
            for producer in producers:
                producer.stopping.set()
            for producer in producers:
                producer.join(60)
            self.end_prepared()
            self.found.seconds = time.monotonic() - began
            self.settle()
        finally:
            appending.STATEMENT = before  # type: ignore[misc]
            for producer in producers:
                producer.stopping.set()
        for worker in workers:
            worker.ready()
            assert worker.stop() == 0
        self.read(producers)
        return self.found

    # --- what happens -----------------------------------------------------------------------------------

    def strike(self, workers: list[RunWorker], end: float) -> None:
        """Kill a process each second, of one worker after the other."""
        last = time.monotonic()
        while time.monotonic() < end:
            time.sleep(max(0.0, last + self.plan.kill_every - time.monotonic()))
            last = time.monotonic()
            if self._restart is not None and self.found.kills == self.plan.restart and not self.found.restarts:
                self._restart_server(workers)
            self._kill(workers)
            self._pace = self.plan.pace * (20 if self._open() > BACKLOG * len(GROUPS) else 1)

    def _restart_server(self, workers: list[RunWorker]) -> None:
        """It explains what the kill of all processes would: each lost its connections, and perhaps a reply."""
        assert self._restart is not None
        ((after,),) = patiently("SELECT clock_timestamp()")
        running = [pid for worker in workers for pid in worker.children()]
        self._restart()
        self.found.restarts += 1
        self._enter_kill(running, after)

    def _kill(self, workers: list[RunWorker]) -> None:
        whole = self.found.kills % WHOLE == WHOLE - 1
        worker = workers.pop(0)
        victims = [worker.pid, *worker.children()] if whole else worker.children()
        if not victims:  # It is being started.
            workers.append(worker)
            return
        ((after,),) = patiently("SELECT clock_timestamp()")
        for pid in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if whole:
            worker.process.wait()
        until(lambda: not any(alive(pid) for pid in victims))
        self._enter_kill(victims, after)
        self.found.kills += 1
        self.found.whole_workers += whole
        workers.append(self._start() if whole else worker)

    @staticmethod
    def _enter_kill(victims: Iterable[int], after: datetime) -> None:
        for pid in victims:
            patiently("INSERT INTO stream_storm_kills VALUES (%s, %s, clock_timestamp())", pid, after)

    def end_prepared(self) -> None:
        """End what a producer could not, because the server went down."""
        for (name,) in execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            execute(f"{self.random.choice(('COMMIT', 'ROLLBACK'))} PREPARED '{name}'")

    def _open(self) -> int:
        return int(patiently(OPEN.format(log=self.log))[0][0])

    def settle(self) -> None:
        """Wait until all groups have done with everything."""
        began = time.monotonic()
        while (left := self._open()) and time.monotonic() - began < self.plan.patience:
            time.sleep(0.1)
        self.found.unsettled = left
        self.found.settled_in = time.monotonic() - began

    # --- the books --------------------------------------------------------------------------------------

    def read(self, producers: Sequence[Producer]) -> None:
        """Read the books."""
        found = self.found
        found.broken_producers = [repr(producer.failed) for producer in producers if producer.failed is not None]
        found.broken_producers += [producer.name for producer in producers if producer.is_alive()]
        found.lost_connections = sum(producer.lost_connections for producer in producers)
        if found.lost_connections and not found.restarts:
            found.broken_producers.append(f"{found.lost_connections} connections were lost")
        tried = sum((producer.tried for producer in producers), Counter[str]())
        ledger = {row[0]: row for row in execute("SELECT id, key, amount, stubborn, how FROM stream_storm_appended")}
        kinds = Counter(how for *_, how in ledger.values())
        found.by_kind = {how: f"{kinds[how]} of {tried[how]}" for how in sorted(tried)}
        found.tried, found.committed = tried.total(), len(ledger)
        log = dict(execute(f"SELECT position, (payload->>'id')::bigint FROM {self.log}"))
        if set(log.values()) != set(ledger) or len(log) != len(ledger):
            found.missing.append(f"the log has {len(log)} entries, the ledger {len(ledger)}")
        stubborn = {position for position, id in log.items() if id in ledger and ledger[id][3]}
        runs: dict[str, list[Ran]] = {group: [] for group in GROUPS}
        for group, *row in execute(
            "SELECT grp, position, key, pid, began, ended, failed FROM stream_storm_runs ORDER BY began, run"
        ):
            runs[group].append(Ran(*row))
        kills: dict[int, list[Kill]] = defaultdict(list)
        for kill in execute("SELECT pid, after, before FROM stream_storm_kills"):
            kills[kill[0]].append(kill)
        self._read_totals(log, ledger)
        done = self._done()
        for group in ("plain", "keyed", "routed"):
            expected = set(log)
            if group == "keyed":
                expected -= stubborn
            if group == "routed":
                expected = {position for position, id in log.items() if queue_of(id) is not None}
            good = {run.position for run in runs[group] if not run.failed and (group != "keyed" or run.ended)}
            found.runs[group], found.handled[group] = len(runs[group]), len(good)
            found.missing += [f"{group}: {position}" for position in sorted(expected - good)]
            every = {run.position for run in runs[group]}
            found.never_committed += [f"{group}: {position}" for position in sorted(every - set(log))]
            if group != "routed":
                found.handled_after_commit += again_after(group, runs[group], done[group], kills)
            again, unexplained = repeats(group, runs[group], kills)
            found.repeated[group] = again
            found.unexplained += unexplained
        found.evidence = [line for missing in found.missing[:4] for line in self._evidence(missing)]
        found.out_of_order = out_of_order(runs["keyed"], stubborn)
        found.together = together(runs["keyed"], kills)
        self._read_messages(log)
        dead = set(
            execute(
                "SELECT groups.name, position FROM pgbus_stream_exceptions AS exception"
                " JOIN pgbus_stream_groups AS groups ON groups.id = exception.group_id"
            )
        )
        wanted = {("keyed", position) for position in stubborn}
        found.dead = len(dead)
        found.wrong_dead = [f"{one}" for one in sorted(dead ^ wanted)]
        ((head,),) = execute(f"SELECT pg_sequence_last_value('{self.log}_position')")
        found.wrong_cursors = [
            f"{name}: {claimed}, {committed} of {head}"
            for name, claimed, committed in execute(
                "SELECT groups.name, claimed, committed FROM pgbus_stream_cursors"
                " JOIN pgbus_stream_groups AS groups ON groups.id = group_id WHERE stream_id = %s",
                Stream(STREAM).id(),
            )
            if (claimed, committed) != (head, head)
        ]
        for table in ("keys", "routed", "leases"):
            if left := execute(f"SELECT count(*) FROM pgbus_stream_{table}")[0][0]:
                found.wrong_cursors.append(f"{left} rows are left in {table}")

    def _evidence(self, missing: str) -> list[str]:
        """Return all that was seen of a position that a group has not handled."""
        group, _, position = missing.partition(": ")
        if not position.isdigit():
            return []
        rows = execute(
            "SELECT claims.* FROM stream_storm_claims AS claims JOIN pgbus_stream_groups AS groups ON groups.id = group_id"
            " WHERE groups.name = %s AND low < %s AND high >= %s ORDER BY at",
            group,
            int(position),
            int(position),
        )
        rows += execute(f"SELECT xmin::text, appended_at, payload FROM {self.log} WHERE position = %s", int(position))
        rows += execute("SELECT 'alone', * FROM stream_storm_alone WHERE position = %s ORDER BY at", int(position))
        rows += execute(
            "SELECT kills.* FROM stream_storm_kills AS kills JOIN pgbus_stream_groups AS groups ON groups.name = %s JOIN"
            " stream_storm_claims AS claims ON claims.group_id = groups.id AND claims.low < %s AND claims.high >= %s"
            " WHERE kills.after BETWEEN claims.at - interval '3 s' AND claims.at + interval '3 s'",
            group,
            int(position),
            int(position),
        )
        rows += execute(
            "SELECT how, stubborn FROM stream_storm_appended WHERE id = (SELECT (payload->>'id')::bigint"
            f" FROM {self.log} WHERE position = %s)",
            int(position),
        )
        return [f"{missing}: {row}" for row in rows]

    def _read_totals(self, log: dict[int, int], ledger: dict[int, Any]) -> None:
        found = self.found
        totaled = Counter(position for (position,) in execute("SELECT position FROM stream_storm_totaled"))
        found.runs["totals"], found.handled["totals"] = totaled.total(), len(totaled)
        found.missing += [f"totals: {position}" for position in sorted(set(log) - set(totaled))]
        found.never_committed += [f"totals: {position}" for position in sorted(set(totaled) - set(log))]
        found.handled_after_commit += [f"totals: {one}, {times} times" for one, times in totaled.items() if times > 1]
        (totals,) = execute("SELECT entries, total FROM stream_storm_totals")
        if totals != (expected := (len(ledger), sum(row[2] for row in ledger.values()))):
            found.wrong_totals.append(f"{totals} instead of {expected}")

    def _read_messages(self, log: dict[int, int]) -> None:
        messages: dict[int, set[tuple[int, str]]] = defaultdict(set)
        for id, position, queue in execute("SELECT id, position, queue FROM stream_storm_messages"):
            messages[position].add((id, queue))
        for position, id in log.items():
            queue = queue_of(id)
            queues = [queue for _, queue in messages.pop(position, ())]
            if queues != ([] if queue is None else [f"@{queue}"]):
                self.found.wrong_messages.append(f"{position}: {queues}")
        self.found.wrong_messages += [f"{position}: {ids}" for position, ids in messages.items()]

    def _done(self) -> dict[str, Callable[[int], datetime | None]]:
        """Return for each group what tells when a position was done with."""
        of: dict[str, Callable[[int], datetime | None]] = {}
        for id, name in execute("SELECT id, name FROM pgbus_stream_groups"):
            ends = sorted(execute("SELECT high, low, at FROM stream_storm_ends WHERE group_id = %s", id))
            alone = execute("SELECT position, ended, at FROM stream_storm_alone WHERE group_id = %s ORDER BY at", id)
            self.found.ranges += len(ends)
            self.found.alone += sum(not ended for _, ended, _ in alone)
            of[name] = done_at(ends, alone)
        return of


def done_at(
    ends: Sequence[tuple[int, int, datetime]], alone: Iterable[tuple[int, bool, datetime]]
) -> Callable[[int], datetime | None]:
    """Return what tells when a position was done with: by the end of its range, or of the entry on its own."""
    own: dict[int, datetime | None] = {}
    for position, ended, at in alone:
        own[position] = at if ended else None
    highs = [high for high, _, _ in ends]

    def at(position: int) -> datetime | None:
        if position in own:
            return own[position]
        nth = bisect_left(highs, position)
        if nth < len(ends) and ends[nth][1] < position:
            return ends[nth][2]
        return None

    return at


def again_after(
    group: str, runs: Iterable[Ran], done: Callable[[int], datetime | None], kills: dict[int, list[Kill]]
) -> list[str]:
    """Return each run that began when its position was done with; what a process sent before its kill may be late."""
    return [
        f"{group}: {run} after {at}"
        for run in runs
        if (at := done(run.position)) is not None
        and run.began > at
        and not any(before <= run.began <= before + LATE for _, _, before in kills[run.pid])
    ]


def repeats(group: str, runs: Iterable[Ran], kills: dict[int, list[Kill]]) -> tuple[int, list[str]]:
    """Return how many runs of one position followed another one, and those that no kill or failure explains."""
    of: dict[int, list[Ran]] = defaultdict(list)
    for run in runs:
        of[run.position].append(run)
    again, unexplained = 0, []
    for mine in of.values():
        again += len(mine) - 1
        for run, following in pairwise(mine):
            killed = any(before + LATE >= run.began and after <= following.began for _, after, before in kills[run.pid])
            if not run.failed and not killed:
                unexplained.append(f"{group}: {run} was not killed, and is followed by {following}")
    return again, unexplained


def out_of_order(runs: Iterable[Ran], stubborn: set[int]) -> list[str]:
    """Return each entry that began for the first time before the one before it, of its key, had succeeded or died."""
    first: dict[int, Ran] = {}
    through: dict[int, datetime] = {}
    for run in runs:
        first.setdefault(run.position, run)
        if run.position in stubborn:
            through[run.position] = run.ended or run.began
        elif run.ended and not run.failed:
            through.setdefault(run.position, run.ended)
    wrong = []
    last: dict[int, int] = {}
    for position in sorted(first):
        run = first[position]
        before = last.get(run.key)
        if before is not None and not (before in through and through[before] <= run.began):
            wrong.append(
                f"{position} of key {run.key} began at {run.began}, {before} was through {through.get(before)}"
            )
        last[run.key] = position
    return wrong


def together(runs: Iterable[Ran], kills: dict[int, list[Kill]]) -> list[str]:
    """Return each run that began while another one of its key ran; one that was killed ran until then."""
    until_of: dict[int, tuple[datetime, Ran]] = {}
    wrong = []
    for run in runs:
        if run.key in until_of and run.began < until_of[run.key][0]:
            wrong.append(f"{run} began beside {until_of[run.key][1]}")
        end = run.ended or min((after for _, after, before in kills[run.pid] if before >= run.began), default=run.began)
        if run.key not in until_of or until_of[run.key][0] < end:
            until_of[run.key] = (end, run)
    return wrong


def checks(found: Found) -> dict[str, int]:
    """Return what must be 0."""
    return {
        "missing": len(found.missing),
        "handled after commit": len(found.handled_after_commit),
        "handled though rolled back": len(found.never_committed),
        "repeated without a kill": len(found.unexplained),
        "out of order": len(found.out_of_order),
        "together": len(found.together),
        "wrong totals": len(found.wrong_totals),
        "wrong messages": len(found.wrong_messages),
        "wrong dead letters": len(found.wrong_dead),
        "wrong cursors": len(found.wrong_cursors),
        "broken producers": len(found.broken_producers),
        "unsettled": found.unsettled,
    }
