"""
Batches against a plain model of them, in whatever order hypothesis thinks of.

Blocks that commit, raise, and open a batch again; members that are limited, parked, tried again, snoozed, lost, given up,
redriven, discarded; settlements whose process dies before its look, or whose transaction is rolled back; repeated and
superseded ones. After every step `total = outstanding + succeeded + failed`, each member is where the counts say, no
callback was enqueued twice or too early; and in the end every batch is finished, with one callback of each kind due.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import hypothesis.strategies as st
import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_pgbus import Batch, BatchFinished, concurrency
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.sweeps import BatchEnder, GoOn
from tests.batches.tasks import CALLBACKS, FAILURE, FINISH, SUCCESS
from tests.constrained import alone, one
from tests.jobs import noop
from tests.line import COMMITTED, claim, fail, give_up, hand_back, release, snooze, succeed
from tests.races.guards import as_if_it_died_before_it_looked
from tests.sessions import execute

EXAMPLES = int(os.environ.get("PGBUS_TEST_EXAMPLES", "60"))
TABLES = (
    "pgbus_messages, pgbus_delayed, pgbus_archive, pgbus_dead_letters, pgbus_levels, pgbus_semaphores, "
    "pgbus_semaphore_slots, pgbus_blocked_executions, pgbus_uniqueness_keys, pgbus_batches, pgbus_batch_counts"
)
LIVE = """
    SELECT id, batch_id FROM pgbus_messages WHERE batch_id IS NOT NULL
    UNION ALL SELECT id, batch_id FROM pgbus_delayed WHERE batch_id IS NOT NULL
    UNION ALL SELECT id, batch_id FROM pgbus_blocked_executions WHERE batch_id IS NOT NULL
"""
STANDING = """
    SELECT batch.id, batch.total + coalesce(sum(one.added), 0), batch.succeeded + coalesce(sum(one.succeeded), 0),
           batch.failed + coalesce(sum(one.failed), 0), batch.finished_at IS NOT NULL
    FROM pgbus_batches AS batch
    LEFT JOIN pgbus_batch_counts AS one ON one.batch_id = batch.id
    GROUP BY batch.id
"""
PLACES = """
    SELECT id FROM pgbus_messages
    UNION ALL SELECT id FROM pgbus_delayed
    UNION ALL SELECT id FROM pgbus_blocked_executions
"""
ENQUEUED = """
    SELECT task, (payload #>> '{args,0,id}')::bigint FROM pgbus_messages WHERE task = ANY (%(tasks)s)
    UNION ALL
    SELECT task, (payload #>> '{args,0,id}')::bigint FROM pgbus_archive WHERE task = ANY (%(tasks)s)
"""
KINDS: list[tuple[Any, tuple[str, ...]]] = [(noop, ()), (noop, ()), (one, ("a",)), (alone, ("x",))]
SELDOM = st.sampled_from([False, False, False, True])
MEMBERS = st.lists(st.sampled_from(KINDS), max_size=4)
CALLED = [FINISH, SUCCESS, FAILURE]


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        execute(f"TRUNCATE {TABLES}")
        self.members: dict[int, Counter[str]] = {}  # batch: how its members ended; "added" is all of them
        self.batch_of: dict[int, int] = {}  # members that have not ended
        self.runs: list[Delivery] = []
        self.nobody_looked = False

    # --- callers --------------------------------------------------------------------------------------

    @rule(members=MEMBERS, raises=SELDOM)
    def open(self, members, raises):
        with contextlib.suppress(ZeroDivisionError), Batch(**CALLBACKS) as batch:
            ids = [int(task.enqueue(*args).id) for task, args in members]
            if raises:
                raise ZeroDivisionError
        if not raises:
            self.members[batch.id] = Counter(added=len(ids))
            self.batch_of |= dict.fromkeys(ids, batch.id)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), members=MEMBERS, raises=SELDOM)
    def open_again(self, data, members, raises):
        id = data.draw(st.sampled_from(sorted(self.members)))
        ids: list[int] = []
        try:
            with contextlib.suppress(ZeroDivisionError), Batch.get(id) as batch:
                ids = [int(batch.add(task, *args).id) for task, args in members]
                if raises:
                    raise ZeroDivisionError
        except BatchFinished:
            assert self.outstanding(id) == 0, "it is finished while members are outstanding"
            return
        if not raises:
            self.members[id]["added"] += len(ids)
            self.batch_of |= dict.fromkeys(ids, id)

    @rule()
    def enqueue_others(self):
        noop.enqueue()

    # --- workers --------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 5))
    def claim(self, limit):
        deliveries = [delivery for delivery in claim(limit=limit) if delivery.task not in CALLED]
        if deliveries:
            picked = lifecycle.pick_up(deliveries)
            self.runs += picked.taken

    def settle(self, data, end, outcome, *, dies, rolls_back=False):
        run = data.draw(st.sampled_from(self.runs))
        ended = False
        with as_if_it_died_before_it_looked() if dies else contextlib.nullcontext():
            try:
                with transaction.atomic():
                    rows = end(run)
                    ended = run.id in rows and (outcome is not None)
                    if rolls_back:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                return
        self.nobody_looked |= dies
        if isinstance(rows, dict) and rows.get(run.id):  # discarded instead
            self.end(run.id, "failed")
        elif ended:
            self.end(run.id, outcome)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), dies=SELDOM, rolls_back=SELDOM)
    def succeed(self, data, dies, rolls_back):
        self.settle(data, succeed, "succeeded", dies=dies, rolls_back=rolls_back)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), dies=SELDOM, rolls_back=SELDOM)
    def give_up(self, data, dies, rolls_back):
        self.settle(data, give_up, "failed", dies=dies, rolls_back=rolls_back)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), again=st.sampled_from([fail, snooze, hand_back]), dies=SELDOM)
    def not_yet(self, data, again, dies):
        run = data.draw(st.sampled_from(self.runs))
        before = self.places()
        with as_if_it_died_before_it_looked() if dies else contextlib.nullcontext():
            again(run)
        self.nobody_looked |= dies
        if run.id in before and run.id not in self.places():  # its discard was requested
            self.end(run.id, "failed")

    @rule()
    def lapse(self):
        ids = [id for (id,) in execute("SELECT id FROM pgbus_messages WHERE leased_until IS NOT NULL")]
        execute(
            "UPDATE pgbus_messages SET leased_until = statement_timestamp() - interval '1 second'"
            " WHERE leased_until IS NOT NULL"
        )
        release(*ids)
        there = self.places()
        for id in [id for id in ids if id not in there]:
            self.end(id, "failed")

    @rule()
    def time_comes(self):
        execute("UPDATE pgbus_delayed SET due_at = statement_timestamp()")
        execute("UPDATE pgbus_blocked_executions SET due_at = statement_timestamp() WHERE due_at IS NOT NULL")
        lifecycle.move_due(["default"])

    # --- people ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.batch_of)
    @rule(data=st.data(), dies=SELDOM)
    def discard(self, data, dies):
        ids = data.draw(st.lists(st.sampled_from(sorted(self.batch_of)), min_size=1, max_size=3, unique=True))
        with as_if_it_died_before_it_looked() if dies else contextlib.nullcontext():
            discarded = lifecycle.discard(ids)
        self.nobody_looked |= dies
        for id in discarded.settled:
            self.end(id, "failed")

    @rule()
    def discard_parked(self):
        before = {id for (id,) in execute("SELECT id FROM pgbus_blocked_executions")}
        concurrency.discard_parked("a")
        gone = before - {id for (id,) in execute("SELECT id FROM pgbus_blocked_executions")}
        archived = {id for (id,) in execute("SELECT id FROM pgbus_archive")}
        for id in gone & archived:
            self.end(id, "failed")

    @rule()
    def redrive(self):
        ids = [id for (id,) in execute("SELECT id FROM pgbus_dead_letters")]
        lifecycle.redrive(ids)

    @rule()
    def sweep(self):
        GoOn().sweep()
        BatchEnder().sweep()
        self.nobody_looked = False

    # --- what holds -----------------------------------------------------------------------------------

    def end(self, id, outcome):
        batch = self.batch_of.pop(id, None)
        if batch is not None:
            self.members[batch][outcome] += 1

    def outstanding(self, id):
        ended = self.members[id]
        return ended["added"] - ended["succeeded"] - ended["failed"]

    @staticmethod
    def places():
        return {id for (id,) in execute(PLACES)}

    @invariant()
    def counts_say_where_the_members_are(self):
        live = Counter(batch for _, batch in execute(LIVE))
        standing = {id: rest for id, *rest in execute(STANDING)}
        assert standing.keys() == self.members.keys()
        for id, (total, succeeded, failed, finished) in standing.items():
            expected = self.members[id]
            assert (total, succeeded, failed) == (expected["added"], expected["succeeded"], expected["failed"])
            assert live[id] == total - succeeded - failed == self.outstanding(id)
            assert not (finished and live[id]), "it is finished while members are outstanding"
            if not self.nobody_looked:
                assert finished == (live[id] == 0), "nobody finished it"

    @invariant()
    def callbacks_are_enqueued_once(self):
        called = Counter(execute(ENQUEUED, {"tasks": CALLED}))
        finished = {id: failed for id, _, _, failed, finished in execute(STANDING) if finished}
        expected = Counter({(FINISH, id): 1 for id in finished})
        expected += Counter({(FAILURE if failed else SUCCESS, id): 1 for id, failed in finished.items()})
        assert called == expected

    def teardown(self):
        for _ in range(100):
            self.time_comes()
            self.sweep()
            self.lapse()
            self.sweep()
            picked = lifecycle.pick_up(list(claim()))
            for delivery in picked.taken:
                succeed(delivery)
                self.end(delivery.id, "succeeded")
            if not execute(LIVE):
                break
        assert not execute(LIVE), "members are stranded"
        self.counts_say_where_the_members_are()
        self.callbacks_are_enqueued_once()
        assert all(finished for *_, finished in execute(STANDING))


@COMMITTED
@pytest.mark.races
@pytest.mark.timeout(3600)
def test_batches_do_what_they_promise():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
