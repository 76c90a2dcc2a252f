"""Why a task was not let in, for the caller, the admin and whoever listens."""

from __future__ import annotations

from django_pgbus import signals
from django_pgbus.exceptions import ConcurrencyLimitExceeded, JobNotUnique
from django_pgbus.tasks.constraints import Constraints
from django_pgbus.tasks.outcomes import Entered, HeldElsewhere, LimitReached


def error_of(task: str, refused: Entered) -> JobNotUnique | ConcurrencyLimitExceeded:
    """Return the error that says why."""
    if isinstance(refused, HeldElsewhere):
        return not_unique(f"{task} is not enqueued", refused)
    assert isinstance(refused, LimitReached)
    return ConcurrencyLimitExceeded(
        f"{task} is not enqueued: {refused.to} at once are allowed for the key {refused.key[:200]!r}, and as many are "
        "running or waiting.",
        key=refused.key,
        limit=refused.to,
    )


def not_unique(what: str, refused: HeldElsewhere) -> JobNotUnique:
    """Return the error that says who holds the key; `what` is the sentence that comes before it."""
    holder = "" if refused.holder is None else str(refused.holder)
    by = f"job or batch {holder} holds" if holder else "jobs that came and went held"
    return JobNotUnique(f"{what}: {by} the key {refused.key[:200]!r}.", key=refused.key, holder=holder)


def policy_of(constraints: Constraints, refused: Entered) -> str:
    """Return what the task says is to be done then."""
    declared = constraints.unique if isinstance(refused, HeldElsewhere) else constraints.limit
    assert declared is not None
    return declared.on_conflict


def announce(task: str, refused: Entered, policy: str) -> None:
    """Say that a task was dropped."""
    if isinstance(refused, HeldElsewhere):
        signals.job_not_unique.send_robust(
            sender=None, task=task, key=refused.key, holder=refused.holder, policy=policy
        )
    elif isinstance(refused, LimitReached):
        signals.limit_reached.send_robust(sender=None, task=task, key=refused.key, limit=refused.to)
