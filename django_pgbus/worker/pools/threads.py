"""A pool of threads for sync tasks; threads are made when there is work for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from django_pgbus.queues.message import Delivery
from django_pgbus.worker.hygiene import tidy

_STOP: Any = object()


class ThreadPool:
    """
    Up to `size` threads that run deliveries from one buffer.

    `run` must not raise. What stands in the buffer has not started and can be taken back.
    """

    def __init__(self, size: int, run: Callable[[Delivery], None], name: str) -> None:
        self.size = size
        self._run = run
        self._name = name
        self._buffer: SimpleQueue[Delivery] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._idle = 0
        self.taken = 0  # how many deliveries have left the buffer; only ever rises

    def put(self, deliveries: Iterable[Delivery]) -> None:
        """Add to the buffer, and start threads if those there are busy."""
        for delivery in deliveries:
            self._buffer.put(delivery)
        with self._lock:
            missing = min(self._buffer.qsize() - self._idle, self.size - len(self._threads))
            for _ in range(missing):
                thread = threading.Thread(
                    target=self._work, name=f"pgbus-{self._name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def take_back(self) -> list[Delivery]:
        """Empty the buffer and return what stood there; none of it has started."""
        back = []
        while True:
            try:
                delivery = self._buffer.get_nowait()
            except Empty:
                return back
            if delivery is not _STOP:
                back.append(delivery)

    @property
    def buffered(self) -> int:
        """Return how many deliveries wait for a thread."""
        return self._buffer.qsize()

    @property
    def busy(self) -> int:
        """Return how many threads run a job."""
        return len(self._threads) - self._idle

    def stop(self) -> None:
        """Let the threads end once the buffer is empty."""
        for _ in self._threads:
            self._buffer.put(_STOP)

    def _work(self) -> None:
        get, get_now, run = self._buffer.get, self._buffer.get_nowait, self._run
        while True:
            try:
                delivery = get_now()
            except Empty:
                tidy(idle=True)
                with self._lock:
                    self._idle += 1
                delivery = get()
                with self._lock:
                    self._idle -= 1
            if delivery is _STOP:
                tidy(idle=True)
                return
            self.taken += 1
            tidy(idle=False)
            run(delivery)
