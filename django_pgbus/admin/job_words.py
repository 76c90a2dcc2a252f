"""What one line says of a job, wherever it is: how it stands, why, and since or until when."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from django.utils.translation import gettext

from django_pgbus.admin import contents, event_contents, words
from django_pgbus.admin.shown import end
from django_pgbus.conf import get_settings
from django_pgbus.events.handlers import handler_at
from django_pgbus.queues.models import Archived, Delayed
from django_pgbus.tasks import stats
from django_pgbus.tasks.lookup import task_at
from django_pgbus.tasks.policy import policy_of
from django_pgbus.tasks.stats import Job
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Kind, Situation, Standing

MOST_OF_A_KEY: Final = 60


def standing(job: Job, now: Situation, *, has_code: bool) -> Standing:
    """Return how a job stands."""
    if job.place in {stats.DEAD, stats.DONE}:
        return ended(job.state, job.reason, job.attempts)
    return waiting.with_code(waiting.standing(job, now), has_code=has_code)


def ended(state: str, reason: str, attempts: int) -> Standing:
    """Return how a job stands that has ended: for which reason it died, or with what was noted when it ended."""
    match state:
        case "dead":
            return waiting.ended(state, end(reason, attempts))
        case Archived.Outcome.SKIPPED:
            return waiting.ended(state, event_contents.why_skipped(reason))
        case Archived.Outcome.DISCARDED:
            return waiting.ended(state, words.showable(reason))
    return waiting.ended(state)


def why(job: Job, stands: Standing, code: Any) -> str:
    """Return in a sentence why it is where it is; which attempt comes next, of how many, and when."""
    waits = job.place == stats.DELAYED and stands.kind is Kind.WAITING
    if waits and job.reason == Delayed.Reason.RETRY:
        return next_attempt(job, code)
    if waits and job.reason == Delayed.Reason.SCHEDULED:
        return gettext("Waits until %(time)s.") % {"time": words.clock(job.due_at)}
    if job.place == stats.PARKED and stands.kind is Kind.WAITING and job.due_at is None:
        return gettext("Parked behind the key") if job.waits_for == "key" else gettext("Parked for a slot of the key")
    if stands.reason is waiting.NO_CODE:  # in full on its own page: a list may have fifty of them
        return gettext("There is no code at its path: renamed, removed, or not deployed here yet.")
    return str(stands.reason)


def next_attempt(job: Any, code: Any) -> str:
    """Return which attempt comes next, of how many, and when, of a job that is tried again."""
    told = {
        "attempt": words.number(job.attempts + 1),
        "most": words.number(most_attempts(code, of_event=of_event(job))),
        "time": words.clock(job.due_at),
    }
    return gettext("Attempt %(attempt)s of %(most)s at %(time)s.") % told


def key(job: Job) -> str:
    """Return as much of the key that a parked job waits for as fits, as it was chosen."""
    return words.shortened(contents.chosen_key(job.key, job.constraints), MOST_OF_A_KEY) if job.key else ""


def error(job: Job) -> str:
    """Return what its last attempt failed of, nothing if it has not failed or is done with."""
    return "" if job.place == stats.DONE or not job.exception else contents.last_line(job.exception, job.traceback)


def when(job: Job, now: datetime) -> tuple[str, str]:
    """Return how long it has been so, or how far off its time is, and the moment."""
    if job.place == stats.DELAYED or (job.place == stats.PARKED and job.due_at is not None and job.due_at > now):
        assert job.due_at is not None
        left = (job.due_at - now).total_seconds()
        told = gettext("in %(age)s") if left > 0 else gettext("%(age)s ago")
        return told % {"age": words.age(abs(left))}, words.clock(job.due_at)
    if job.since is None:
        return "", ""
    told = gettext("%(age)s ago") if job.place in {stats.DEAD, stats.DONE} else gettext("for %(age)s")
    return told % {"age": words.between(job.since, now)}, words.clock(job.since)


def of_event(job: Any) -> bool:
    """Return whether it is a handler's copy of an event."""
    return job.event_id is not None or job.topic is not None


def code_at(path: str, *, of_event: bool) -> Any:
    """Return what a path leads to, or None: the handler of an event, or a task."""
    return handler_at(path) if of_event else task_at(path)


def most_attempts(code: Any, *, of_event: bool) -> int:
    """Return after how many attempts a job is given up; the setting where its code does not say, or is not found."""
    declared = None
    if code is not None:
        declared = code.policy.max_attempts if of_event else policy_of(code).max_attempts
    return int(declared or get_settings().MAX_ATTEMPTS)
