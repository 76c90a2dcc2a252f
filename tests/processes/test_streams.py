"""Groups of a stream and real workers: killed, stopped, suspended, without a database; who goes on with what they held."""

from __future__ import annotations

import os
import signal
import time

import pytest

from django_pgbus import Stream
from django_pgbus.streams import groups, logs
from tests.processes.harness import alive, database_time, execute, runs, until, value, when
from tests.settings import INSTALLED_APPS
from tests.streams.following import nothing_declared

pytestmark = pytest.mark.processes
COMMITTED = pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])

FOLLOWERS = {"INSTALLED_APPS": [*INSTALLED_APPS, "tests.processes", "tests.processes.followers"]}
LEASE = 2


@pytest.fixture(autouse=True)
def _nothing_is_remembered():
    with nothing_declared():
        logs.forget()
        yield
        logs.forget()


@pytest.fixture
def follow(runworker):
    """Start a worker that follows one group, and wait until it works."""
    return following(runworker)


def following(runworker):
    def start(group, *arguments, processes=1, lease=LEASE, **said):
        said.setdefault("pgbus", {"VISIBILITY_TIMEOUT": lease, "POLL_INTERVAL": 0.2})
        started = runworker(
            *arguments, f"--streams={group}", f"--processes={processes}", settings=FOLLOWERS, sweep_every=0.5, **said
        )
        if "--burst" not in arguments:
            started.ready(processes)
        return started

    return start


def appended(number, name="step", each=None, **special):
    """Append so many entries in one transaction; `special` is what becomes of one of them, as in n3={"seconds": 1}."""
    stream = Stream("steps")
    stream.ensure()
    stream.append_many({"name": name, "n": n, **(each or {}), **special.get(f"n{n}", {})} for n in range(1, number + 1))
    return stream


def began(n, name="step"):
    return runs(f"{name} {n}", "began")


def ended(number, name="step", event="ended"):
    """Return how often each entry came to its end."""
    return [runs(f"{name} {n}", event) for n in range(1, number + 1)]


def state(group="entries"):
    """Return (claimed, committed) of a group."""
    ((*found,),) = execute(
        "SELECT claimed, committed FROM pgbus_stream_cursors JOIN pgbus_stream_groups AS groups ON groups.id = group_id"
        " WHERE groups.name = %s",
        group,
    )
    return tuple(found)


def leases():
    return execute("SELECT low, high, reclaims, until < clock_timestamp() FROM pgbus_stream_leases ORDER BY low")


def failed():
    return execute("SELECT position, status, attempts FROM pgbus_stream_exceptions ORDER BY position")


def done_with(number, group="entries", seconds=40.0):
    """Wait until a group has done with so many positions; a crash of the server may have skipped some."""

    def there():
        if not execute("SELECT 1 FROM pgbus_stream_groups WHERE name = %s", group):
            return False
        claimed, committed = state(group)
        return claimed == committed >= number and claimed == Stream("steps").head()

    until(there, seconds)


def runner_of(name, event="began"):
    return value(
        "SELECT pid FROM process_test_runs WHERE name = %s AND event = %s ORDER BY id DESC LIMIT 1", name, event
    )


# --- killed ---------------------------------------------------------------------------------------------


@COMMITTED
@pytest.mark.parametrize("group", ["entries", "batches"])
def test_the_range_of_a_killed_process_is_handled_by_another_one_at_once(group, follow):
    """Its supervisor says so: nobody waits for the end of a lease."""
    worker = follow(group="*/" + group, processes=2, lease=60)
    appended(10, n5={"seconds": 60, "once": True})
    until(lambda: began(5))
    killed, at = runner_of("step 5"), database_time()
    os.kill(killed, signal.SIGKILL)
    done_with(10, group)
    assert ended(10) == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    assert runner_of("step 5") != killed
    print(f"begun again {when('step 5', 'began', 'max') - at:.2f} s after the kill")
    assert when("step 5", "began", "max") - at < 20
    assert failed() == []
    assert worker.stop() == 0


@COMMITTED
def test_the_ranges_of_a_worker_that_is_killed_as_a_whole_are_handled_when_their_leases_are_over(follow):
    lease = 4
    first = follow("*/entries", "--worker-id=first", lease=lease)
    appended(10, n5={"seconds": 60, "once": True})
    until(lambda: began(5))
    victims = [first.pid, *first.children()]
    at = database_time()
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    until(lambda: not any(alive(pid) for pid in victims))
    second = follow("*/entries", "--worker-id=second", lease=lease)
    done_with(10)
    assert ended(10) == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]
    waited = when("step 5", "began", "max") - at
    print(f"begun again {waited:.2f} s after the kill, the lease is {lease} s")
    assert waited > lease / 2, "somebody handled a range whose lease was valid"
    assert second.stop() == 0


@COMMITTED
def test_a_range_that_kills_its_processes_is_taken_apart_and_only_the_entry_that_does_it_dies(follow):
    worker = follow("*/entries", processes=2)
    appended(12, n6={"kills": True})
    until(lambda: failed() == [(6, "dead", 3)], 100)
    done_with(12)
    assert [times > 0 for times in ended(12)] == [n != 6 for n in range(1, 13)]
    assert began(6) == 3 + 3, "three times in its range, and three times alone"
    assert "one by one" in worker.log or "alone" in worker.log
    assert worker.stop() == 0


# --- stopped --------------------------------------------------------------------------------------------


@COMMITTED
def test_sigterm_lets_the_entry_end_and_hands_back_the_rest_of_its_range(follow):
    first = follow("*/entries", lease=60)
    appended(10, n4={"seconds": 1.0})
    until(lambda: began(4))
    assert first.stop() == 0
    assert ended(10) == [1, 1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert leases() == [(4, 10, -1, True)]
    assert state() == (10, 4)
    second = follow("*/entries", lease=60)
    done_with(10)
    assert ended(10) == [1] * 10
    assert "again" not in second.log, "it was given back, so it was not lost"
    assert second.stop() == 0


@COMMITTED
def test_sigterm_lets_the_batch_end(follow):
    worker = follow("*/batches", lease=60)
    appended(20, each={"seconds": 0.1})
    until(lambda: began(3))
    assert worker.stop() == 0
    assert ended(20) == [1] * 10 + [0] * 10
    # What was claimed ahead, and not begun, is anybody's.
    assert leases() == [(10, 20, -1, True)]
    assert state("batches") == (20, 10)


@COMMITTED
def test_what_ignores_the_grace_is_handed_back_once_its_process_is_gone(follow):
    first = follow("*/entries", "--grace=0.3", lease=60)
    appended(10, n4={"seconds": 60, "once": True})
    until(lambda: began(4))
    assert first.stop() in {0, 64}
    assert leases() == [(0, 10, -1, True)]
    second = follow("*/entries", lease=60)
    done_with(10)
    assert ended(10) == [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert second.stop() == 0


# --- longer than a lease --------------------------------------------------------------------------------


@COMMITTED
@pytest.mark.parametrize("group", ["entries", "batches", "asleep", "atomic"])
def test_a_handler_three_times_as_long_as_its_lease_keeps_it(group, follow):
    worker = follow("*/" + group, processes=2)
    appended(3, n2={"seconds": 3 * LEASE})
    done_with(3, group)
    assert [began(n) for n in (1, 2, 3)] == [1, 1, 1]
    assert ended(3, event="effect" if group == "atomic" else "ended") == [1, 1, 1]
    assert failed() == []
    assert worker.stop() == 0


@COMMITTED
@pytest.mark.parametrize("group", ["entries", "atomic"])
def test_a_process_that_stands_still_loses_its_range_and_writes_nothing_afterwards(group, follow):
    first = follow("*/" + group, "--worker-id=first")
    (child,) = first.children()
    appended(3, n2={"seconds": 1.5})
    until(lambda: began(2))
    os.kill(child, signal.SIGSTOP)
    second = follow("*/" + group, "--worker-id=second")
    done_with(3, group)
    assert began(2) == 2
    os.kill(child, signal.SIGCONT)
    until(lambda: "lost" in first.log)
    if group == "atomic":
        assert ended(3, event="effect") == [1, 1, 1]
    # It goes on to work.
    assert second.stop() == 0
    Stream("steps").append({"name": "step", "n": 4})
    done_with(4, group)
    assert runner_of("step 4") == child
    assert first.stop() == 0
    assert failed() == []


@COMMITTED
def test_timeout_ends_an_entry(follow):
    worker = follow("*/limited")
    appended(4, n2={"seconds": 60})
    until(lambda: failed() == [(2, "dead", 2)])
    done_with(4, "limited")
    assert ended(4) == [1, 0, 1, 1]
    assert (began(2), len(worker.children())) == (2, 1)
    assert worker.stop() == 0


@COMMITTED
def test_an_entry_that_does_not_end_at_its_timeout_ends_its_process_and_dies_at_last(follow):
    worker = follow("*/limited", processes=2, hard_margin=0.5)
    appended(4, n2={"seconds": 60, "stubborn": True})
    until(lambda: failed() == [(2, "dead", 2)], 100)
    done_with(4, "limited")
    assert [times > 0 for times in ended(4)] == [True, False, True, True]
    assert worker.stop() == 0


# --- the database ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["entries", "atomic"])
def test_the_database_restarts_in_the_middle(group, server, runworker_there):
    follow = following(runworker_there)
    worker = follow("*/" + group, processes=2, lease=5)
    children = worker.children()
    number = 300
    appended(number, each={"seconds": 0.01})
    until(lambda: began(50))
    server.stop("immediate")
    time.sleep(1)  # no proof: the length of the outage
    server.start()
    done_with(number, group)
    assert worker.children() == children
    if group == "atomic":
        assert ended(number, event="effect") == [1] * number
    else:
        assert min(ended(number)) >= 1
    assert failed() == []
    assert worker.stop() == 0


# --- who gets what --------------------------------------------------------------------------------------


@COMMITTED
def test_two_processes_share_a_group(follow):
    worker = follow("*/entries", processes=2)
    for part in range(8):
        appended(100, name=f"part{part}", each={"seconds": 0.002})
    done_with(800)
    assert value("SELECT count(DISTINCT pid) FROM process_test_runs WHERE event = 'ended'") == 2
    assert value("SELECT count(*) FROM process_test_runs WHERE event = 'ended'") == 800
    assert worker.stop() == 0


@COMMITTED
def test_several_groups_follow_one_stream_each_at_its_own_pace(follow):
    worker = follow("steps/entries,steps/others")
    appended(20, n3={"seconds": 5})
    done_with(20, "others")
    assert leases() == [(0, 20, 0, False)]
    assert ended(20, name="others step", event="ran") == [1] * 20
    assert state() == (20, 0)
    done_with(20)
    assert ended(20) == [1] * 20
    assert value("SELECT count(*) FROM pgbus_stream_groups") == 2
    assert worker.stop() == 0


@COMMITTED
def test_a_group_that_was_never_there_begins_with_what_was_appended_before(follow):
    appended(5)
    worker = follow("steps")
    done_with(5)
    assert ended(5)[0] >= 1
    assert groups.find("steps", "atomic")
    assert worker.stop() == 0


@COMMITTED
def test_a_burst_ends_when_it_has_caught_up_and_its_exit_code_tells(follow):
    appended(300)
    assert follow("*/entries", "--burst", processes=2).wait() == 0
    assert ended(300) == [1] * 300
    assert state() == (300, 300)
    assert follow("*/entries", "--burst").wait() == 0
    appended(3, name="more", n2={"fails": True})
    assert follow("*/entries", "--burst").wait() == 1
    assert ended(3, name="more") == [1, 0, 1]
    assert failed() == [(302, "dead", 3)]
