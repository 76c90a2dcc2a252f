"""What a handler is given."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

CORRELATION: Final = "correlation_id"
CAUSE: Final = "causation_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    One event, as one of its handlers gets it.

    `id` is the same for all handlers and in every delivery. `published_at` is the database's clock at `publish`, `attempt`
    counts the runs of this handler for this event, the present one included.
    """

    id: UUID
    topic: str
    payload: Any
    published_at: datetime
    headers: Mapping[str, Any]
    attempt: int

    @property
    def correlation_id(self) -> str:
        """Return what all events have in common that one led to, however many steps before: its id if nothing else."""
        return str(self.headers.get(CORRELATION) or self.id)


# The event whose handler runs in this context.
current: ContextVar[Event | None] = ContextVar("pgbus_current_event", default=None)
