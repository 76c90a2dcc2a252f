"""
What sends in the chaos: jobs of all kinds, each noted as sent in the transaction that enqueues it.

So what is noted was committed, and what was committed is noted, whatever became of a reply.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Final

from django.db import connection, transaction

from django_pgbus import Batch, publish_many
from tests.chaos import events, tasks
from tests.chaos.tables import SENT
from tests.storm import batches, event_handlers
from tests.storm.sending import Sender

QUEUES: Final = ("default", "mail", "reports")
LIMITED: Final = 6  # keys of each limit
ONLY: Final = 12  # uniqueness keys of each kind
# How often each kind is sent, of all transactions.
KINDS: Final[dict[str, int]] = {
    "plain": 20,
    "async": 6,
    "unique": 10,
    "alone": 8,
    "limited": 18,
    "limited_unique": 6,
    "limited_once": 4,
    "delayed": 8,
    "transactional": 10,
    "failing": 4,
    "always": 2,
    "slow": 1,
    "poison": 0,  # as many as the plan says, not by chance
    "snoozing": 4,
    "batch": 2,
    "rolled_back": 6,
    "old_new": 3,
    "events": 8,
    "streams": 0,  # by producers of their own
}
AGAIN: Final = 0.15  # of the events are published once more


class Undone(Exception):
    """The caller's transaction is rolled back."""


class Producer(Sender):
    """One that enqueues; ids that were rolled back stand in `undone`."""

    def __init__(
        self, number: int, seed: int, settings: dict[str, Any], pace: Callable[[], float], kinds: Iterable[str]
    ) -> None:
        wanted = {getattr(self, f"send_{kind}"): KINDS[kind] for kind in kinds if KINDS.get(kind)}
        super().__init__(number, seed, settings, wanted or {self.nothing: 1}, pace)
        self.undone: list[int] = []
        self._events: list[uuid.UUID] = []

    def _seconds(self, low: float = 0.0, high: float = 0.04) -> float:
        return self.random.uniform(low, high)

    def _limit(self, kind: str) -> str:
        return f"limit-{kind}-{self.random.randrange(LIMITED)}"

    def _only(self, kind: str) -> str:
        return f"only-{kind}-{self.random.randrange(ONLY)}"

    def _send(self, kind: str, task: Any, *arguments: Any, key: str | None = None, batch: int | None = None) -> int:
        """Enqueue and note it, in one transaction."""
        with transaction.atomic():
            id = int(task.enqueue(*arguments).id)
            with connection.cursor() as cursor:
                cursor.execute(SENT, [kind, key, batch, [id]])
        self.tried[kind] += 1
        return id

    def nothing(self) -> None:
        self.stopping.wait(0.2)

    def send_plain(self) -> None:
        queue, priority = self.random.choice(QUEUES), self.random.choice((0, 0, 0, 7))
        task = tasks.plain.using(queue_name=queue, priority=priority)
        with transaction.atomic():
            for _ in range(self.random.randint(1, 4)):
                self._send("plain", task, self._seconds())

    def send_async(self) -> None:
        self._send("async", tasks.awaits, self._seconds(0.0, 0.3))

    def send_unique(self) -> None:
        only = self._only("once")
        self._send("unique", tasks.once, only, self._seconds(), key=only)

    def send_alone(self) -> None:
        self._send("alone", tasks.alone, self._only("alone"), self._seconds(0.0, 0.1))

    def send_limited(self) -> None:
        task = self.random.choice((tasks.one, tasks.two, tasks.three))
        for _ in range(self.random.randint(1, 3)):
            self._send("limited", task, self._limit(task.func.__name__), self._seconds(0.0, 0.1))

    def send_limited_unique(self) -> None:
        self._send("limited_unique", tasks.two_alone, self._limit("2u"), self._only("2u"), self._seconds(0.0, 0.1))

    def send_limited_once(self) -> None:
        only = self._only("1o")
        self._send("limited_once", tasks.one_once, self._limit("1o"), only, self._seconds(0.0, 0.05), key=only)

    def send_delayed(self) -> None:
        later = timedelta(seconds=self.random.uniform(0.1, 4))
        self._send("delayed", tasks.delayed.using(run_after=later), self._seconds())

    def send_transactional(self) -> None:
        self._send("transactional", tasks.transactional, self._seconds(0.0, 0.1))

    def send_failing(self) -> None:
        self._send("failing", tasks.failing, self.random.randint(1, 3), self._seconds())

    def send_always(self) -> None:
        self._send("always", tasks.always, self._seconds())

    def send_slow(self) -> None:
        self._send("slow", tasks.slow.using(queue_name="reports"), self.random.uniform(5, 7))

    def send_poison(self) -> None:
        self._send("poison", tasks.poison, self.random.choice(("exit", "kill")))

    def send_snoozing(self) -> None:
        self._send("snoozing", tasks.snoozing, self._seconds())

    def send_old_new(self) -> None:
        self._send("old_new", self.random.choice((tasks.old, tasks.new)), self._seconds())

    def send_batch(self) -> None:
        with Batch(f"of {self.name}", **batches.CALLBACKS) as batch:
            for _ in range(self.random.randint(2, 12)):
                self._send("batch", tasks.in_batch, self._seconds(), batch=batch.id)
            if self.random.random() < 0.3:
                self._send("batch_dies", tasks.in_batch_dies, self._seconds(), batch=batch.id)

    def send_events(self) -> None:
        """Publish some, of which some were published before."""
        ids = [uuid.UUID(int=self.random.getrandbits(128), version=4) for _ in range(self.random.randint(1, 4))]
        if self._events and self.random.random() < AGAIN * len(ids):
            ids.append(self.random.choice(self._events))
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(events.PUBLISHED, [ids])
                publications = [row[0] for row in cursor.fetchall()]
            bodies = [{"seconds": self._seconds(), "publication": publication} for publication in publications]
            publish_many([(event_handlers.TOPIC, body) for body in bodies], event_ids=ids)
        self._events = [*self._events[-50:], *ids]
        self.tried["events"] += len(ids)

    def send_rolled_back(self) -> None:
        """Enqueue in a caller's transaction that ends in nothing."""
        ids = []
        try:
            with transaction.atomic():
                ids.append(self._send("rolled_back", tasks.plain, 0.0))
                only = self._only("once")
                ids.append(self._send("rolled_back", tasks.once, only, 0.0, key=only))
                ids.append(self._send("rolled_back", tasks.one, self._limit("one"), 0.0))
                raise Undone
        except Undone:
            # A discarded one has the id of its holder, which somebody else sent.
            self.undone += [ids[0], ids[2]]
