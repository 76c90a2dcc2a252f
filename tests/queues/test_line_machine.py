"""
The line against a plain model of it, in whatever order hypothesis thinks of.

Two workers with floors of their own, producers with open transactions, wake-ups that are heard, late or lost, leases
that lapse, runs that end in every way, also superseded ones. At any moment the tables say what the model says; what is
claimed was free, and has a number it never had; and in the end looks bring every message that waits to light.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from django_pgbus.queues import line as line_module
from django_pgbus.queues import wake
from django_pgbus.queues.line import Line
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import lifecycle
from tests.line import (
    COMMITTED,
    LEASE,
    claim,
    fail,
    give_up,
    hand_back,
    lapse,
    make_due,
    put,
    release,
    snooze,
    succeed,
)
from tests.sessions import Session, execute

EXAMPLES = int(os.environ.get("PGBUS_TEST_EXAMPLES", "40"))
LEVELS = [
    Level(queue, priority, suspect) for suspect in (False, True) for queue, priority in (("a", 5), ("a", 0), ("b", 0))
]
TABLES = "pgbus_messages, pgbus_delayed, pgbus_archive, pgbus_dead_letters, pgbus_levels"
WHERE = """
    SELECT id, CASE WHEN leased_until IS NULL THEN 'ready' ELSE 'leased' END, delivery FROM pgbus_messages
    UNION ALL SELECT id, 'delayed', delivery FROM pgbus_delayed
    UNION ALL SELECT id, 'dead', delivery FROM pgbus_dead_letters
    UNION ALL SELECT id, outcome, delivery FROM pgbus_archive
"""


def retry(run):
    return fail(run, delay=3600)


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Task:
    place: str = "ready"
    delivery: int = 0
    lapsed: bool = False
    marked: bool = False


@dataclass
class Worker:
    id: uuid.UUID = field(default_factory=uuid.uuid4)
    line: Line = field(default_factory=Line)
    notes: list = field(default_factory=list)


class Machine(RuleBasedStateMachine):
    producers: list[Session]
    clock: Clock
    said: list

    def __init__(self) -> None:
        super().__init__()
        execute(f"TRUNCATE {TABLES}")
        self.said.clear()
        self.tasks: dict[int, Task] = {}
        self.runs: list[Delivery] = []
        self.workers = [Worker(), Worker()]
        self.open: dict[int, list[int]] = {}  # producer -> ids of its open transaction

    # --- producers ------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 2), level=st.sampled_from(LEVELS[:3]))
    def send(self, number, level):
        self._born(put(number, queue=level.queue, priority=level.priority))

    @rule(producer=st.integers(0, 1), level=st.sampled_from(LEVELS[:3]))
    def send_in_a_transaction(self, producer, level):
        session = self.producers[producer]
        if producer not in self.open:
            session.open()
            self.open[producer] = []
        self.open[producer] += session.do(put, queue=level.queue, priority=level.priority)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), commit=st.booleans())
    def end_the_transaction(self, data, commit):
        producer = data.draw(st.sampled_from(sorted(self.open)))
        ids = self.open.pop(producer)
        if commit:
            self.producers[producer].commit()
            self._born(ids)
        else:
            self.producers[producer].roll_back()

    def _born(self, ids):
        self.tasks.update((id, Task()) for id in ids)
        self._spread()

    def _spread(self):
        for note in self.said:
            for worker in self.workers:
                worker.notes.append(note)
        self.said.clear()

    # --- workers --------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0]))
    def time_passes(self, seconds):
        self.clock.now += seconds

    @rule(worker=st.integers(0, 1), heard=st.booleans())
    def notes_arrive_or_are_lost(self, worker, heard):
        notes, self.workers[worker].notes = self.workers[worker].notes, []
        for kind, *rest in notes if heard else ():
            if kind == "ready":
                queue, priority, suspect, position = rest
                self.workers[worker].line.lower(Level(queue, priority, suspect), position)

    @rule(worker=st.integers(0, 1), limit=st.integers(1, 5))
    def claim(self, worker, limit):
        self._claim(self.workers[worker], limit)

    def _claim(self, worker, limit):
        claimed = claim(worker.line, limit, LEVELS, worker.id)
        assert len(claimed) <= limit
        for run in claimed:
            task = self.tasks[run.id]
            assert task.place == "ready", "it was not free"
            assert run.delivery > task.delivery, "a number that it has had"
            task.place, task.delivery, task.lapsed = "leased", run.delivery, False
        self.runs += claimed
        return claimed

    @rule(worker=st.integers(0, 1))
    def look(self, worker):
        self._look(self.workers[worker])

    @rule(worker=st.integers(0, 1))
    def poll_between_looks(self, worker):
        line = self.workers[worker].line
        line._next_look = self.clock.now + 1
        line.poll(LEVELS, ["a", "b"], LEASE)

    def _look(self, worker):
        worker.line.look_soon()
        polled = worker.line.poll(LEVELS, ["a", "b"], LEASE)
        lapsed = set(polled.lapsed)
        assert lapsed <= {id for id, task in self.tasks.items() if task.lapsed}
        released = release(*lapsed) if lapsed else []
        for id in lapsed:
            task = self.tasks[id]
            task.place = "discarded" if task.marked else "ready"
            task.lapsed = task.marked = False
        assert all(self.tasks[id].place == "ready" for id in released)
        self._spread()

    @rule(worker=st.integers(0, 1))
    def lose_the_connection(self, worker):
        self.workers[worker].line.forget()

    # --- runs, the newest and superseded ones ---------------------------------------------------------

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def lapse(self, data):
        ids = [id for id, task in self.tasks.items() if task.place == "leased"]
        if ids:
            id = data.draw(st.sampled_from(ids))
            lapse(id)
            self.tasks[id].lapsed = True

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), end=st.sampled_from([succeed, retry, snooze, give_up, hand_back]), newest=st.booleans())
    def end_a_run(self, data, end, newest):
        valid_ones = [run for run in self.runs if self._is_valid(run)]
        run = data.draw(st.sampled_from(valid_ones if newest and valid_ones else self.runs))
        task, valid = self.tasks[run.id], self._is_valid(run)
        written = end(run)
        if end is hand_back:
            assert bool(written) == (valid and not task.marked)
        else:
            assert bool(written) == valid
        if valid:
            places = {succeed: "succeeded", retry: "delayed", snooze: "delayed", give_up: "dead", hand_back: "ready"}
            task.place = "discarded" if task.marked and end is not succeed else places[end]
            task.delivery += end is hand_back and not task.marked
            task.lapsed = task.marked = False
        self._spread()

    def _is_valid(self, run):
        task = self.tasks[run.id]
        return task.place == "leased" and task.delivery == run.delivery

    # --- people and time ------------------------------------------------------------------------------

    @precondition(lambda self: any(task.place == "delayed" for task in self.tasks.values()))
    @rule(data=st.data())
    def come_due(self, data):
        id = data.draw(st.sampled_from([id for id, task in self.tasks.items() if task.place == "delayed"]))
        make_due(id)
        assert len(lifecycle.move_due(["a", "b"])) == 1
        self.tasks[id].place = "ready"

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), running=st.booleans())
    def discard(self, data, running):
        leased = [id for id, task in self.tasks.items() if task.place == "leased"]
        id = data.draw(st.sampled_from(leased if running and leased else sorted(self.tasks)))
        task, found = self.tasks[id], lifecycle.discard([id])
        assert (id in found.settled) == (task.place in ("ready", "delayed"))
        assert (id in found.marked) == (task.place == "leased")
        if found.settled:
            task.place = "discarded"
        task.marked |= bool(found.marked)

    @precondition(lambda self: any(task.place == "dead" for task in self.tasks.values()))
    @rule(data=st.data())
    def redrive(self, data):
        id = data.draw(st.sampled_from([id for id, task in self.tasks.items() if task.place == "dead"]))
        assert lifecycle.redrive([id]).ids == [id]
        self.tasks[id].place = "ready"
        self.tasks[id].delivery += 1
        self._spread()

    # --- what always holds ----------------------------------------------------------------------------

    @invariant()
    def the_tables_say_what_the_model_says(self):
        stored = {id: (place, delivery) for id, place, delivery in execute(WHERE)}
        assert stored == {id: (task.place, task.delivery) for id, task in self.tasks.items()}

    def teardown(self):
        for producer in sorted(self.open):
            self.producers[producer].commit()
            self._born(self.open[producer])
        leased = [id for id, task in self.tasks.items() if task.place == "leased"]
        lapse(*leased)
        for id in leased:
            self.tasks[id].lapsed = True
        worker = self.workers[0]
        for _ in range(8):
            self.clock.now += 2
            self._look(worker)
            self._claim(worker, 100)
        hidden = [id for id, task in self.tasks.items() if task.place == "ready" or task.lapsed]
        assert hidden == [], "no look of this worker ever found them"
        self.the_tables_say_what_the_model_says()


@COMMITTED
@pytest.mark.races
def test_the_line_does_what_a_plain_model_does(monkeypatch):
    Machine.clock, Machine.said = Clock(), []
    Machine.producers = [Session(), Session()]
    monkeypatch.setattr(line_module, "time", Machine.clock)
    monkeypatch.setattr(wake, "notify", Machine.said.extend)
    monkeypatch.setattr(wake._Sent, "should_wake", lambda *args: True)
    try:
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=EXAMPLES,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.reuse, Phase.generate],  # To make a failure smaller takes longer than a test may.
                print_blob=True,
            ),
        )
    finally:
        for session in Machine.producers:
            session.close()
