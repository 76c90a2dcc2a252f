"""Why a job waits, who is in its way, and what a person may press."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.observability.mcp import contents, inputs, presses, words
from django_pgbus.observability.mcp.contents import Code
from django_pgbus.observability.mcp.presses import Press
from django_pgbus.observability.mcp.standing import standing
from django_pgbus.observability.mcp.tools.jobs import found, worker_name
from django_pgbus.observability.mcp.tools.locks import LimitedKey, Lock, limited_key, lock_of, locked_by
from django_pgbus.queues import stats as queue_stats
from django_pgbus.queues.stats import Count
from django_pgbus.tasks import constraints
from django_pgbus.tasks.constraints import Constraints
from django_pgbus.tasks.stats import JobDetails
from django_pgbus.uniqueness import stats as uniqueness_stats
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Situation

WAITS: Final = {"ready", "delayed", "parked"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """
    The answer in words, sentence by sentence, and what it is made of.

    `ahead` is how many jobs go first: ready ones of its queue, or parked ones of its key. `next_attempt` of `max_attempts`
    is the run that comes, or runs. `waits_for_key` or `waits_for_limit` is what a parked job waits for, with its holders;
    `holds` are the keys that this job holds itself. `may_press` are decisions that a person may take in the admin.
    """

    id: int
    task: str
    queue: str
    state: str
    standing: str
    waits: bool
    answer: list[str]
    ahead: Count | None
    due_at: datetime | None
    due_in_seconds: float | None
    next_attempt: int | None
    max_attempts: int | None
    worker: str
    waits_for_key: Lock | None
    waits_for_limit: LimitedKey | None
    holds: list[str]
    may_press: list[Press]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A job, and what the answer about it is made of; each was asked for once."""

    job: JobDetails
    code: Code
    now: Situation
    bound: Constraints
    ahead: Count | None
    lock: Lock | None
    limit: LimitedKey | None
    holds: list[str]
    held_by: str

    @property
    def paused(self) -> bool:
        """Return whether nothing is claimed from its queue."""
        return self.job.queue in self.now.pauses.queues


def pgbus_why(id: inputs.Id) -> Why:
    """
    Say why a job is waiting: in words, with who is in its way and what a person may press about it.

    A paused queue, no worker, its place in line, a time that has not come, a retry, a key or limit and who holds it, a
    worker that fell silent, code that is not there. Of a job that has ended it says how.
    """
    asked = _asked(found(id))
    job = asked.job
    due_in = None if job.due_at is None else (job.due_at - job.now).total_seconds()
    return Why(
        id=job.id,
        task=words.name(job.task),
        queue=words.name(job.queue),
        state=job.state,
        standing=standing(job, asked.now).state,
        waits=job.state in WAITS,
        answer=[words.text_of(text) for text in _answer(asked) if text],
        ahead=asked.ahead,
        due_at=words.utc(job.due_at),
        due_in_seconds=words.rounded(due_in),
        next_attempt=_next_attempt(job),
        max_attempts=asked.code.most,
        worker=worker_name(job, asked.now),
        waits_for_key=asked.lock if job.waits_for == "key" else None,
        waits_for_limit=asked.limit if job.waits_for == "semaphore" else None,
        holds=asked.holds,
        may_press=list(_may_press(asked)),
    )


def _asked(job: JobDetails) -> Asked:
    bound = constraints.readable(job.constraints)
    ahead = None
    if job.state == "ready":
        ahead = queue_stats.ahead(job.queue, job.priority, job.suspect, job.position)
    elif job.state == "parked" and job.due_at is None:
        ahead = concurrency_stats.ahead(job.waits_for, job.key, job.priority, job.id)
    unique_key = job.key if job.waits_for == "key" else bound.unique.key if bound.unique else ""
    lock = uniqueness_stats.lock(unique_key) if unique_key else None
    limit = concurrency_stats.key(job.key) if job.waits_for == "semaphore" else None
    slot = concurrency_stats.slot_of(job.id)
    holds = []
    if lock is not None and lock.message == job.id and not lock.of_batch:
        holds.append(f"the uniqueness key {words.name(lock.name or lock.key)}")
    if slot is not None:
        name = bound.limit.name if bound.limit and bound.limit.key == slot.key else ""
        holds.append(f"a slot of the key {words.name(name or slot.key)}")
    waiting_for = concurrency_stats.waiting_for([lock.key]) if lock else {}
    return Asked(
        job=job,
        code=contents.code_of(job),
        now=waiting.situation(),
        bound=bound,
        ahead=ahead,
        lock=None if lock is None else lock_of(lock, waiting_for.get(lock.key, Count(0))),
        limit=None if limit is None else limited_key(limit),
        holds=holds,
        held_by="" if limit is None else locked_by(limit),
    )


# --- the answer ---------------------------------------------------------------------------------------


def _answer(asked: Asked) -> Iterator[str]:
    stands = standing(asked.job, asked.now)
    yield stands.reason
    if stands.command:
        yield f"Start a worker: {stands.command}"
    match asked.job.state:
        case "ready":
            yield from _in_line(asked)
        case "running":
            yield from _running(asked)
        case "delayed":
            yield from _later(asked)
        case "parked":
            yield from _parked(asked)
        case "dead":
            yield from _dead(asked)
        case _:
            yield from _ended(asked)
    if asked.holds and asked.job.state in {*WAITS, "running"}:
        yield f"It holds {' and '.join(asked.holds)}."
    if asked.code.missing and asked.job.state in {*WAITS, "running"}:
        yield (
            f"There is no {_what(asked.code)} at {words.name(asked.job.task)} in this process. Where the worker does not "
            "have it either, each run fails with ImportError: it was renamed, removed, or is not deployed yet."
        )


def _in_line(asked: Asked) -> Iterator[str]:
    job, ahead = asked.job, asked.ahead
    if job.since is not None:
        yield f"It has stood in line for {_for(job.since, job)}, since {words.told(job.since)}."
    if ahead is not None:
        yield (
            f"Before it, {words.many(ahead, 'job')} of its queue will be taken."
            if ahead
            else "It is the next of its queue."
        )
    yield _paused_by(asked)
    yield _attempt(asked)


def _running(asked: Asked) -> Iterator[str]:
    job = asked.job
    if job.started_at is not None:
        yield f"Its worker took it {_for(job.started_at, job)} ago, at {words.told(job.started_at)}."
    if job.leased_until is not None:
        lapsed = job.leased_until < job.now
        yield f"Its lease {'ended' if lapsed else 'lasts, unless it is renewed, until'} {words.told(job.leased_until)}."
    yield _attempt(asked)


def _later(asked: Asked) -> Iterator[str]:
    yield _due(asked.job)
    yield _attempt(asked)
    yield _paused_by(asked)


def _parked(asked: Asked) -> Iterator[str]:
    job = asked.job
    if job.since is not None:
        yield f"It has been parked for {_for(job.since, job)}, since {words.told(job.since)}."
    yield _due(job)
    if job.waits_for == "key":
        yield from _behind_lock(asked)
    else:
        yield from _behind_limit(asked)
    if asked.ahead:
        yield f"Before it, {words.many(asked.ahead, 'parked job')} of this key will be let in."
    yield _paused_by(asked)
    yield _attempt(asked)


def _behind_lock(asked: Asked) -> Iterator[str]:
    lock = asked.lock
    if lock is None:
        yield f"Nobody holds the uniqueness key {_key(asked)} any more: it is let in by the next look, within a minute."
        return
    held = f"for {words.age(lock.held_seconds)}"
    yield f"The uniqueness key {lock.key} is held by {lock.holder_kind} {lock.holder} ({lock.holder_is}) {held}."


def _behind_limit(asked: Asked) -> Iterator[str]:
    limit = asked.limit
    if limit is None:
        return
    if not limit.value:
        yield f"Nobody holds a slot of the key {limit.key}: it is let in by the next look, within a minute."
    else:
        most = "an unknown number" if limit.limit is None else str(limit.limit)
        yield f"Of the key {limit.key} {limit.value} of {most} slots are held: {', '.join(_holders(limit))}."
    if limit.silent:
        since = f" since {words.told(limit.silent_since)}" if limit.silent_since else ""
        yield (
            f"{words.many(limit.silent, 'holder')} fell silent{since}: the slot is taken back by itself once it has been "
            "silent for as long as the limit allows, or at once by Release."
        )
    if asked.held_by:
        yield f"Nobody is let in before the transaction of {asked.held_by} ends."


def _holders(limit: LimitedKey) -> Iterator[str]:
    for holder in limit.holders:
        yield f"job {holder.job} ({holder.lease.value})"
    if (others := limit.value.number - len(limit.holders)) > 0:
        yield f"and {others:,} more"


def _dead(asked: Asked) -> Iterator[str]:
    job = asked.job
    if job.ended_at is not None:
        after = words.many(job.attempts, "attempt")
        yield f"It died {_for(job.ended_at, job)} ago, at {words.told(job.ended_at)}, after {after}."
    errors = contents.of_job(job, asked.code, tell=False).attempts
    if errors and errors[0].exception:
        yield f"Its last error was {errors[0].exception}."
    lock = asked.lock
    if lock is not None and (lock.holder != job.id or lock.holder_kind == "batch"):
        yield (
            f"Its uniqueness key {lock.key} is held by {lock.holder_kind} {lock.holder} ({lock.holder_is}): a redrive is "
            "refused until that one has ended."
        )


def _ended(asked: Asked) -> Iterator[str]:
    job = asked.job
    if job.ended_at is not None:
        yield f"It ended {_for(job.ended_at, job)} ago, at {words.told(job.ended_at)}."


def _due(job: JobDetails) -> str:
    if job.due_at is None:
        return ""
    left = (job.due_at - job.now).total_seconds()
    when = f"in {words.age(left)}" if left > 0 else f"since {words.age(-left)}"
    return f"It is due {when}, at {words.told(job.due_at)}."


def _attempt(asked: Asked) -> str:
    job = asked.job
    nth = _next_attempt(job)
    most = "" if asked.code.most is None else f" of {asked.code.most}"
    if job.state == "running":
        return f"This is attempt {nth}{most}."
    return f"The next run is attempt {nth}{most}." if job.attempts else ""


def _next_attempt(job: JobDetails) -> int | None:
    """Return which attempt comes next, or runs: the claim has counted that one already."""
    if job.state == "running":
        return job.attempts
    return job.attempts + 1 if job.state in WAITS else None


def _paused_by(asked: Asked) -> str:
    pause = asked.now.pauses.queues.get(asked.job.queue)
    if pause is None:
        return ""
    by = f" by {words.name(pause.by)}" if pause.by else ""
    return f"Queue {words.name(asked.job.queue)} was paused{by} at {words.told(pause.at)}."


def _key(asked: Asked) -> str:
    unique = asked.bound.unique
    return words.name((unique.name if unique and unique.key == asked.job.key else "") or asked.job.key)


def _for(since: datetime, job: JobDetails) -> str:
    return words.age((job.now - since).total_seconds())


def _what(code: Code) -> str:
    return {"event": "handler of events", "entry of a stream": "consumer of the stream"}.get(code.kind, code.kind)


# --- what may be pressed ------------------------------------------------------------------------------


def _may_press(asked: Asked) -> Iterator[Press]:
    job = asked.job
    if asked.paused and job.state in WAITS:
        yield presses.RESUME
    if job.state == "parked" and job.due_at is None:
        yield from _may_press_about_key(asked)
    if job.due_at is not None and job.due_at > job.now:
        yield presses.RUN_NOW
    if job.state == "running" and not job.discard_requested:
        yield presses.HAND_BACK
    if job.state in {*WAITS, "running"}:
        yield presses.DISCARD
    if job.state == "dead":
        yield presses.REDRIVE
        yield presses.DISCARD_DEAD


def _may_press_about_key(asked: Asked) -> Iterator[Press]:
    if asked.job.waits_for == "semaphore":
        if asked.limit is not None and asked.limit.value:
            yield presses.RELEASE
        yield presses.DISCARD_PARKED
    elif asked.lock is not None:
        yield presses.DISCARD_LOCK
