"""How a job stands, in words: of one that has not ended as `worker/waiting.py` says it to everybody."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django_pgbus.observability.mcp import words
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

ENDED: Final = {
    "succeeded": "It ran, and succeeded.",
    "discarded": "A person or its own policy discarded it: it never runs again.",
    "skipped": "Another delivery of its event was handled, so this one was not run.",
}
DIED: Final = {
    "exhausted": "It failed in its last attempt: it runs again only if a person redrives it.",
    "gave_up": "It gave up before its last attempt: it runs again only if a person redrives it.",
}


class Stands(NamedTuple):
    """How it stands in a word or two, why in a sentence, and the command that mends it, if one does."""

    state: str
    reason: str
    command: str = ""


def standing(job: Any, situation: Situation) -> Stands:
    """Return how a job stands, wherever it is."""
    found = waiting.standing(job, situation)
    if job.state == "dead":
        reason = DIED.get(job.reason, words.name(job.reason))
    elif job.state in ENDED:
        reason = _noted(job)
    else:
        reason = words.text_of(str(found.reason))
    return Stands(str(found.state), reason, words.text_of(found.command))


def _noted(job: Any) -> str:
    note = words.name(job.reason) if job.state == "discarded" else ""
    return f"{ENDED.get(job.state, '')} {note}".strip()
