"""
Why a job waits, in words.

One answer for everybody who asks: it is made of a job's own row, the pauses and the workers of this moment.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Protocol
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from django_pgbus.conf import get_settings
from django_pgbus.queues import stats as queue_stats
from django_pgbus.queues.stats import Pauses
from django_pgbus.worker import stats
from django_pgbus.worker.plan import parse_queues
from django_pgbus.worker.stats import WorkerStats

Text = str | Promise


class Kind(StrEnum):
    """What can be said of a job at a glance."""

    READY = "ready"
    RUNNING = "running"
    WAITING = "waiting"  # something has to happen first: a time, a person, a worker
    LOST = "lost"  # its worker is silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a job stands: `state` in a word or two, `reason` in a sentence, and the `command` that mends it, if one does."""

    kind: Kind
    state: Text
    reason: Text
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What the standing of any job depends on."""

    pauses: Pauses
    workers: Sequence[WorkerStats]

    def name_of(self, worker: UUID | str | None) -> str:
        """Return how people call a worker: its name, or its id once it is forgotten."""
        wanted = str(worker or "")
        return next((known.name for known in self.workers if str(known.id) == wanted), wanted)


class InLine(Protocol):
    """A job in the line, as the table has it."""

    queue: str
    suspect: bool
    discard_requested: bool
    leased_until: datetime | None
    worker: UUID | None


class Later(Protocol):
    """A delayed job, as the table has it."""

    queue: str
    due_at: datetime
    reason: str
    attempts: int


class Blocked(Protocol):
    """A parked job, as the table has it."""

    queue: str
    waits_for: str
    due_at: datetime | None


def situation() -> Situation:
    """Return what holds now; two queries."""
    return Situation(pauses=queue_stats.pauses(), workers=stats.workers())


SILENT: Final = _("Its worker %(worker)s fell silent. The job goes back into the line and runs again.")
SILENT_UNSERVED: Final = _(
    "Its worker %(worker)s fell silent, and no other serves queue %(queue)s. The job runs again as soon as one does."
)
SILENT_DISCARDED: Final = _("Its worker %(worker)s fell silent. The job is discarded and does not run again.")
TOLD: Final = _("It runs on %(worker)s, which is told with its next beat. If it succeeds before, it counts as done.")
RUNS: Final = _("It runs on %(worker)s.")
PAUSED: Final = _("Queue %(queue)s is paused: no worker takes anything from it until it is resumed.")
NOBODY: Final = _("No worker is running.")
NOT_SERVED: Final = _("No running worker serves queue %(queue)s.")
ALONE: Final = _("The next free worker takes it, alone: the process that ran it before ended or fell silent.")
NEXT: Final = _("The next free worker takes it when its turn comes.")
SCHEDULED: Final = _("It was enqueued for a later time.")
RETRY: Final = _("Its last attempt failed; it is tried again at the time it is due.")
SNOOZED: Final = _("It asked to be run later, at no cost of an attempt.")
OWNED: Final = _(
    "An earlier delivery of this event may still run the handler. It waits until that one's lease has ended, at no cost of "
    "an attempt."
)
OVERDUE: Final = _("It is due, and no running worker moves it into the line.")
DUE: Final = _("It is due and moves into the line now.")

PASSED_OVER: Final = _("Queue %(queue)s is paused: the job is passed over until it is resumed.")
FOR_ITS_TIME: Final = _("It is parked until it is due; then it asks for what it needs to run.")
FOR_A_SLOT: Final = _(
    "As many jobs of its key as are allowed at once hold a slot. It is let in when one is free, best priority and oldest "
    "first."
)
FOR_A_KEY: Final = _("Another job that is running, or a batch, holds its key. It is let in when that one has ended.")

NO_CODE: Final = _(
    "There is no code at its path: the task was renamed or removed, or is not deployed here yet. A worker that finds none "
    "either counts each run as a failed attempt."
)

WHY_LATER: Final = {"scheduled": SCHEDULED, "retry": RETRY, "snoozed": SNOOZED, "owned": OWNED}
STATE_LATER: Final = {
    "scheduled": _("scheduled"),
    "retry": _("retrying"),
    "snoozed": _("snoozed"),
    "owned": _("owned"),
}

ENDED: Final[dict[str, tuple[Kind, Text]]] = {
    "succeeded": (Kind.READY, _("succeeded")),
    "skipped": (Kind.READY, _("skipped")),  # somebody else did the work, so all is well
    "discarded": (Kind.WAITING, _("discarded")),
    "dead": (Kind.LOST, _("dead")),
}


def standing(job: Any, now: Situation) -> Standing:
    """Return how a job stands by its `state`; of one that has ended, whoever shows it says why."""
    match job.state:
        case "ready" | "running":
            return in_line(job, now)
        case "delayed":
            return later(job, now)
        case "parked":
            return parked(job, now)
    return ended(job.state)


def ended(state: str, reason: Text = "") -> Standing:
    """Return how a job stands that has ended."""
    kind, word = ENDED.get(state, (Kind.READY, state))
    return Standing(kind=kind, state=word, reason=reason)


def in_line(job: InLine, now: Situation) -> Standing:
    """Return how a job in the line stands."""
    if job.leased_until is not None:
        names = {"worker": now.name_of(job.worker), "queue": job.queue}
        if job.leased_until < now.pauses.now:
            return _silent(job, names, now)
        if job.discard_requested:
            return Standing(kind=Kind.RUNNING, state=_("discarding"), reason=TOLD % names)
        return Standing(kind=Kind.RUNNING, state=_("running"), reason=RUNS % names)
    if job.queue in now.pauses.queues:
        return Standing(kind=Kind.WAITING, state=_("queue paused"), reason=PAUSED % {"queue": job.queue})
    if unserved := _unserved(job.queue, now):
        return Standing(kind=Kind.WAITING, state=_("no worker"), reason=unserved, command=start(job.queue, now))
    return Standing(kind=Kind.READY, state=_("ready"), reason=ALONE if job.suspect else NEXT)


def later(job: Later, now: Situation) -> Standing:
    """Return how a delayed job stands."""
    if job.due_at > now.pauses.now:
        state = STATE_LATER.get(job.reason, job.reason)
        return Standing(kind=Kind.WAITING, state=state, reason=WHY_LATER.get(job.reason, ""))
    if not any(worker.takes_jobs for worker in now.workers):
        return Standing(kind=Kind.LOST, state=_("overdue"), reason=OVERDUE, command=start(job.queue, now))
    return Standing(kind=Kind.READY, state=_("due"), reason=DUE)


def parked(job: Blocked, now: Situation) -> Standing:
    """Return how a parked job stands."""
    if job.due_at is not None:
        if job.due_at > now.pauses.now:
            return Standing(kind=Kind.WAITING, state=_("not due yet"), reason=FOR_ITS_TIME)
        if not any(worker.takes_jobs for worker in now.workers):
            return Standing(kind=Kind.LOST, state=_("overdue"), reason=OVERDUE, command=start(job.queue, now))
        return Standing(kind=Kind.READY, state=_("due"), reason=DUE)
    if job.queue in now.pauses.queues:
        return Standing(kind=Kind.WAITING, state=_("queue paused"), reason=PASSED_OVER % {"queue": job.queue})
    if job.waits_for == "key":
        return Standing(kind=Kind.WAITING, state=_("waits for its key"), reason=FOR_A_KEY)
    return Standing(kind=Kind.WAITING, state=_("waits for a slot"), reason=FOR_A_SLOT)


def with_code(standing: Standing, *, has_code: bool) -> Standing:
    """Return how a job stands, or, if it would run and cannot since nothing is found at its path, that."""
    if has_code or standing.kind is not Kind.READY:
        return standing
    return replace(standing, kind=Kind.LOST, state=_("no code"), reason=NO_CODE)


def start(queue: str, now: Situation) -> str:
    """Return the command that starts a worker for a queue: the usual one if there is none at all."""
    if not any(worker.takes_jobs for worker in now.workers):
        usual = any(capsule.serves(queue) for capsule in parse_queues(get_settings().QUEUES, threads=1))
        if usual:
            return "manage.py runworker"
    return f"manage.py runworker --queues {shlex.quote(queue)}"


def _silent(job: InLine, names: dict[str, str], now: Situation) -> Standing:
    """Return how a job stands whose worker holds it and does not beat any more."""
    state = _("worker silent")
    if job.discard_requested:
        return Standing(kind=Kind.LOST, state=state, reason=SILENT_DISCARDED % names)
    if not stats.serving(job.queue, now.workers):
        command = start(job.queue, now)
        return Standing(kind=Kind.LOST, state=state, reason=SILENT_UNSERVED % names, command=command)
    return Standing(kind=Kind.LOST, state=state, reason=SILENT % names)


def _unserved(queue: str, now: Situation) -> Text:
    """Return why nobody works on a queue, or nothing."""
    if not any(worker.takes_jobs for worker in now.workers):
        return NOBODY
    return "" if stats.serving(queue, now.workers) else NOT_SERVED % {"queue": queue}
