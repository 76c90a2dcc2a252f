"""
Waking workers, after commit and never inside it.

NOTIFY in the writing transaction makes all commits of the cluster queue behind one lock. The hook is a plain
function, bound to the alias of the tables, and robust: its failure costs a poll, never the caller's request.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.db import connections, transaction

from django_pgbus import signals
from django_pgbus.conf import database, get_settings
from django_pgbus.postgres.after_commit import hook_of
from django_pgbus.queues import sql
from django_pgbus.queues.message import Level

# A woken worker that finds nothing more keeps looking for a little longer than this.
COALESCE: Final = 0.050  # seconds
REANNOUNCE: Final = 60.0  # seconds


class _Sent:
    """What this process said lately: not a promise, only a saving."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.woken: dict[tuple[str | int, ...], float] = {}
        self.announced: dict[Level, float] = {}

    def should_wake(self, key: tuple[str | int, ...], now: float) -> bool:
        with self.lock:
            if now - self.woken.get(key, -1.0) < COALESCE:
                return False
            if len(self.woken) > 10_000:
                self.woken.clear()
            self.woken[key] = now
            return True

    def unannounced(self, levels: Iterable[Level], now: float) -> list[Level]:
        return [level for level in levels if now - self.announced.get(level, -REANNOUNCE) >= REANNOUNCE]

    def note_announced(self, levels: Iterable[Level], now: float) -> None:
        if len(self.announced) > 10_000:
            self.announced.clear()
        self.announced.update((level, now) for level in levels)


_sent = _Sent()


def forget_announced() -> None:
    """Announce each level anew: the rows of what was announced may be gone."""
    _sent.announced.clear()


def should_wake(key: tuple[str | int, ...], now: float) -> bool:
    """Return whether nobody in this process has woken for this key in the last 50 ms, and note it."""
    return _sent.should_wake(key, now)


class _Hook:
    """What one transaction has to say once it is committed."""

    __slots__ = ("began", "levels", "soonest", "spoken")

    def __init__(self) -> None:
        self.spoken = False
        self.began = time.monotonic()
        self.levels: dict[Level, int] = {}
        self.soonest: dict[str, float] = {}  # by the monotonic clock: the transaction may last

    def speak(self) -> None:
        """Announce and wake; registered as a bound method, since Django logs a failing hook by its name."""
        self.spoken = True
        now = time.monotonic()
        due_in = {queue: max(0.0, at - now) for queue, at in self.soonest.items()}
        _speak(self.levels, due_in, coalesced=now - self.began < COALESCE)


def _speak(levels: dict[Level, int], due_in: dict[str, float], *, coalesced: bool = True) -> None:
    now = time.monotonic()
    announce(levels)
    notes: list[list[Any]] = [
        ["ready", *level, position]
        for level, position in levels.items()
        if position and (should_wake(level[:2], now) or not coalesced)
    ]
    notes += [["due", queue, seconds] for queue, seconds in due_in.items() if wakes_for_delay(seconds)]
    notify(notes)


def after_commit(levels: dict[Level, int], due: dict[str, float] | None = None) -> None:
    """
    Wake workers once the caller's transaction is committed.

    `levels` gives the lowest new position of each level (0: announce it only), `due` the seconds until the next
    delayed task of a queue. Where Django runs no hooks, polls find the work.
    """
    connection = connections[database()]
    if not connection.in_atomic_block:
        if connection.get_autocommit():
            try:  # As robustly as Django calls a hook, and at a third of the price.
                _speak(levels, due or {})
            except Exception as error:
                signals.wake_failed.send_robust(sender=None, exception=error)
        return
    hook = hook_of(connection, _Hook)
    for level, position in levels.items():
        known = hook.levels.get(level, 0)
        hook.levels[level] = min(position, known) if position and known else position or known
    for queue, seconds in (due or {}).items():
        at = time.monotonic() + seconds
        hook.soonest[queue] = min(at, hook.soonest.get(queue, at))


def announce(levels: Iterable[Level]) -> None:
    """Write levels that this process has not announced lately."""
    now = time.monotonic()
    if new := _sent.unannounced(levels, now):
        write_levels(new)
        if not connections[database()].in_atomic_block:  # A test's transaction, which is rolled back.
            _sent.note_announced(new, now)


def write_levels(levels: Iterable[Level]) -> int:
    """Write levels and return how many were new or had not been seen for a while. Locks: levels."""
    queues, priorities, suspects = zip(*levels, strict=True) if (levels := list(levels)) else ((), (), ())
    return sql.ANNOUNCE_LEVELS.count(queues=list(queues), priorities=list(priorities), suspects=list(suspects))


def notify(notes: list[list[Any]]) -> None:
    """Send notes to all workers: a name and numbers, never a payload."""
    if notes:
        sql.NOTIFY.rows(notes=[json.dumps(note) for note in notes])


def wake_for(rows: Iterable[tuple[str, int, bool, int]]) -> None:
    """Announce and wake for (queue, priority, suspect, position) rows that are committed already."""
    lowest: dict[Level, int] = {}
    for queue, priority, suspect, position in rows:
        level = Level(queue, priority, suspect)
        lowest[level] = min(position, lowest.get(level, position))
    announce(lowest)
    notify([["ready", *level, position] for level, position in lowest.items()])


def wakes_for_delay(seconds: float) -> bool:
    """Return whether a task due in so many seconds might be missed by sleeping workers."""
    return seconds < get_settings().POLL_INTERVAL * 2


def wake_after_commit(rows: Iterable[tuple[str, int, bool, int]]) -> None:
    """Do `wake_for` once the caller's transaction, if there is one, is committed."""
    rows = list(rows)
    if rows:
        once_committed(lambda: wake_for(rows))


def once_committed(call: Callable[[], None]) -> None:
    """Call once the caller's transaction is committed; never where Django runs no hooks (autocommit is off)."""
    connection = connections[database()]
    if connection.in_atomic_block or connection.get_autocommit():
        transaction.on_commit(call, using=connection.alias, robust=True)
