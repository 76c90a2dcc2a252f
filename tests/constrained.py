"""Tasks that are unique or limited, and what becomes of them without a worker: the transitions called by hand."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django_pgbus import ensures_uniqueness, limits_concurrency, task
from django_pgbus.models import BlockedExecution, Slot, UniquenessKey
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import PickedUp
from tests.line import claim
from tests.sessions import execute


def _key(key: str, *args: Any) -> str:
    return key


@limits_concurrency(to=1, key=_key)
@task
def one(key: str, *args: Any) -> None: ...


@limits_concurrency(to=2, key=_key)
@task
def two(key: str, *args: Any) -> None: ...


@limits_concurrency(to=1, key=_key, on_conflict="discard")
@task
def one_or_none(key: str, *args: Any) -> None: ...


@limits_concurrency(to=1, key=_key, on_conflict="raise")
@task
def one_or_error(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key)
@task
def unique(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key, on_conflict="discard")
@task
def unique_or_none(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key, on_conflict="log")
@task
def unique_or_logged(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key, strategy="while_executing")
@task
def alone(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key, strategy="while_executing", on_conflict="discard")
@task
def alone_or_none(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key)
@limits_concurrency(to=1, key=lambda key, *args: f"limit-{key}")
@task
def unique_and_one(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key)
@limits_concurrency(to=1, key=lambda key, *args: f"limit-{key}", on_conflict="raise")
@task
def unique_or_error(key: str, *args: Any) -> None: ...


@ensures_uniqueness(key=_key, strategy="while_executing")
@limits_concurrency(to=1, key=lambda key, limit, *args: limit)
@task
def alone_and_one(key: str, limit: str, *args: Any) -> None: ...


def enqueue(task: Any, *args: Any, after: float | None = None) -> int:
    """Enqueue and return the id."""
    bound = task if after is None else task.using(run_after=timedelta(seconds=after))
    return int(bound.enqueue(*args).id)


def claim_and_pick_up(**more: Any) -> PickedUp:
    """Claim what stands in the line, as a worker would, and pick it up."""
    deliveries = claim(**more)
    return lifecycle.pick_up(deliveries) if deliveries else PickedUp()


def run(**more: Any) -> Delivery:
    """Claim and pick up the one that stands in the line."""
    (delivery,) = claim_and_pick_up(**more).taken
    return delivery


def parked(key: str | None = None) -> list[int]:
    """Return the ids of the parked, oldest first."""
    rows = BlockedExecution.objects.order_by("id")
    return list((rows if key is None else rows.filter(key=key)).values_list("id", flat=True))


def slots(key: str | None = None) -> dict[int, int]:
    """Return {message: ordinal} of the slots held."""
    rows = Slot.objects.all()
    return dict((rows if key is None else rows.filter(key=key)).values_list("message_id", "ordinal"))


def keys() -> dict[str, int]:
    """Return {key: message} of the uniqueness keys held."""
    return dict(UniquenessKey.objects.values_list("key", "message_id"))


def lapse_slots(*ids: int) -> None:
    """Let the leases of the slots of these messages have run out a second ago."""
    execute(
        "UPDATE pgbus_semaphore_slots SET leased_until = statement_timestamp() - interval '1 second'"
        " WHERE message_id = ANY (%s)",
        [list(ids)],
    )


def make_parked_due(*ids: int) -> None:
    """Let these parked tasks be due."""
    execute(
        "UPDATE pgbus_blocked_executions SET due_at = statement_timestamp() - interval '1 second' WHERE id = ANY (%s)",
        [list(ids)],
    )


def silence(*deliveries: Iterable[Any]) -> None:
    """Let nothing have been heard of these runs for longer than their lease and their slot's."""
    ids = [delivery.id for delivery in deliveries]  # type: ignore[attr-defined]
    from tests.line import lapse

    lapse(*ids)
    lapse_slots(*ids)
