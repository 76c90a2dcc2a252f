"""What happened to a job, in order: one table from being enqueued to its end, or to what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.timezone import is_aware, make_naive
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import contents, event_contents, job_words, words
from django_pgbus.admin.contents import Attempt
from django_pgbus.concurrency.models import BlockedExecution
from django_pgbus.queues.models import Archived, DeadLetter, Delayed, Message
from django_pgbus.worker.waiting import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened, or that comes: `kind` colours it as a state is coloured, `detail` says more."""

    at: datetime
    text: Text
    detail: str = ""
    kind: str = "quiet"


def timeline(job: Any, attempts: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return what happened to a job and what comes, in order, and the time from one step to the next."""
    now: datetime = job.situation.pauses.now
    known = sorted([*_past(job, attempts), *_present(job)], key=lambda step: step.at)
    shown = []
    for step, before in zip(known, [None, *known], strict=False):
        shown.append(
            {
                "time": words.moment(step.at),
                "later": f"+{words.between(before.at, step.at)}" if before else "",
                "text": step.text,
                "detail": step.detail,
                "kind": step.kind,
                "ahead": step.at > now,
            }
        )
    return shown


def _past(job: Any, attempts: Sequence[Attempt]) -> Iterator[Step]:
    yield Step(at=job.enqueued_at, text=_("Published") if job_words.of_event(job) else _("Enqueued"))
    for attempt in attempts:
        if (failed_at := _alike(attempt.failed_at, job.enqueued_at)) is None:
            continue
        number = "" if attempt.number is None else words.number(attempt.number)
        text = gettext("Attempt %(number)s failed") % {"number": number} if number else gettext("An attempt failed")
        took = words.between(attempt.started_at, attempt.failed_at)
        said = contents.last_line(attempt.exception, attempt.traceback)
        worker = job.situation.name_of(attempt.worker) if attempt.worker else ""
        after = gettext("after %(age)s") % {"age": took} if took else ""
        on = gettext("on %(worker)s") % {"worker": words.showable(worker)} if worker else ""
        told = " ".join(part for part in (after, on) if part)
        detail = ": ".join(part for part in (told, said) if part)
        yield Step(at=failed_at, text=text, detail=detail, kind="lost")


def _present(job: Any) -> Iterator[Step]:
    """Yield how it came to where it is, and what is known to come."""
    if isinstance(job, Message):
        yield from _in_line(job)
    elif isinstance(job, Delayed):
        yield from _delayed(job)
    elif isinstance(job, BlockedExecution):
        yield from _parked(job)
    elif isinstance(job, Archived):
        yield from _finished(job)
    elif isinstance(job, DeadLetter):
        yield from _run(job)
        yield Step(at=job.died_at, text=_("Gave up"), detail=str(job.get_reason_display()), kind="lost")


def _in_line(job: Any) -> Iterator[Step]:
    of_queue = gettext("of queue %(queue)s") % {"queue": words.showable(job.queue)}
    yield Step(at=job.ready_at, text=_("In the line"), detail=of_queue, kind="ready")
    if job.leased_until is None:
        return
    if job.claimed_at is not None:
        yield Step(at=job.claimed_at, text=_("Claimed"), detail=_on(job), kind="running")
    if job.leased_until < job.situation.pauses.now:
        yield Step(at=job.leased_until, text=_("Its lease ended: its worker fell silent"), kind="lost")
    else:
        yield Step(at=job.leased_until, text=_("Its lease ends, unless it is renewed"), kind="running")


def _delayed(job: Any) -> Iterator[Step]:
    detail = ""
    if job.reason == Delayed.Reason.RETRY:
        most = job_words.most_attempts(job.found_task, of_event=job_words.of_event(job))
        told = {"attempt": words.number(job.attempts + 1), "most": words.number(most)}
        detail = gettext("for attempt %(attempt)s of %(most)s") % told
    yield Step(at=job.due_at, text=_("Due"), detail=detail, kind="waiting")


def _parked(job: Any) -> Iterator[Step]:
    key = words.shortened(contents.chosen_key(job.key, job.constraints), job_words.MOST_OF_A_KEY)
    yield Step(at=job.parked_at, text=_("Parked"), detail=gettext("behind key %(key)s") % {"key": key}, kind="waiting")
    if job.due_at is not None:
        yield Step(at=job.due_at, text=_("Due"), detail=gettext("it asks for what it needs then"), kind="waiting")


def _finished(job: Any) -> Iterator[Step]:
    yield from _run(job)
    skipped = job.outcome == Archived.Outcome.SKIPPED
    note = str(event_contents.why_skipped(job.note)) if skipped else words.showable(job.note)
    kind = "waiting" if job.outcome == Archived.Outcome.DISCARDED else "ready"
    yield Step(at=job.finished_at, text=str(job.get_outcome_display()), detail=note, kind=kind)


def _run(job: Any) -> Iterator[Step]:
    if job.started_at is not None:
        yield Step(at=job.started_at, text=_("Its last run began"), detail=_on(job), kind="running")


def _on(job: Any) -> str:
    """Return on which worker, nothing where that is not known."""
    if not job.worker:
        return ""
    return gettext("on %(worker)s") % {"worker": words.showable(job.situation.name_of(job.worker))}


def _alike(at: datetime | None, other: datetime) -> datetime | None:
    """Return a time from a history as the database's times are: without USE_TZ they have no zone."""
    return at if at is None or is_aware(other) else make_naive(at)
