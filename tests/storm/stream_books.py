"""
The books of a storm over a stream: what each group did with each entry, and what repeated a run.

Used by the storm over streams and by the chaos.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from django_pgbus import Stream
from tests.processes.harness import execute
from tests.storm.producers import Producer
from tests.storm.stream_rules import (
    Claimed,
    Kill,
    Ran,
    again_after,
    claimed_twice,
    done_at,
    out_of_order,
    repeats,
    tenures,
    together,
)
from tests.storm.stream_tables import GROUPS, STREAM, queue_of

OPEN_ENTRIES: Final = """
    SELECT (SELECT count(*) FROM pgbus_stream_leases)
         + (SELECT count(*) FROM pgbus_stream_exceptions WHERE status <> 'dead')
         + (SELECT coalesce(sum(pg_sequence_last_value('{log}_position') - claimed), 1) FROM pgbus_stream_cursors AS cursors
            JOIN pgbus_stream_groups AS groups ON groups.id = group_id
            WHERE to_regclass('pgbus_stream_' || stream_id) = '{log}'::regclass)
"""
OPEN: Final = OPEN_ENTRIES + " + (SELECT count(*) FROM pgbus_messages) + (SELECT count(*) FROM pgbus_delayed)"

RANGES: Final = """
    SELECT groups.name, low, high
    FROM stream_storm_claims
    JOIN pgbus_stream_groups AS groups ON groups.id = group_id
    WHERE kind = 'insert'
"""
# A lease that had not lapsed and got another token: that is nobody's but its holder's, who gives it back lapsed.
ROBBED: Final = """
    SELECT groups.name, low, high, at
    FROM stream_storm_claims
    JOIN pgbus_stream_groups AS groups ON groups.id = group_id
    WHERE kind = 'update' AND was_live AND is_held
    ORDER BY at
"""
CLAIMS: Final = """
    SELECT lease, low, high, pid, is_held, at
    FROM stream_storm_claims
    WHERE group_id = (SELECT id FROM pgbus_stream_groups WHERE name = %s) AND lease IS NOT NULL
    UNION ALL
    SELECT -position, position - 1, position, NULL, is_held, at
    FROM stream_storm_alone_claims
    WHERE group_id = (SELECT id FROM pgbus_stream_groups WHERE name = %s)
    ORDER BY at
"""
# All that was noted of one entry in a group.
STORY: Final = """
    WITH wanted AS (
        SELECT id FROM pgbus_stream_groups WHERE name = %s
    )
    SELECT to_char(at, 'HH24:MI:SS.US') || ' ' || what
    FROM (
        SELECT at, format('range %%s of %%s to %%s %%s by process %%s, %%s', lease, low + 1, high, kind, pid,
                      concat(CASE WHEN is_held THEN 'held' ELSE 'not held' END, CASE WHEN was_live THEN ', was live' END))
        FROM stream_storm_claims
        WHERE group_id = (SELECT id FROM wanted) AND lease IS NOT NULL AND low < %s AND high >= %s
        UNION ALL
        SELECT at, format('done with %%s to %%s', low + 1, high)
        FROM stream_storm_ends
        WHERE group_id = (SELECT id FROM wanted) AND low < %s AND high >= %s
        UNION ALL
        SELECT at, CASE WHEN ended THEN 'no longer alone' ELSE 'alone' END
        FROM stream_storm_alone
        WHERE group_id = (SELECT id FROM wanted) AND position = %s
        UNION ALL
        SELECT at, CASE WHEN is_held THEN 'claimed alone' ELSE 'given back alone' END
        FROM stream_storm_alone_claims
        WHERE group_id = (SELECT id FROM wanted) AND position = %s
        UNION ALL
        SELECT began, concat_ws(' ', 'run by', pid, CASE WHEN failed THEN 'fails' END, to_char(ended, 'HH24:MI:SS.US'))
        FROM stream_storm_runs
        WHERE grp = %s AND position = %s
    ) AS moment (at, what)
    ORDER BY at
    LIMIT 60
"""


def story(group: str, position: int) -> str:
    """Return what was seen of an entry in a group, in the order of time; for whoever reads what is wrong."""
    return "; ".join(text for (text,) in execute(STORY, group, *[position] * 6, group, position))


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


class Books:
    """What is read of a stream whose log is this table."""

    def __init__(self, log: str, found: Found) -> None:
        self.log, self.found = log, found

    def read(self, producers: Sequence[Producer]) -> None:
        """Read the books; `producers` are those that have ended."""
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
        found.together = together(runs["keyed"], kills, tenures(self._claims("keyed")))
        found.together += claimed_twice(execute(RANGES)) + [
            f"{row} was taken from the living" for row in execute(ROBBED)
        ]
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
        ((head,),) = execute(f"SELECT coalesce(pg_sequence_last_value('{self.log}_position'), 0)")
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

    def _claims(self, group: str) -> list[Claimed]:
        """Return every claim of a group and what ended it, of ranges and of entries on their own."""
        return [Claimed(*row) for row in execute(CLAIMS, group, group)]

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
