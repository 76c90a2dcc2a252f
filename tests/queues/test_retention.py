"""What finished is kept as long as was promised, and purged in bounded batches that wait for nobody."""

from __future__ import annotations

import pytest

from django_pgbus.models import Archived, DeadLetter, Level, Worker
from django_pgbus.queues import sweeps
from django_pgbus.tasks import lifecycle
from django_pgbus.worker.sweeps import SWEEPS, forget_silent_workers
from tests.line import COMMITTED, claim, claim_one, fail, give_up, put, state, succeed
from tests.sessions import execute, sessions

pytestmark = COMMITTED

PURGES = {
    "archive": (sweeps.purge_archive, succeed, "finished_at", Archived),
    "dead_letters": (sweeps.purge_dead_letters, give_up, "died_at", DeadLetter),
}


@pytest.fixture(params=PURGES)
def kind(request, settings):
    settings.PGBUS = {"ARCHIVE_RETENTION": 3600, "DEAD_LETTER_RETENTION": 3600}
    purge, end, column, model = PURGES[request.param]

    def age(seconds, *ids):
        execute(
            f"UPDATE pgbus_{request.param} SET {column} = statement_timestamp() - make_interval(secs => %s) "
            "WHERE id = ANY (%s)",
            [seconds, list(ids)],
        )

    return purge, end, age, model


def test_what_is_older_than_promised_goes_and_the_rest_stays(kind):
    purge, end, age, model = kind
    old, young = put(2)
    end(*claim())
    age(3601, old)
    age(3599, young)
    assert purge() == 1
    assert list(model.objects.values_list("id", flat=True)) == [young]
    assert purge() == 0


def test_a_purge_is_bounded(kind, monkeypatch):
    purge, end, age, _model = kind
    monkeypatch.setattr(sweeps, "BATCH", 10)
    ids = put(25)
    end(*claim())
    age(7200, *ids)
    assert [purge() for _ in range(4)] == [10, 10, 5, 0]


def test_two_purges_share_the_work_and_wait_for_nobody(kind, monkeypatch):
    purge, end, age, model = kind
    monkeypatch.setattr(sweeps, "BATCH", 10)
    ids = put(15)
    end(*claim())
    age(7200, *ids)
    with sessions(2) as (one, two):
        one.open()
        assert one.do(purge) == 10
        assert two.do(purge) == 5
        one.commit()
    assert not model.objects.exists()


def test_a_redrive_in_progress_is_passed_over(settings):
    settings.PGBUS = {"DEAD_LETTER_RETENTION": 0}
    (id,) = put()
    give_up(claim_one())
    with sessions() as person:
        person.open()
        person.do(lifecycle.redrive, [id])
        assert sweeps.purge_dead_letters() == 0
        person.commit()
    assert state(id) == "ready"


def test_what_is_not_finished_is_never_purged(settings):
    settings.PGBUS = {"ARCHIVE_RETENTION": 0, "DEAD_LETTER_RETENTION": 0}
    ids = put(2)
    fail(claim_one(limit=1), delay=3600)
    sweeps.purge_archive()
    sweeps.purge_dead_letters()
    assert {state(id) for id in ids} == {"ready", "delayed"}


def test_levels_unused_for_a_day_are_forgotten_and_used_ones_are_not():
    put(queue="used")
    put(queue="delayed")
    (delayed,) = list(claim(levels=[lifecycle.Level("delayed", 0)]))
    fail(delayed, delay=3600)
    put(queue="unused")
    succeed(*claim(levels=[lifecycle.Level("unused", 0)]))
    assert Level.objects.count() == 3
    assert sweeps.forget_levels() == 0
    execute("UPDATE pgbus_levels SET seen_at = statement_timestamp() - interval '2 days'")
    assert sweeps.forget_levels() == 1
    assert set(Level.objects.values_list("queue", flat=True)) == {"used", "delayed"}


def test_levels_nobody_announced_are_found():
    execute("INSERT INTO pgbus_messages (queue, priority, task, payload) VALUES ('psql', 3, 't', '{}')")
    put(3)
    Level.objects.all().delete()
    assert sweeps.find_levels() == 2
    assert set(Level.objects.values_list("queue", "priority", "suspect")) == {
        ("psql", 3, False),
        ("default", 0, False),
    }


def test_silent_workers_are_shown_for_an_hour_and_then_forgotten():
    for minutes in (59, 61):
        execute(
            "INSERT INTO pgbus_workers (id, name, host, pid, version, queues, capacity, running, superseded, state, "
            "lease, beat_at) VALUES (gen_random_uuid(), 'w', 'h', %s, '', '', 1, 0, 0, 'running', '30 s', "
            "statement_timestamp() - make_interval(mins => %s))",
            [minutes, minutes],
        )
    assert forget_silent_workers() == 1
    assert Worker.objects.get().pid == 59


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.name)
def test_every_sweep_is_correct_when_there_is_nothing_to_do(sweep):
    assert sweep.function() == 0
    assert sweep.interval > 0
