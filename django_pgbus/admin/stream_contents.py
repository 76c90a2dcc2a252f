"""
What an entry carries, as a person may read it.

Values of keys that its consumer declares as sensitive are masked, at whatever depth. Of a consumer that this process does
not know nobody can say what is sensitive: every value is masked, and only the shape is shown.
"""

from __future__ import annotations

import json

from django_pgbus.admin import words
from django_pgbus.admin.contents import MOST_CHARACTERS, pretty
from django_pgbus.admin.event_contents import shape
from django_pgbus.streams.consumers import Consumer
from django_pgbus.tasks.masking import MASK, without
from django_pgbus.tasks.sensitive import masked, secrets_in


def payload(stored: str, consumer: Consumer | None) -> str:
    """Return a payload with the values of sensitive keys masked."""
    try:
        body = json.loads(stored)
        return pretty(shape(body) if consumer is None else masked(body, consumer.sensitive))
    except (ValueError, RecursionError):
        # Nobody can say which part of it is sensitive.
        return MASK if consumer is None or consumer.sensitive else words.showable(stored, MOST_CHARACTERS)


def traceback(text: str, stored: str | None, consumer: Consumer | None) -> str:
    """Return a traceback without the sensitive values of the entry, which exceptions like to quote."""
    text = words.showable(text, MOST_CHARACTERS)
    if consumer is None or not consumer.sensitive or stored is None:  # it was scrubbed when it was recorded, too
        return text
    try:
        return without(text, secrets_in(json.loads(stored), consumer.sensitive))
    except (ValueError, RecursionError):
        return MASK
