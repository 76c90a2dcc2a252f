"""A task is validated when it is enqueued for the first time; what can change since is asked again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_pgbus import task
from django_pgbus.tasks import backend
from django_pgbus.tasks.backend import PgbusBackend
from django_pgbus.tasks.compat import InvalidTask

pytestmark = pytest.mark.django_db


@task
def nothing():
    return None


class Choosy(PgbusBackend):
    """A project's own backend, which asks each time."""

    asked = 0

    def validate_task(self, task: Any) -> None:
        self.asked += 1
        super().validate_task(task)


@pytest.fixture
def ours() -> PgbusBackend:
    return PgbusBackend("default", {"QUEUES": []})


@pytest.fixture
def checked(monkeypatch):
    """The priorities that were looked at."""
    seen = []
    check = backend._check_priority
    monkeypatch.setattr(backend, "_check_priority", lambda priority: (seen.append(priority), check(priority)))
    return seen


def test_the_same_task_is_validated_once_by_each_backend(ours, checked):
    for _ in range(3):
        ours.enqueue(nothing, [], {})
    assert checked == [0]
    PgbusBackend("default", {"QUEUES": []}).enqueue(nothing, [], {})
    assert checked == [0, 0]


def test_another_one_made_of_it_is_validated_too(ours, checked):
    ours.enqueue(nothing, [], {})
    ours.enqueue(nothing.using(priority=7), [], {})
    assert checked[-1] == 7


def test_one_that_failed_fails_again():
    narrow = PgbusBackend("default", {"QUEUES": ["other"]})
    for _ in range(2):
        with pytest.raises(InvalidTask):
            narrow.enqueue(nothing, [], {})


def test_one_with_a_time_is_validated_each_time(ours, checked):
    later = nothing.using(run_after=timedelta(hours=1))
    before = len(checked)
    for _ in range(2):
        ours.enqueue(later, [], {})
    assert len(checked) == before + 2


def test_what_a_subclass_asks_it_asks_each_time():
    choosy = Choosy("default", {"QUEUES": []})
    for _ in range(2):
        choosy.enqueue(nothing, [], {})
    assert choosy.asked == 2


def test_what_is_remembered_is_bounded(ours, monkeypatch):
    monkeypatch.setattr(backend, "MOST_VALID", 2)
    for priority in range(5):
        ours.enqueue(nothing.using(priority=priority), [], {})
    assert len(ours._valid) <= 2
