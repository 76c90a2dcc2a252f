"""
Limits and uniqueness against a plain model of what is promised, in whatever order hypothesis thinks of.

Several worker processes that claim, beat, succeed, fail, snooze, fall silent, come back, crash before or after they
looked again; people who release, discard, redrive, pause; limits that change in mid-flight. At any moment no key has
more fenced-in runs than slots were allowed, no key two holders, every task is in exactly one place, every slot has a
message, and where a process did not die before its look nobody waits for what is free. In the end everything is settled.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_pgbus import ConcurrencyLimitExceeded, JobNotUnique, concurrency
from django_pgbus.concurrency import slots as slots_module
from django_pgbus.concurrency.slots import Terms
from django_pgbus.queues import heartbeat
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import constraints, lifecycle
from django_pgbus.tasks.outcomes import HeldMessage
from django_pgbus.tasks.sweeps import GoOn, KeyReaper, SlotReaper
from django_pgbus.uniqueness.keys import discard_lock
from tests.constrained import (
    alone,
    alone_and_one,
    alone_or_none,
    lapse_slots,
    one,
    one_or_error,
    unique,
    unique_and_one,
)
from tests.line import COMMITTED, LEASE, claim, fail, give_up, hand_back, release, snooze, succeed
from tests.sessions import execute

EXAMPLES = int(os.environ.get("PGBUS_TEST_EXAMPLES", "300"))
TABLES = (
    "pgbus_messages, pgbus_delayed, pgbus_archive, pgbus_dead_letters, pgbus_levels, pgbus_queue_states, "
    "pgbus_semaphores, pgbus_semaphore_slots, pgbus_blocked_executions, pgbus_uniqueness_keys"
)
LEVELS = [Level(queue, 0, suspect) for queue in ("default", "slow") for suspect in (False, True)]
PLACES = """
    SELECT id, CASE WHEN leased_until IS NULL THEN 'ready' ELSE 'leased' END, delivery FROM pgbus_messages
    UNION ALL SELECT id, 'delayed', delivery FROM pgbus_delayed
    UNION ALL SELECT id, 'parked', delivery FROM pgbus_blocked_executions
    UNION ALL SELECT id, 'dead', delivery FROM pgbus_dead_letters
    UNION ALL SELECT id, outcome, delivery FROM pgbus_archive
"""
# Those that could still write a result: more than those under a lease, for a lapsed one may yet complete.
FENCED_IN = "SELECT id, delivery FROM pgbus_messages WHERE leased_until IS NOT NULL"
# Nobody holds the key, and nobody is on the way to take it.
WAITING_FOR_A_FREE_KEY = """
    SELECT blocked.key
    FROM pgbus_blocked_executions AS blocked
    LEFT JOIN pgbus_queue_states AS state ON state.queue = blocked.queue
    LEFT JOIN pgbus_uniqueness_keys AS held ON held.key = blocked.key
    LEFT JOIN pgbus_messages AS message
        ON message.id = held.message_id AND message.delivery = held.delivery AND message.leased_until IS NOT NULL
    WHERE blocked.waits_for = 'key'
      AND blocked.due_at IS NULL
      AND state.paused_at IS NULL
      AND (held.key IS NULL OR (held.strategy = 'while_executing' AND message.id IS NULL))
      AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS next WHERE next.constraints::jsonb #>> '{unique,key}' = blocked.key)
"""
SEMAPHORES = ("a", "b")
SELDOM = st.sampled_from([False, False, False, True])
UNSETTLED = """
    SELECT id FROM pgbus_messages WHERE task = %(task)s
    UNION ALL SELECT id FROM pgbus_delayed WHERE task = %(task)s
    UNION ALL SELECT id FROM pgbus_blocked_executions WHERE task = %(task)s
"""
LEFT = f"SELECT * FROM ({PLACES}) AS place (id, place, delivery) WHERE place NOT IN ('dead', 'succeeded', 'discarded')"
KINDS: list[tuple[Any, tuple[str, ...]]] = [
    (one, ("a",)),
    (one, ("a",)),
    (alone, ("x",)),
    (one, ("b",)),
    (one_or_error, ("g",)),
    (unique, ("u",)),
    (unique_and_one, ("v",)),
    (alone, ("x",)),
    (alone_or_none, ("x",)),
    (alone_and_one, ("x", "a")),
    (alone_and_one, ("y", "a")),
    (alone_and_one, ("x", "b")),
]


class Machine(RuleBasedStateMachine):
    limits: dict[str, int]

    def __init__(self) -> None:
        super().__init__()
        execute(f"TRUNCATE {TABLES}")
        self.limits.clear()
        self.limits.update(a=1, b=2)
        self.most: dict[str, int] = dict(self.limits)  # slots that were allowed when they were taken
        self.accepted: set[int] = set()
        self.runs: list[Delivery] = []  # also those that were superseded: they come back when they like
        self.numbers: dict[int, int] = {}
        self.doubled: set[str] = set()  # keys whose lock a person discarded
        self.nobody_looked = False
        self.sweep = GoOn()

    # --- producers ------------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS), number=st.integers(1, 3), later=SELDOM, slow=SELDOM)
    def enqueue(self, kind, number, later, slow):
        task, args = kind
        changes: dict[str, Any] = {"run_after": timedelta(hours=1)} if later else {}
        bound = task.using(queue_name="slow" if slow else "default", **changes)
        for _ in range(number):
            with contextlib.suppress(JobNotUnique, ConcurrencyLimitExceeded):
                self.accepted.add(int(bound.enqueue(*args).id))

    @rule()
    def time_comes(self):
        execute("UPDATE pgbus_delayed SET due_at = statement_timestamp()")
        execute("UPDATE pgbus_blocked_executions SET due_at = statement_timestamp() WHERE due_at IS NOT NULL")
        lifecycle.move_due(["default", "slow"])

    # --- workers --------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 6), dies=SELDOM)
    def claim(self, limit, dies):
        deliveries = claim(limit=limit, levels=self._levels())
        for delivery in deliveries:
            assert delivery.delivery > self.numbers.get(delivery.id, 0), "a delivery number came twice"
            self.numbers[delivery.id] = delivery.delivery
        if deliveries and not dies:
            self.runs += lifecycle.pick_up(deliveries).taken

    def _levels(self):
        paused = {queue for (queue,) in execute("SELECT queue FROM pgbus_queue_states WHERE paused_at IS NOT NULL")}
        return [level for level in LEVELS if level.queue not in paused]

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), how=st.sampled_from([succeed, fail, snooze, give_up, hand_back]), again=st.booleans())
    def a_run_ends(self, data, how, again):
        """Also one that was superseded long ago, and also twice."""
        run = data.draw(st.sampled_from(self.runs))
        how(run)
        if not again:
            self.runs.remove(run)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def one_beats(self, data):
        run = data.draw(st.sampled_from(self.runs))
        run.superseded = False
        held = Held()
        held.add([run])
        heartbeat.renew(held, LEASE)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), slot_too=st.booleans(), then=st.sampled_from(["nothing", "look", "sweep", "claim"]))
    def one_falls_silent(self, data, slot_too, then):
        """Its lease runs out, perhaps that of its slot too; somebody notices at once or later."""
        run = data.draw(st.sampled_from(self.runs))
        lapse_if(run)
        self.nobody_looked = True  # Silence is found out by the sweep.
        if slot_too:
            lapse_slots(run.id)
        if then == "look":
            self.somebody_looks()
        elif then == "sweep":
            self.sweeps()
        elif then == "claim":
            self.claim(6, False)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), started=st.booleans())
    def a_child_is_reaped(self, data, started):
        run = data.draw(st.sampled_from(self.runs))
        lifecycle.reap([HeldMessage(id=run.id, delivery=run.delivery, started=started, running=started)])
        self.runs.remove(run)

    @rule()
    def somebody_looks(self):
        lapsed = [id for (id,) in execute("SELECT id FROM pgbus_messages WHERE leased_until < clock_timestamp()")]
        release(*lapsed)

    # --- repairs --------------------------------------------------------------------------------------

    @rule()
    def sweeps(self):
        self.sweep.sweep()
        SlotReaper().reap()
        KeyReaper().reap()
        self.nobody_looked = False

    @rule(data=st.data(), how=st.sampled_from([succeed, give_up, snooze, fail]))
    def a_process_dies_before_it_looks_again(self, data, how):
        """A producer, or a worker that has just settled."""
        if not self.runs:
            self._without_a_look(lambda: self.accepted.add(int(one.enqueue("a").id)))
            return
        run = data.draw(st.sampled_from(self.runs))
        self._without_a_look(lambda: how(run))
        self.runs.remove(run)

    def _without_a_look(self, call):
        real, lifecycle.let_in = lifecycle.let_in, lambda *args: 0
        try:
            call()
        finally:
            lifecycle.let_in = real
        self.nobody_looked = True

    # --- people ---------------------------------------------------------------------------------------

    @rule(key=st.sampled_from(["a", "a", "b", "g"]), even_running=st.booleans(), then_claims=st.booleans())
    def a_person_releases(self, key, even_running, then_claims):
        concurrency.release(key, even_running=even_running)
        if then_claims:
            self.claim(6, False)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data(), what=st.sampled_from(["job", "parked", "lock", "redrive"]))
    def a_person_decides(self, data, what):
        self.nobody_looked = True  # One that was on its way to a key may be gone: the sweep finds out.
        if what == "job":
            lifecycle.discard([data.draw(st.sampled_from(sorted(self.accepted)))])
        elif what == "parked":
            concurrency.discard_parked(data.draw(st.sampled_from(SEMAPHORES)))
        elif what == "redrive":
            lifecycle.redrive([id for (id,) in execute("SELECT id FROM pgbus_dead_letters")])
        else:
            self._discard_a_lock()

    def _discard_a_lock(self):
        for key, id in execute("SELECT key, message_id FROM pgbus_uniqueness_keys WHERE strategy = 'until_executed'"):
            discard_lock(key, id)
            lifecycle.let_in((), [key])
            self.doubled.add(key)

    @rule(pause=st.booleans())
    def a_person_pauses_or_resumes(self, pause):
        if pause:
            lifecycle.pause_queue("slow")
        else:
            lifecycle.resume_queue("slow")
            self.nobody_looked = True  # the sweep does

    @rule(key=st.sampled_from(SEMAPHORES), to=st.integers(1, 3))
    def the_limit_changes(self, key, to):
        self.limits[key] = to
        self.nobody_looked = True  # it is honoured at the next promotion

    # --- what holds -----------------------------------------------------------------------------------

    def _held(self):
        return Counter(key for (key,) in execute("SELECT key FROM pgbus_semaphore_slots"))

    @invariant()
    def no_key_has_more_runs_than_allowed(self):
        held = self._held()
        for key in SEMAPHORES:
            self.most[key] = max(self.limits[key], min(self.most[key], held[key]))
            assert held[key] <= self.most[key], f"{held[key]} slots of {key}"
        assert held["g"] <= 1
        assert held["limit-v"] <= 1
        fenced_in = set(execute(FENCED_IN))
        living = [run for run in self._each_once() if (run.id, run.delivery) in fenced_in]
        runs = Counter(limit.key for run in living if (limit := constraints.of(run.constraints).limit))
        for key, number in runs.items():
            assert number <= self.most.get(key, 1), f"{number} runs of {key}"
        alone_now = Counter(key.key for run in living if (key := constraints.of(run.constraints).while_executing))
        assert all(number == 1 for number in alone_now.values()), alone_now

    def _each_once(self):
        return {(run.id, run.delivery): run for run in self.runs}.values()

    @invariant()
    def every_task_is_in_one_place(self):
        places = Counter(id for id, *_ in execute(PLACES))
        assert set(places) == self.accepted
        assert all(number == 1 for number in places.values())

    @invariant()
    def what_is_held_is_held_by_somebody(self):
        holders = "SELECT id FROM pgbus_messages UNION ALL SELECT id FROM pgbus_delayed"
        assert not execute(f"SELECT * FROM pgbus_semaphore_slots WHERE message_id NOT IN ({holders})")
        waiting = f"{holders} UNION ALL SELECT id FROM pgbus_blocked_executions"
        assert not execute(f"SELECT * FROM pgbus_uniqueness_keys WHERE message_id NOT IN ({waiting})")

    @invariant()
    def no_key_stands_for_two(self):
        for task, key in (("unique", "u"), ("unique_and_one", "v")):
            if key not in self.doubled:
                assert len(execute(UNSETTLED, {"task": f"tests.constrained.{task}"})) <= 1, f"{key} stands for two"

    @invariant()
    def nobody_waits_for_what_is_free(self):
        if not self.nobody_looked:
            assert slots_module.look(["a", "b", "g", "limit-v"], constraints.terms_of) == {}
            assert not execute(WAITING_FOR_A_FREE_KEY)

    def teardown(self):
        lifecycle.resume_queue("slow")
        self.runs.clear()
        for _ in range(3 * len(self.accepted) + 20):  # One at a time, where the limit is one.
            lapse_all()
            self.somebody_looks()
            self.time_comes()
            self.sweeps()
            self.claim(100, False)
            self.no_key_has_more_runs_than_allowed()
            for run in self.runs:
                succeed(run)
            self.runs.clear()
            if not execute(LEFT):
                break
        assert not execute(LEFT), "stranded"
        assert not execute("SELECT * FROM pgbus_semaphore_slots")
        assert not execute("SELECT * FROM pgbus_uniqueness_keys")
        self.every_task_is_in_one_place()


def lapse_if(run: Delivery) -> None:
    """Let the lease of this very delivery have run out, if it is leased still."""
    execute(
        "UPDATE pgbus_messages SET leased_until = statement_timestamp() - interval '1 second'"
        " WHERE id = %s AND delivery = %s AND leased_until IS NOT NULL",
        [run.id, run.delivery],
    )


def lapse_all() -> None:
    """Let nobody have been heard of for long."""
    execute(
        "UPDATE pgbus_messages SET leased_until = statement_timestamp() - interval '1 h' WHERE leased_until IS NOT NULL"
    )
    execute(
        "UPDATE pgbus_semaphore_slots SET leased_until = statement_timestamp() - interval '1 h'"
        " WHERE leased_until IS NOT NULL"
    )


@pytest.mark.proves("at-most-n-hold-a-slot")
@COMMITTED
@pytest.mark.races
@pytest.mark.timeout(3600)
def test_limits_do_what_they_promise(monkeypatch):
    Machine.limits = {}
    real = constraints.terms_of

    def declared(path: str, text: str) -> Terms:
        terms = real(path, text)
        limit = constraints.read(text).limit
        assert limit is not None
        return Terms(name="", to=Machine.limits.get(limit.key, terms.to), duration=terms.duration)

    monkeypatch.setattr(constraints, "terms_of", declared)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
