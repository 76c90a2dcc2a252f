"""The numbers of the workers: health, and who serves a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_pgbus.models import Election, Worker
from django_pgbus.worker import stats
from django_pgbus.worker.stats import Health
from tests.admin import rows

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("fields", "health", "takes_jobs"),
    [
        ({}, Health.BEATING, True),
        ({"listening": None}, Health.BEATING, True),
        ({"listening": False}, Health.DEAF, True),
        ({"state": "draining", "listening": False}, Health.DRAINING, False),
        ({"state": "stopping"}, Health.DRAINING, False),
        ({"lease": timedelta(seconds=-1)}, Health.SILENT, False),
        ({"lease": timedelta(seconds=-1), "state": "draining"}, Health.SILENT, False),
    ],
)
def test_health_is_the_worst_that_is_true(fields: dict[str, Any], health: Health, takes_jobs: bool) -> None:
    rows.a_worker(**fields)
    (worker,) = stats.workers()
    assert (worker.health, worker.takes_jobs) == (health, takes_jobs)


def test_silence_is_measured_by_the_clock_that_wrote_the_beat() -> None:
    rows.a_worker()
    Worker.objects.update(beat_at=rows.now() - timedelta(minutes=10))
    (worker,) = stats.workers()
    assert worker.silent_for == pytest.approx(600, abs=60)
    assert worker.lease == 30.0


@pytest.mark.parametrize(
    ("queues", "queue", "serves"),
    [
        ("*: 10", "any", True),
        ("default,mail: 10; critical: 5", "critical", True),
        ("default,mail: 10; critical: 5", "reports", False),
        ("mail_*: 4", "mail_receipts", True),
        ("*,!reports: 4", "reports", False),
        ("of: another: version", "any", True),
    ],
)
def test_who_serves_a_queue(queues: str, queue: str, serves: bool) -> None:
    rows.a_worker(queues=queues)
    rows.a_worker(name="stopping", state="draining")
    found = stats.serving(queue, stats.workers())
    assert [worker.name for worker in found] == (["shop-1"] if serves else [])


def test_the_dispatcher_is_known() -> None:
    worker = rows.a_worker()
    election = Election.objects.create(office="dispatcher", worker=worker.id, until=rows.now() + timedelta(hours=1))
    assert [found.dispatcher for found in stats.workers()] == [True]
    election.until = rows.now() - timedelta(hours=1)
    election.save()
    assert [found.dispatcher for found in stats.workers()] == [False]
