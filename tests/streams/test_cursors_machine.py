"""
Cursors of a log against a plain model of what is promised, in whatever order hypothesis thinks of.

Producers whose transactions begin, append, roll back to savepoints, are prepared and end as they like; workers that claim,
lose answers, fall silent, come back, commit, fail, hand back; a person who rewinds. At any moment no cursor has
passed a position that can still appear, every entry is in exactly one place, and no two ranges overlap. In the end
nothing is missing.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from django_pgbus import Stream
from django_pgbus.streams import exceptions, groups, leases, partitions, routing
from django_pgbus.streams.consumers import consumers
from django_pgbus.streams.leases import Failure, Range
from django_pgbus.streams.log_statement import log_table
from tests.line import COMMITTED
from tests.races.guards import waits
from tests.sessions import Session, execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, let_others_end, nothing_declared, positions
from tests.streams.producing import append, lapse_ranges, take_id

EXAMPLES = int(os.environ.get("PGBUS_TEST_EXAMPLES", "100"))
TABLES = (
    "pgbus_stream_groups, pgbus_stream_cursors, pgbus_stream_leases, pgbus_stream_keys, pgbus_stream_exceptions, "
    "pgbus_stream_routed, pgbus_messages"
)
STEPS = 40
PRODUCERS = 3
SIZE = 10  # positions of a partition
WHO = st.integers(0, 1)
PRODUCER = st.integers(0, PRODUCERS - 1)
SOME = st.integers(0, 20)  # which of those that there are; what hypothesis draws depends on nothing
FEW = st.lists(st.integers(0, 5), max_size=2, unique=True)


class Producer:
    """A transaction, and the positions it has taken and not given up."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.is_open = False
        self.taken: list[int] = []
        self.savepoints: list[int] = []

    def end(self, how: str) -> list[int]:
        self.session.sql(how)
        taken, self.taken, self.savepoints, self.is_open = self.taken, [], [], False
        return taken


class Machine(RuleBasedStateMachine):
    stream: ClassVar[Stream]
    sessions: ClassVar[tuple[Session, ...]]
    can_prepare: ClassVar[bool]
    base = SIZE

    def __init__(self) -> None:
        super().__init__()
        execute(f"TRUNCATE {TABLES}")
        execute(f"DELETE FROM {log_table(self.stream.id())}")
        execute("SELECT setval(%s, %s)", [f"{log_table(self.stream.id())}_position", self.base])
        a_group(start="end")
        a_group(group="mail", start="end", route_to="mail")
        *producers, self.peer, self.waiter = self.sessions
        self.producers = [Producer(session) for session in producers]
        self.prepared: dict[str, list[int]] = {}
        self.claimers = [Claimer(), Claimer()]
        self.routers = [Claimer(group="mail"), Claimer(group="mail")]
        self.there: set[int] = set()  # committed
        self.state: dict[int, str] = {}  # leased, failed, dead, done; the others are not claimed
        self.held: list[Range] = []  # also those that were lost: who had them comes back when it likes
        self.asked: list[uuid.UUID] = []  # tokens of claims whose answer was lost
        self.alone: list[Any] = []

    # --- producers ------------------------------------------------------------------------------------

    @rule(
        which=PRODUCER,
        number=st.integers(1, 4),
        first=st.sampled_from(["", "BEGIN", "BEGIN", "SAVEPOINT"]),
        takes_id=st.booleans(),
    )
    def append(self, which, number, first, takes_id=False):
        producer = self.producers[which]
        if first and not producer.is_open:
            self.begin(producer, takes_id)
        if first == "SAVEPOINT":
            producer.session.sql(f"SAVEPOINT s{len(producer.savepoints)}")
            producer.savepoints.append(len(producer.taken))
        last = producer.session.do(append, self.stream, number)
        taken = list(range(last - number + 1, last + 1))
        if producer.is_open:
            producer.taken += taken
        else:
            self.there.update(taken)

    def begin(self, producer: Producer, takes_id: bool) -> None:
        producer.session.sql("BEGIN")
        producer.is_open = True
        if takes_id:
            producer.session.do(take_id)

    @rule(which=PRODUCER, number=st.integers(1, 2))
    def the_older_one_commits_first(self, which, number):
        """What the snapshot's xmax cannot tell, if nobody else writes meanwhile."""
        older, newer = which, (which + 1) % PRODUCERS
        if not self.producers[older].is_open and not self.producers[newer].is_open:
            self.begin(self.producers[older], True)
            self.begin(self.producers[newer], True)
            self.append(newer, number, "")
            self.append(older, number, "")
            self.end(older, True)

    @rule(which=PRODUCER)
    def roll_back_to_a_savepoint(self, which):
        producer = self.producers[which]
        if producer.savepoints:
            length = producer.savepoints.pop()
            producer.session.sql(f"ROLLBACK TO SAVEPOINT s{len(producer.savepoints)}")
            del producer.taken[length:]

    @rule(which=PRODUCER, commits=st.sampled_from([True, True, False]))
    def end(self, which, commits):
        producer = self.producers[which]
        if producer.is_open:
            taken = producer.end("COMMIT" if commits else "ROLLBACK")
            self.there.update(taken if commits else ())

    @rule(which=PRODUCER, commits=st.booleans())
    def prepare_or_end_what_is_prepared(self, which, commits):
        producer = self.producers[which]
        if self.prepared:
            name, taken = self.prepared.popitem()
            execute(f"{'COMMIT' if commits else 'ROLLBACK'} PREPARED '{name}'")
            self.there.update(taken if commits else ())
        elif producer.is_open and self.can_prepare:
            name = f"pgbus_test_{uuid.uuid4()}"
            self.prepared[name] = producer.end(f"PREPARE TRANSACTION '{name}'")

    # --- workers --------------------------------------------------------------------------------------

    @rule(
        who=WHO,
        limit=st.integers(1, 5),
        times=st.integers(1, 3),
        new=st.integers(0, 4),
        looks=st.sampled_from([True, True, False]),
        answered=st.sampled_from([True, True, False]),
    )
    def claim(self, who, limit, times, looks, answered, new=0):
        if new:
            last = append(self.stream, new)
            self.there.update(range(last - new + 1, last + 1))
        claimer = self.claimers[who]
        claimer.limit = limit
        for _ in range(times):
            if looks:
                claimer.look()
            token = uuid.uuid4()
            found = claimer.claim(token).range
            self.was_claimed(found)
            if found is not None:
                if answered:
                    self.held.append(found)
                else:
                    self.asked.append(token)

    @rule(limit=st.integers(1, 6), ends=st.booleans(), commits=st.booleans())
    def two_claim(self, limit, ends, commits):
        """One waits for the other, and a producer commits meanwhile."""
        one, other = self.claimers
        one.limit = other.limit = limit
        one.look()
        other.look()
        self.peer.open()
        first = self.peer.do(_claimed_first, one)
        second = self.waiter.begin(other.claim)
        waits(self.waiter, second)
        if ends:
            for which in range(PRODUCERS):
                self.end(which, True)
        if commits:
            self.peer.commit()
            self.was_claimed(first)
            self.held += [first] if first is not None else []
        else:
            self.peer.roll_back()
            self.claimers[0] = Claimer()
        found = second.result().range
        self.was_claimed(found)
        self.held += [found] if found is not None else []

    def was_claimed(self, found: Range | None) -> None:
        """Check a range that is new: all that is there, once, in order."""
        if found is None:
            return
        assert positions(found) == [p for p in sorted(self.there) if found.low < p <= found.high]
        assert found.rows, "a range without entries"
        for position in positions(found):
            assert position not in self.state, f"{position} is claimed, and {self.state[position]}"
            self.state[position] = "leased"

    @rule(who=WHO, anew=st.booleans())
    def a_worker_looks(self, who, anew):
        if anew:
            self.claimers[who] = Claimer()
            self.routers[who] = Claimer(group="mail")
        self.claimers[who].look()

    @rule()
    def a_lost_answer_is_looked_for(self):
        if not self.asked:
            return
        token = self.asked.pop()
        found = leases.find(self.claimers[0].group, token)
        assert (found is not None) == (self.lease_of(token) is not None)
        if found is not None:
            self.was_found(found)

    @rule(lapses=st.booleans())
    def a_silent_range_is_claimed_again(self, lapses):
        if lapses:
            lapse_ranges()
        found = leases.reclaim(self.claimers[0].group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())
        assert found is not None or not lapses or not self.ranges()
        if found is not None:
            self.was_found(found)

    def was_found(self, found: Range) -> None:
        inside = [p for p in sorted(self.there) if found.low < p <= found.high]
        assert positions(found) == inside
        assert all(self.state[position] == "leased" for position in inside)
        self.held.append(found)

    @rule(which=SOME, fails=FEW, again=st.sampled_from([False, False, True]), with_a_claim=st.booleans())
    def a_range_is_committed(self, which, fails, again, with_a_claim):
        if not self.held:
            return
        held = self.held[which % len(self.held)]
        if not again:
            self.held.remove(held)
        lease = self.lease_of(held.token)
        if with_a_claim:
            claimer = self.claimers[0]
            claimer.look()
            claimer.done = held.token
            found = claimer.claim()
            assert found.freed == (lease is not None)
            self.was_claimed(found.range)
            self.held += [found.range] if found.range is not None else []
            self.is_done(lease, [])
            return
        failed = self.some_of(fails, held, lease)
        assert leases.commit(held.token, [_failure(position) for position in failed]) == (lease is not None)
        self.is_done(lease, failed)

    @rule(which=SOME, fails=FEW, after=SOME)
    def a_range_is_handed_back(self, which, fails, after):
        if not self.held:
            return
        held = self.held[which % len(self.held)]
        self.held.remove(held)
        lease = self.lease_of(held.token)
        low, high = lease or (held.low, held.high)
        upto = low + after % (high - low)
        failed = [position for position in self.some_of(fails, held, lease) if position <= upto]
        ok = leases.hand_back(held.token, upto, [_failure(position) for position in failed])
        assert ok == (lease is not None)
        self.is_done(None if lease is None else (low, upto), failed)

    def some_of(self, which: list[int], held: Range, lease: Any) -> list[int]:
        low, high = lease or (held.low, held.high)
        inside = [position for position in positions(held) if low < position <= high]
        return sorted({inside[index % len(inside)] for index in which}) if inside else []

    def is_done(self, lease: Any, failed: list[int]) -> None:
        if lease is not None:
            for position in self.there:
                if lease[0] < position <= lease[1]:
                    assert self.state[position] == "leased"
                    self.state[position] = "failed" if position in failed else "done"

    @rule(how=st.sampled_from(["done", "put off", "dead", "nothing"]), lapse=st.booleans())
    def what_failed_is_tried_alone(self, how, lapse):
        execute("UPDATE pgbus_stream_exceptions SET due_at = statement_timestamp() WHERE status = 'ready'")
        if lapse:
            execute(
                "UPDATE pgbus_stream_exceptions SET until = statement_timestamp() - interval '1 s' WHERE until IS NOT NULL"
            )
        self.alone += exceptions.claim(self.claimers[0].group, limit=3, token=uuid.uuid4(), lease=30.0)
        if how == "nothing":
            return
        alone, self.alone = self.alone, []
        for one in alone:
            ((mine,),) = execute(
                "SELECT count(*) FROM pgbus_stream_exceptions WHERE id = %s AND token = %s", [one.id, one.token]
            )
            if how == "put off":
                ended = exceptions.put_off(one, 0.0, exception="", traceback="")
            else:
                ended = exceptions.done(one) if how == "done" else exceptions.give_up(one, exception="", traceback="")
            assert ended == bool(mine)
            if mine and how != "put off":
                assert self.state[one.position] == "failed"
                self.state[one.position] = how

    @rule(who=WHO, looks=st.sampled_from([True, True, False]))
    def route(self, who, looks):
        router = self.routers[who]
        if looks:
            router.look()
        routing.route(consumers["ledger", "mail"], router.group, router.fence, router.claimed, system=router.system)

    # --- people and sweeps ----------------------------------------------------------------------------

    @rule(by=st.integers(1, 5), into_a_range=st.booleans(), just_claimed=st.integers(0, 2))
    def a_person_rewinds(self, by, into_a_range, just_claimed):
        if just_claimed:
            self.claim(0, 3, just_claimed, True, True, 3 * just_claimed)
        claimed, _ = self.cursor()
        low = self.held[0].low if self.held and into_a_range else claimed - 2 * by
        to = min(claimed, max(self.base, low + by))
        groups.rewind("ledger", "totals", to)
        for position in list(self.state):
            if position > to:
                del self.state[position]

    @rule()
    def the_group_is_rolled_forward(self):
        groups.roll_forward()

    # --- what holds -----------------------------------------------------------------------------------

    def cursor(self, group: str = "totals") -> tuple[int, int]:
        ((claimed, committed),) = execute(
            "SELECT claimed, committed FROM pgbus_stream_cursors JOIN pgbus_stream_groups AS groups ON groups.id = group_id"
            " WHERE groups.name = %s",
            [group],
        )
        return claimed, committed

    def ranges(self) -> list[tuple[int, int]]:
        return execute("SELECT low, high FROM pgbus_stream_leases ORDER BY low")

    def lease_of(self, token: uuid.UUID) -> tuple[int, int] | None:
        rows = execute("SELECT low, high FROM pgbus_stream_leases WHERE token = %s", [token])
        return rows[0] if rows else None

    def can_appear(self) -> list[int]:
        taken = [position for producer in self.producers for position in producer.taken]
        return taken + [position for one in self.prepared.values() for position in one]

    @invariant()
    def no_cursor_has_passed_what_can_still_appear(self):
        first = min(self.can_appear(), default=1 << 60)
        for group in ("totals", "mail"):
            claimed, committed = self.cursor(group)
            assert claimed < first, f"{group} is at {claimed}, and {first} can still appear"
            assert committed <= claimed

    @invariant()
    def ranges_do_not_overlap(self):
        last = self.base
        claimed, committed = self.cursor()
        for low, high in self.ranges():
            assert last <= low < high <= claimed
            assert committed <= low
            last = high

    @invariant()
    def every_entry_is_in_one_place(self):
        claimed, committed = self.cursor()
        leased = {p for low, high in self.ranges() for p in self.there if low < p <= high}
        stored = execute("SELECT position, status FROM pgbus_stream_exceptions")
        unresolved = {position for position, status in stored if status != "dead"}
        for name, found in (
            ("leased", leased),
            ("failed", unresolved),
            ("dead", {position for position, status in stored if status == "dead"}),
        ):
            assert found == {position for position, state in self.state.items() if state == name}, name
        assert {position for position in self.there if position <= claimed} == set(self.state)
        assert all(self.state[position] in {"done", "dead"} for position in self.there if position <= committed)

    @invariant()
    def what_is_routed_is_routed_once(self):
        sent = [p for (p,) in execute("SELECT (payload->>'position')::bigint FROM pgbus_messages")]
        assert len(sent) == len(set(sent))
        mark, _ = self.cursor("mail")
        assert {position for position in self.there if position <= mark} <= set(sent) <= self.there

    # --- the end --------------------------------------------------------------------------------------

    def teardown(self):
        for which, producer in enumerate(self.producers):
            if producer.is_open:
                self.end(which, which != 1)
        while self.prepared:
            self.prepare_or_end_what_is_prepared(0, True)
        head = self.stream.head()
        for _ in range(60):
            let_others_end()
            self.claim(0, 100, 1, True, True)
            self.route(0, True)
            self.what_failed_is_tried_alone("done", True)
            if self.ranges():
                self.a_silent_range_is_claimed_again(True)
                held = self.held.pop()
                lease = self.lease_of(held.token)
                assert leases.commit(held.token)
                self.is_done(lease, [])
            elif self.cursor()[0] == head == self.cursor("mail")[0] and set(self.state.values()) <= {"done", "dead"}:
                break
        groups.roll_forward()
        assert self.cursor() == (head, head), "it does not come to an end"
        assert self.cursor("mail") == (head, head)
        self.every_entry_is_in_one_place()
        self.what_is_routed_is_routed_once()
        assert not execute("SELECT 1 FROM pgbus_stream_routed")


def _failure(position: int) -> Failure:
    return Failure(position=position, attempts=1, delay=0.0, exception="builtins.ValueError")


def _claimed_first(claimer: Claimer) -> Range | None:
    return leases.claim(
        claimer.group,
        claimer.fence,
        claimer.claimed,
        system=claimer.system,
        limit=claimer.limit,
        worker=claimer.worker,
        lease=30.0,
        token=uuid.uuid4(),
        is_first=True,
    ).range


@pytest.fixture
def a_log() -> Iterator[None]:
    with nothing_declared(), sessions(PRODUCERS + 2) as them:
        Machine.stream = a_stream(partition_size=SIZE)
        partitions.make_room(Machine.stream.id(), SIZE, 6 * (STEPS + 2))
        Machine.sessions = them
        Machine.can_prepare = execute("SHOW max_prepared_transactions")[0][0] != "0"
        yield
        for (name,) in execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE 'pgbus_test_%%'"):
            execute(f"ROLLBACK PREPARED '{name}'")


@COMMITTED
@pytest.mark.races
@pytest.mark.timeout(3600)
def test_cursors_do_what_they_promise(a_log):
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.reuse, Phase.generate],
            print_blob=True,
        ),
    )
