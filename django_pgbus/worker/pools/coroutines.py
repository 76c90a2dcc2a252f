"""One event loop, in a thread of its own, for async tasks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import Context
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from django_pgbus.postgres.leftovers import is_left_open
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks.executor import announce
from django_pgbus.worker.hygiene import tidy

TIDY_EVERY: Final = 1.0  # seconds, under a load that never ends


class CoroutinePool:
    """Runs async tasks side by side; `run` must not raise but when cancelled."""

    def __init__(
        self,
        run: Callable[[Any], Awaitable[None]],
        name: str,
        places: int = 0,
        running: Callable[[int, int], None] = lambda number, id: None,
        unplaced: Callable[[], None] = lambda: None,
    ) -> None:
        """`running` is told (number of a place, id) before each run, and (number, 0) after it."""
        self._run = run
        self._free = list(range(places))
        self._running = running
        self._unplaced = unplaced
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._tasks: dict[Delivery, asyncio.Task[None]] = {}
        self._stopped = False
        self.pending = 0
        self._tidied = 0.0
        self._connections: Sequence[Any] = ()  # of asgiref's thread, in which sync calls of async code run

    def put(self, delivery: Delivery, prepared: Any) -> None:
        """Start one, from any thread."""
        loop = self._started()
        with self._lock:
            self.pending += 1
            number = self._free.pop() if self._free else None
        if number is None:
            self._unplaced()
        else:
            self._running(number, delivery.id)
        loop.call_soon_threadsafe(self._begin, delivery, prepared, number)

    def cancel(self, delivery: Delivery) -> None:
        """Cancel the run of a delivery, from any thread; nothing happens if it has ended."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, delivery)

    def cancel_all(self) -> None:
        """Cancel whatever runs, from any thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel_each)

    def _cancel_each(self) -> None:
        for delivery in list(self._tasks):
            self._cancel(delivery)

    def _cancel(self, delivery: Delivery) -> None:
        if (task := self._tasks.get(delivery)) and self._loop is not None:
            # Soon: a task that is cancelled before its first step never runs, and nobody would tell its end.
            self._loop.call_soon(task.cancel)

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = f"pgbus-{self._name}-async"
                threading.Thread(target=self._go_on, args=[self._loop], name=name, daemon=True).start()
            return self._loop

    def _go_on(self, loop: asyncio.AbstractEventLoop) -> None:
        """
        Run the loop until `stop`, whatever a job does to it.

        asyncio lets SystemExit and KeyboardInterrupt of a task or a callback out of the loop. Run again, the loop gives it
        to whoever awaits that task. A job that stops the loop it runs in does not end it either.
        """
        while not self._stopped and not loop.is_closed():
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                announce("event loop of the async jobs", error)
                with contextlib.suppress(Exception):
                    tidy(idle=True)  # Who heard of it may have used the database, in this thread.

    def stop(self) -> None:
        """End the thread of the loop, from any thread; what runs there is left as it stands."""
        self._stopped = True
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _begin(self, delivery: Delivery, prepared: Any, number: int | None) -> None:
        assert self._loop is not None
        # An empty context: nothing of one job is seen by another.
        self._tasks[delivery] = self._loop.create_task(self._wrapped(delivery, prepared, number), context=Context())

    async def _wrapped(self, delivery: Delivery, prepared: Any, number: int | None) -> None:
        try:
            await self._run(prepared)
        finally:
            self._tasks.pop(delivery, None)
            if number is not None:
                self._running(number, 0)
            with self._lock:
                self.pending -= 1
                if number is not None:
                    self._free.append(number)
            now = time.monotonic()
            if not self._tasks or now - self._tidied > TIDY_EVERY or any(map(is_left_open, self._connections)):
                self._tidied = now
                # Sync ORM calls of async code run in asgiref's own thread; so must the tidying.
                with contextlib.suppress(Exception, asyncio.CancelledError):
                    await sync_to_async(self._tidy)()

    def _tidy(self) -> None:
        tidy(idle=not self._tasks)
        self._connections = connections.all()
