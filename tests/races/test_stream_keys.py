"""Entries of a key are handled in their order, one at a time, whoever has the ranges they are in."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction

from django_pgbus.models import EntryException
from django_pgbus.streams import exceptions, groups, handling, keys, leases, sql
from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.handling import Handled
from django_pgbus.streams.leases import Range
from tests.line import COMMITTED
from tests.races.guards import fails_if, waits, without
from tests.sessions import execute, sessions
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared
from tests.streams.producing import lapse_ranges

pytestmark = [COMMITTED, pytest.mark.races]

seen: list[int] = []
broken: set[int] = set()

HELD_BY_A_RANGE = "lease.low < %(low)s::bigint", "false"
HELD_BY_AN_ENTRY = "exception.position <= %(low)s::bigint", "false"


@pytest.fixture(autouse=True)
def _only_these(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(handling, "PATIENCE", 5.0)
    seen.clear()
    broken.clear()
    with nothing_declared():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no range wait for a key."""
    monkeypatch.setattr(handling, "PATIENCE", -1.0)


def takes(entry: Any) -> None:
    if entry.position in broken:
        raise ValueError
    seen.append(entry.position)


def letter(entry: Any) -> Any:
    return entry.payload


class Around:
    """Surroundings of a run; `meanwhile` is what others do while it waits for the first time."""

    def __init__(self, meanwhile: Any = None, patience: int = 1) -> None:
        self.meanwhile, self.patience = meanwhile, patience

    def stopping(self) -> bool:
        return False

    def wait(self) -> bool:
        self.patience -= 1
        if self.meanwhile is not None:
            self.meanwhile()
            self.meanwhile = None
        return self.patience >= 0

    @contextlib.contextmanager
    def limited(self, held: Any, timeout: float | None) -> Iterator[None]:
        yield


class Worker:
    """One that claims ranges of a group with a key, and handles them."""

    def __init__(self, consumer: Consumer, limit: int = 2) -> None:
        self.consumer = consumer
        self.claimer = Claimer(limit=limit)

    def claim(self, end: Any = None) -> Range:
        """Claim as the follower does: the range and its keys in one transaction, before whose end `end` is called."""
        self.claimer.look()
        with transaction.atomic():
            held = leases.claim(
                self.claimer.group,
                self.claimer.fence,
                self.claimer.claimed,
                system=self.claimer.system,
                limit=self.claimer.limit,
                worker=self.claimer.worker,
                lease=30.0,
                token=uuid.uuid4(),
                is_first=True,
            ).range
            assert held is not None
            known = handling.keys_of(self.consumer, held.rows)
            keys.hold(self.claimer.group, held.lease, (key for key in known.values() if key is not None))
            if end is not None:
                end()
        return held

    def handle(self, held: Range, around: Around | None = None) -> Handled:
        """Handle a range, and commit it or hand back the rest."""
        done = handling.handle(self.consumer, held, around or Around(), handling.keys_of(self.consumer, held.rows))
        if not done.ended:
            if done.upto < held.high:
                leases.hand_back(held.token, done.upto, done.failures)
            else:
                leases.commit(held.token, done.failures)
        return done

    def alone(self) -> list[int]:
        """Handle what is due on its own, and return what that was."""
        found = exceptions.claim(self.claimer.group, limit=20, token=uuid.uuid4(), lease=30.0)
        for one in found:
            handling.handle_alone(self.consumer, one, Around())
        return [one.position for one in found]


def two_workers(letters: str, *, transactional: bool = False, **options: Any) -> tuple[Worker, Worker]:
    """Return two workers, and a log with an entry for each letter, which is its key."""
    stream = a_stream()
    stream.append_many(list(letters))
    consumer = a_group(takes, key=letter, transactional=transactional, backoff=at_once, max_attempts=3, **options)
    return Worker(consumer), Worker(consumer)


def at_once(exception: Any, entry: Any) -> float:
    return 0.0


def waiting() -> dict[int, tuple[str, str | None, int]]:
    return {
        position: (status, key, attempts)
        for position, status, key, attempts in EntryException.objects.values_list(
            "position", "status", "key", "attempts"
        )
    }


def holds_no_keys(monkeypatch):
    """if nobody enters the keys of a range"""
    monkeypatch.setattr(keys, "hold", lambda *args: None)


# --- two ranges -------------------------------------------------------------------------------------------


@pytest.mark.proves("order-within-a-key")
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
@fails_if(without("streams.BLOCKED_KEYS", HELD_BY_A_RANGE), holds_no_keys)
def test_an_entry_waits_for_its_key_in_a_lower_range(transactional):
    one, other = two_workers("abac", transactional=transactional)
    lower, upper = one.claim(), other.claim()
    other.handle(upper, Around(meanwhile=lambda: one.handle(lower)))
    assert [position for position in seen if position in {1, 3}] == [1, 3]
    assert sorted(seen) == [1, 2, 3, 4]


def test_others_do_not_wait_for_it():
    one, other = two_workers("abac")
    lower, upper = one.claim(), other.claim()
    before: list[int] = []

    def meanwhile():
        before.extend(seen)
        one.handle(lower)

    other.handle(upper, Around(meanwhile=meanwhile))
    assert before == [4]
    assert seen == [4, 1, 2, 3]


def test_a_lower_range_does_not_wait_for_a_higher_one():
    one, other = two_workers("aaaa")
    lower, _ = one.claim(), other.claim()
    one.handle(lower)
    assert seen == [1, 2]


@fails_if(without("streams.BLOCKED_KEYS", HELD_BY_A_RANGE), holds_no_keys)
def test_what_waits_too_long_waits_on_its_own(impatient):
    one, other = two_workers("abac")
    lower, upper = one.claim(), other.claim()
    other.handle(upper)
    assert (seen, waiting()) == ([4], {3: ("ready", "a", 0)})
    assert other.alone() == []
    one.handle(lower)
    assert other.alone() == [3]
    assert seen == [4, 1, 2, 3]


@fails_if(without("streams.CLAIM_EXCEPTIONS", ("lease.low < exception.position", "false")), holds_no_keys)
def test_an_entry_on_its_own_waits_for_an_open_range_below(impatient):
    one, other = two_workers("abac")
    lower, upper = one.claim(), other.claim()
    other.handle(upper)
    execute("UPDATE pgbus_stream_exceptions SET due_at = statement_timestamp()")
    assert other.alone() == []
    one.handle(lower)
    assert other.alone() == [3]


@fails_if(without("streams.CLAIM", ("FOR NO KEY UPDATE", "")), holds_no_keys)
def test_who_claims_next_sees_the_keys():
    """They are entered under the lock of the cursor."""
    one, other = two_workers("abac")
    with sessions() as second:
        claiming: list[Any] = []

        def end():
            claiming.append(second.begin(other.claim))
            assert waits(second, claiming[0])

        one.claim(end)
        upper = claiming[0].result()
    assert keys.blocked(other.claimer.group, upper.low, ["a", "c"]).by_range == {"a"}


# --- an entry that failed ---------------------------------------------------------------------------------


@pytest.mark.proves("order-within-a-key")
@pytest.mark.parametrize("transactional", [False, True], ids=["", "transactional"])
@fails_if(without("streams.BLOCKED_KEYS", HELD_BY_AN_ENTRY))
def test_an_entry_that_failed_defers_later_ones_of_its_key_in_the_range_of_another(transactional):
    one, other = two_workers("abac", transactional=transactional, batch_size=None)
    broken.add(1)
    lower, upper = one.claim(), other.claim()
    one.handle(lower)
    other.handle(upper)
    assert (seen, waiting()) == ([2, 4], {1: ("ready", "a", 1), 3: ("ready", "a", 0)})
    assert other.alone() == [1]  # fails again
    broken.clear()
    assert other.alone() == [1]
    assert other.alone() == [3]
    assert seen == [2, 4, 1, 3]


@fails_if(without("streams.CLAIM_EXCEPTIONS", ("earlier.position < exception.position", "false")))
def test_entries_on_their_own_are_run_in_the_order_of_their_key():
    one, other = two_workers("aaaa")
    broken.add(1)
    one.handle(one.claim())
    other.handle(other.claim())
    broken.clear()
    assert [one.alone() for _ in range(5)] == [[1], [2], [3], [4], []]
    assert seen == [1, 2, 3, 4]


@fails_if(without("streams.CLAIM_EXCEPTIONS", ("earlier.position < exception.position", "false")))
def test_an_entry_that_runs_holds_back_later_ones_of_its_key():
    one, other = two_workers("aaaa")
    broken.add(1)
    one.handle(one.claim())
    running = exceptions.claim(one.claimer.group, limit=20, token=uuid.uuid4(), lease=30.0)
    assert [alone.position for alone in running] == [1]
    assert other.alone() == []
    execute("UPDATE pgbus_stream_exceptions SET until = statement_timestamp() - interval '1 s' WHERE until IS NOT NULL")
    broken.clear()
    assert other.alone() == [1]
    assert handling.handle_alone(one.consumer, running[0], Around()) == "lost"
    assert waiting() == {2: ("ready", "a", 0)}


def test_a_dead_letter_holds_back_nobody():
    one, other = two_workers("aaaa")
    broken.add(1)
    one.handle(one.claim())
    one.alone()
    one.alone()
    assert waiting()[1][0] == "dead"
    other.handle(other.claim())
    assert seen == []  # 2 is ahead of them
    assert [one.alone() for _ in range(4)] == [[2], [3], [4], []]
    assert seen == [2, 3, 4]


def test_a_range_that_is_claimed_again_keeps_its_keys():
    one, other = two_workers("abac")
    lower, upper = one.claim(), other.claim()
    execute("UPDATE pgbus_stream_leases SET until = statement_timestamp() - interval '1 s' WHERE low = 0")
    again = leases.reclaim(other.claimer.group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())
    assert again is not None
    assert keys.blocked(other.claimer.group, upper.low, ["a"]).by_range == {"a"}
    assert not leases.commit(lower.token)
    assert keys.blocked(other.claimer.group, upper.low, ["a"]).by_range == {"a"}
    leases.commit(again.token)
    assert "a" not in keys.blocked(other.claimer.group, upper.low, ["a"])


def test_a_range_that_is_taken_apart_keeps_the_order_of_its_keys():
    one, other = two_workers("aaac")
    lower = one.claim()
    lapse_ranges()
    again = leases.reclaim(one.claimer.group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())
    assert again is not None
    leases.take_apart(again, {1: "a", 2: "a"}, "")
    assert not leases.commit(lower.token)
    other.handle(other.claim())
    assert seen == [4]
    assert [one.alone() for _ in range(4)] == [[1], [2], [3], []]


def test_what_is_handed_back_keeps_its_keys():
    one, other = two_workers("abac")
    lower, upper = one.claim(), other.claim()
    leases.hand_back(lower.token, 1)
    assert keys.blocked(other.claimer.group, upper.low, ["a", "b"]).by_range == {"a", "b"}
    rest = leases.reclaim(one.claimer.group, worker=uuid.uuid4(), lease=30.0, token=uuid.uuid4())
    assert (rest.low, rest.high, rest.reclaims) == (1, 2, 0)
    leases.commit(rest.token)
    assert not sql.BLOCKED_KEYS.tuples(group=other.claimer.group.id, low=2, keys=["a", "b"])


def test_a_rewind_forgets_keys_with_their_ranges():
    one, other = two_workers("abac")
    one.claim()
    groups.rewind("ledger", "totals", 0)
    held = other.claim()
    assert other.handle(held).failures == []
    assert seen == [1, 2]
