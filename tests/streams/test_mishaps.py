"""What goes wrong in one group, one handler or one process harms nothing else, and loses nothing."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import IntegrityError, OperationalError, connection, transaction

from django_pgbus.models import EntryException, Message, StreamLog
from django_pgbus.streams import groups, handling, leases, logs
from django_pgbus.streams.consumers import consume, consumers
from django_pgbus.streams.leases import Failure
from tests.line import long_up  # noqa: F401
from tests.races.test_ranges import Calm
from tests.running import a_worker, run_burst
from tests.sessions import execute, sessions, until
from tests.streams.following import Claimer, a_group, a_stream, nothing_declared
from tests.streams.producing import append, cursor, followed, lapse_ranges

pytestmark = [pytest.mark.django_db(transaction=True, available_apps=["django_pgbus", "django.contrib.auth"])]

FOLLOW: dict[str, Any] = {"streams": ("*",), "poll": 0.05}
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _only_these():
    seen.clear()
    with nothing_declared():
        logs.forget()
        yield
        logs.forget()


def takes(entry):
    seen.append(entry.position)


def takes_too(entry):
    seen.append(entry.position)


def at_once(error, entry):
    return 0.0


# --- groups beside each other -----------------------------------------------------------------------------


def test_a_group_whose_statements_fail_does_not_keep_others_waiting():
    broken = a_stream("broken")
    a_stream("sound", entries=3)
    execute(f"ALTER TABLE pgbus_stream_{broken.id()} DROP CONSTRAINT {logs.READABLE}")
    execute(f"INSERT INTO pgbus_stream_{broken.id()} (payload, appended_at) VALUES ('1', 'infinity')")
    a_group(takes_too, stream="broken")
    a_group(takes, stream="sound")
    with a_worker(**FOLLOW):
        until(lambda: seen == [1, 2, 3])


def test_a_stream_that_cannot_be_made_does_not_keep_others_waiting(monkeypatch):
    a_stream("sound", entries=3)
    consume("refused", group="totals")(takes_too)
    consume("sound", group="totals")(takes)
    ensure = groups.ensure

    def refuses(name):
        if name == "refused":
            raise PermissionError
        return ensure(name)

    monkeypatch.setattr(groups, "ensure", refuses)
    with a_worker(**FOLLOW):
        until(lambda: seen == [1, 2, 3])


def fails_slowly(entry):
    seen.append(entry.position)
    time.sleep(0.001)
    if entry.payload["bad"]:
        raise ValueError


def test_entries_that_fail_again_and_again_do_not_keep_new_ones_waiting():
    stream = a_stream()
    stream.append_many([{"bad": True}] * 200)
    a_group(fails_slowly, backoff=at_once, max_attempts=100_000)
    with a_worker(**FOLLOW):
        until(lambda: len(seen) > 300)
        stream.append({"bad": False})
        until(lambda: 201 in seen)


def test_a_group_that_is_paused_is_not_looked_at_for_each_note(monkeypatch):
    stream = a_stream()
    consumer = a_group(takes)
    groups.pause("ledger", "totals")
    looks = []
    probe = groups.probe
    monkeypatch.setattr(groups, "probe", lambda *args: looks.append(1) or probe(*args))
    with followed(consumer) as worker:
        worker.steps(2)
        looks.clear()
        for _ in range(10):
            worker.follower.hear([stream.id()])
            worker.session.do(worker.follower.step)
    assert looks == []


def test_groups_are_looked_for_again_at_once_when_the_connection_is_back(monkeypatch):
    a_stream(entries=3)
    consumer = a_group(takes)
    declare, calls = groups.declare, []

    def breaks_off(declared):
        calls.append(1)
        if len(calls) == 1:
            connection.connection.close()
            raise OperationalError("the connection was lost")
        return declare(declared)

    monkeypatch.setattr(groups, "declare", breaks_off)
    with followed(consumer) as worker:
        worker.fails()
        worker.steps(1)
        assert worker.lane.group is not None
        worker.until_handled(3)


# --- handlers ---------------------------------------------------------------------------------------------


def goes_on(entry):
    Group.objects.create(name=f"of {entry.position}")
    with contextlib.suppress(IntegrityError):
        Group(name="there").save(force_insert=True)


@pytest.mark.parametrize("size", [None, 10])
def test_a_handler_that_goes_on_after_a_query_that_failed_has_failed(size):
    """Django would roll back what it wrote, and say nothing."""
    Group.objects.create(name="there")
    a_stream(entries=3)

    def handler(given):
        for entry in given if size else [given]:
            goes_on(entry)

    handler.__qualname__ = "handler"
    a_group(handler, transactional=True, batch_size=size, max_attempts=1)
    run_burst(**FOLLOW)
    assert Group.objects.count() == 1
    failed = EntryException.objects.values_list("position", "status", "exception").order_by("position")
    assert list(failed) == [(n, "dead", "django.db.transaction.TransactionManagementError") for n in (1, 2, 3)]


def reaches_nobody(given):
    seen.append(given)
    raise OperationalError("another server: connection refused")


@pytest.mark.parametrize("size", [None, 10])
def test_a_transactional_handler_that_does_not_reach_another_server_fails_like_any_other(size):
    """Its own connection is there, so it is known what became of its transaction."""
    a_stream(entries=3)
    a_group(reaches_nobody, transactional=True, batch_size=size, backoff=at_once, max_attempts=2)
    run_burst(**FOLLOW)
    assert list(EntryException.objects.values_list("status", "attempts")) == [("dead", 2)] * 3
    assert len(seen) < 20


@pytest.mark.parametrize("size", [None, 10])
def test_what_fails_after_the_commit_does_not_run_what_is_committed_again(size):
    a_stream(entries=3)

    def handler(given):
        seen.append(1)
        transaction.on_commit(lambda: 1 / 0)

    handler.__qualname__ = "handler"
    consumer = a_group(handler, transactional=True, batch_size=size)
    claimer = Claimer()
    claimer.look()
    found = claimer.claim().range
    assert found is not None
    done = handling.handle(consumer, found, Calm())
    assert (done.ended, done.lost, done.failures) == (True, False, [])
    assert len(seen) == (1 if size else 3)


def ends_its_connection(entries):
    seen.append(len(entries))
    execute("SELECT pg_terminate_backend(pg_backend_pid())")


def test_a_handler_that_ends_its_connection_each_time_is_taken_apart():
    a_stream(entries=2)
    a_group(ends_its_connection, transactional=True, batch_size=10, max_attempts=1)
    with a_worker(**FOLLOW):
        until(lambda: EntryException.objects.count() == 2)
    assert seen.count(2) == leases.TAKEN_APART_AFTER


def test_a_range_that_was_claimed_when_batches_were_larger():
    a_stream(entries=25)
    a_group(takes, batch_size=25)
    claimer = Claimer(limit=25)
    claimer.poll()
    lapse_ranges()
    consumers.clear()

    def handler(entries):
        seen.append(len(entries))

    handler.__qualname__ = "handler"
    a_group(handler, batch_size=10)
    run_burst(**FOLLOW)
    assert seen == [10, 10, 5]


# --- a group that routes from now on --------------------------------------------------------------------


def test_a_group_that_routes_from_now_on_routes_what_it_had_claimed():
    a_stream(entries=6)
    a_group(takes)
    claimer = Claimer(limit=5)
    claimer.look()
    held = claimer.claim().range
    assert held is not None
    leases.hand_back(held.token, 2, [Failure(position=1, attempts=1, delay=0.0)])
    consumers.clear()
    consumer = a_group(takes, route_to="mail")
    with followed(consumer) as worker:
        worker.steps(4)
    routed = [
        int(text.split('"position":')[1].split(",")[0])
        for (text,) in execute("SELECT payload::text FROM pgbus_messages")
    ]
    assert sorted(routed) == [1, 3, 4, 5, 6]
    assert cursor()[:2] == (6, 6)
    assert not EntryException.objects.exists()


def test_what_it_had_claimed_and_is_not_routed_yet_is_kept():
    a_stream(entries=6)
    a_group(takes)
    Claimer(limit=5).poll()
    consumers.clear()
    consumer = a_group(takes, route_to="mail")
    with followed(consumer) as worker:
        worker.steps(4)
        assert cursor()[:2] == (6, 0)
    assert Message.objects.count() == 1


# --- leases -----------------------------------------------------------------------------------------------


def loses(entry):
    seen.append(entry.position)
    held[0].superseded = True


held: list[Any] = []


def test_what_is_left_of_a_range_is_not_begun_once_it_is_lost():
    a_stream(entries=5)
    consumer = a_group(loses)
    claimer = Claimer()
    claimer.look()
    held[:] = [claimer.claim().range]
    assert handling.handle(consumer, held[0], Calm()).lost
    assert seen == [1]


def test_a_process_that_was_halted_for_longer_than_its_lease_begins_nothing():
    """Its heart has had no time yet to find out."""
    a_stream(entries=5)
    consumer = a_group(takes)
    claimer = Claimer()
    claimer.look()
    found = claimer.claim().range
    assert found is not None
    found.lasts, found.confirmed_at = 30.0, time.monotonic() - 31.0
    assert handling.handle(consumer, found, Calm()).lost
    assert seen == []


def test_handing_back_twice_enters_nothing_twice():
    a_stream(entries=5)
    a_group(takes)
    claimer = Claimer()
    claimer.look()
    found = claimer.claim().range
    assert found is not None
    failed = [Failure(position=1, attempts=1, delay=0.0)]
    assert leases.hand_back(found.token, 2, failed)
    assert not leases.hand_back(found.token, 2, failed)
    assert EntryException.objects.count() == 1


def test_what_is_handled_is_committed_also_while_nothing_may_be_claimed():
    stream = a_stream(entries=5)
    consumer = a_group(takes)
    with followed(consumer) as worker:
        worker.steps(1)
        until(lambda: worker.lane.ended)
        stream.append({})
        worker.follower.may_claim = False
        worker.steps(3)
        assert execute("SELECT 1 FROM pgbus_stream_leases") == []


# --- another log ------------------------------------------------------------------------------------------


def test_what_was_proven_of_a_stream_proves_nothing_of_one_that_is_made_anew_under_its_name():
    stream = a_stream(entries=50)
    consumer = a_group(takes)
    with followed(consumer) as worker, sessions() as producer:
        worker.until_handled(50)
        logs.drop(stream.id())
        StreamLog.objects.all().delete()
        logs.forget()
        anew = a_stream()
        worker.steps(2)
        seen.clear()
        producer.open()
        producer.do(append, anew)
        append(anew)
        worker.steps(4)
        producer.commit()
        worker.until_handled(2)
    assert seen == [1, 2]


def test_nor_of_one_that_is_emptied_and_repaired_between_two_looks():
    stream = a_stream(entries=50)
    consumer = a_group(takes)
    with followed(consumer) as worker, sessions() as producer:
        worker.until_handled(50)
        execute(f"TRUNCATE pgbus_stream_{stream.id()} RESTART IDENTITY")
        groups.repair("ledger", "totals")
        groups.rewind("ledger", "totals", 0)
        seen.clear()
        producer.open()
        producer.do(append, stream)
        append(stream)
        worker.steps(4)
        producer.commit()
        worker.until_handled(2)
    assert seen == [1, 2]


@pytest.mark.needs_session("it sets up a session of its own")
def test_a_role_that_may_not_read_the_sequence_is_told():
    """To it the log would seem never to have been used."""
    a_stream(entries=3)
    a_group(takes)
    claimer = Claimer()
    role = f"pgbus_stranger_{os.getpid()}"
    execute(f"CREATE ROLE {role}")
    try:
        execute(f"GRANT USAGE ON SCHEMA public TO {role}")
        execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}")
        execute(f"SET ROLE {role}")
        (row,) = groups.probe([claimer.group.id], claimer.system)
        assert "GRANT USAGE, SELECT ON SEQUENCE" in (groups.why_refused("ledger/totals", row) or "")
    finally:
        execute("RESET ROLE")
        execute(f"DROP OWNED BY {role}")
        execute(f"DROP ROLE {role}")
