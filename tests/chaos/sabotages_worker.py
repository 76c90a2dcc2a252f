"""Sabotages of the worker processes and of what runs in them."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

NOT_STARTED: Final = "(instead := _not_started(run.delivery)) is not None"
STARTED: Final = "(instead := None) is not None"

WORKER: Final = (
    Sabotage(
        name="dead-child-not-reaped",
        guard="The supervisor does not judge what a child held that was killed: nothing is counted, nobody is a suspect.",
        rule="8.2",
        edits=(
            Edit("worker.repairs.Repair.make", "                repairer.reap(self.held)\n", "                pass\n"),
        ),
        tests=("tests/worker/test_supervisor.py::test_a_process_that_dies_is_reaped_at_once_and_replaced",),
        chaos=Chaos(
            options=("--minutes", "0.7", "--kinds", "poison,plain", "--every", "1000"),
            checks=("poison",),
            why="Nobody counts the runs of the job that ends its process, and it goes on doing so.",
        ),
    ),
    Sabotage(
        name="silent-heart-is-believed",
        guard="A process that could not beat for a lease takes its runs for its own, and stops none.",
        rule="2.3",
        edits=(
            Edit(
                "worker.heart.Heart._give_up_unconfirmed",
                "if delivery.confirmed_at < silent_since and not delivery.superseded:",
                "if False:",
            ),
        ),
        tests=(
            "tests/worker/test_heart.py::test_what_was_not_confirmed_for_a_lease_is_treated_as_superseded",
            "tests/worker/test_heart.py::test_a_single_run_whose_message_is_never_renewed_is_given_up_too",
        ),
    ),
    Sabotage(
        name="superseded-runs-on",
        guard="A limited or unique run that was superseded is not interrupted.",
        rule="2.3",
        edits=(Edit("tasks.watch.Watch.interrupt", "elif not armed.raised and armed.held.superseded:", "elif False:"),),
        tests=("tests/tasks/test_watch.py::test_a_superseded_run_is_interrupted",),
    ),
    Sabotage(
        name="starts-what-was-lost",
        guard="What was buffered in a process that stood still starts, though it may have been taken over.",
        rule="2.3",
        edits=(
            Edit(
                "tasks.executor.Executor.run",
                NOT_STARTED,
                STARTED,
            ),
            Edit(
                "tasks.executor.Executor.arun",
                NOT_STARTED,
                STARTED,
            ),
        ),
        tests=("tests/races/test_fencing.py::test_what_may_have_been_taken_over_does_not_start",),
    ),
    Sabotage(
        name="handed-back-while-it-runs",
        guard="At SIGTERM a process hands back what runs at once, and not once it has stopped running.",
        rule="8.2",
        edits=(
            Edit(
                "worker.process.Process._end",
                "        self._follower.drain()\n",
                "        self._follower.drain()\n"
                "        from django_pgbus.tasks import lifecycle\n\n"
                "        lifecycle.hand_back([(delivery.id, delivery.delivery) for delivery in self._held.all()])\n",
            ),
        ),
        tests=(
            "tests/processes/test_stopping.py::test_a_running_job_finishes_and_what_was_buffered_goes_back_without_an_attempt",
        ),
    ),
    Sabotage(
        name="only-wake-ups",
        guard="A worker claims when it is woken, and never because its poll has found something.",
        rule="1.5",
        edits=(
            Edit("worker.consumer.Consumer._poll", "        self._may_find |= not nothing or not polled.looked\n", ""),
        ),
        tests=("tests/worker/test_consumer.py::test_it_finds_what_nobody_announced",),
    ),
    Sabotage(
        name="lapsed-leases-not-released",
        guard="Nobody puts back into the line what a worker held that is gone without a supervisor.",
        rule="2.2",
        edits=(
            Edit("worker.consumer.Consumer._poll", "if polled.lapsed and (released := ", "if False and (released := "),
        ),
        tests=("tests/worker/test_consumer.py::test_it_releases_lapsed_leases_of_others_and_takes_them_as_suspects",),
        chaos=Chaos(
            options=("--minutes", "0.5", "--kinds", "slow", "--pace", "1.5", "--only", "kill_worker", "--settle", "20"),
            checks=("lost", "stranded"),
            why="What a worker held that was killed as a whole stays under its lapsed lease.",
        ),
    ),
    Sabotage(
        name="suspects-among-others",
        guard="A suspect is taken beside other jobs of its process, and not alone into an empty buffer.",
        rule="2.4",
        edits=(Edit("worker.consumer.Consumer._claim", "if capsule.threads.buffered:", "if False:"),),
        tests=("tests/worker/test_consumer.py::test_a_suspect_is_taken_alone_and_only_into_an_empty_buffer",),
    ),
    Sabotage(
        name="claims-before-it-beats",
        guard="After a lost connection a worker claims before it has renewed what it holds.",
        rule="2.3",
        edits=(
            Edit(
                "worker.consumer.Consumer.connected",
                "        beat = heartbeat.renew(self._held, self._plan.lease)\n",
                "        beat = heartbeat.Beat()\n",
            ),
        ),
        tests=(
            "tests/worker/test_consumer.py::test_after_a_loss_it_beats_before_it_claims_and_stops_what_was_superseded",
        ),
    ),
    Sabotage(
        name="effect-and-settlement-apart",
        guard="A transactional run commits what it wrote, and its settlement is another transaction.",
        rule="7.1",
        edits=(
            Edit(
                "tasks.executor.Executor._run_transactional",
                "                    if not lifecycle.succeed([success], ended):\n",
                "                if True:\n                    if not lifecycle.succeed([success], ended):\n",
            ),
        ),
        tests=(
            "tests/races/test_transactional.py::test_a_superseded_run_takes_its_effect_back",
            "tests/races/test_transactional.py::test_a_run_that_lost_the_race_to_the_row_takes_its_effect_back",
        ),
        chaos=Chaos(
            options=("--minutes", "0.6", "--kinds", "transactional", "--only", "stop_child"),
            checks=("effects",),
            why="A run that stood still writes its row though its job was run by another, which has written one too.",
        ),
    ),
    Sabotage(
        name="attempts-without-end",
        guard="Nobody looks how often a message has been run.",
        rule="2.5",
        edits=(
            Edit("tasks.executor.Executor._judged", "if delivery.attempts < limit:", "if True:"),
            Edit("tasks.executor.Executor._spent", "if delivery.attempts <= limit:", "if True:"),
        ),
        tests=("tests/worker/test_running.py::test_a_failing_job_is_tried_again_and_dead_letters_with_its_errors",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "always,plain", "--every", "1000"),
            checks=("endings", "lost", "stranded"),
            why="A job that always fails is tried again and again, and never is a dead letter.",
        ),
    ),
)
