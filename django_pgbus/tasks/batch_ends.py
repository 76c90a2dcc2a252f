"""
How a batch begins and how it ends: transitions of the batch itself, one transaction each.

Its members move by the transitions of `lifecycle.py`, which counts them and calls `finish` after the commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.db import connections, transaction

from django_pgbus import signals
from django_pgbus.batches import counts, sql
from django_pgbus.conf import database
from django_pgbus.postgres import is_connection_loss, retrying
from django_pgbus.postgres.keys import shown, stored
from django_pgbus.queues import delayed
from django_pgbus.tasks import tracing
from django_pgbus.tasks.outcomes import HeldElsewhere
from django_pgbus.uniqueness import keys

ROUNDS: Final = 100  # of looking again; the sweep goes on
EVENTS: Final = ("on_finish", "on_success", "on_failure")


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback:
    """A task that is enqueued when a batch ends, as it is stored; `due_in` is in seconds."""

    task: str
    queue: str
    priority: int
    backend: str
    due_in: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """What is asked for; `properties` is JSON text, `key` the uniqueness key as it was chosen."""

    description: str = ""
    properties: str = "{}"
    callbacks: dict[str, Callback] = field(default_factory=dict)
    key: str | None = None


def open_batch(new: NewBatch) -> int | HeldElsewhere:
    """
    Store a batch in the caller's transaction and return its id, or say who holds its key: then nothing is stored.

    A key that another open transaction has taken is waited for. Locks: none.
    """
    with transaction.atomic(using=database()):
        callbacks = json.dumps({event: _as_stored(callback) for event, callback in new.callbacks.items()})
        name = "" if new.key is None else new.key
        id: int = sql.OPEN.tuples(
            description=new.description, properties=new.properties, callbacks=callbacks, key=name
        )[0][0]
        if new.key is None or keys.hold(stored(new.key), shown(new.key), id):
            return id
        transaction.set_rollback(True, using=database())
    return HeldElsewhere(key=new.key, holder=keys.holders([stored(new.key)]).get(stored(new.key)))


def _as_stored(callback: Callback) -> dict[str, Any]:
    """Return a callback with the headers that its task will carry: whoever ends the batch knows nothing of them."""
    if not tracing.hooks:
        return asdict(callback)
    about = tracing.Sending(operation="create", destination=callback.queue, task=callback.task)
    with tracing.sending(about):
        pass
    headers = tracing.kept(about.headers)
    return {**asdict(callback), tracing.KEY: headers} if headers else asdict(callback)


def open_again(id: int) -> bool:
    """
    Keep a batch from being finished until the caller's transaction ends; return False if it is finished or gone.

    Waits at most for whoever is just finishing it. Locks: batches (shared).
    """
    return bool(sql.OPEN_AGAIN.tuples(id=id))


def finish(ids: Iterable[int]) -> tuple[int, list[str]]:
    """
    Finish those of these batches that nothing is outstanding of, and return how many, and the keys that they held.

    Each is a transaction of its own, which enqueues the callbacks. Looks again after each: a member that was settled
    while the batch was locked found it locked. Locks: batches (skipping), batch_counts, uniqueness_keys.
    """
    wanted = set(ids)
    finished, freed = 0, []
    for _ in range(ROUNDS):
        looked = [one for one in counts.standing(wanted) if one.finished_at is None] if wanted else []
        ended = [one.id for one in looked if not one.outstanding]
        folded = [one.id for one in looked if one.outstanding and one.rows > counts.MANY_ROWS]
        if not (ended or folded):
            break
        locked = False
        for id in (*ended, *folded):
            try:
                row, found, was_free = _finish_one(id)
            except Exception as error:
                if is_connection_loss(error):
                    raise
                wanted.discard(id)  # It waits for the next sweep, and keeps no other from its end.
                signals.batch_not_finished.send_robust(sender=None, id=id, exception=error)
                continue
            locked |= was_free
            freed += found
            if row is not None:
                finished += 1
                signals.batch_finished.send_robust(
                    sender=None, id=row.id, total=row.total, succeeded=row.succeeded, failed=row.failed
                )
        if not locked:
            break  # Somebody else has all of them, and looks again.
        wanted &= {one.id for one in looked}
    return finished, freed


@contextmanager
def _read_committed() -> Iterator[None]:
    """
    Begin a transaction in which a statement after the lock sees what was committed before the lock was had.

    Whatever the project has set: by an older snapshot a member that was added meanwhile would be overlooked, and the batch
    be finished without it.
    """
    outermost = not connections[database()].in_atomic_block
    with transaction.atomic(using=database()):
        if outermost:
            sql.READ_COMMITTED.count()
        yield


def _finish_one(id: int) -> tuple[Any, list[str], bool]:
    """Return the row of a batch that was finished, the keys it held, and whether nobody else had locked it."""

    def transition() -> tuple[Any, list[str], bool]:
        with _read_committed():
            if not counts.lock_unfinished([id]):
                return None, [], False
            if counts.fold(id).outstanding:
                return None, [], True
            row = counts.finish(id)
            freed = keys.free([id])
            _enqueue_callbacks(row)
            return row, freed, True

    return retrying(transition)


def _enqueue_callbacks(row: Any) -> None:
    ended = {"on_finish": True, "on_success": not row.failed, "on_failure": bool(row.failed)}
    argument = {
        "id": row.id,
        "description": row.description,
        "properties": json.loads(row.properties),
        "total": row.total,
        "succeeded": row.succeeded,
        "failed": row.failed,
    }
    payload = json.dumps({"args": [argument], "kwargs": {}}, ensure_ascii=False)
    for event, callback in json.loads(row.callbacks).items():
        if ended.get(event):
            delayed.send(
                callback["queue"],
                callback["priority"],
                callback["task"],
                callback["backend"],
                [tracing.carried(payload, callback.get(tracing.KEY, {}))],
                timedelta(seconds=callback["due_in"]),
            )


def count_lost(ids: Iterable[int]) -> list[int]:
    """
    Count the members of these batches that are nowhere as failed, and return the batches that were locked to find out.

    Only a hand in psql, or a restore of some of the tables, takes members away uncounted. Tests again under the lock, in a
    second statement. Locks: batches (skipping).
    """
    suspected = counts.deserted(sorted(ids))

    def transition(id: int) -> int:
        with _read_committed():
            missing = counts.deserted(counts.lock_unfinished([id]))
            counts.lost(missing)
            return missing.get(id, 0)

    for id in suspected:
        if missing := retrying(partial(transition, id)):
            signals.batch_repaired.send_robust(sender=None, id=id, count=missing)
    return list(suspected)
