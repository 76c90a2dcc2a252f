"""
What was appended: handled in the test, by the groups of this code.

A worker claims in a transaction of its own, and waits for positions that others may still fill. A test in a transaction sees
what it wrote itself, and nobody else does; so there, and only there, a claim stands inside it, and what is missing counts
as missing for good. In a TransactionTestCase a claim is what it is in a worker.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from django_pgbus.conf import database, get_settings
from django_pgbus.exceptions import ConsumeRefused
from django_pgbus.streams import exceptions, groups, handling, keys, leases, routing
from django_pgbus.streams import sql as streams_sql
from django_pgbus.streams.consumers import Consumer, consumers
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.exceptions import Alone
from django_pgbus.streams.fence import Fence, check_session
from django_pgbus.streams.leases import GroupId, Range
from django_pgbus.streams.stream import Stream
from django_pgbus.tasks.discovery import autodiscover
from django_pgbus.testing import sql
from django_pgbus.testing.inline import kept_apart

PAUSE: Final = 0.02  # seconds between looks at keys that somebody else holds
LOOKS: Final = 2  # without getting on: one to see that something is missing, one to know that it stays so


def consume_stream(
    stream: Stream | str,
    group: str | None = None,
    *,
    include_delayed: bool = False,
    limit: int = 10_000,
    raise_failures: bool = True,
) -> int:
    """
    Let the groups of a stream handle what they have not handled yet, and what that appends; return how many entries.

    `group` is one of them (None: all that this code declares); a new one is made. Each gets its entries as it is declared:
    in batches or one by one, in a transaction, routed into queues; deliver_published() runs what was routed. Paused groups
    are left alone. An entry that fails is stored as a worker would store it, and the rest of its range is handled; then
    its exception is raised. With `raise_failures=False` everything is handled, and the tables tell. `include_delayed` tries
    again what failed and is not due yet. More than `limit` entries of one group are an AssertionError.
    """
    name = stream if isinstance(stream, str) else stream.name
    chosen = _chosen(name, group)
    groups.declare(chosen)
    found = groups.stored([(one.stream, one.group) for one in chosen])
    following = [
        _Following(
            consumer=one,
            group=found[one.stream, one.group],
            include_delayed=include_delayed,
            limit=limit,
            raise_failures=raise_failures,
        )
        for one in chosen
    ]
    while sum(one.follow() for one in following):
        pass
    return sum(one.handled for one in following)


aconsume_stream = sync_to_async(consume_stream, thread_sensitive=True)


def _chosen(stream: str, group: str | None) -> list[Consumer]:
    autodiscover()
    chosen = [one for one in consumers.values() if one.stream == stream and group in {None, one.group}]
    if not chosen:
        what = "a group" if group is None else f"the group {group!r}"
        known = ", ".join(sorted(one.name for one in consumers.values())) or "none at all"
        raise ValueError(f"This code declares no consumer for {what} of the stream {stream!r}; there is {known}.")
    return chosen


@dataclass(slots=True, kw_only=True, eq=False)
class _Following:
    """One group, and what has been done for it in this call."""

    consumer: Consumer
    group: GroupId
    include_delayed: bool
    limit: int
    raise_failures: bool
    handled: int = 0
    runs: int = 0
    fence: Fence = field(default_factory=Fence)
    errors: dict[int, BaseException] = field(default_factory=dict)  # by position: the last of an entry by itself
    interrupted: KeyboardInterrupt | None = None

    def follow(self) -> int:
        """Handle what is there, and return how many entries there were."""
        runs = self.runs
        step = self._route if self.consumer.route_to is not None else self._handle
        looks = 0
        while looks < LOOKS:
            looks = 0 if step() else looks + 1
        groups.roll_forward([self.group.id])
        return self.runs - runs

    # --- claiming -----------------------------------------------------------------------------------------

    def _handle(self) -> bool:
        """Handle an entry by itself, or one range; return whether there was anything to do."""
        row, system = self._look()
        if row.paused:
            return False
        if alone := self._next_alone():
            self._handle_alone(alone)
            return True
        token = uuid.uuid4()
        known: dict[int, str | None] = {}
        keyed = self.consumer.key is not None
        with transaction.atomic(using=database()) if keyed else nullcontext():
            claim = leases.claim(
                self.group,
                self.fence,
                row.claimed,
                system=system,
                limit=self.consumer.limit,
                worker=token,
                lease=get_settings().VISIBILITY_TIMEOUT,
                token=token,
                is_first=keyed or _is_inside(),
            )
            if keyed and claim.range is not None:
                known = handling.keys_of(self.consumer, claim.range.rows)
                keys.hold(self.group, claim.range.lease, (key for key in known.values() if key is not None))
        if claim.range is not None:
            self._handle_range(claim.range, known)
        return claim.claimed is not None and claim.claimed > row.claimed

    def _look(self) -> tuple[Any, str]:
        """Note what is settled, and return how the group stands, and the server; raises ConsumeRefused."""
        system = str(streams_sql.SESSION.row().system) if _is_inside() else check_session()
        (row,) = groups.probe([self.group.id], system)
        if reason := groups.why_refused(self.consumer.name, row):
            raise ConsumeRefused(f"{self.consumer.name}: {reason}")
        self.fence.head = max(self.fence.head, row.head)
        self.fence.settled = max(self.fence.settled, row.head if _is_inside() else row.settled_head)
        self.fence.prove(row.xmin, (row.pending_head, row.pending_xid))
        if _is_inside():
            self.fence.passable = self.fence.settled
        else:
            leases.may_pass(self.group, self.fence)
        return row, system

    def _next_alone(self) -> Alone | None:
        if self.include_delayed:
            sql.MAKE_ENTRIES_DUE.count(group=self.group.id)
        found = exceptions.claim(self.group, limit=1, token=uuid.uuid4(), lease=get_settings().VISIBILITY_TIMEOUT)
        return found[0] if found else None

    # --- handling -----------------------------------------------------------------------------------------

    def _handle_range(self, held: Range, known: dict[int, str | None]) -> None:
        handled = handling.handle(self._watched(), held, AROUND, known)
        if not handled.ended and not handled.lost:
            leases.commit(held.token, handled.failures)
        self.handled += handled.entries
        failed = [(failure.position, failure.exception) for failure in handled.failures if failure.attempts]
        self._count(len(held.rows))
        self._raise(failed)

    def _handle_alone(self, alone: Alone) -> None:
        outcome = handling.handle_alone(self._watched(), alone, AROUND)
        self.handled += outcome == "done"
        self._count(1)
        if outcome != "done":
            self._raise([(alone.position, outcome)])

    def _watched(self) -> Consumer:
        """Return the consumer with a handler that spares the transaction of the test, and whose errors are kept."""
        func: Callable[..., Any] = self.consumer.func
        if self.consumer.is_async:
            # What async code does with the ORM comes back to this thread, and so to the connections of the test.
            func = async_to_sync(func)

        def watched(argument: Any) -> Any:
            try:
                return kept_apart(lambda: func(argument))
            except BaseException as error:
                entries = argument if isinstance(argument, list) else [argument]
                if len(entries) == 1:
                    self.errors[entries[0].position] = error
                if isinstance(error, KeyboardInterrupt):
                    self.interrupted = error
                raise

        return replace(self.consumer, func=watched)

    def _raise(self, failed: list[tuple[int, str]]) -> None:
        if self.interrupted is not None:
            raise self.interrupted
        if failed and self.raise_failures:
            position, what = failed[0]
            groups.roll_forward([self.group.id])
            raise self.errors.get(position) or AssertionError(
                f"{self.consumer.name} cannot handle the entry at {position}: {what}. Its row in pgbus_stream_exceptions "
                "says why."
            )

    def _count(self, runs: int) -> None:
        self.runs += runs
        if self.runs > self.limit:
            raise AssertionError(
                f"consume_stream() has given {self.runs} entries to {self.consumer.name}, which are more than {self.limit}. "
                "Does the handler append to the stream that it reads? Else pass a higher limit."
            )

    # --- routing ------------------------------------------------------------------------------------------

    def _route(self) -> bool:
        """Make messages of what is there; return whether there may be more."""
        row, system = self._look()
        seen: list[Any] = []
        with transaction.atomic(using=database()):
            moved = routing.route_here(self._noting(seen), self.group, self.fence, row.claimed, system=system)
        self.handled += sum(queue is not None for queue in seen)
        self._count(len(seen))
        return moved is not None and (moved[1] or moved[0] > row.claimed)

    def _noting(self, seen: list[Any]) -> Consumer:
        """Return the consumer with a function that notes for each entry where it goes; one that fails goes somewhere too."""
        route = self.consumer.route_to

        def noting(entry: Entry) -> Any:
            seen.append(...)
            seen[-1] = route if isinstance(route, str) else cast(Callable[[Entry], Any], route)(entry)
            return seen[-1]

        return replace(self.consumer, route_to=noting)


def _is_inside() -> bool:
    return bool(connections[database()].in_atomic_block)


class _Around:
    """What a worker gives to a run, as far as a test has it."""

    def stopping(self) -> bool:
        """Return False."""
        return False

    def wait(self) -> bool:
        """Wait a moment for keys that others hold."""
        time.sleep(PAUSE)
        return True

    def limited(self, held: Range | Alone, timeout: float | None) -> AbstractContextManager[None]:
        """Interrupt nothing."""
        return nullcontext()


AROUND: Final = _Around()
