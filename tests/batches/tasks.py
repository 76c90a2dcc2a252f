"""Members and callbacks of batches."""

from __future__ import annotations

from typing import Any

from django_pgbus import current_batch, task
from django_pgbus.models import Archived, Delayed, Message
from tests.jobs import noop

FINISH = "tests.batches.tasks.finish"
SUCCESS = "tests.batches.tasks.success"
FAILURE = "tests.batches.tasks.failure"


@task
def finish(batch: dict[str, Any]) -> None: ...


@task
def success(batch: dict[str, Any]) -> None: ...


@task
def failure(batch: dict[str, Any]) -> None: ...


@task
def takes_nothing() -> None: ...


@task
def takes_two(batch: dict[str, Any], other: Any) -> None: ...


@task(takes_context=True)
def takes_only_the_context(context: Any) -> None: ...


CALLBACKS: dict[str, Any] = {"on_finish": finish, "on_success": success, "on_failure": failure}

seen: list[Any] = []


@task
def asks_for_its_batch() -> None:
    batch = current_batch()
    seen.append(batch and (batch.id, batch.description, batch.properties, batch.progress().outstanding))


@task
async def asks_for_its_batch_asynchronously() -> None:
    from django_pgbus import acurrent_batch

    batch = await acurrent_batch()
    seen.append(batch and (batch.id, (await batch.aprogress()).outstanding))


@task
def adds_another() -> None:
    batch = current_batch()
    assert batch is not None
    with batch:
        noop.enqueue()


@task(transactional=True)
def adds_another_in_its_transaction() -> None:
    adds_another.func()


def called() -> dict[str, int]:
    """Return {event: how often its callback was enqueued, wherever it is now}."""
    names = {FINISH: "finish", SUCCESS: "success", FAILURE: "failure"}
    found = dict.fromkeys(names.values(), 0)
    for model in (Message, Delayed, Archived):
        for path in model.objects.filter(task__in=names).values_list("task", flat=True):
            found[names[path]] += 1
    return {name: number for name, number in found.items() if number}
