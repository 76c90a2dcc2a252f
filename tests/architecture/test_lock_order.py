"""The guard that follows every lifecycle call."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_pgbus.queues import sql
from tests.architecture.statements import LockGuard, LockOrderBroken


@pytest.mark.django_db(transaction=True)
def test_the_guard_sees_an_inversion() -> None:
    with connection.execute_wrapper(LockGuard()), pytest.raises(LockOrderBroken, match="messages locked after levels"):
        with transaction.atomic():
            sql.ANNOUNCE_LEVELS.count(queues=["a"], priorities=[0], suspects=[False])
            sql.MARK_DISCARD.count(ids=[1])


@pytest.mark.django_db(transaction=True)
def test_two_transactions_are_two_orders() -> None:
    guard = LockGuard()
    with connection.execute_wrapper(guard):
        sql.ANNOUNCE_LEVELS.count(queues=["a"], priorities=[0], suspects=[False])
        sql.MARK_DISCARD.count(ids=[1])
    assert guard.seen == ["levels", "messages"]
