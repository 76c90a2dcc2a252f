"""
A pool of threads for sync tasks; threads are made when there is work for them.

Waking a thread costs more than running a short job, and threads that all run Python only wait for each other. So a
put of short jobs wakes one thread, which runs what it finds; `nudge` wakes the next when nothing has moved since.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue

from django_pgbus.queues.message import Delivery
from django_pgbus.tasks.executor import announce
from django_pgbus.worker.hygiene import tidy


class ThreadPool:
    """
    Up to `size` threads that run deliveries from one buffer.

    `run` should not raise; what it raises is announced. What stands in the buffer has not started and can be taken back.
    """

    def __init__(
        self,
        size: int,
        run: Callable[[Delivery], None],
        name: str,
        running: Callable[[int, int], None] = lambda number, id: None,
        rested: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Make a pool without threads yet.

        `running` is told (number of the thread, id) before each run, and (number, 0) after it; `rested` is called when
        the last thread has gone idle, which is when it counts as busy no more.
        """
        self.size = size
        self.taken = 0  # how many deliveries have left the buffer; only ever rises
        self._run = run
        self._running = running
        self._rested = rested
        self._name = name
        self._buffer: deque[Delivery] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()  # one for each idle thread to be woken
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._seen = 0

    def put(self, deliveries: Iterable[Delivery], *, one_is_enough: bool = False) -> None:
        """Add to the buffer and wake threads for it: as many as there are deliveries, or one if none is awake."""
        self._buffer.extend(deliveries)
        with self._lock:
            awake = self._threads - self._idle
            wanted = 1 - awake if one_is_enough else len(self._buffer)
            for _ in range(min(wanted, self.size - awake)):
                self._wake_one()

    def nudge(self) -> bool:
        """Wake one more thread if nothing has left the buffer since the last call; return whether it is stuck."""
        if not self._buffer or self.taken != self._seen:
            self._seen = self.taken
            return False
        with self._lock:
            if self._threads - self._idle < self.size:
                self._wake_one()
        return True

    def take_back(self) -> list[Delivery]:
        """Empty the buffer and return what stood there; none of it has started."""
        back = []
        while True:
            try:
                back.append(self._buffer.popleft())
            except IndexError:
                return back

    @property
    def buffered(self) -> int:
        """Return how many deliveries wait for a thread."""
        return len(self._buffer)

    @property
    def busy(self) -> int:
        """Return how many threads run a job."""
        return self._threads - self._idle

    def _wake_one(self) -> None:
        """Wake a thread, or make one; under the lock. It counts as awake from here on."""
        if self._idle:
            self._idle -= 1
            self._calls.put(True)
        else:
            number = self._threads
            self._threads += 1
            name = f"pgbus-{self._name}-{number}"
            threading.Thread(target=self._work, args=[number], name=name, daemon=True).start()

    def _work(self, number: int) -> None:
        take, run, running = self._buffer.popleft, self._run, self._running
        while True:
            try:
                delivery = take()
            except IndexError:
                tidy(idle=True)
                with self._lock:
                    if self._buffer:  # It came while this thread tidied up.
                        continue
                    self._idle += 1
                    all_idle = self._idle == self._threads
                if all_idle:
                    self._rested()
                self._calls.get()
                continue
            self.taken += 1
            tidy(idle=False)
            running(number, delivery.id)
            try:
                run(delivery)
            except BaseException as error:  # The next delivery needs this thread, and nobody would make another.
                announce("thread of a pool", error)
            running(number, 0)
