"""The heart, stepped by hand: what it renews, whom it tells, and what it concludes from silence."""

from __future__ import annotations

import time
import uuid
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connections

from django_pgbus.models import Worker
from django_pgbus.queues import heartbeat
from django_pgbus.queues.heartbeat import Held
from django_pgbus.tasks import lifecycle
from django_pgbus.worker import sql
from django_pgbus.worker.heart import Heart
from tests.line import COMMITTED, LEASE, claim, hand_back, leased_for, long_up, put  # noqa: F401
from tests.running import a_plan
from tests.sessions import execute, sessions

pytestmark = COMMITTED

STATUS = {"running": 1, "superseded": 0, "state": "running", "listening": True}


@pytest.fixture
def hearts():
    with sessions() as session:
        session.do(connections.close_all)
        made = []

        def make(**options):
            told = SimpleNamespace(superseded=[], discarded=[], beaten=[])
            held = Held()
            heart = Heart(
                plan=a_plan(**{"lease": LEASE, "beat": LEASE / 3, **options}),
                worker=uuid.uuid4(),
                supervisor=None,
                name="w",
                held=held,
                status=lambda: STATUS,
                superseded=told.superseded.append,
                discarded=told.discarded.append,
                beaten=told.beaten.append,
            )
            made.append(heart)
            return SimpleNamespace(heart=heart, held=held, told=told, beat=lambda: session.do(heart.step))

        yield make
        for heart in made:
            session.do(heart.disconnect)


def test_a_beat_renews_and_writes_its_own_row(hearts):
    put()
    one = hearts()
    (delivery,) = claim()
    one.held.add([delivery])
    execute("UPDATE pgbus_messages SET leased_until = statement_timestamp() + interval '5 s'")
    assert 0 < one.beat() <= LEASE / 3
    assert leased_for(delivery.id) > LEASE - 5
    row = Worker.objects.get()
    assert (row.name, row.running, row.state) == ("w", 1, "running")
    assert one.told.beaten == [True]


@pytest.mark.proves("a-beat-is-one-statement")
@pytest.mark.needs_session("each statement brings its settings along")
def test_an_idle_beat_writes_its_own_row_and_nothing_else(hearts):
    one = hearts()
    one.beat()
    sent = []
    one.heart._connection.execute_wrappers.append(lambda run, *args: sent.append(args[0]) or run(*args))
    one.beat()
    assert sent == [sql.BEAT.sql, sql.RUN_FOR_OFFICE.sql], "the second as the dispatcher"
    one.heart.is_dispatcher = False
    execute("UPDATE pgbus_election SET worker = gen_random_uuid()")
    sent.clear()
    one.beat()
    assert sent == [sql.BEAT.sql]


@pytest.mark.proves("a-superseded-run-is-named")
def test_it_tells_of_what_was_superseded_and_of_what_is_to_be_discarded_once(hearts):
    put(3)
    one = hearts()
    gone, doomed, fine = claim()
    one.held.add([gone, doomed, fine])
    hand_back(gone)
    lifecycle.discard([doomed.id])
    for _ in range(2):
        one.beat()
    assert (one.told.superseded, one.told.discarded) == ([gone], [doomed])
    assert not fine.superseded


@pytest.mark.proves("a-superseded-run-frees-nothing")
def test_what_was_not_confirmed_for_a_lease_is_treated_as_superseded(hearts):
    """Counted by its own clock from before the last confirmed beat was sent; whoever hears nothing cannot know."""
    put(2)
    one = hearts()
    silent, fresh = claim()
    one.held.add([silent, fresh])
    silent.confirmed_at = time.monotonic() - LEASE - 1
    one.heart.on_error(OperationalError("gone"))
    assert one.told.superseded == [silent]
    assert one.told.beaten == [False]
    assert not one.heart.alive


def test_a_single_run_whose_message_is_never_renewed_is_given_up_too(hearts, monkeypatch):
    """The beat itself goes well; somebody keeps this one row locked."""
    put()
    one = hearts()
    (delivery,) = claim()
    one.held.add([delivery])
    delivery.confirmed_at = time.monotonic() - LEASE - 1
    with sessions() as person:
        person.open()
        person.sql("SELECT 1 FROM pgbus_messages FOR UPDATE")
        one.beat()
        person.commit()
    assert one.told.superseded == [delivery]
    assert one.told.beaten == [True]


def test_no_statement_of_it_takes_longer_than_half_a_beat(hearts):
    one = hearts(beat=0.4, lease=1.2)
    one.beat()
    limits = []

    def look(held, lease):
        limits.extend(execute("SELECT current_setting('statement_timeout')")[0])
        return heartbeat.Beat()

    real, heartbeat.renew = heartbeat.renew, look
    try:
        one.beat()
    finally:
        heartbeat.renew = real
    assert limits == ["200ms"]


def test_one_is_elected_and_the_next_when_its_term_is_over(hearts):
    first, second = hearts(), hearts()
    first.beat()
    second.beat()
    assert (first.heart.is_dispatcher, second.heart.is_dispatcher) == (True, False)
    execute("UPDATE pgbus_election SET until = statement_timestamp() - interval '1 second'")
    second.beat()
    first.beat()
    assert (first.heart.is_dispatcher, second.heart.is_dispatcher) == (False, True)


def test_two_that_run_at_the_same_time_and_one_is_elected(hearts):
    term = {"office": "dispatcher", "term": "10 s"}
    with sessions(2) as (one, two):
        one.open()
        assert len(one.do(sql.RUN_FOR_OFFICE.rows, worker=uuid.uuid4(), **term)) == 1
        late = two.begin(sql.RUN_FOR_OFFICE.rows, worker=uuid.uuid4(), **term)
        two.wait_until_blocked()
        one.commit()
        assert late.result(20) == []


def test_a_row_that_somebody_deleted_comes_back(hearts):
    one = hearts()
    one.beat()
    Worker.objects.all().delete()
    one.beat()
    assert Worker.objects.count() == 1
