"""
An enqueue lives and dies with its transaction and its savepoint, and whoever survives wakes the workers.

All enqueues of one transaction share a hook where they can; one that stood in a savepoint which was rolled back
must not take the wake-up of a later enqueue with it.
"""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_pgbus.models import Level, Message
from django_pgbus.queues import wake
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, claim, put
from tests.sessions import execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]


class Undo(Exception):
    pass


@pytest.fixture
def notes(monkeypatch):
    """The notes that were sent, by the queue they name."""
    sent: list[list] = []
    monkeypatch.setattr(wake, "notify", sent.extend)
    return sent


def queues(notes):
    return [note[1] for note in notes]


@pytest.mark.proves("enqueue-in-the-callers-transaction")
def test_nothing_remains_of_an_enqueue_that_rolled_back(notes):
    with pytest.raises(Undo), transaction.atomic():
        put()
        raise Undo
    assert not Message.objects.exists()
    assert not Level.objects.exists()
    assert notes == []


@pytest.mark.proves("enqueue-in-the-callers-transaction")
def test_nothing_remains_of_an_enqueue_in_a_savepoint_that_rolled_back(notes):
    with transaction.atomic():
        with pytest.raises(Undo), transaction.atomic():
            put(queue="undone")
            raise Undo
        put(queue="kept")
    assert list(Message.objects.values_list("queue", flat=True)) == ["kept"]
    assert queues(notes) == ["kept"]


@pytest.mark.proves("woken-after-the-commit")
def test_nobody_is_woken_before_the_commit(notes):
    with transaction.atomic():
        put()
        assert notes == []
        with sessions() as other:
            assert other.do(claim) == []
    assert len(notes) == 1
    assert len(claim()) == 1


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda: put(queue="kept"), id="in the transaction"),
        pytest.param(lambda: transaction.atomic()(lambda: put(queue="kept"))(), id="in another savepoint"),
    ],
)
def test_a_hook_in_a_savepoint_that_rolled_back_does_not_swallow_a_later_wake_up(notes, after):
    with transaction.atomic():
        with pytest.raises(Undo), transaction.atomic():
            put(queue="undone")
            raise Undo
        after()
    assert "kept" in queues(notes)


def test_a_hook_in_a_savepoint_that_is_rolled_back_later_does_not_take_a_wake_up_along(notes):
    """The outer savepoint was released into one that is rolled back after the enqueue outside of it was not."""
    with transaction.atomic():
        with pytest.raises(Undo), transaction.atomic():
            with transaction.atomic():
                put(queue="undone")
            put(queue="undone too")
            raise Undo
        with transaction.atomic():
            put(queue="kept")
        put(queue="kept too")
    assert {"kept", "kept too"} <= set(queues(notes))
    assert not {"undone", "undone too"} & set(Message.objects.values_list("queue", flat=True))


def test_an_enqueue_in_a_rolled_back_savepoint_may_share_a_hook_that_survives(notes):
    """The wake-up then names a queue too many, which costs a claim that finds nothing."""
    with transaction.atomic():
        put(queue="kept")
        with pytest.raises(Undo), transaction.atomic():
            put(queue="undone")
            raise Undo
    assert "kept" in queues(notes)


def test_many_enqueues_of_one_transaction_share_a_hook_and_name_the_lowest_position(notes):
    with transaction.atomic():
        for _ in range(20):
            put()
        with transaction.atomic():
            put()
        assert len(connection.run_on_commit) == 1
    lowest = Message.objects.order_by("position").values_list("position", flat=True).first()
    assert notes == [["ready", "default", 0, False, lowest]]


def test_each_transaction_has_a_hook_of_its_own(notes):
    for queue in ("first", "second"):
        with transaction.atomic():
            put(queue=queue)
    assert queues(notes) == ["first", "second"]


def test_a_hook_of_a_transaction_that_rolled_back_is_not_used_again(notes):
    with pytest.raises(Undo), transaction.atomic():
        put(queue="undone")
        raise Undo
    with transaction.atomic():
        put(queue="kept")
    assert queues(notes) == ["kept"]


def test_a_savepoint_made_by_hand_may_wake_for_nothing_and_loses_nothing(notes):
    with transaction.atomic():
        execute("SAVEPOINT by_hand")
        put(queue="undone")
        execute("ROLLBACK TO SAVEPOINT by_hand")
        put(queue="kept")
    assert "kept" in queues(notes)
    assert list(Message.objects.values_list("queue", flat=True)) == ["kept"]


def test_a_failing_wake_up_never_reaches_the_caller(monkeypatch):
    def broken(notes):
        raise RuntimeError("no")

    monkeypatch.setattr(wake, "notify", broken)
    with transaction.atomic():
        put()
    put()
    assert Message.objects.count() == 2


def test_without_hooks_nothing_is_said_and_everything_stored(notes):
    """Autocommit off, no `atomic()`: Django runs no hooks, so polls have to find it."""
    connection.set_autocommit(False)
    try:
        (id,) = put()
        lifecycle.pause_queue("default")
        lifecycle.resume_queue("default")
        lifecycle.redrive([id])
        lifecycle.hand_back([(id, 1)])
        connection.commit()
    finally:
        connection.set_autocommit(True)
    assert notes == []
    assert Message.objects.get().id == id


def test_the_caller_can_catch_a_refused_enqueue_and_go_on():
    """What PostgreSQL refuses ends the caller's transaction, unless it stands in a savepoint of the caller."""
    with transaction.atomic():
        put()
        with pytest.raises(Exception, match="json"), transaction.atomic():
            lifecycle.enqueue(lifecycle.NewWork(task="t", payload="not json", queue="default"))
        put()
    assert Message.objects.count() == 2
