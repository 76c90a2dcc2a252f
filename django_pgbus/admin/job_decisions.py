"""What may be decided about jobs that are not done with: run now, hand back, discard."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from django.contrib import messages
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.decisions import Decision, Done
from django_pgbus.tasks import lifecycle

# --- run now ------------------------------------------------------------------------------------------


def _run_now(ids: Sequence[int], seen: datetime | None) -> list[Done]:
    outcome = lifecycle.run_now(ids)
    return [
        Done(outcome.in_line, gettext("Run now."), _in_line),
        Done(outcome.parked, gettext("Run now."), _asks, messages.INFO, "parked"),
        Done(outcome.left, "", _had_no_time, messages.WARNING),
    ]


def _in_line(number: int) -> str:
    text = ngettext(
        "%(number)s job stands in the line now.",
        "%(number)s jobs stand in the line now.",
        number,
    )
    return text % {"number": words.number(number)}


def _asks(number: int) -> str:
    text = ngettext(
        "%(number)s job does not wait for its time any more, and is let in when there is room.",
        "%(number)s jobs do not wait for their time any more, and are let in when there is room.",
        number,
    )
    return text % {"number": words.number(number)}


def _had_no_time(number: int) -> str:
    text = ngettext(
        "%(number)s job was not waiting for its time and was not touched.",
        "%(number)s jobs were not waiting for their time and were not touched.",
        number,
    )
    return text % {"number": words.number(number)}


RUN_NOW: Final = Decision(
    name="run_now",
    permission="pgbus.run_job_now",
    label=_("Run now"),
    action=_("Run selected %(verbose_name_plural)s now"),
    question=lambda n: ngettext("Run %(number)s job now?", "Run %(number)s jobs now?", n) % {"number": words.number(n)},
    button=lambda n: ngettext("Run %(number)s job now", "Run %(number)s jobs now", n) % {"number": words.number(n)},
    warning=_(
        "The job does not wait for its time any more: it goes to the end of the line of its queue, as if it were due. Its "
        "attempts and its history stay as they are, and limits hold: one that finds no slot waits for one. In a paused "
        "queue it waits until the queue is resumed."
    ),
    carry_out=_run_now,
    fits=lambda row: getattr(row, "due_at", None) is not None,
)

# --- hand back ----------------------------------------------------------------------------------------


def _hand_back(ids: Sequence[int], seen: datetime | None) -> list[Done]:
    returned = frozenset(lifecycle.hand_back_running(ids, seen))
    return [
        Done(returned, gettext("Handed back while it ran."), _handed_back),
        Done(frozenset(ids) - returned, "", _did_not_run, messages.WARNING),
    ]


def _handed_back(number: int) -> str:
    text = ngettext(
        "%(number)s job was taken from its worker and stands in the line again.",
        "%(number)s jobs were taken from their workers and stand in the line again.",
        number,
    )
    return text % {"number": words.number(number)}


def _did_not_run(number: int) -> str:
    text = ngettext(
        "%(number)s job was not touched: it was not running, had been claimed anew, or is being discarded.",
        "%(number)s jobs were not touched: they were not running, had been claimed anew, or are being discarded.",
        number,
    )
    return text % {"number": words.number(number)}


def _runs(row: Any) -> bool:
    return getattr(row, "leased_until", None) is not None and not row.discard_requested


HAND_BACK: Final = Decision(
    name="hand_back",
    permission="pgbus.hand_back_job",
    label=_("Hand back"),
    action=_("Hand back selected %(verbose_name_plural)s"),
    question=lambda n: (
        ngettext("Hand back %(number)s running job?", "Hand back %(number)s running jobs?", n)
        % {"number": words.number(n)}
    ),
    button=lambda n: ngettext("Hand back %(number)s job", "Hand back %(number)s jobs", n) % {"number": words.number(n)},
    warning=_(
        "The job is taken from its worker and goes back into the line; no attempt is counted. The run that is under way "
        "can store nothing any more, but it is not stopped at once: it may go on beside the new run until its worker hears "
        "of it with its next beat, and longer where it cannot be interrupted. What it does outside of the database is done "
        "twice then. If it ends before it is taken away, it has ended and nothing is changed."
    ),
    carry_out=_hand_back,
    destroys=True,
    fits=_runs,
)

# --- discard ------------------------------------------------------------------------------------------


def _discard(ids: Sequence[int], seen: datetime | None) -> list[Done]:
    outcome = lifecycle.discard(ids)
    return [
        Done(outcome.settled, gettext("Discarded."), _discarded),
        Done(outcome.marked, gettext("Discard requested while it ran."), _marked, messages.INFO),
        Done(outcome.gone, "", _left, messages.WARNING),
    ]


def _discarded(number: int) -> str:
    text = ngettext("%(number)s job was discarded.", "%(number)s jobs were discarded.", number)
    return text % {"number": words.number(number)}


def _marked(number: int) -> str:
    text = ngettext(
        "%(number)s job is running: its worker is told with its next beat.",
        "%(number)s jobs are running: their workers are told with their next beat.",
        number,
    )
    return text % {"number": words.number(number)}


def _left(number: int) -> str:
    text = ngettext(
        "%(number)s job had left before and was not touched.",
        "%(number)s jobs had left before and were not touched.",
        number,
    )
    return text % {"number": words.number(number)}


DISCARD: Final = Decision(
    name="discard",
    permission="pgbus.discard_job",
    label=_("Discard"),
    action=_("Discard selected %(verbose_name_plural)s"),
    question=lambda n: ngettext("Discard %(number)s job?", "Discard %(number)s jobs?", n) % {"number": words.number(n)},
    button=lambda n: ngettext("Discard %(number)s job", "Discard %(number)s jobs", n) % {"number": words.number(n)},
    warning=_(
        "A discarded job never runs again; it is kept among the finished ones. One that is running is told to stop; "
        "if it succeeds before it hears of it, it counts as succeeded. A batch counts a discarded member as failed."
    ),
    carry_out=_discard,
    destroys=True,
)
