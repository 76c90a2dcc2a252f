"""Of many at once each has what it needs or is refused for a reason that holds; nothing is taken by halves."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from django.db import transaction

from django_pgbus import (
    ConcurrencyLimitExceeded,
    JobNotUnique,
    enqueue_many,
    ensures_uniqueness,
    limits_concurrency,
    task,
)
from django_pgbus.models import Message
from tests.constrained import keys, parked, slots
from tests.line import COMMITTED, long_up  # noqa: F401

pytestmark = COMMITTED


def _key(key: str, limit: str) -> str:
    return f"key-{key}"


def _limit(key: str, limit: str) -> str:
    return f"limit-{limit}"


def _made(name: str, unique: str, limit: str) -> Any:
    def function(key: str, limit: str) -> None: ...

    function.__name__ = function.__qualname__ = name
    return ensures_uniqueness(key=_key, on_conflict=unique)(
        limits_concurrency(to=2, key=_limit, on_conflict=limit)(task(function))
    )


reject_block = _made("reject_block", "reject", "block")
reject_raise = _made("reject_raise", "reject", "raise")
reject_discard = _made("reject_discard", "reject", "discard")
discard_raise = _made("discard_raise", "discard", "raise")


def one_by_one(made: Any, rows: list[Any]) -> list[Any]:
    outcomes = []
    for args, kwargs in rows:
        try:
            outcomes.append(made.enqueue(*args, **kwargs))
        except (JobNotUnique, ConcurrencyLimitExceeded) as error:
            outcomes.append(error)
    return outcomes


def said(outcome: Any, ids: dict[str, int]) -> Any:
    """Return what an outcome says, with ids as places in the order in which they were given."""
    if isinstance(outcome, JobNotUnique):
        return "not unique", outcome.key, ids.setdefault(outcome.holder, len(ids))
    if isinstance(outcome, ConcurrencyLimitExceeded):
        return "limit", outcome.key, outcome.limit
    return outcome.status, outcome.args, ids.setdefault(outcome.id, len(ids)) if outcome.id.isdigit() else None


def came_of(enqueue: Any, made: Any, before: list[Any], rows: list[Any]) -> Any:
    with transaction.atomic():
        one_by_one(made, before)
        outcomes = enqueue(made, rows)
        ids: dict[str, int] = {}
        left = (
            sorted(keys()),
            sorted(slots().values()),
            len(parked()),
            [json.loads(message.payload)["args"] for message in Message.objects.order_by("position")],
        )
        transaction.set_rollback(True)
        return [said(outcome, ids) for outcome in outcomes], left


def some_rows(chance: random.Random, number: int) -> list[Any]:
    return [((chance.choice("abcdef"), chance.choice("xyz")), {}) for _ in range(number)]


def test_many_that_only_need_a_key_come_to_what_they_would_come_to_one_by_one():
    chance = random.Random(1)
    for _ in range(12):
        before, rows = some_rows(chance, 2), some_rows(chance, 8)
        assert came_of(enqueue_many, reject_block, before, rows) == came_of(one_by_one, reject_block, before, rows), (
            rows
        )


@pytest.mark.parametrize("made", [reject_raise, reject_discard, discard_raise], ids=lambda made: made.name)
def test_of_many_none_is_refused_what_it_could_have_and_none_has_half(made):
    """A place that was kept for a row whose key is held goes to another, so a later row may win over an earlier one."""
    chance = random.Random(made.name)
    for _ in range(12):
        with transaction.atomic():
            one_by_one(made, some_rows(chance, 2))
            rows = some_rows(chance, 8)
            for ((key, limit), _), outcome in zip(rows, enqueue_many(made, rows), strict=True):
                holder = keys().get(f"key-{key}")
                if isinstance(outcome, JobNotUnique):
                    assert outcome.holder == str(holder)
                elif isinstance(outcome, ConcurrencyLimitExceeded) or outcome.status == "FAILED":
                    assert sorted(slots(f"limit-{limit}").values()) == [1, 2]
                else:
                    assert outcome.id == str(holder)
                    assert holder in slots()
            assert set(slots()) == set(keys().values()) == set(Message.objects.values_list("id", flat=True))
            transaction.set_rollback(True)
