"""How a batch stands, what becomes of its callbacks and of members that failed, in words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.contents import MOST_CHARACTERS
from django_pgbus.admin.shown import shown_path
from django_pgbus.admin.work import MOST_OF_A_DESCRIPTION
from django_pgbus.batches.stats import BatchStats, Member, Places
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Kind, Situation, Standing, Text

MOST_CALLBACKS: Final = 20  # of what a hand in psql may have written
FAR: Final = 10**9  # seconds


def standing(batch: Any) -> Standing:
    """Return how a batch stands: finished, or how many members are outstanding."""
    total, failed, outstanding = batch.stats.total, batch.stats.failed, batch.stats.outstanding
    if batch.finished_at:
        numbers = {"failed": words.count(failed), "total": words.count(total)}
        if failed:
            text = ngettext("Its only member failed.", "%(failed)s of its %(total)s members failed.", total.number)
            return Standing(kind=Kind.LOST, state=_("finished"), reason=text % numbers)
        text = ngettext("Its only member succeeded.", "All of its %(total)s members succeeded.", total.number)
        reason: Text = text % numbers if total else _("It had no members.")
        return Standing(kind=Kind.READY, state=_("finished"), reason=reason)
    if not outstanding:
        reason = _("All of its members have ended; a worker finishes it within seconds.")
        return Standing(kind=Kind.RUNNING, state=_("about to finish"), reason=reason)
    state = ngettext("%(number)s outstanding", "%(number)s outstanding", outstanding.number)
    reason = _("It is finished, and its callbacks are enqueued, when the last of its members has ended.")
    return Standing(kind=Kind.RUNNING, state=state % {"number": words.count(outstanding)}, reason=reason)


def member_standing(member: Member, situation: Situation) -> Standing:
    """Return how a member that has not ended stands."""
    row: Any = member
    match member.place:
        case "delayed":
            return waiting.later(row, situation)
        case "parked":
            return waiting.parked(row, situation)
    return waiting.in_line(row, situation)


def missing(found: BatchStats, places: Places) -> str:
    """Return how many members failed and are not among the dead letters, in words; nothing where nobody knows."""
    number = found.failed.number - places.dead.number
    if number <= 0 or found.failed.more or places.dead.more:
        return ""
    text = ngettext(
        "%(number)s failed member is not among the dead letters: it was redriven, discarded or removed since. A redriven "
        "job does not count again.",
        "%(number)s failed members are not among the dead letters: they were redriven, discarded or removed since. A "
        "redriven job does not count again.",
        number,
    )
    return text % {"number": words.number(number)}


def callbacks(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield what is enqueued when a batch ends, and whether it was."""
    try:
        stored = json.loads(batch.callbacks)
    except (ValueError, RecursionError):  # damaged by hand
        stored = {}
    known = stored.items() if isinstance(stored, dict) else ()
    for event, callback in list(known)[:MOST_CALLBACKS]:
        one = callback if isinstance(callback, dict) else {}
        later = one.get("due_in")
        when, comes = _when(str(event), batch)
        yield {
            "event": words.shortened(str(event), MOST_OF_A_DESCRIPTION),
            "task": str(one.get("task", "")),
            "path": shown_path(str(one.get("task", ""))),
            "queue": words.showable(str(one.get("queue", ""))),
            "when": when,
            "later": words.age(later) if comes and isinstance(later, (int, float)) and 0 < later < FAR else "",
        }


def _when(event: str, batch: Any) -> tuple[str, bool]:
    """Return when a callback is enqueued, or why it is not, and whether it may be."""
    match event, batch.finished_at is not None, bool(batch.stats.failed):
        case ("on_finish", True, _) | ("on_success", True, False) | ("on_failure", True, True):
            return gettext("enqueued when it finished"), True
        case ("on_success", _, True):
            return gettext("not enqueued: a member failed"), False
        case ("on_failure", True, False):
            return gettext("not enqueued: no member failed"), False
        case ("on_finish", False, _) | ("on_failure", False, True):
            return gettext("when the last member has ended"), True
        case ("on_success", False, False):
            return gettext("when the last member has ended, if none fails"), True
        case ("on_failure", False, False):
            return gettext("when the last member has ended, if any fails"), True
    return "", False


def pretty(text: str) -> str:
    """Return a JSON document, indented; one that cannot be read as it stands."""
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return words.showable(text, MOST_CHARACTERS)
