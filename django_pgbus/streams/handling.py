"""
Running the handler of a group: over a range, or over one entry on its own.

What fails never stops the rest of its range: a batch that fails is tried entry by entry, and an entry that fails becomes
one on its own. A transactional handler runs in the transaction that ends its range, whose last statement is fenced by
the lease: who has lost it rolls back all that the handler wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.exceptions import InvalidKey, TaskSuperseded, TaskTimeout
from django_pgbus.postgres import is_conflict, is_connection_loss
from django_pgbus.postgres.keys import stored, why_unusable
from django_pgbus.postgres.leftovers import as_it_was, guarded
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.streams import exceptions, keys, leases
from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.exceptions import Alone
from django_pgbus.streams.leases import Failure, Range, Row
from django_pgbus.streams.traced import traced
from django_pgbus.tasks import backoff, payload
from django_pgbus.tasks.executor import announce
from django_pgbus.tasks.failures import path_of, readable
from django_pgbus.tasks.masking import without
from django_pgbus.tasks.sensitive import secrets_in

CONFLICTS: Final = 3  # runs of a transaction that PostgreSQL ended in favour of another one
STANDBY: Final = "25006"  # the server may only be read any more, on a connection that is still open
PATIENCE: Final = 2.0  # seconds that a range waits for keys of a lower one; then its entries wait on their own


class Surroundings(Protocol):
    """What the worker gives to a run."""

    def stopping(self) -> bool:
        """Return whether to begin nothing more."""

    def wait(self) -> bool:
        """Wait a moment; return False if the process stops."""

    def limited(self, held: Range | Alone, timeout: float | None) -> contextlib.AbstractContextManager[None]:
        """Interrupt the run inside when its time is over or its lease is lost."""


class LeaseLost(Exception):
    """The lease of a run was lost; everything its transaction wrote is rolled back."""


@dataclass(slots=True, kw_only=True)
class Handled:
    """What became of a range: done up to `upto` but for `failures`; `ended` if that is committed already."""

    upto: int
    failures: list[Failure] = field(default_factory=list)
    entries: int = 0
    ended: bool = False
    lost: bool = False
    unknown: bool = False  # the connection was lost with the commit: look whether the lease is there


class _Range:
    """One range and its handler."""

    def __init__(
        self, consumer: Consumer, held: Range, around: Surroundings, known_keys: dict[int, str | None]
    ) -> None:
        self.consumer = consumer
        self.held = held
        self.around = around
        self.keys = known_keys
        self.rows = {row[0]: row for row in held.rows}
        self.failures: dict[int, Failure] = {}
        self.failed_keys: set[str] = set()
        self.handled = 0
        self.stopped_at: int | None = None  # the first position that was not begun

    # --- what became of it ----------------------------------------------------------------------------

    def result(self, **more: Any) -> Handled:
        upto = self.held.high if self.stopped_at is None else self.stopped_at - 1
        failures = [self.failures[position] for position in sorted(self.failures) if position <= upto]
        return Handled(upto=upto, failures=failures, entries=self.handled, **more)

    def forget(self) -> None:
        """Begin anew: a transaction was rolled back."""
        self.failures.clear()
        self.failed_keys.clear()
        self.handled = 0
        self.stopped_at = None

    def fail(self, entry: Entry, error: BaseException) -> None:
        delay = _delay(self.consumer, error, entry)
        key = self.keys.get(entry.position)
        self.failures[entry.position] = Failure(
            position=entry.position,
            attempts=1,
            delay=delay or 0.0,
            key=key,
            exception=path_of(error),
            traceback=_scrubbed(self.consumer, entry, readable(error, __name__)),
            dead=self.rows[entry.position] if delay is None else None,
        )
        if key is not None and delay is not None:
            self.failed_keys.add(key)

    def defer(self, entry: Entry) -> None:
        """Let an entry wait on its own for one of its key."""
        key = self.keys[entry.position]
        self.failures[entry.position] = Failure(position=entry.position, attempts=0, delay=0.0, key=key)

    # --- running --------------------------------------------------------------------------------------

    def check(self) -> None:
        """Begin nothing more of a range that another may have: raises LeaseLost."""
        if self.held.is_lost:
            raise LeaseLost

    def entries(self) -> list[Entry]:
        """Return the entries that can be read; what cannot has failed."""
        readable_ones = []
        for row in self.held.rows:
            try:
                readable_ones.append(entry_of(self.consumer.stream, row))
            except Exception as error:
                self.fail(Entry(self.consumer.stream, row[0], None, row[1]), error)
        return readable_ones

    def one_by_one(self, entries: Sequence[Entry], *, savepoints: bool = False) -> None:
        away = False  # Without the database each of the others would fail as well: another range begins with them.
        for entry in entries:
            self.check()
            if self.stopped_at is not None or away or self.around.stopping():
                self.stopped_at = min(self.stopped_at or entry.position, entry.position)
                return
            if self.keys.get(entry.position) in self.failed_keys:
                self.defer(entry)
                continue
            try:
                with transaction.atomic(using=database()) if savepoints else contextlib.nullcontext():
                    call(self.consumer, [entry], self.held, self.around)
                    if savepoints:
                        _check_unspoilt()
            except TaskSuperseded as error:
                raise LeaseLost from error
            except BaseException as error:
                if self.consumer.transactional and (
                    not savepoints or is_conflict(error) or _is_lost(error, connections[database()].connection)
                ):
                    raise  # Its transaction is spoilt.
                self.fail(entry, error)
                away = is_connection_loss(error)
            else:
                self.handled += 1

    def all_at_once(self, entries: Sequence[Entry]) -> None:
        """Run batches; one that fails is tried entry by entry."""
        if self.consumer.batch_size is None:
            return self.one_by_one(entries)
        for batch in _batches(self.consumer, entries):
            ready = []
            for entry in batch:
                if self.keys.get(entry.position) in self.failed_keys:
                    self.defer(entry)
                else:
                    ready.append(entry)
            if ready:
                self.batch(ready)
        return None

    def batch(self, entries: Sequence[Entry]) -> None:
        if len(entries) == 1:
            return self.one_by_one(entries)
        if self.stopped_at is not None or self.around.stopping():
            self.stopped_at = min(self.stopped_at or entries[0].position, entries[0].position)
            return None
        self.check()
        try:
            call(self.consumer, entries, self.held, self.around)
        except TaskSuperseded as error:
            raise LeaseLost from error
        except BaseException:
            self.one_by_one(entries)
        else:
            self.handled += len(entries)
        return None


@traced
def handle(
    consumer: Consumer, held: Range, around: Surroundings, known_keys: dict[int, str | None] | None = None
) -> Handled:
    """Run the handler over a range and return what became of it; `known_keys` are its entries' keys, if it has one."""
    run = _Range(consumer, held, around, known_keys or {})
    try:
        entries = run.entries()
        if consumer.transactional:
            return _transactional(run, _free(run, entries))
        if consumer.key is None:
            if entries:
                run.all_at_once(entries)
        else:
            _in_order(run, entries)
        return run.result()
    except LeaseLost:
        return Handled(upto=held.low, lost=True)


def _in_order(run: _Range, entries: list[Entry]) -> None:
    """Run what nobody is ahead with, then what waits for a lower range; what waits too long waits on its own."""
    rest = entries
    deadline = time.monotonic() + PATIENCE
    while rest:
        blocked = keys.blocked(run.held.group, run.held.low, _keys_of(run, rest))
        over = time.monotonic() > deadline
        now, later = [], []
        for entry in rest:
            key = run.keys.get(entry.position)
            if key is None or key not in blocked:
                now.append(entry)
            elif key in blocked.by_exception or over:
                run.defer(entry)
            else:
                later.append(entry)
        if now:
            run.all_at_once(now)
        if run.stopped_at is not None:
            return _stop_before(run, later)
        if later and not run.around.wait():
            return _stop_before(run, later)
        rest = later
    return None


def _stop_before(run: _Range, later: Sequence[Entry]) -> None:
    """
    Leave what was not begun to another worker; what was handled above that is handled again.

    Entries of a key stay in their order: those of one key were either all begun, or none of them.
    """
    positions = [entry.position for entry in later] + ([run.stopped_at] if run.stopped_at is not None else [])
    run.stopped_at = min(positions, default=run.stopped_at)


def _free(run: _Range, entries: list[Entry]) -> list[Entry]:
    """Return what may be handled in one transaction; what is still waiting for a key after a moment waits on its own."""
    if run.consumer.key is None:
        return entries
    deadline = time.monotonic() + PATIENCE
    while True:
        blocked = keys.blocked(run.held.group, run.held.low, _keys_of(run, entries))
        if not blocked.by_range or time.monotonic() > deadline or not run.around.wait():
            break
    for entry in entries:
        if run.keys.get(entry.position) in blocked:
            run.defer(entry)
    return [entry for entry in entries if entry.position not in run.failures]


def _transactional(run: _Range, entries: list[Entry]) -> Handled:
    """Run and end the range in one transaction, first all at once, then with a savepoint for each entry."""
    before = dict(run.failures)
    alone = run.consumer.batch_size is not None and len(entries) < 2
    conflicts = 0
    while True:
        run.forget()
        run.failures.update(before)
        session = settled = None
        try:
            with transaction.atomic(using=database()):
                session = connections[database()].connection
                if entries and (alone or run.consumer.batch_size is None):
                    run.one_by_one(entries, savepoints=alone)
                elif entries and run.around.stopping():
                    run.stopped_at = entries[0].position
                elif entries:
                    for batch in _batches(run.consumer, entries):
                        call(run.consumer, batch, run.held, run.around)
                    run.handled = len(entries)
                result = run.result(ended=True)
                if run.stopped_at is None:
                    ended = leases.commit(run.held.token, result.failures)
                else:
                    ended = leases.hand_back(run.held.token, result.upto, result.failures)
                if not ended:
                    raise LeaseLost
                settled = result
            return result
        except TaskSuperseded as error:
            raise LeaseLost from error
        except LeaseLost:
            raise
        except BaseException as error:
            if _is_lost(error, session):
                connections[database()].close()
                return Handled(upto=run.held.low, unknown=True)
            if settled is not None and not leases.is_held(
                run.held.token
            ):  # It is committed: an on_commit() has failed.
                announce(f"on_commit() of {run.consumer.path}", error)
                return settled
            if is_conflict(error) and conflicts < CONFLICTS:
                conflicts += 1
                continue
            if alone:
                raise  # Not of an entry: those were caught.
            alone = True


@traced
def handle_alone(consumer: Consumer, alone: Alone, around: Surroundings) -> str:
    """
    Run the handler over one entry on its own, enter what became of it, and return that.

    One of "done", "put off", "dead", "lost" and "unknown" (the connection was lost with the commit).
    """
    if alone.row is None:
        return _give_up(
            consumer, alone, LookupError("The log does not have this entry any more: retention dropped it.")
        )
    if alone.attempts > consumer.attempts:  # Its last run was counted when it began, and not heard of again.
        return _give_up(consumer, alone, None)
    if not exceptions.begin(alone):
        return "lost"
    try:
        entry = entry_of(consumer.stream, alone.row, alone.attempts)
    except Exception as error:
        return _failed(
            consumer, alone, Entry(consumer.stream, alone.position, None, alone.row[1], alone.attempts), error
        )
    session = None
    try:
        if not consumer.transactional:
            call(consumer, [entry], alone, around)
            return "done" if exceptions.done(alone) else "lost"
        with transaction.atomic(using=database()):
            session = connections[database()].connection
            call(consumer, [entry], alone, around)
            if not exceptions.done(alone):
                raise LeaseLost
        return "done"
    except (LeaseLost, TaskSuperseded):
        return "lost"
    except BaseException as error:
        if consumer.transactional and _is_lost(error, session):
            connections[database()].close()
            return "unknown"
        return _failed(consumer, alone, entry, error)


def _failed(consumer: Consumer, alone: Alone, entry: Entry, error: BaseException) -> str:
    delay = None
    if alone.attempts < consumer.attempts:
        delay = backoff.delay(consumer.backoff, error, entry, alone.attempts, path=consumer.path)
    text = _scrubbed(consumer, entry, readable(error, __name__))
    if delay is None:
        return _bury(consumer, alone, path_of(error), text)
    if not exceptions.put_off(alone, delay, exception=path_of(error), traceback=text):
        return "lost"
    signals.entry_failed.send_robust(
        sender=None,
        stream=consumer.stream,
        group=consumer.group,
        position=alone.position,
        exception=path_of(error),
        delay=delay,
    )
    return "put off"


def _bury(consumer: Consumer, alone: Alone, exception: str, text: str) -> str:
    if not exceptions.give_up(alone, exception=exception, traceback=text):
        return "lost"
    signals.entry_dead_lettered.send_robust(
        sender=None, stream=consumer.stream, group=consumer.group, position=alone.position, exception=exception
    )
    return "dead"


def _give_up(consumer: Consumer, alone: Alone, error: BaseException | None) -> str:
    if error is None:
        error = RuntimeError(f"Its process ended in each of {alone.attempts - 1} runs.")
    return _bury(consumer, alone, path_of(error), readable(error, __name__))


def _batches(consumer: Consumer, entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Return batches of the size that the code says now: a range may have been claimed when it was larger."""
    size = consumer.batch_size or 1
    return (entries[start : start + size] for start in range(0, len(entries), size))


def _is_lost(error: BaseException, session: Any) -> bool:
    """Return whether the transaction of a run is lost with its connection; a handler may lose those to other servers too."""
    return is_connection_loss(error) and (session is None or session.closed or sqlstate(error) == STANDBY)


def _check_unspoilt() -> None:
    """Raise TransactionManagementError where Django would roll back in silence."""
    if connections[database()].needs_rollback:
        raise TransactionManagementError(
            "A query of the handler failed, and it went on: nothing that it wrote can be kept. Put what may fail into an "
            "atomic() of its own."
        )


# --- calling ----------------------------------------------------------------------------------------------


def call(consumer: Consumer, entries: Sequence[Entry], held: Range | Alone, around: Surroundings) -> None:
    """Call the handler with a batch or its one entry, as it takes them; raises what it raises."""
    argument = entries[0] if consumer.batch_size is None else list(entries)
    returned = None
    with as_it_was(database()):
        if consumer.is_async:
            async_to_sync(_within)(consumer, argument)
        else:
            with around.limited(held, consumer.timeout):
                returned = consumer.func(argument)
    if asyncio.iscoroutine(returned):
        returned.close()
        raise TypeError("It returned a coroutine that nobody awaits. Is a decorator around an async handler not async?")


async def _within(consumer: Consumer, argument: Any) -> None:
    try:
        async with asyncio.timeout(consumer.timeout) as limit:
            await consumer.func(argument)
    except TimeoutError as error:
        if limit.expired():
            raise TaskTimeout(f"It ran for more than {consumer.timeout:g} seconds.") from error
        raise


def entry_of(stream: str, row: Row, attempt: int = 1) -> Entry:
    """Return the entry, or raise InvalidPayload."""
    return Entry(stream, row[0], payload.decode_value(row[2]), row[1], attempt)


def keys_of(consumer: Consumer, rows: Sequence[Row]) -> dict[int, str | None]:
    """
    Return the key of each entry by its position.

    Where the function raises, or returns what cannot be a key, the entry has none: it waits for nobody, and
    `key_broken` is sent.
    """
    assert consumer.key is not None
    found: dict[int, str | None] = {}
    broken: list[tuple[int, BaseException]] = []
    with guarded(database()):
        for row in rows:
            try:
                value = consumer.key(entry_of(consumer.stream, row))
                found[row[0]] = None if value is None else _checked_key(str(value))
            except BaseException as error:  # It may even exit.
                found[row[0]] = None
                broken.append((row[0], error))
    for position, reason in broken:
        signals.key_broken.send_robust(sender=None, handler=consumer.path, position=position, exception=reason)
    return found


def _checked_key(key: str) -> str:
    if problem := why_unusable(key):
        raise InvalidKey(f"The key of an entry {problem}.")
    return stored(key)


def _keys_of(run: _Range, entries: Sequence[Entry]) -> Iterator[str]:
    return (key for entry in entries if (key := run.keys.get(entry.position)) is not None)


def _delay(consumer: Consumer, error: BaseException, entry: Entry) -> float | None:
    if consumer.attempts <= 1:
        return None
    return backoff.delay(consumer.backoff, error, entry, 1, path=consumer.path)


def _scrubbed(consumer: Consumer, entry: Entry, text: str) -> str:
    return without(text, secrets_in(entry.payload, consumer.sensitive)) if consumer.sensitive else text
