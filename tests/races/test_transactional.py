"""The effects of a transactional task happen exactly once, or not at all (semantics 7.1)."""

from __future__ import annotations

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import OperationalError

from django_pgbus.models import Archived
from django_pgbus.queues import heartbeat
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.executor import Done, Executor, Superseded
from django_pgbus.tasks.lifecycle import GaveUp, PutOff
from django_pgbus.tasks.watch import Watch
from tests.line import COMMITTED, LEASE, claim_one, fail, hand_back, holding, lapse, leased_for, release, state, succeed
from tests.races import effects
from tests.sessions import PATIENCE, execute, sessions, strict_session

pytestmark = [COMMITTED, pytest.mark.races]


@pytest.fixture(autouse=True)
def table():
    effects.calls.clear()
    effects.on_call.clear()
    with sessions() as session:
        session.sql("CREATE TABLE pgbus_test_effects (value int)")
    yield
    with sessions() as session:
        session.sql("DROP TABLE pgbus_test_effects")


def values():
    return [value for (value,) in execute("SELECT value FROM pgbus_test_effects ORDER BY value")]


def run(delivery):
    """Run a delivery as a worker's thread would, and return its outcome."""
    return Executor(worker="w", watch=Watch()).prepare(delivery).sync()


@pytest.fixture
def job():
    result = effects.effect.enqueue(7)
    return int(result.id), claim_one()


@pytest.mark.proves("effects-exactly-once")
def test_effect_and_settlement_are_one_transaction(job):
    id, delivery = job
    with sessions() as outside:

        def look(call):
            assert outside.do(values) == []
            assert outside.do(state, id) == "running"

        effects.on_call.append(look)
        assert type(run(delivery)) is Done
    assert values() == [7]
    assert (state(id), Archived.objects.get().result) == ("succeeded", "7")


@pytest.mark.proves("effects-exactly-once")
@pytest.mark.parametrize("successor", ["is waiting", "runs", "is done"])
def test_a_superseded_run_takes_its_effect_back(job, successor):
    id, delivery = job
    with sessions() as others:

        def supersede(call):
            others.do(lapse, id)
            assert others.do(release, id) == [id]
            if successor != "is waiting":
                new = others.do(claim_one)
                if successor == "is done":
                    effects.on_call.clear()
                    assert type(others.do(run, new)) is Done

        effects.on_call.append(supersede)
        assert type(run(delivery)) is Superseded
    assert values() == ([7] if successor == "is done" else [])
    if successor == "is waiting":
        effects.on_call.clear()
        assert type(run(claim_one())) is Done
        assert values() == [7]


def test_without_it_the_effect_of_a_superseded_run_stays():
    """What the transaction is for: an ordinary task has its effect twice."""
    effects.loose_effect.enqueue(7)
    old = claim_one()
    hand_back(old)
    new = claim_one()
    for delivery in (old, new):
        succeed(run(delivery).delivery)
    assert values() == [7, 7]


@pytest.mark.proves("effects-exactly-once")
def test_a_run_that_lost_the_race_to_the_row_takes_its_effect_back(job):
    """The look releases it while its transaction waits for the row, at the very end."""
    id, delivery = job
    lapse(id)
    with sessions(2) as (look, worker):
        look.open()
        assert look.do(release, id) == [id]
        outcome = worker.begin(run, delivery)
        worker.wait_until_blocked()
        look.commit()
        assert type(outcome.result(PATIENCE)) is Superseded
    assert values() == []


def test_a_failed_run_takes_its_effect_back(job):
    id, delivery = job

    def fail_once(call):
        raise ValueError("no")

    effects.on_call.append(fail_once)
    assert type(run(delivery)) is PutOff
    assert values() == []
    assert state(id) == "running", "the completer writes the failure, after the rollback"


def raises(code, times):
    def step(call):
        if call <= times:
            execute(f"DO $$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = '{code}'; END $$")

    return step


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_conflict_runs_again_and_costs_no_attempt(job, code):
    id, delivery = job
    effects.on_call.append(raises(code, times=2))
    assert type(run(delivery)) is Done
    assert (effects.calls, values()) == ([7, 7, 7], [7])
    assert Archived.objects.get(id=id).attempts == 1


def test_a_conflict_that_does_not_end_is_a_failed_attempt(job):
    effects.on_call.append(raises("40001", times=99))
    outcome = run(job[1])
    assert type(outcome) is PutOff
    assert "conflict" in outcome.error
    assert (len(effects.calls), values()) == (3, [])


def test_a_real_deadlock_runs_again(job):
    _, delivery = job
    execute("INSERT INTO pgbus_test_effects VALUES (100), (200)")
    lock = "SELECT 1 FROM pgbus_test_effects WHERE value = %s FOR UPDATE"
    with sessions(2) as (worker, other):
        other.open()
        other.sql(lock, 200)

        def cross(call):
            if call == 1:
                execute("SET LOCAL deadlock_timeout = '20ms'")
                execute(lock, [100])
                waits = other.begin(execute, lock, [100])
                other.wait_until_blocked()
                effects.on_call.append(lambda call: call > 1 and (waits.result(PATIENCE), other.roll_back()))
                execute(lock, [200])

        effects.on_call.append(cross)
        assert type(worker.do(run, delivery)) is Done
    assert (len(effects.calls), values()) == (2, [7, 100, 200])


@pytest.fixture
def lose(monkeypatch):
    """Let the reply to the next COMMIT of ours be lost, whether it took effect or not."""

    def arrange(*, took_effect):
        commit = BaseDatabaseWrapper._commit

        def lost(self):
            monkeypatch.setattr(BaseDatabaseWrapper, "_commit", commit)
            if took_effect:
                commit(self)
            else:
                self.connection.close()
            raise OperationalError("server closed the connection unexpectedly")

        monkeypatch.setattr(BaseDatabaseWrapper, "_commit", lost)

    return arrange


@pytest.mark.proves("effects-exactly-once")
def test_after_a_lost_reply_it_is_looked_up_and_not_run_again(job, lose):
    id, delivery = job
    with sessions() as worker:
        lose(took_effect=True)
        assert type(worker.do(run, delivery)) is Done
    assert (effects.calls, values(), state(id)) == ([7], [7], "succeeded")


def test_a_commit_that_never_happened_is_a_failed_attempt_and_not_a_blind_repetition(job, lose):
    id, delivery = job
    with sessions() as worker:
        lose(took_effect=False)
        outcome = worker.do(run, delivery)
    assert type(outcome) is PutOff
    assert (effects.calls, values(), state(id)) == ([7], [], "running")


def test_a_failure_written_while_the_commit_is_still_on_its_way_changes_nothing(job):
    """The lookup came too early; the row's lock makes the failure wait for the end of the transaction, and miss."""
    id, delivery = job
    with sessions(2) as (lost, completer):
        lost.open()
        lost.do(succeed, delivery)
        assert completer.do(lifecycle.settled_before, [delivery]) == set()
        failure = completer.begin(fail, delivery)
        completer.wait_until_blocked()
        lost.commit()
        assert failure.result(PATIENCE) == {}
    assert state(id) == "succeeded"


def test_its_lease_is_renewed_while_it_runs(job):
    """The message is locked at the end only: the beat would pass over a locked one."""
    id, delivery = job
    execute("UPDATE pgbus_messages SET leased_until = statement_timestamp() + interval '5 s'")
    with sessions() as heart:

        def beat(call):
            heart.do(heartbeat.renew, holding(delivery), LEASE)
            assert heart.do(leased_for, id) > LEASE - 5

        effects.on_call.append(beat)
        assert type(run(delivery)) is Done


def test_under_a_stricter_level_a_beat_in_between_is_a_conflict(job):
    """Its snapshot is older than the renewed row; so a run longer than a beat cannot be settled at such a level."""
    _, delivery = job
    levels = []
    with sessions() as heart, strict_session() as worker:

        def beat(call):
            levels.append(execute("SHOW transaction_isolation")[0][0])
            if call == 1:
                heart.do(heartbeat.renew, holding(delivery), LEASE)

        effects.on_call.append(beat)
        assert type(worker.do(run, delivery)) is Done
    assert (levels, values()) == (["repeatable read"] * 2, [7])


def test_a_function_that_marks_its_transaction_for_rollback_has_failed(job):
    effects.on_call.append(lambda call: transaction.set_rollback(True))
    assert type(run(job[1])) is PutOff
    assert values() == []
    assert not connection.in_atomic_block


def test_the_last_attempt_ends_as_a_dead_letter_without_effect(job):
    _, delivery = job
    delivery.attempts = 3
    effects.on_call.append(lambda call: 1 / 0)
    assert type(run(delivery)) is GaveUp
    assert values() == []
