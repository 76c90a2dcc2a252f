"""Two workers that claim at the same time take different messages, and together all of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections

from django_pgbus.models import Archived, Message
from django_pgbus.queues import sql
from django_pgbus.queues.line import Line
from django_pgbus.tasks import lifecycle
from tests.line import COMMITTED, DEFAULT, LEASE, Level, changed, claim, claim_one, put, succeed
from tests.sessions import PATIENCE, execute, sessions

pytestmark = [COMMITTED, pytest.mark.races]


@pytest.mark.proves("one-worker-claims")
def test_a_claim_passes_over_what_another_is_claiming():
    ids = put(4)
    with sessions(2) as (one, two):
        one.open()
        first = one.do(claim, limit=2)
        second = two.do(claim, limit=4)
        one.commit()
    assert [d.id for d in first] == ids[:2]
    assert [d.id for d in second] == ids[2:]


def test_a_claim_that_rolls_back_took_nothing():
    ids = put(2)
    with sessions() as one:
        one.open()
        one.do(claim)
        one.roll_back()
    claimed = claim()
    assert [d.id for d in claimed] == ids
    assert {d.delivery for d in claimed} == {1}


def test_a_claim_marks_only_what_it_returns():
    """Also when it spans two levels, the first of which has fewer than asked for."""
    put(3, priority=10)
    put(10)
    claimed = claim(limit=5, levels=[Level("default", 10), DEFAULT])
    assert [d.level.priority for d in claimed] == [10, 10, 10, 0, 0]
    assert Message.objects.filter(delivery=1).count() == 5


@pytest.mark.proves("a-claim-reads-what-it-takes")
def test_a_claim_locks_only_what_it_returns():
    put(10)
    with sessions(2) as (one, two):
        one.open()
        one.do(claim, limit=3)
        assert len(two.do(claim, limit=10)) == 7
        one.commit()


def test_a_message_claimed_between_snapshot_and_lock_is_passed_over(monkeypatch):
    """The second claim chose its rows before the first one's were marked; under the lock it sees what they are now."""
    lock = 8015
    slow = changed(
        "CLAIM",
        "AND candidate.leased_until IS NULL",
        f"AND candidate.leased_until IS NULL AND pg_advisory_xact_lock_shared({lock}) IS NOT NULL",
    )
    ids = put(4)
    with sessions(2) as (one, two):
        one.open()
        one.sql("SELECT pg_advisory_xact_lock(%s)", lock)
        first = one.do(claim, limit=2)
        monkeypatch.setattr(sql, "CLAIM", slow)
        late = two.begin(claim, limit=4)  # its snapshot is from before the commit
        two.wait_until_blocked()
        one.commit()
        second = late.result(PATIENCE)
    assert [d.id for d in first] == ids[:2]
    assert [d.id for d in second] == ids[2:]
    assert {d.delivery for d in [*first, *second]} == {1}


@pytest.mark.proves("one-worker-claims")
def test_workers_that_race_run_everything_once():
    """Four producers, with transactions, against three workers: what a crowd may find that an order of events does not."""
    total, batch = 240, 6
    done: list[int] = []

    def produce(number):
        try:
            return [id for _ in range(number // batch) for id in put(batch)]
        finally:
            connections.close_all()

    def consume():
        line, idle = Line(), 0
        try:
            while idle < 50:
                claimed = claim(line, 7)
                idle = 0 if claimed else idle + 1
                done.extend(succeed(*claimed))
                if not claimed:
                    line.look_soon()
                    line.poll([DEFAULT], ["default"], LEASE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(7) as pool:
        producers = [pool.submit(produce, total // 4) for _ in range(4)]
        workers = [pool.submit(consume) for _ in range(3)]
        ids = [id for producer in producers for id in producer.result(60)]
        for worker in workers:
            worker.result(60)
    assert sorted(done) == sorted(ids)
    assert Archived.objects.filter(delivery=1, attempts=1).count() == total


def test_priorities_come_before_age_and_age_decides_within():
    low = put(2, priority=-5)
    high = put(2, priority=5)
    levels = [Level("default", 5), Level("default", -5)]
    assert [d.id for d in claim(levels=levels)] == [*high, *low]


def test_movers_and_claims_of_other_queues_are_left_alone():
    put(1, queue="mine")
    put(1, queue="theirs")
    assert claim_one(levels=[Level("mine", 0)]).queue == "mine"
    assert lifecycle.move_due(["mine"]) == []
    assert execute("SELECT queue FROM pgbus_messages WHERE leased_until IS NULL") == [("theirs",)]
