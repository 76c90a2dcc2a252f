"""
The floors of one worker process: where its next claim begins to look.

A floor is a hint about speed, never about truth. Dead rows below it are not walked again, which is what keeps
claims fast while a snapshot is held. Who could still appear below it is found by the wake-up of the committing
producer, which names its lowest position, and by a full look once a second between base and floor. The base moves
only by proof: a mark holds floors and a transaction id taken after them; once no older transaction runs, nothing
can appear at or below those floors. (The snapshot's xmax would not do: a running producer can sit at or above it.)
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from django_pgbus.postgres.moments import moment
from django_pgbus.queues import sql
from django_pgbus.queues.message import Delivery, Level

# Overlapping short transactions whose wake-up was coalesced commit within this time; they are still seen.
SETTLE: Final = 0.050  # seconds
LOOK_LIMIT: Final = 5000  # rows per level in POLL
MARKS: Final = 8
LAPSED, LEASED, FREE = 2, 1, 0


@dataclass(slots=True)
class Floor:
    """Base and floor of one level."""

    base: int = 0
    floor: int = 0
    claimed: deque[tuple[float, int]] = field(default_factory=deque)

    def note_claimed(self, began: float, position: int) -> None:
        """Remember how far a claim got."""
        if not self.claimed or position > self.claimed[-1][1]:
            self.claimed.append((began, position))

    def rise(self, began: float, seen: float) -> None:
        """
        Let the floor rise after a claim that began then, from this floor, and looked at everything up to `seen`.

        It rises to what was claimed well before: what stood below and was committed by then has just been taken.
        """
        while self.claimed and self.claimed[0][0] <= began - SETTLE and self.claimed[0][1] <= seen:
            self.floor = max(self.floor, self.claimed.popleft()[1])

    def lower(self, below: int) -> None:
        """Look again from `below` on; one that is above the floor is seen by the next claim anyway."""
        self.floor = min(self.floor, below)

    def reach(self) -> int:
        """Return the highest position that claims of this worker will pass over."""
        return max(self.floor, self.claimed[-1][1]) if self.claimed else self.floor


@dataclass(slots=True)
class Polled:
    """What a poll found."""

    levels: dict[Level, bool]  # paused?
    paused: set[str]  # queues, also those in whose levels nothing ever stood
    due_in: dict[str, float]  # seconds until the next delayed message, per queue
    lapsed: list[int]
    free: set[Level]  # where something stands that can be claimed
    looked: bool = False  # at all levels: what is not in `free` is empty


class Line:
    """The line as one worker process sees it; used by one thread."""

    def __init__(self) -> None:
        self.floors: dict[Level, Floor] = {}
        self._marks: deque[tuple[dict[Level, int], int]] = deque()
        self._held: dict[int, Level] = {}
        self._last_position = 0
        self._marked: dict[Level, int] = {}
        self._next_look = 0.0

    def forget(self) -> None:
        """Start from zero: after a reconnect nothing that was concluded before holds."""
        self.__init__()  # type: ignore[misc]

    def lower(self, level: Level, position: int) -> None:
        """Take note that `position` may have appeared below the floor; never while a claim is in flight."""
        if floor := self.floors.get(level):
            floor.lower(position - 1)
            floor.base = min(floor.base, position - 1)

    def claim(self, levels: Sequence[Level], limit: int, worker: UUID, lease: float) -> list[Delivery]:
        """Claim up to `limit` messages, in the order of the levels, then of the line. Locks: messages (skipping)."""
        began = time.monotonic()
        floors = [self.floors.setdefault(level, Floor()).floor for level in levels]
        rows = sql.CLAIM.tuples(
            queues=[level.queue for level in levels],
            priorities=[level.priority for level in levels],
            suspects=[level.suspect for level in levels],
            floors=floors,
            limit=limit,
            worker=worker,
            lease=f"{lease} seconds",
        )
        names = {level: level for level in levels}
        claimed = []
        for row in rows:
            (
                position,
                id,
                queue,
                priority,
                suspect,
                delivery,
                attempts,
                task,
                backend,
                payload,
                errors,
                at,
                constraints,
                batch,
                event,
                topic,
                waited,
            ) = row
            level = names[(queue, priority, suspect)]  # type: ignore[index]
            self.floors[level].note_claimed(began, position)
            claimed.append(
                Delivery(
                    position=position,
                    id=id,
                    level=level,
                    delivery=delivery,
                    attempts=attempts,
                    task=task,
                    backend=backend,
                    payload=payload,
                    errors=errors,
                    enqueued_at=moment(at),
                    confirmed_at=began,
                    lease=lease,
                    constraints=constraints,
                    batch=batch,
                    event=event,
                    topic=topic,
                    ready_at=began - waited,
                    started=suspect,
                )
            )
        if len(claimed) > 1:
            rank = {level: n for n, level in enumerate(levels)}
            claimed.sort(key=lambda d: (rank[d.level], d.position))  # RETURNING comes in the order of pages.
        # One that stopped at its limit has seen its last level up to there, and nothing of those behind.
        last = claimed[-1] if len(claimed) >= limit else None
        for level in levels:
            if last is not None and level == last.level:
                self.floors[level].rise(began, last.position)
                break
            self.floors[level].rise(began, float("inf"))
        return claimed

    def poll(self, levels: Sequence[Level], queues: Sequence[str], lease: float) -> Polled:
        """Look around, in one statement; the full look is part of it when its time has come."""
        began = time.monotonic()
        looking = began >= self._next_look
        looked = list(levels) if looking else []
        for level in looked:
            self.floors.setdefault(level, Floor())
        reached = {level: self.floors[level].reach() for level in looked}
        mark = looking and reached != self._marked and len(self._marks) < MARKS
        rows = sql.POLL.tuples(
            mark=mark,
            queues=list(queues),
            level_queues=[level.queue for level in looked],
            priorities=[level.priority for level in looked],
            suspects=[level.suspect for level in looked],
            bases=[self.floors[level].base for level in looked],
            floors=[reached[level] for level in looked],
            held=list(self._held),
            lease=f"{lease} seconds",
        )
        polled = self._read(rows, looked, reached, mark)
        if looking:
            polled.looked = True
            took = time.monotonic() - began
            # At most a twentieth of the time goes into looks.
            self._next_look = time.monotonic() + max(0.95, 20 * took) * random.uniform(0.95, 1.05)  # noqa: S311
        return polled

    def look_soon(self) -> None:
        """Make the next poll a full look."""
        self._next_look = 0.0

    def _read(self, rows: list[Any], looked: list[Level], reached: dict[Level, int], mark: bool) -> Polled:  # noqa: FBT001
        polled = Polled({}, set(), {}, [], set())
        below: dict[Level, list[tuple[int, int, int]]] = {level: [] for level in looked}
        still_held: dict[int, Level] = {}
        xmin, xid, last_position = 0, None, self._last_position
        for kind, queue, priority, suspect, id, position, number in rows:
            match kind:
                case "snapshot":
                    xmin, xid, last_position = id, position, int(number)
                case "level":
                    polled.levels[Level(queue, priority, suspect)] = bool(number)
                case "paused":
                    polled.paused.add(queue)
                case "due":
                    polled.due_in[queue] = min(number, polled.due_in.get(queue, number))
                case "below":
                    below[Level(queue, priority, suspect)].append((position, id, int(number)))
                case "above":
                    if number == LAPSED:
                        polled.lapsed.append(id)
                    else:  # free, or so many leased that the rest was not read
                        polled.free.add(Level(queue, priority, suspect))
                case "held":
                    level = Level(queue, priority, suspect)
                    if number != FREE:
                        still_held[id] = level
                    if number == LAPSED:
                        polled.lapsed.append(id)
        if self._held:
            self._held = still_held
        proven = self._proven(xmin) if looked else {}  # What a poll could prove is kept for the next look.
        for level, live in below.items():
            floor = self.floors[level]
            base = min(proven.get(level, floor.base), reached[level])
            if len(live) >= LOOK_LIMIT:
                base = min(base, live[-1][0])
            floor.base = max(floor.base, base)
            for position, id, state in live:
                if state == LAPSED:
                    polled.lapsed.append(id)
                if state != FREE and position <= floor.base:
                    self._held[id] = level  # A lapsed one too: its release passes over a row that is locked.
                elif state == FREE:
                    floor.lower(position - 1)
                    floor.base = min(floor.base, position - 1)
                    polled.free.add(level)
            # Nothing free above: what others finished need not be walked. The sequence is read a poll earlier, so
            # that what was committed meanwhile is not passed over.
            if level not in polled.free:
                floor.floor = max(floor.floor, self._last_position)
        if looked:
            self._last_position = last_position
        if mark and xid is not None:
            self._marks.append((reached, xid))
            self._marked = reached
        return polled

    def _proven(self, xmin: int) -> dict[Level, int]:
        """Return the floors of the newest mark whose older transactions have all ended."""
        proven: dict[Level, int] = {}
        while self._marks and self._marks[0][1] <= xmin:
            proven = self._marks.popleft()[0]
        return proven
