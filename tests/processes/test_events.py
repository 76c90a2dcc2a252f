"""Events and real workers: whose queues they serve, handlers that outlive their lease, and such as are gone."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid

import pytest

from django_pgbus import publish
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import Handler, handlers
from django_pgbus.tasks.policy import Policy
from tests.processes import tasks
from tests.processes.harness import count, execute, finished, runs, until, value
from tests.settings import INSTALLED_APPS

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

MODULE = "tests.processes.subscribers.handlers"
SUBSCRIBERS = {"INSTALLED_APPS": [*INSTALLED_APPS, "tests.processes", "tests.processes.subscribers"]}
LEASE = 2


@pytest.fixture
def worker(runworker):
    """Start a worker that has the handlers, and wait until it works and has said which they are."""

    def start(*arguments, processes=1, **said):
        said.setdefault("pgbus", {"VISIBILITY_TIMEOUT": LEASE, "MAX_ATTEMPTS": 3, "BACKOFF_BASE": 0.1})
        started = runworker(*arguments, settings=SUBSCRIBERS, **said)
        started.ready(processes)
        until(lambda: len(execute("SELECT 1 FROM pgbus_subscriptions WHERE handler LIKE %s", f"{MODULE}.%")) == 6)
        return started

    return start


def published(topic, **body):
    """Publish and return the id of the event."""
    event = uuid.uuid4()
    assert publish(topic, body, event_id=event) == 1
    return event


def archived(event):
    """Return (outcome, delivery, attempts) of the copies of an event that are settled."""
    return execute(
        "SELECT outcome, delivery, attempts FROM pgbus_archive WHERE event_id = %s ORDER BY finished_at", event
    )


def waiting(event):
    """Return the delivery numbers of the copies in the line."""
    return [number for (number,) in execute("SELECT delivery FROM pgbus_messages WHERE event_id = %s", event)]


def claim(event):
    ((delivery, done),) = execute(
        "SELECT delivery, completed_at IS NOT NULL FROM pgbus_processed_events WHERE event_id = %s", event
    )
    return delivery, done


# --- longer than a lease ------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["slow.sync", "slow.async"])
def test_a_handler_three_times_as_long_as_its_lease_runs_once(topic, worker):
    """Its message is renewed, and its claim with it; a duplicate that comes meanwhile is skipped."""
    w = worker("--threads=2", "--processes=2", processes=2)
    event = published(topic, name="slow", seconds=3 * LEASE)
    until(lambda: runs("slow", "began"))
    first = value("SELECT leased_until FROM pgbus_messages WHERE event_id = %s", event)
    until(lambda: value("SELECT leased_until FROM pgbus_messages WHERE event_id = %s", event) > first)
    assert publish(topic, {"name": "slow", "seconds": 0}, event_id=event) == 1
    until(lambda: archived(event))
    assert archived(event) == [("skipped", 1, 0)]
    until(lambda: len(archived(event)) == 2)
    assert archived(event)[1] == ("succeeded", 1, 1)
    assert (runs("slow", "began"), runs("slow", "ended")) == (1, 1)
    assert claim(event) == (1, True)
    assert w.stop() == 0


def test_a_run_whose_heart_stands_still_is_fenced_out_and_the_next_one_completes(worker):
    """No beat tells the old one: it goes on, and ends nothing."""
    w = worker("--threads=1", "--processes=2", processes=2)
    event = published("slow.sync", name="heartless", seconds=3 * LEASE, stops_the_heart=True)
    until(lambda: runs("heartless", "began") == 2)
    until(lambda: archived(event))
    until(lambda: "was superseded" in w.log)
    ((outcome, delivery, _),) = archived(event)
    assert outcome == "succeeded"
    assert delivery >= 2
    assert claim(event) == (delivery, True)
    w.stop()
    assert len(archived(event)) == 1
    assert value("SELECT count(*) FROM pgbus_messages") == 0


@pytest.mark.proves("a-superseded-run-is-named")
def test_a_run_in_a_process_that_stands_still_is_fenced_out_and_the_next_one_completes(worker):
    first = worker("--worker-id=first")
    (child,) = first.ready()
    event = published("slow.sync", name="suspended", seconds=1.0)
    until(lambda: runs("suspended", "began"))
    os.kill(child, signal.SIGSTOP)
    second = worker("--worker-id=second")
    until(lambda: archived(event))
    assert claim(event)[1]
    os.kill(child, signal.SIGCONT)
    note = finished(tasks.note.using(queue_name="default").enqueue("after"))
    until(lambda: "was superseded" in first.log)
    assert first.stop() == 0
    assert second.stop() == 0
    ((outcome, delivery, _),) = archived(event)
    assert (outcome, claim(event)) == ("succeeded", (delivery, True))
    assert delivery >= 2
    assert "was superseded" not in second.log
    assert note


def test_a_run_whose_process_is_killed_is_run_again_at_once(worker):
    """Its supervisor says so: the claim is free, and nobody waits for the end of a lease."""
    w = worker(pgbus={"VISIBILITY_TIMEOUT": 60})
    (child,) = w.ready()
    event = published("slow.sync", name="killed", seconds=30)
    until(lambda: runs("killed", "began"))
    os.kill(child, signal.SIGKILL)
    until(lambda: archived(event))
    ((outcome, _, attempts),) = archived(event)
    assert (outcome, attempts) == ("succeeded", 2)
    assert (runs("killed", "began"), runs("killed", "ended")) == (2, 1)
    assert w.stop() == 0


def test_a_worker_that_is_stopped_releases_the_claims_of_what_it_hands_back(worker):
    w = worker("--grace=0.2")
    event = published("slow.sync", name="stopped", seconds=60)
    until(lambda: runs("stopped", "began"))
    w.stop()
    assert waiting(event)
    assert count("pgbus_processed_events") == 0
    assert value("SELECT attempts FROM pgbus_messages WHERE event_id = %s", event) == 0


# --- who serves them ----------------------------------------------------------------------------------


def test_all_queues_of_tasks_are_no_queues_of_events_and_events_are_no_tasks(worker):
    first = worker("--queues=*")
    event = published("trips.created.us")
    note = finished(tasks.note.enqueue("task"))
    assert waiting(event) == [0]
    assert first.stop() == 0
    second = worker("--events")
    left = tasks.note.enqueue("left")
    until(lambda: archived(event))
    assert archived(event) == [("succeeded", 1, 1)]
    assert value("SELECT delivery FROM pgbus_messages WHERE id = %s", int(left.id)) == 0
    assert second.stop() == 0
    assert (count("pgbus_dead_letters"), count("pgbus_messages")) == (0, 1)
    assert note


def test_a_worker_that_is_told_nothing_serves_both(worker):
    w = worker()
    event = published("trips.created.us")
    finished(tasks.note.enqueue("task"))
    until(lambda: archived(event))
    assert w.stop() == 0


@pytest.mark.parametrize("queues", ["@mail_*", "@mail_trips", "@*,!@events"])
def test_a_worker_serves_the_queues_of_events_that_it_names(queues, worker):
    w = worker(f"--queues={queues}")
    assert publish("trips.created") == 2
    until(lambda: execute("SELECT queue, delivery FROM pgbus_messages") == [("@events", 0)])
    assert (runs("mail trips.created"), runs("trips trips.created")) == (1, 0)
    assert w.stop() == 0


# --- publishers and handlers apart --------------------------------------------------------------------


def test_a_publisher_that_has_no_handlers_routes_by_the_table(worker):
    """What a worker wrote when it started is all it needs, also once that worker is gone."""
    assert publish("trips.created") == 0
    w = worker()
    assert w.stop() == 0
    assert MODULE not in sys.modules
    assert not any(path.startswith(MODULE) for path in handlers)
    for topic, copies in {
        "trips": 1,
        "trips.created": 2,
        "trips.created.eu": 1,
        "parcels.created.eu": 1,
        "parcels.created": 0,
        "trip": 0,
    }.items():
        assert publish(topic, {}) == copies, topic
    w = worker()
    until(lambda: count("pgbus_messages") == 0)
    assert w.stop() == 0
    ran = execute("SELECT name FROM process_test_runs")
    assert sorted(name for (name,) in ran) == [
        "mail trips.created",
        "trips parcels.created.eu",
        "trips trips",
        "trips trips.created",
        "trips trips.created.eu",
    ]


@pytest.mark.parametrize("killed", [False, True], ids=["recycled", "killed"])
def test_a_replaced_process_takes_away_no_pattern_that_a_newer_worker_has_written(killed, worker):
    """In a rolling deployment: the old supervisor still replaces its processes, and those have the old code."""
    w = worker() if killed else worker("--max-jobs=1")
    (child,) = w.ready()
    newer = Handler(
        path=f"{MODULE}.trips",
        target=print,
        patterns=("trips.#", "journeys.#"),
        queue="@events",
        priority=0,
        idempotent=False,
        policy=Policy(max_attempts=0),
    )
    assert subscriptions.declare([newer]) == 2
    if killed:
        os.kill(child, signal.SIGKILL)
    else:
        published("trips.on")
    until(lambda: child not in w.children())
    event = published("trips.on")
    until(lambda: archived(event))  # by the replacement, which would have declared before
    assert publish("journeys.begun") == 1
    assert w.stop() == 0


@pytest.mark.parametrize(
    ("name", "said"),
    [("removed", "removed"), ("not_subscribed", 'Was @subscribe("...") taken away?'), ("Mail.gone.far", "gone")],
)
def test_an_event_for_a_handler_that_is_gone_fails_and_dies_with_a_reason(name, said, worker):
    """It was renamed or removed while events were on their way: attempts, and then a dead letter that says why."""
    w = worker()
    path = f"{MODULE}.{name}"
    execute("UPDATE pgbus_subscriptions SET handler = %s WHERE handler = %s", path, f"{MODULE}.aslow")
    event = published("slow.async")
    others = published("trips.created.us")
    until(lambda: count("pgbus_dead_letters"))
    until(lambda: archived(others))
    ((task, reason, attempts, found, errors),) = execute(
        "SELECT task, reason, attempts, event_id, errors::text FROM pgbus_dead_letters"
    )
    assert (task, reason, attempts, found) == (path, "exhausted", 3, event)
    errors = json.loads(errors)
    assert len(errors) == 3
    assert {error["exception"] for error in errors} == {"builtins.ImportError"}
    assert path in errors[-1]["traceback"]
    assert said in errors[-1]["traceback"]
    assert count("pgbus_processed_events") == 0, "its claim is free for whoever gets that name again"
    assert w.stop() == 0


def test_a_dead_letter_of_a_renamed_handler_runs_once_the_name_is_there(worker):
    w = worker()
    execute("UPDATE pgbus_subscriptions SET handler = %s WHERE handler = %s", f"{MODULE}.gone", f"{MODULE}.slow")
    event = published("slow.sync", name="renamed", seconds=0)
    until(lambda: count("pgbus_dead_letters"))
    execute("UPDATE pgbus_dead_letters SET task = %s", f"{MODULE}.slow")  # as one would after a rename
    from django_pgbus.tasks import lifecycle

    ((id,),) = execute("SELECT id FROM pgbus_dead_letters")
    assert lifecycle.redrive([id]).ids == [id]
    until(lambda: archived(event))
    assert claim(event)[1]
    assert w.stop() == 0


def test_an_event_that_nobody_subscribed_to_is_counted_and_the_counts_are_summed(worker):
    w = worker(sweep_every=0.5)
    for _ in range(5):
        assert publish("nobody.listens") == 0
    until(lambda: execute("SELECT status, name, amount FROM pgbus_event_counts") == [("unrouted", "nobody.listens", 5)])
    assert count("pgbus_messages") == 0
    assert w.stop() == 0
