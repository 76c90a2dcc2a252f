"""What comes in with a request, as PostgreSQL can read it: whoever writes an address or a form by hand gets no error."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive

# Half of a surrogate pair comes from a request that names an encoding of its own.
UNREADABLE: Final = re.compile("[\x00\ud800-\udfff]")


def parsed_text(query: QueryDict, name: str, most: int | None = None) -> str:
    """Return the text that a query gives, without what PostgreSQL cannot hold; empty if it gives none."""
    return UNREADABLE.sub("", query.get(name, ""))[:most].strip()


def parsed_moment(text: str) -> datetime | None:
    """Return when something was seen, None for what is no time."""
    try:
        found = parse_datetime(text)
        # PostgreSQL knows no offset of sixteen hours.
        return found if found is None or is_naive(found) else found.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
