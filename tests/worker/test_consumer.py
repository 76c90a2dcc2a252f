"""The consumer, stepped by hand: what it claims, gives back, and concludes."""

from __future__ import annotations

import uuid
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connections
from psycopg.errors import LockNotAvailable

from django_pgbus.models import Message
from django_pgbus.queues import queue
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Level
from django_pgbus.tasks import lifecycle
from django_pgbus.worker import consumer as consumer_module
from django_pgbus.worker.capsule import Capsule
from django_pgbus.worker.consumer import HUNT_PAUSE, Consumer
from django_pgbus.worker.reporting import Reporter
from tests.line import COMMITTED, SUSPECTS, claim, give_up, lapse, long_up, put, release, state, succeed  # noqa: F401
from tests.running import a_plan
from tests.sessions import sessions

pytestmark = COMMITTED


class Shelf(Capsule):
    """A capsule whose jobs start when the test says so."""

    def __init__(self, declared, size):
        super().__init__(declared, None, None, None, None, "shelf")
        self.size = size
        self.buffer = []
        self.went_stale = []
        self.threads = self

    def room(self):
        return max(0, self.size - len(self.buffer))

    def put(self, deliveries):
        self.buffer.extend(deliveries)

    def take_back(self):
        back, self.buffer = self.buffer, []
        return back

    def stale(self):
        back, self.went_stale = self.went_stale, []
        self.buffer = [delivery for delivery in self.buffer if delivery not in back]
        return back

    def nudge(self):
        return False

    @property
    def buffered(self):
        return len(self.buffer)


@pytest.fixture
def worker():
    """Yield a function that makes a consumer for `--queues`; it is stepped in a session of its own."""
    with sessions() as session:
        session.do(connections.close_all)  # The consumer brings its own.

        def make(queues="default", size=10, **options):
            plan = a_plan(queues, **{"poll": 0.05, **options})
            shelves = [Shelf(declared, size) for declared in plan.capsules]
            held, stopped = Held(), []
            consumer = Consumer(
                plan=plan,
                worker=uuid.uuid4(),
                held=held,
                capsules=shelves,
                reporter=Reporter(None, held),
                to_be_stopped=stopped.append,
            )

            def step():
                return session.do(consumer.step)

            def settle():
                """Step until it would wait."""
                consumer._next_poll = 0.0
                while step() == 0.0:
                    pass

            return SimpleNamespace(
                consumer=consumer, shelves=shelves, shelf=shelves[0], held=held, step=step, settle=settle,
                stopped=stopped, session=session,
            )  # fmt: skip

        made = []
        yield lambda *args, **options: made.append(make(*args, **options)) or made[-1]
        for one in made:
            session.do(one.consumer.disconnect)


def test_it_finds_what_nobody_announced(worker):
    ids = put(3)
    w = worker()
    w.settle()
    assert [d.id for d in w.shelf.buffer] == ids
    assert len(w.held) == 3


def test_it_looks_on_for_a_moment_after_a_wake_up_although_it_claimed_something(worker, monkeypatch):
    """A commit that follows closely does not wake again: it would wait for the next poll."""
    monkeypatch.setattr(consumer_module, "HUNT", 60.0)
    w = worker(poll=60.0)
    w.settle()
    put()
    w.consumer.hear([["ready", "default", 0, False, 1]])
    assert w.step() <= HUNT_PAUSE
    assert w.shelf.buffered == 1
    put()
    assert w.step() <= HUNT_PAUSE
    assert w.shelf.buffered == 2


def test_a_note_about_a_queue_unknown_so_far_does_not_overrule_its_pause(worker):
    w = worker("*")
    queue.pause("fresh")
    w.settle()
    put(queue="fresh")
    w.consumer.hear([["ready", "fresh", 0, False, 1]])
    w.settle()
    assert w.shelf.buffered == 0


def test_after_a_lost_connection_nothing_is_claimed_of_a_queue_that_was_paused_meanwhile(worker):
    put()
    w = worker()
    w.settle()
    succeed(*w.shelf.take_back())
    w.session.do(w.consumer.disconnect)
    queue.pause("default")
    put(3)
    while w.step() == 0.0:
        pass
    assert set(Message.objects.values_list("delivery", flat=True)) == {0}, "not even to be handed back"
    queue.resume("default")
    w.settle()
    assert w.shelf.buffered == 3


def test_a_pause_is_heard_of_while_claims_find_more_and_more(worker, monkeypatch):
    """As in a full queue of short jobs, where room and messages never end."""
    monkeypatch.setattr(consumer_module, "CLAIM_LIMIT", 1)
    put(9)
    w = worker(poll=60.0)
    while not w.shelf.buffered:
        assert w.step() == 0.0
    queue.pause("default")
    w.consumer.hear([["queue", "default"]])
    claimed = w.shelf.buffered
    w.step()
    assert w.shelf.buffered <= claimed
    assert claimed < 9


def test_what_is_buffered_of_a_paused_queue_goes_back_and_costs_nothing(worker):
    put(2)
    other = put(queue="other")
    w = worker("*")
    w.settle()
    queue.pause("default")
    w.settle()
    assert [d.id for d in w.shelf.buffer] == other
    assert set(Message.objects.filter(queue="default").values_list("attempts", "delivery", "suspect")) == {
        (0, 2, False)
    }


def test_a_buffer_that_could_not_be_handed_back_is_handed_back_later(worker, monkeypatch):
    """It is out of the buffer and would never run, while the beat went on renewing its lease."""
    (id,) = put()
    w = worker()
    w.settle()
    w.shelf.went_stale = list(w.shelf.buffer)
    real = lifecycle.hand_back

    def lost(pairs):
        monkeypatch.setattr(lifecycle, "hand_back", real)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(lifecycle, "hand_back", lost)
    with pytest.raises(OperationalError):
        w.step()
    assert (w.shelf.buffered, len(w.held)) == (0, 1)
    w.step()
    assert Message.objects.get(id=id).delivery >= 2
    assert {d.delivery for d in w.held.all()} <= {3}, "claimed anew, or not at all"


def test_draining_hands_back_the_buffers_even_when_the_first_try_fails(worker, monkeypatch):
    put(3)
    w = worker()
    w.settle()
    real = lifecycle.hand_back

    def lost(pairs):
        monkeypatch.setattr(lifecycle, "hand_back", real)
        raise OperationalError("the connection is lost")

    monkeypatch.setattr(lifecycle, "hand_back", lost)
    w.consumer.drain()
    with pytest.raises(OperationalError):
        w.step()
    assert not w.consumer.drained
    w.step()
    assert w.consumer.drained
    assert len(w.held) == 0
    assert set(Message.objects.values_list("attempts", flat=True)) == {0}


def suspects(*queues):
    for name in queues:
        (id,) = put(queue=name)
        (delivery,) = claim(levels=[Level(name, 0)])
        lifecycle.reap([lifecycle.HeldMessage(id=id, delivery=delivery.delivery, started=True)])


def test_a_suspect_is_taken_alone_and_only_into_an_empty_buffer(worker):
    w = worker()
    put(2)
    w.settle()
    suspects("default", "default")
    w.settle()
    put(1)
    w.settle()
    assert not any(d.level.suspect for d in w.shelf.buffer), "two innocents are buffered"
    assert w.shelf.buffered == 2, "and no more are taken"
    done = w.shelf.take_back()
    succeed(*done)
    w.held.drop(done)
    w.settle()
    assert [d.level.suspect for d in w.shelf.buffer].count(True) == 1


def test_the_suspects_of_one_capsule_do_not_wait_for_those_of_another(worker):
    """Both have had suspects before, so both have the level; only the second has one now."""
    suspects("first", "second")
    w = worker("first: 1; second: 1")
    for _shelf in w.shelves:
        w.settle()
        done = [d for s in w.shelves for d in s.take_back()]
        succeed(*done)
        w.held.drop(done)
    assert not Message.objects.exists()
    suspects("second")
    for _ in range(3):
        w.settle()
    assert [d.level for d in w.shelves[1].buffer] == [Level("second", 0, True)]


def test_it_is_idle_only_if_nothing_it_holds_can_enqueue_more(worker):
    """A job that runs while the line is empty may enqueue another before it ends."""
    put()
    w = worker(burst=True)
    w.settle()
    w.settle()
    assert not w.consumer.idle
    done = w.shelf.take_back()
    succeed(*done)
    w.held.drop(done)
    assert not w.consumer.idle
    w.settle()
    assert w.consumer.idle


def test_a_burst_is_not_over_by_a_poll_that_did_not_look(worker):
    w = worker(burst=True)
    w.settle()
    assert w.consumer.idle
    w.consumer.may_claim = False
    put()
    w.consumer._line._next_look = float("inf")
    w.consumer._next_poll = 0.0
    w.step()
    assert not w.consumer.idle


def test_a_burst_is_not_over_while_a_claim_has_no_answer(worker, monkeypatch):
    put()
    w = worker(burst=True, lease=30.0)
    real = lifecycle.claim

    def lost(*args):
        monkeypatch.setattr(lifecycle, "claim", real)
        real(*args)
        raise OperationalError("the reply is lost")

    monkeypatch.setattr(lifecycle, "claim", lost)
    with pytest.raises(OperationalError):
        w.settle()
    w.settle()
    assert not w.held.all()
    assert not w.consumer.idle


def test_where_polls_fail_claims_go_on(worker, monkeypatch):
    """Somebody holds a table that a poll reads and a claim does not."""
    put()
    w = worker()
    w.settle()
    put()

    def fails(*args):
        raise OperationalError("canceling statement due to lock timeout") from LockNotAvailable()

    monkeypatch.setattr(w.consumer._line, "poll", fails)
    w.consumer._may_find = True
    w.consumer._next_poll = 0.0
    for _ in range(2):
        with pytest.raises(OperationalError):
            w.step()
    assert w.shelf.buffered == 2


def test_what_is_not_paused_stays_buffered_though_the_rest_cannot_be_handed_back(worker, monkeypatch):
    put()
    other = put(queue="other")
    w = worker("*")
    w.settle()
    queue.pause("default")
    real = lifecycle.hand_back

    def fails(*args):
        monkeypatch.setattr(lifecycle, "hand_back", real)
        raise OperationalError("lost")

    monkeypatch.setattr(lifecycle, "hand_back", fails)
    with pytest.raises(OperationalError):
        w.settle()
    w.settle()
    assert [d.id for d in w.shelf.buffer] == other


@pytest.mark.proves("the-worker-outlives-the-database")
def test_after_a_loss_it_beats_before_it_claims_and_stops_what_was_superseded(worker):
    put(3)
    w = worker()
    w.settle()
    first, second, third = w.shelf.take_back()
    lapse(first.id)
    release(first.id)
    lifecycle.discard([second.id])
    w.session.do(w.consumer.disconnect)
    before = third.confirmed_at
    w.step()
    assert w.stopped == [first, second]
    assert (first.superseded, second.discard, third.superseded, third.discard) == (True, True, False, False)
    assert third.confirmed_at > before


@pytest.mark.proves("the-worker-outlives-the-database")
def test_a_reconnect_starts_again_from_floor_zero(worker):
    put(3)
    w = worker()
    w.settle()
    succeed(*w.shelf.take_back())
    w.settle()
    w.session.do(w.consumer.disconnect)
    w.step()
    assert {floor.base for floor in w.consumer._line.floors.values()} <= {0}


def test_it_releases_lapsed_leases_of_others_and_takes_them_as_suspects(worker):
    (id,) = put()
    claim()
    lapse(id)
    w = worker()
    for _ in range(3):
        w.settle()
    assert [(d.id, d.level, d.delivery) for d in w.shelf.buffer] == [(id, SUSPECTS, 2)]


def test_a_marked_message_never_returns_to_the_line(worker):
    """Its worker fell silent after its discard was requested: the look settles it."""
    (id,) = put()
    claim()
    lifecycle.discard([id])
    lapse(id)
    w = worker()
    w.settle()
    assert state(id) == "discarded"
    assert w.shelf.buffered == 0


def test_a_burst_is_over_when_dead_letters_are_the_only_thing_left(worker):
    """Dead letters are nobody's work."""
    put()
    give_up(*claim())
    w = worker(burst=True)
    w.settle()
    w.settle()
    assert w.consumer.idle


def test_a_run_whose_job_is_claimed_again_by_its_own_process_is_told_to_stop(worker):
    """It stood still, or a person released its slot: the process that lost the job may be the one that gets it again."""
    put()
    w = worker()
    w.settle()
    (old,) = w.shelf.take_back()  # it runs
    lapse(old.id)
    release(old.id)
    w.consumer.catch_up()
    w.settle()
    (new,) = w.held.all()
    assert new.delivery > old.delivery
    assert w.stopped == [old]
    assert (old.superseded, new.superseded) == (True, False)
