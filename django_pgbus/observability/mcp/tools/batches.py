"""The batches: how far each is."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from django_pgbus.batches import stats
from django_pgbus.batches.stats import BatchStats, Opened, Places
from django_pgbus.observability.mcp import inputs, words
from django_pgbus.observability.mcp.words import Refused
from django_pgbus.queues.stats import Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """
    One batch: so many members, of which so many have ended. `key` is the uniqueness key that it holds until it is finished.

    `places` says where the members are that have not ended; it is told of a batch that was asked for by its id.
    """

    id: int
    description: str
    opened_at: datetime
    finished_at: datetime | None
    key: str
    total: Count
    succeeded: Count
    failed: Count
    outstanding: Count
    percent: int
    places: Places | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Batches, those with the highest id first. `next` is what to give as `before` to go on; null at the end."""

    batches: list[Batch]
    next: int | None


def pgbus_batches(
    id: Annotated[int | str | None, Field(description="The id of one batch; null: the newest.")] = None,
    before: inputs.Before = None,
    limit: inputs.Limit = 20,
) -> Batches:
    """Tell how far batches are: members, succeeded, failed, outstanding; of one batch also where its members are."""
    if id is not None:
        return _one(inputs.known_id(id, "batch"))
    found = stats.newest(inputs.before_of(before), limit + 1)
    standing = stats.standing(one.id for one in found[:limit])
    return Batches(
        batches=[_batch(one, standing[one.id], None) for one in found[:limit] if one.id in standing],
        next=found[limit - 1].id if len(found) > limit else None,
    )


def _one(id: int) -> Batches:
    found = [one for one in stats.newest(min(id + 1, 2**63 - 1), 1) if one.id == id]
    standing = stats.standing([id])
    if not found or id not in standing:
        raise Refused("There is no batch of this id: there never was, or it has finished and is not kept any longer.")
    return Batches(batches=[_batch(found[0], standing[id], stats.places(id))], next=None)


def _batch(opened: Opened, standing: BatchStats, places: Places | None) -> Batch:
    return Batch(
        id=opened.id,
        description=words.name(opened.description),
        opened_at=words.known_utc(opened.created_at),
        finished_at=words.utc(opened.finished_at),
        key=words.name(opened.key),
        total=standing.total,
        succeeded=standing.succeeded,
        failed=standing.failed,
        outstanding=standing.outstanding,
        percent=standing.percent,
        places=places,
    )
