"""What is enqueued through Django's Task API runs in a worker, and its result comes back by its id."""

from __future__ import annotations

import logging

import pytest
from django.db import connection

from django_pgbus import enqueue_many
from django_pgbus.models import DeadLetter
from django_pgbus.tasks.compat import TaskResultStatus
from tests.running import run_burst
from tests.tasks.examples import aadd, add, echo, fails_with, import_order

pytestmark = pytest.mark.django_db(transaction=True)


def test_results_come_back():
    one, two = add.enqueue(1, b=2), aadd.enqueue(3, 4)
    three = import_order.enqueue(7, token="hunter2")
    many = enqueue_many(add, [([n], {"b": n}) for n in range(50)])
    run_burst()
    for result in (one, two, three, *many):
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL
        assert result.attempts == len(result.worker_ids) == 1
        assert all(result.worker_ids)
        assert result.enqueued_at <= result.started_at <= result.finished_at
    assert (one.return_value, two.return_value, three.return_value) == (3, 7, 7)
    assert [result.return_value for result in many] == [2 * n for n in range(50)]


def test_values_arrive_exactly():
    value = [2**70, -0.0, 1e22, 0.1 + 0.2, "a literal \\u0000", "\U0001f600", {"ä": [None, True]}, 1.0]
    result = echo.enqueue(value)
    run_burst()
    result.refresh()
    assert repr(result.return_value) == repr(value)


def test_a_secret_in_an_exception_is_not_stored():
    result = fails_with.enqueue("ann", "hunter2")
    run_burst()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is ValueError
    assert "refused: '********' of ann" in result.errors[0].traceback
    with connection.cursor() as cursor:
        cursor.execute("SELECT errors::text FROM pgbus_dead_letters WHERE id = %s", [result.id])
        assert "hunter2" not in cursor.fetchone()[0]
    assert DeadLetter.objects.get().reason == "exhausted"
    assert "hunter2" not in repr(result)


def test_a_secret_in_an_exception_is_not_logged(caplog):
    caplog.set_level(logging.DEBUG)
    fails_with.enqueue("ann", "hunter2")
    run_burst()
    assert "fails_with" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_result_that_cannot_be_stored_is_a_failure_with_its_place():
    result = echo.using(queue_name="odd").enqueue("set")
    run_burst()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class_path == "django_pgbus.exceptions.InvalidPayloadType"
    assert (
        "result['x'] is a set, which JSON cannot hold. Pass list(value), or sorted(value)."
        in result.errors[0].traceback
    )
