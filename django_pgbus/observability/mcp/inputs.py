"""What tools take: each input with its bounds and what it means, checked before anything is asked."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

from pydantic import AfterValidator, Field

from django_pgbus.observability.mcp.words import Refused
from django_pgbus.postgres.keys import why_unusable
from django_pgbus.tasks.results import parsed_id

MOST_ROWS: Final = 100
MOST_OF_A_TEXT: Final = 1_000


def _storable(text: str) -> str:
    """Return a text that PostgreSQL can hold: no other is stored anywhere, and asking for one would be an error there."""
    if text and (problem := why_unusable(text)):
        raise ValueError(f"the text {problem}")
    return text


Text = Annotated[str, AfterValidator(_storable), Field(max_length=MOST_OF_A_TEXT)]
Limit = Annotated[int, Field(ge=1, le=MOST_ROWS, description="How many at most.")]
Id = Annotated[int | str, Field(description="The id of a job, as logs, results and the admin have it: 42 or '42'.")]
Before = Annotated[int | str | None, Field(description="To go on: `next` of the answer before.")]
IncludePayload = Annotated[
    bool,
    Field(
        description="Tell arguments, results, tracebacks and data too, if the server allows it. What is declared as "
        "sensitive stays masked."
    ),
]


def known_id(given: Any, what: str = "job") -> int:
    """Return the number of an id; refuses what no id looks like."""
    id = parsed_id(given)
    if id is None:
        raise Refused(f"That is no id of a {what}: ids are whole numbers from 1, as in 42.")
    return id


def before_of(given: Any) -> int:
    """Return below which id a page begins."""
    return 2**63 - 1 if given is None else known_id(given, "page; it is `next` of the answer before")


def event_id(given: str) -> UUID:
    """Return the id of an event; refuses what no such id looks like."""
    try:
        return UUID(given)
    except ValueError:
        raise Refused("That is no id of an event: they look like 0192b3f4-0000-7000-8000-0123456789ab.") from None
