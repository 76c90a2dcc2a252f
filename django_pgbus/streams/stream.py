"""
`Stream`: what makes a name a log that can be appended to and read.

    ledger = Stream("ledger", retention=timedelta(days=90))

    ledger.append({"account": 7, "amount": "12.50"})

Declared in a module `streams` or `handlers` of an installed app, it is made by `migrate`; elsewhere `ensure()` makes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import DatabaseError

from django_pgbus.exceptions import InvalidPayloadType, InvalidStream, StreamDoesNotExist
from django_pgbus.postgres.retrying import sqlstate
from django_pgbus.streams import appending, logs, logs_sql
from django_pgbus.streams.entry import Entry
from django_pgbus.streams.log_statement import LogStatement
from django_pgbus.tasks.payload import decode_value, encode_value

LONGEST_NAME: Final = 100
MOST: Final = 10_000  # entries of one read
LARGEST_PARTITION: Final = 1 << 40  # positions
LONGEST: Final = 1e9  # seconds
_UNUSABLE: Final = re.compile(r"[^A-Za-z0-9_.:-]")


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET: Final[Any] = _Unset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A stream as the code declares it; what is UNSET, this code does not say."""

    name: str
    retention: timedelta | None = UNSET
    partition_size: int = UNSET
    by_hand: bool = field(default=True, compare=False)  # by a Stream(); else only something that reads it names it


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a group is behind: positions it has not done with, and how many seconds the oldest entry there waits."""

    entries: int
    seconds: float


# What has been declared in this process, by name.
streams: dict[str, Declared] = {}


class Stream:
    """
    A log of entries in one order, which any number of consumer groups read.

    `retention` is how long entries are kept that every group is done with, in seconds or as a timedelta, None (the
    default) for ever; it can be changed. `partition_size` is how many positions one partition holds (10,000,000);
    retention drops whole partitions. It is that of the first declaration for ever. Raises InvalidStream.
    """

    def __init__(self, name: str, *, retention: float | timedelta | None = UNSET, partition_size: int = UNSET) -> None:
        asked = Declared(
            name=check_stream_name(name),
            retention=_checked_retention(name, retention),
            partition_size=_checked_size(name, partition_size),
        )
        known = streams.get(name, asked)
        streams[name] = replace(
            asked,
            retention=_agreed(name, "retention", known.retention, asked.retention),
            partition_size=_agreed(name, "partition_size", known.partition_size, asked.partition_size),
        )
        self.name = name

    def append(self, payload: Any = None) -> int:
        """
        Append an entry in the caller's transaction, and return its position.

        Rolled back, it was never there, and its position stays empty. Raises InvalidPayload, before any SQL, and
        StreamDoesNotExist.
        """
        return appending.append(self.name, encode_value(payload, "payload", "The payload takes"))

    def append_many(self, payloads: Iterable[Any]) -> int:
        """
        Append entries in this order, all or none, and return how many. One statement; more than 1,000 by COPY.

        Raises InvalidPayload, before any SQL, and StreamDoesNotExist.
        """
        if isinstance(payloads, (str, bytes, bytearray, Mapping)):  # each can be iterated over, and nobody means that
            given = type(payloads).__name__
            raise InvalidPayloadType(
                f"append_many takes a list of payloads, not a {given}; for one entry write append(payload).",
                path="payloads",
            )
        encoded = [_encoded(index, payload) for index, payload in enumerate(payloads)]
        return appending.append_many(self.name, encoded) if encoded else 0

    def read(self, after: int = 0, limit: int = 100) -> list[Entry]:
        """
        Return the entries above a position, in order, as many as asked for, 10,000 at most.

        These are the entries that are visible now. Where a position is missing, its transaction may still run, and its
        entry appear later: a group waits for it, this does not.
        """
        _check_number("after", after, 0, 1 << 62)
        _check_number("limit", limit, 1, MOST)
        name = self.name
        rows = self._ask(logs_sql.READ, after=after, limit=limit)
        return [Entry(name, position, decode_value(text), at) for position, text, at in rows]

    def head(self) -> int:
        """Return the last position that was handed out, committed or not; 0 if none was."""
        return int(self._ask(logs_sql.HEAD)[0][0])

    def lag(self, group: str) -> Lag:
        """
        Return how far a group is behind; raises StreamDoesNotExist if there is no such group.

        It counts from the lowest position that is not done with to the head: one failed entry that waits for its next
        attempt makes all that was handled above it count. So do positions that were rolled back, until the group has
        passed them.
        """
        found = logs_sql.COMMITTED.tuples(stream=logs.find(self.name).id, group=group)
        if not found:
            raise StreamDoesNotExist(
                f"The stream {self.name!r} has no group {group!r}. A worker declares it when it starts."
            )
        ((committed,),) = found
        entries = max(0, self.head() - committed)
        oldest = self._ask(logs_sql.OLDEST_AGE, after=committed) if entries else []
        return Lag(entries=entries, seconds=max(0.0, oldest[0][0]) if oldest else 0.0)

    def ensure(self) -> bool:
        """
        Make the stream in the database unless it is there, and return whether it is new.

        Runs in the caller's transaction, if there is one; two at once do no harm.
        """
        return ensure(self.name)

    def id(self) -> int:
        """Return the id under which the database knows the stream; raises StreamDoesNotExist."""
        return logs.find(self.name).id

    async def aappend(self, payload: Any = None) -> int:
        """See append()."""
        return await sync_to_async(self.append, thread_sensitive=True)(payload)

    async def aappend_many(self, payloads: Iterable[Any]) -> int:
        """See append_many()."""
        return await sync_to_async(self.append_many, thread_sensitive=True)(payloads)

    async def aread(self, after: int = 0, limit: int = 100) -> list[Entry]:
        """See read()."""
        return await sync_to_async(self.read, thread_sensitive=True)(after, limit)

    async def ahead(self) -> int:
        """See head()."""
        return await sync_to_async(self.head, thread_sensitive=True)()

    async def alag(self, group: str) -> Lag:
        """See lag()."""
        return await sync_to_async(self.lag, thread_sensitive=True)(group)

    async def aensure(self) -> bool:
        """See ensure()."""
        return await sync_to_async(self.ensure, thread_sensitive=True)()

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"

    def _ask(self, about: LogStatement, **params: Any) -> list[tuple[Any, ...]]:
        try:
            return about.of(logs.find(self.name).id).tuples(**params)
        except DatabaseError as error:
            if sqlstate(error) != appending.NO_TABLE:
                raise
            logs.forget(self.name)
            raise logs.does_not_exist(self.name) from error


def mention(name: str) -> None:
    """Note a stream that something reads: it is made like any other, and it is known that no Stream() was written."""
    streams.setdefault(name, Declared(name=check_stream_name(name), by_hand=False))


def ensure(name: str) -> bool:
    """Make a stream, as this code declares it, unless it is there; return whether it is new. See Stream.ensure()."""
    return _ensure(streams.get(name) or Declared(name=name))


def declare() -> int:
    """
    Make the streams that this process has loaded, write the retention that the code says, and return how many are new.

    Streams that are not loaded stay as they are: they may belong to another deployable. Locks: streams.
    """
    return sum(_ensure(declared) for _, declared in sorted(streams.items()))


def declare_anew() -> int:
    """
    Do the same after `flush`, which has emptied the tables that it knows: the logs go too, and are made new.

    Locks: streams.
    """
    logs.forget()
    logs.drop_left_behind(logs.Wanted(name=name, **_options(declared)) for name, declared in streams.items())
    return declare()


def _ensure(declared: Declared) -> bool:
    options = _options(declared)
    new = logs.ensure(declared.name, **options)
    if "retention" in options and not new:
        logs.set_retention(declared.name, declared.retention)
    return new


def _options(declared: Declared) -> dict[str, Any]:
    """Return what the code says of a stream beside its name."""
    options = {"retention": declared.retention, "partition_size": declared.partition_size}
    return {name: value for name, value in options.items() if value is not UNSET}


def _encoded(index: int, payload: Any) -> str:
    place = f"payloads[{index}]"
    return encode_value(payload, place, f"{place} takes")


def _agreed(name: str, option: str, known: Any, asked: Any) -> Any:
    if asked is UNSET:
        return known
    if known is not UNSET and known != asked:
        raise InvalidStream(
            f"The stream {name!r} is declared twice, with {option}={_said(known)} and with {option}={_said(asked)}. "
            f'Write it once, and elsewhere only Stream("{name}").'
        )
    return asked


def _said(value: Any) -> str:
    return f"{value.total_seconds():g} seconds" if isinstance(value, timedelta) else repr(value)


def check_stream_name(name: object) -> str:
    """Return the name, or raise InvalidStream saying the rule and what is wrong."""
    rule = f"The name of a stream is 1 to {LONGEST_NAME} letters, digits and _ - . :"
    if not isinstance(name, str):
        raise InvalidStream(f"{rule}; it is a text, not {name!r}.")
    if not name:
        raise InvalidStream(f"{rule}; this one is empty.")
    if len(name) > LONGEST_NAME:
        raise InvalidStream(f"{rule}; {name[:20]!r}... has {len(name)}.")
    if found := _UNUSABLE.search(name):
        raise InvalidStream(f"{rule}; {name!r} contains {found[0]!r}.")
    return name


def _checked_retention(name: str, value: Any) -> Any:
    if value is None or value is UNSET:
        return value
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < LONGEST:
        raise InvalidStream(
            f"The stream {name!r}: retention is a number of seconds from 0, a timedelta, or None for ever, not {value!r}."
        )
    return timedelta(seconds=seconds)


def _checked_size(name: str, value: Any) -> Any:
    if value is UNSET:
        return value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST_PARTITION:
        raise InvalidStream(
            f"The stream {name!r}: partition_size is a whole number of positions, from 1 to 2 ** 40, not {value!r}."
        )
    return value


def _check_number(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{name} is a whole number from {low} to {high}, not {value!r}.")
