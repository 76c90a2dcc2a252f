"""
What a worker is told: which queues with how many threads, when to stop, where its tables are.

    default,mail: 10; critical: 5       two capsules; each has threads of its own
    *                                   every queue of tasks, with the default number of threads
    *, @*                               every queue of tasks and of events, taking turns
    mail_*, *, !reports: 20             queues of one prefix first, then all others but one

A capsule looks into its queues in the order they are declared here; what one pattern matches takes turns, and so do `*`
and `@*` where they stand side by side. A queue whose name begins with @ holds events: `*` does not match it. Capsules
know nothing of each other: a queue that two of them match is served by both.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from django_pgbus.conf import ANY_EVENT_QUEUE, EVENT_QUEUE, database, get_settings
from django_pgbus.conf import ANY_QUEUE as ANY
from django_pgbus.queues.queue import check_name

MAX_THREADS: Final = 1000
LEAST: Final = {"lease": 0.1, "beat": 0.01, "poll": 0.01, "grace": 0, "max_jobs": 1, "max_memory": 1, "max_age": 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Capsule:
    """Threads of their own for the queues that match."""

    queues: tuple[str, ...]
    threads: int
    excluded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.queues:
            raise ValueError("A capsule names no queue to work on; write '*' for every queue.")
        if not 1 <= self.threads <= MAX_THREADS:
            raise ValueError(f"A capsule has 1 to {MAX_THREADS} threads, not {self.threads}.")

    def __str__(self) -> str:
        return f"{','.join([*self.queues, *(f'!{pattern}' for pattern in self.excluded)])}: {self.threads}"

    def place(self, queue: str) -> int | None:
        """Return where `queue` stands in the declared order, or None if this capsule leaves it alone."""
        if any(_matches(pattern, queue) for pattern in self.excluded):
            return None
        place = next((place for place, pattern in enumerate(self.queues) if _matches(pattern, queue)), None)
        if place and {self.queues[place], self.queues[place - 1]} == {ANY, ANY_EVENT_QUEUE}:
            return place - 1
        return place

    def serves(self, queue: str) -> bool:
        """Return whether this capsule works on `queue`."""
        return self.place(queue) is not None

    def choose(self, known: Iterable[str]) -> list[str]:
        """Return the queues among `known` that this capsule works on, in declared order, then by name."""
        places = ((self.place(queue), queue) for queue in set(known))
        return [queue for _, queue in sorted((place, queue) for place, queue in places if place is not None)]

    @property
    def names(self) -> list[str]:
        """Return the queues named in full, which need not exist yet."""
        return [queue for queue in self.queues if not queue.endswith(ANY) and self.serves(queue)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """What one worker process does. Times in seconds, memory in bytes; it crosses a pipe, so all of it pickles."""

    capsules: tuple[Capsule, ...]
    database: str
    lease: float
    beat: float
    poll: float
    grace: float
    burst: bool = False
    reload: bool = False
    max_jobs: int | None = None
    max_memory: int | None = None
    max_age: float | None = None
    log_level: int | None = None
    streams: tuple[str, ...] = ()  # patterns of STREAM/GROUP
    declares: bool = True  # writes the subscriptions of its code when it starts

    def __post_init__(self) -> None:
        for name, low in LEAST.items():
            value = getattr(self, name)
            if value is not None and not low <= value < math.inf:
                raise ValueError(f"{name.replace('_', ' ')} must be a number from {low:g} on, not {value!r}.")
        if not self.capsules and not self.streams:
            raise ValueError("A worker needs at least one queue; write '*' for every queue.")
        if self.burst and self.reload:
            raise ValueError("A worker that ends when its queues are empty cannot reload: drop --burst or --reload.")
        if self.beat > self.lease / 3 + 1e-9:
            raise ValueError(f"A beat of {self.beat:g} s is more than a third of the lease ({self.lease:g} s).")

    @property
    def threads(self) -> int:
        """Return how many jobs this process runs at once."""
        return sum(capsule.threads for capsule in self.capsules)

    @property
    def queues_text(self) -> str:
        """Return the queues as a person would write them; `parse_queues` reads it back."""
        return "; ".join(str(capsule) for capsule in self.capsules)

    def follows(self, name: str) -> bool:
        """Return whether this process handles the group `name`, which is STREAM/GROUP."""
        return any(fnmatchcase(name, pattern) for pattern in self.streams)

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Return the patterns of streams that match none of these groups, as a person writes them; `*` may match none."""
        return [
            pattern.removesuffix(f"/{ANY}")
            for pattern in self.streams
            if pattern not in {ANY, f"{ANY}/{ANY}"} and not any(fnmatchcase(name, pattern) for name in names)
        ]

    def serves(self, queue: str) -> bool:
        """Return whether any capsule works on `queue`."""
        return any(capsule.serves(queue) for capsule in self.capsules)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """What one `runworker` does: N processes of one plan, and how people see it."""

    process: ProcessPlan
    name: str
    processes: int = 1
    health: tuple[str, int] | None = None  # host and port

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ValueError(f"A worker has at least one process, not {self.processes}.")
        if self.process.reload and self.processes > 1:
            raise ValueError("A worker that reloads runs in one process: drop --processes or --reload.")
        if not 0 < len(self.name) < 64:
            raise ValueError("The name of a worker has 1 to 63 characters.")


def make_plan(
    *,
    queues: str | None = None,
    events: bool = False,
    streams: str | None = None,
    excluded: str | None = None,
    threads: int | None = None,
    processes: int | None = None,
    name: str | None = None,
    poll: float | None = None,
    grace: float | None = None,
    health: tuple[str, int] | None = None,
    burst: bool = False,
    reload: bool = False,
    max_jobs: int | None = None,
    max_memory: int | None = None,
    max_age: float | None = None,
    log_level: int | None = None,
) -> WorkerPlan:
    """
    Return a plan: what is given, and the settings for the rest. Raises ValueError with a sentence.

    `events` adds a group for all queues of events to those that `queues` names; with none named it is the only one. Where
    queues are named, streams are followed only if `streams` names them too; and where only streams are named, no queue is
    worked on.
    """
    settings = get_settings()
    streams_alone = streams is not None and queues is None and not events
    if events:
        queues = ANY_EVENT_QUEUE if queues is None else f"{queues}; {ANY_EVENT_QUEUE}"
    if streams is None:
        streams = settings.STREAMS if queues is None else ""
    elif not any(_names(streams)):
        raise ValueError("--streams names no group; write ledger/totals, ledger, or '*'.")
    if health is None and settings.HEALTH_PORT is not None:
        health = ("", settings.HEALTH_PORT)
    process = ProcessPlan(
        capsules=()
        if streams_alone
        else parse_queues(
            settings.QUEUES if queues is None else queues,
            threads=settings.THREADS if threads is None else threads,
            excluded=excluded or "",
        ),
        streams=parse_streams(streams),
        database=database(),
        lease=settings.VISIBILITY_TIMEOUT,
        beat=settings.beat_interval,
        poll=settings.POLL_INTERVAL if poll is None else poll,
        grace=settings.SHUTDOWN_GRACE if grace is None else grace,
        burst=burst,
        reload=reload,
        max_jobs=max_jobs,
        max_memory=max_memory,
        max_age=max_age,
        log_level=log_level,
    )
    if processes is None:
        processes = 1 if reload else settings.PROCESSES
    return WorkerPlan(process=process, name=name or socket.gethostname()[:63], processes=processes, health=health)


def parse_queues(text: str, *, threads: int, excluded: str = "") -> tuple[Capsule, ...]:
    """
    Return the capsules that `text` declares; `excluded` is left out of each.

    `threads` is the number for capsules that name none. Raises ValueError with a sentence.
    """
    leave = tuple(_pattern(name) for name in _names(excluded))
    capsules = []
    for part in text.split(";"):
        if not part.strip():
            continue
        names, colon, number = part.partition(":")
        queues: list[str] = []
        without = list(leave)
        for name in _names(names):
            chosen = without if name.startswith("!") else queues
            pattern = _pattern(name.removeprefix("!"))
            if pattern in chosen and chosen is queues:
                raise ValueError(f"Queue {pattern!r} stands twice in {part.strip()!r}.")
            chosen.append(pattern)
        if not queues:
            raise ValueError(f"{part.strip()!r} names no queue to work on; write '*' for every queue.")
        capsules.append(
            Capsule(
                queues=tuple(queues),
                threads=_threads(number, part) if colon else threads,
                excluded=tuple(dict.fromkeys(without)),
            )
        )
    if not capsules:
        raise ValueError("No queue is named; write '*' for every queue.")
    for capsule in capsules:
        if any(all(_covers(out, pattern) for pattern in capsule.queues) for out in capsule.excluded):
            raise ValueError(f"{str(capsule)!r} leaves out every queue it names.")
    return tuple(capsules)


def parse_streams(text: str) -> tuple[str, ...]:
    """Return patterns of STREAM/GROUP; a name alone is all groups of that stream. Raises ValueError with a sentence."""
    patterns = []
    for name in _names(text):
        stream, slash, group = name.partition("/")
        if not stream or (slash and not group) or "/" in group:
            raise ValueError(f"{name!r} is no group of a stream; write ledger/totals, or ledger for all its groups.")
        patterns.append(f"{stream}/{group or ANY}")
    return tuple(patterns)


def _names(text: str) -> Iterator[str]:
    return (name for raw in text.split(",") if (name := raw.strip()))


def _pattern(name: str) -> str:
    if ANY in name[:-1]:
        raise ValueError(f"{name!r} has a star in the middle; a star stands for the rest of a name, at its end.")
    if name.removeprefix(EVENT_QUEUE) != ANY:
        plain = check_name(name.removeprefix(EVENT_QUEUE).removesuffix(ANY))
        if plain.startswith(EVENT_QUEUE):
            raise ValueError(f"{name!r} begins with more than one {EVENT_QUEUE}.")
    return name


def _threads(number: str, part: str) -> int:
    digits = number.strip()
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{part.strip()!r}: after the colon stands a number of threads, not {digits!r}.")
    return int(digits)


def _matches(pattern: str, queue: str) -> bool:
    if pattern == ANY:
        return not queue.startswith(EVENT_QUEUE)
    return queue.startswith(pattern[:-1]) if pattern.endswith(ANY) else queue == pattern


def _covers(out: str, pattern: str) -> bool:
    """Return whether `out` matches everything that `pattern` matches."""
    if pattern.endswith(ANY):
        if out == ANY:
            return not pattern.startswith(EVENT_QUEUE)
        return out.endswith(ANY) and pattern[:-1].startswith(out[:-1])
    return _matches(out, pattern)
