"""What a handler is given."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID


def new_id() -> UUID:
    """Return a UUID of version 7: ids that follow one another are neighbours in an index (RFC 9562, 5.7)."""
    if (make := getattr(uuid, "uuid7", None)) is not None:  # Python 3.14
        return make()  # type: ignore[no-any-return]
    value = (time.time_ns() // 1_000_000 & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(os.urandom(10))
    return UUID(int=value & ~(0xF << 76) & ~(0b11 << 62) | 0x7 << 76 | 0b10 << 62)


CORRELATION: Final = "correlation_id"
CAUSE: Final = "causation_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """
    One event, as one of its handlers gets it.

    `id` is the same for all handlers and in every delivery. `published_at` is the database's clock at `publish`, `attempt`
    counts the runs of this copy that count, the present one included. The defaults are for those who
    call a handler themselves, as in `audit(Event(topic="orders.created", payload={"order": 42}))`. Payload and headers do
    not appear in its repr, which ends up in logs.
    """

    topic: str
    payload: Any = field(default=None, repr=False)
    id: UUID = field(default_factory=new_id)
    published_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    attempt: int = 1

    @property
    def correlation_id(self) -> str:
        """Return what all events have in common that one led to, however many steps before: its id if nothing else."""
        return str(self.headers.get(CORRELATION) or self.id)


# The event whose handler runs in this context.
current: ContextVar[Event | None] = ContextVar("pgbus_current_event", default=None)
