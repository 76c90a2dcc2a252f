"""A thread that sends again and again, whatever becomes of the database meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
from django.db import DatabaseError, connections
from django.db.utils import load_backend


class Sender(threading.Thread):
    """One of those that send, until it is asked to stop; `kinds` are what it may send, with their weights."""

    def __init__(
        self,
        number: int,
        seed: int,
        settings: dict[str, Any],
        kinds: dict[Callable[[], None], int],
        pace: Callable[[], float],
    ) -> None:
        super().__init__(name=f"producer-{number}", daemon=True)
        self.random = random.Random(f"{seed}/{number}")
        self.stopping = threading.Event()
        self.tried: Counter[str] = Counter()
        self.lost_connections = 0
        self.failed: BaseException | None = None
        self._settings, self._pace = settings, pace
        self._kinds, self._weights = list(kinds), list(kinds.values())

    def run(self) -> None:
        """Send."""
        settings = self._settings  # those of this thread
        connections["default"] = load_backend(settings["ENGINE"]).DatabaseWrapper(settings, "default")
        try:
            while not self.stopping.is_set():
                (kind,) = self.random.choices(self._kinds, self._weights)
                try:
                    kind()
                except (DatabaseError, psycopg.Error) as error:
                    if not _is_away(error):
                        raise
                    self.lost_connections += 1
                    self.forget_connections()
                    time.sleep(0.2)
                time.sleep(self.random.uniform(0, 2) * self._pace())
        except BaseException as error:  # It is told in the end.
            self.failed = error
        finally:
            self.forget_connections()

    def forget_connections(self) -> None:
        """Drop what may be broken."""
        connections.close_all()


def _is_away(error: BaseException) -> bool:
    cause = error if isinstance(error, psycopg.Error) else error.__cause__
    return isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError)) or "closed" in str(error)
