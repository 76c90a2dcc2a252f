"""
The claims of events, in whatever order hypothesis thinks of.

Events that are published again under their id; deliveries that are claimed, picked up, renewed, ended in every way, also
late; processes that die seen or unseen; leases of messages and of claims that lapse together or apart; a person who hands
running ones back, discards, redrives; purges; a second session whose transaction is open meanwhile, and is rolled back now
and then. After every step at most one run of a handler is fenced in for one event, it counts as done once, and what is not
done stands somewhere; in the end everything is done.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_pgbus import publish, subscribe
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from django_pgbus.idempotency import sweeps
from django_pgbus.idempotency.claims import completed
from django_pgbus.queues import heartbeat
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import HeldMessage, PickedUp
from tests.eventful import claim_events
from tests.line import (
    COMMITTED,
    LEASE,
    fail,
    give_up,
    hand_back,
    holding,
    long_up,  # noqa: F401  (a fixture)
    release,
    snooze,
    succeed,
)
from tests.sessions import Session, execute

EXAMPLES = int(os.environ.get("PGBUS_TEST_EXAMPLES", "60"))
TABLES = (
    "pgbus_messages, pgbus_delayed, pgbus_archive, pgbus_dead_letters, pgbus_levels, pgbus_processed_events, "
    "pgbus_event_counts"
)
EVENTS = [uuid.UUID(int=number) for number in (1, 2)]
ANY = st.sampled_from([EVENTS[0], EVENTS[0], EVENTS[1]])
COPIES = """
    SELECT event_id, task, id FROM pgbus_messages
    UNION ALL SELECT event_id, task, id FROM pgbus_delayed
    UNION ALL SELECT event_id, task, id FROM pgbus_dead_letters
"""
FENCED_IN = "SELECT id, delivery FROM pgbus_messages WHERE leased_until > clock_timestamp()"
SELDOM = st.sampled_from([False, False, False, True])


@subscribe("machine.event", idempotent=True)
def one(event): ...


@subscribe("machine.*", idempotent=True)
def two(event): ...


PATHS = [f"{__name__}.one", f"{__name__}.two"]


class Machine(RuleBasedStateMachine):
    other: Session

    def __init__(self) -> None:
        super().__init__()
        execute(f"TRUNCATE {TABLES}")
        completed.clear()
        self.published: set[tuple[uuid.UUID, str]] = set()
        self.done: Counter[tuple[uuid.UUID, str]] = Counter()
        self.forgotten: Counter[tuple[uuid.UUID, str]] = Counter()  # purged, so that it may be done once more
        self.given_up: set[tuple[uuid.UUID, str]] = set()  # a person discarded a copy
        self.claimed: list[Delivery] = []
        self.runs: list[Delivery] = []  # their processes do not know what became of them
        self.alive: set[Delivery] = set()  # those that nobody has told, for as long as a lease

    @initialize()
    def begin(self):
        """Some run, and each has a duplicate in the line."""
        for event in (*EVENTS, *EVENTS):
            self.publish(event, False)
        self.work(4)

    # --- publishers -----------------------------------------------------------------------------------

    @rule(event=ANY, delay=SELDOM)
    def publish(self, event, delay):
        assert publish("machine.event", event_id=event, delay=60 if delay else None) == 2
        self.published |= {(event, path) for path in PATHS}

    # --- workers --------------------------------------------------------------------------------------

    @rule(limit=st.integers(1, 3))
    def claim(self, limit):
        self.claimed += claim_events(limit)

    @rule(limit=st.integers(1, 3))
    def work(self, limit):
        """Claim, and pick up, with what was contested before."""
        self.claim(limit)
        if self.claimed:
            self.note(lifecycle.pick_up(list(self.claimed)))

    @precondition(lambda self: self.claimed)
    @rule(data=st.data())
    def pick_up(self, data):
        self.note(lifecycle.pick_up(self.chosen(data, self.claimed)))

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), end=st.sampled_from([succeed, succeed, succeed, fail, snooze, hand_back, give_up]))
    def end(self, data, end):
        """Of a run that is superseded it changes nothing; one may also be repeated, since its reply was lost."""
        run = data.draw(st.sampled_from(self.runs))
        if data.draw(SELDOM):
            self.ended(run, end, end(run))
        else:
            self.runs.remove(run)
            run.ended = True
            self.ended(run, end, end(run))

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def end_together(self, data):
        chosen = self.chosen(data, self.runs)
        settled = succeed(*chosen)
        for run in chosen:
            self.ended(run, succeed, settled & {run.id})

    @precondition(lambda self: self.runs or self.claimed)
    @rule(data=st.data(), seen=st.booleans())
    def dies(self, data, seen):
        """Its process is gone; its supervisor says so, or nobody does."""
        delivery = data.draw(st.sampled_from([*self.runs, *self.claimed]))
        ran = delivery in self.runs
        (self.runs if ran else self.claimed).remove(delivery)
        self.alive.discard(delivery)
        if seen:
            lifecycle.reap([HeldMessage(id=delivery.id, delivery=delivery.delivery, started=ran, running=ran)])

    @precondition(lambda self: self.runs or self.claimed)
    @rule(data=st.data())
    def beat(self, data):
        chosen = self.chosen(data, [*self.runs, *self.claimed])
        heartbeat.renew(holding(*chosen), LEASE)

    @rule(event=ANY, which=st.sampled_from(["messages", "claims", "both", "both"]))
    def time_passes(self, event, which):
        """Leases lapse, of messages and claims; one a little before the other."""
        for kind, table in (("messages", "pgbus_messages"), ("claims", "pgbus_processed_events")):
            if which in {kind, "both"}:
                execute(
                    f"UPDATE {table} SET leased_until = statement_timestamp() - interval '1 second'"
                    " WHERE leased_until IS NOT NULL AND event_id = %s",
                    [event],
                )
        self.alive = {run for run in self.alive if run.event != event}

    @rule(event=ANY, look=st.booleans())
    def is_taken_over(self, event, look):
        """What runs falls silent, and a duplicate comes; or only the message that it had."""
        if not look:
            self.publish(event, False)
        self.time_passes(event, "both")
        if look:
            self.look()
        self.work(4)

    @rule(what=st.sampled_from(["look", "look", "time comes", "redrive", "purge", "forget"]))
    def housekeeping(self, what):
        if what == "look":
            self.look()
        elif what == "time comes":
            self.time_comes()
        elif what == "redrive":
            self.redrive()
        elif what == "purge":
            self.purge()
        else:
            completed.clear()

    def look(self):
        release(*[id for (id,) in execute("SELECT id FROM pgbus_messages WHERE leased_until < clock_timestamp()")])

    def time_comes(self):
        execute("UPDATE pgbus_delayed SET due_at = statement_timestamp()")
        lifecycle.move_due(["@events"])

    def redrive(self):
        lifecycle.redrive([id for (id,) in execute("SELECT id FROM pgbus_dead_letters")])

    def purge(self):
        execute("UPDATE pgbus_processed_events SET completed_at = completed_at - interval '8 days'")
        before = self.completed_claims()
        sweeps.purge_claims()
        for key in before - self.completed_claims():
            self.forgotten[key] += 1
            assert key not in {(event, path) for event, path, _ in execute(COPIES)}, "a copy of it may still come"

    @precondition(lambda self: self.claimed)
    @rule(data=st.data(), commits=st.booleans())
    def pick_up_beside_an_open_transaction(self, data, commits):
        """Somebody else picks up, or succeeds, and has not committed yet."""
        there = data.draw(st.sampled_from([*self.runs, *self.claimed]))
        mine = [delivery for delivery in self.claimed if delivery.id != there.id]
        if not mine:
            return
        is_run = there in self.runs
        self.other.open()
        if is_run:
            settled = self.other.do(succeed, there)
        else:
            picked = self.other.do(lifecycle.pick_up, [there])
        self.note(lifecycle.pick_up(mine))
        if not commits:
            self.other.roll_back()
            there.ended = False
            return
        self.other.commit()
        if is_run:
            self.ended(there, succeed, settled)
        else:
            self.note(picked)

    # --- people ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def hand_back_a_running_one(self, data):
        """And in time somebody claims it."""
        run = data.draw(st.sampled_from(self.runs))
        lifecycle.hand_back([(run.id, run.delivery)], even_running=True)

    @precondition(lambda self: execute(COPIES))
    @rule(data=st.data(), really=SELDOM)
    def discard(self, data, really):
        if really:
            event, path, id = data.draw(st.sampled_from(sorted(execute(COPIES))))
            if lifecycle.discard([id]).gone != {id}:
                self.given_up.add((event, path))

    # --- the model ------------------------------------------------------------------------------------

    def chosen(self, data, deliveries):
        return data.draw(st.lists(st.sampled_from(deliveries), min_size=1, unique_by=lambda delivery: delivery.id))

    def note(self, picked: PickedUp):
        for delivery in (*picked.taken, *picked.gone):
            self.claimed.remove(delivery)
        for delivery in picked.taken:
            assert self.key(delivery) not in self.done - self.forgotten, "it was done before"
            beside = [run for run in self.alive if self.key(run) == self.key(delivery) and not run.superseded]
            assert not beside, "it begins beside one that was not told"
        self.runs += picked.taken
        self.alive |= set(picked.taken)

    def ended(self, run, end, settled):
        if end is succeed and run.id in settled:
            self.done[self.key(run)] += 1
        if run in self.runs:
            self.runs.remove(run)
        self.alive.discard(run)

    @staticmethod
    def key(delivery):
        return delivery.event, delivery.task

    @staticmethod
    def completed_claims():
        return set(execute("SELECT event_id, handler FROM pgbus_processed_events WHERE completed_at IS NOT NULL"))

    @invariant()
    def one_run_is_fenced_in(self):
        fenced_in = set(execute(FENCED_IN))
        running = Counter(self.key(run) for run in self.runs if (run.id, run.delivery) in fenced_in)
        assert not running or max(running.values()) == 1, running

    @invariant()
    def it_is_done_once(self):
        rows = execute("SELECT event_id, task, count(*) FROM pgbus_archive WHERE outcome = 'succeeded' GROUP BY 1, 2")
        archived = Counter({(event, path): number for event, path, number in rows})
        assert archived == self.done
        assert all(number <= 1 + self.forgotten[key] for key, number in archived.items()), archived
        assert self.completed_claims() == set(self.done - self.forgotten)

    @invariant()
    def nothing_is_lost(self):
        there = {(event, path) for event, path, _ in execute(COPIES)}
        assert self.published <= there | set(self.done) | self.given_up

    def teardown(self):
        self.claimed, self.runs, self.alive = [], [], set()
        for _ in range(20):
            for table in ("pgbus_messages", "pgbus_processed_events"):
                execute(
                    f"UPDATE {table} SET leased_until = statement_timestamp() - interval '1 s' WHERE leased_until > now()"
                )
            self.look()
            self.redrive()
            self.time_comes()
            self.claimed = claim_events()
            if self.claimed:
                picked = lifecycle.pick_up(list(self.claimed))
                self.note(picked)
                for run in picked.taken:
                    self.ended(run, succeed, succeed(run))
                self.it_is_done_once()
            self.claimed = []
            if not execute(COPIES):
                break
        assert not execute(COPIES), "some copies never come to an end"
        assert self.published <= set(self.done) | self.given_up


@pytest.mark.proves("an-idempotent-handler-runs-once")
@COMMITTED
@pytest.mark.races
@pytest.mark.timeout(3600)
def test_events_are_done_once_whatever_happens(monkeypatch):
    monkeypatch.setattr(lifecycle, "PATIENCE", "10ms")
    subscriptions.declare(handlers[path] for path in PATHS)
    Machine.other = Session()
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.reuse, Phase.generate],
                print_blob=True,
            ),
        )
    finally:
        Machine.other.close()
        completed.clear()
