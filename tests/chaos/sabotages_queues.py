"""Sabotages of the line: claims, leases, the fence of a delivery, the ways out."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

FENCING: Final = "tests/races/test_fencing.py::test_a_superseded_delivery_changes_nothing"
OF_ITS_DELIVERY: Final = "          AND message.delivery = outcome.delivery\n"
STILL_LEASED: Final = "          AND message.leased_until IS NOT NULL\n"
GRACE: Final = "          AND statement_timestamp() > pg_postmaster_start_time() + %(lease)s::interval\n"

QUEUES: Final = (
    Sabotage(
        name="complete-unfenced",
        guard="A success is stored whichever delivery reports it, also one that another has superseded.",
        rule="2.2",
        edits=(Edit("queues.sql.SUCCEED", OF_ITS_DELIVERY, ""),),
        tests=(
            f"{FENCING}[complete-taken_over-holds]",
            "tests/races/test_slots.py::test_a_job_that_is_taken_over_keeps_its_slot_and_runs_once_fenced_in[holds]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.6", "--kinds", "slow", "--pace", "1.5", "--only", "stop_child"),
            checks=("unearned",),
            why="A run that stood still reports its success, and its job ends while its successor runs.",
        ),
    ),
    Sabotage(
        name="complete-released",
        guard="A success is stored although the message was released and waits in the line for its next run.",
        rule="2.2",
        edits=(Edit("queues.sql.SUCCEED", STILL_LEASED, ""),),
        tests=(f"{FENCING}[complete-released-holds]",),
    ),
    Sabotage(
        name="fail-unfenced",
        guard="A failure puts the message off whichever delivery reports it, and so ends its successor's lease.",
        rule="2.2",
        edits=(Edit("queues.sql.PUT_OFF", OF_ITS_DELIVERY, ""),),
        tests=(f"{FENCING}[fail-taken_over-holds]", f"{FENCING}[snooze-taken_over-holds]"),
    ),
    Sabotage(
        name="give-up-unfenced",
        guard="A last failure makes a dead letter of the message whichever delivery reports it.",
        rule="2.2",
        edits=(Edit("queues.sql.GIVE_UP", OF_ITS_DELIVERY, ""),),
        tests=(f"{FENCING}[give up-taken_over-holds]",),
    ),
    Sabotage(
        name="renew-unfenced",
        guard="A beat renews a message whichever delivery holds it, and nobody is told that it was superseded.",
        rule="2.2",
        edits=(
            Edit("queues.sql.RENEW", "message.delivery = held.delivery", "message.delivery >= held.delivery"),
            Edit("queues.sql.LEASES", "message.delivery,", "NULL::int AS delivery,"),
            Edit(
                "queues.heartbeat.renew",
                "now.get(delivery.id) != (delivery.delivery, True)",
                "delivery.id not in now",
            ),
        ),
        tests=(
            f"{FENCING}[renew-taken_over-holds]",
            "tests/races/test_fencing.py::test_an_older_renewal_cannot_shorten_its_successors_lease",
        ),
    ),
    Sabotage(
        name="lapsed-lease-renewed",
        guard="A lease that has lapsed is renewed, so silence that another has seen no longer holds.",
        rule="2.2",
        edits=(Edit("queues.sql.RENEW", "message.leased_until > statement_timestamp()", "true"),),
        tests=(
            "tests/races/test_expired_leases.py::test_a_lapsed_lease_is_never_renewed[holds]",
            "tests/races/test_take_over.py::test_the_beat_of_a_silent_holder_brings_nothing_back[holds]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.6", "--kinds", "slow", "--pace", "1.5", "--only", "stop_child"),
            checks=("deliveries",),
            why="The beat of a process that stood still leases what is back in the line, and nobody has claimed.",
        ),
    ),
    Sabotage(
        name="claim-waits",
        guard="A claim waits for rows that somebody has locked, where it should pass over them.",
        rule="2.1",
        edits=(Edit("queues.sql.CLAIM", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE"),),
        tests=(
            "tests/races/test_two_workers.py::test_a_claim_passes_over_what_another_is_claiming",
            "tests/races/test_release.py::test_a_claim_passes_over_what_is_being_released[holds]",
        ),
    ),
    Sabotage(
        name="claims-leased-rows",
        guard="A claim takes messages that another worker has under a lease.",
        rule="2.1",
        edits=(Edit("queues.sql.CLAIM", "              AND candidate.leased_until IS NULL\n", ""),),
        tests=("tests/races/test_two_workers.py::test_workers_that_race_run_everything_once",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "plain,slow", "--every", "1000"),
            checks=("deliveries", "duplicated"),
            why="A job goes from one lease to the next, and runs twice at once.",
        ),
    ),
    Sabotage(
        name="no-look-below-the-floor",
        guard="The look once a second passes over what was committed late, below where this worker's claims begin.",
        rule="2.1",
        edits=(
            Edit(
                "queues.line.Line._read",
                "below[Level(queue, priority, suspect)].append((position, id, int(number)))",
                "pass",
            ),
        ),
        tests=("tests/races/test_late_commits.py::test_a_late_commit_is_found_by_a_look",),
    ),
    Sabotage(
        name="number-not-raised",
        guard="A message that is taken from its run goes back into the line under the same delivery number.",
        rule="2.2",
        edits=(Edit("queues.sql.RETURN_TO_LINE", "        delivery = message.delivery + 1,\n", ""),),
        tests=(
            "tests/races/test_take_over.py::test_the_old_holder_is_fenced_out_before_the_new_one_runs[holds]",
            "tests/races/test_slots.py::test_who_is_presumed_dead_is_fenced_out_before_the_next_is_let_in[holds]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.5", "--kinds", "slow", "--pace", "1.5", "--only", "kill_child,deploy"),
            checks=("deliveries",),
            why="What a dead or stopped process held is back in the line under the number that it had.",
        ),
    ),
    Sabotage(
        name="no-grace-after-a-restart",
        guard="After a restart of PostgreSQL leases count as lapsed before the living could renew them.",
        rule="2.2",
        edits=(Edit("queues.sql.RELEASE_LAPSED", GRACE, ""),),
        tests=("tests/races/test_expired_leases.py::test_after_a_restart_no_lease_lapses_for_the_length_of_a_lease",),
    ),
    Sabotage(
        name="archived-and-kept",
        guard="What has succeeded is archived and not taken out of the line.",
        rule="1.6",
        edits=(
            Edit(
                "queues.sql.SUCCEED",
                "DELETE FROM pgbus_messages AS message\n        USING",
                "UPDATE pgbus_messages AS message SET started = true\n        FROM",
            ),
            Edit("queues.sql.SUCCEED", "    FROM done\n", "    FROM done ON CONFLICT DO NOTHING\n"),
        ),
        tests=("tests/tasks/test_lifecycle.py::test_succeeded_it_is_archived_with_its_result_and_its_times",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "plain", "--every", "1000", "--settle", "15"),
            checks=("lapsed", "stranded"),
            why="What has succeeded is still under a lease that nobody renews, and is run again when that has lapsed.",
        ),
    ),
    Sabotage(
        name="settled-before-is-unknown",
        guard="A settlement whose reply was lost does not recognise that it is stored already.",
        rule="1.6",
        edits=(Edit("tasks.lifecycle.settled_before", "if mine[row.id] == row.delivery", "if False"),),
        tests=("tests/races/test_lost_replies.py::test_it_is_written_once_and_nobody_is_called_superseded",),
    ),
    Sabotage(
        name="movers-wait",
        guard="Who moves what is due waits for another mover, where it should pass over what that one has locked.",
        rule="2.7",
        edits=(Edit("queues.sql.MOVE_DUE", "                FOR UPDATE SKIP LOCKED\n", ""),),
        tests=("tests/races/test_due.py::test_two_movers_take_different_rows",),
    ),
    Sabotage(
        name="hand-back-counts",
        guard="A run that is handed back keeps the attempt that its claim has counted.",
        rule="2.4",
        edits=(Edit("queues.sql.RETURN_TO_LINE", "- CASE WHEN mine.counted THEN 0 ELSE 1 END", "- 0"),),
        tests=("tests/races/test_delivery_numbers.py::test_five_deploys_over_one_long_job_do_not_use_up_its_attempts",),
    ),
    Sabotage(
        name="suspects-not-marked",
        guard="What a dead process was running goes back unmarked: the one that kills takes its neighbours along.",
        rule="2.4",
        edits=(
            Edit("queues.sql.RETURN_TO_LINE", "suspect = message.suspect OR mine.suspect", "suspect = false"),
            Edit("queues.sql.RELEASE_LAPSED", "suspect = true,", "suspect = false,"),
        ),
        tests=(
            "tests/races/test_suspects.py::test_one_of_a_hundred_kills_its_process_and_no_innocent_runs_out_of_attempts",
            "tests/races/test_suspects.py::test_suspects_form_a_level_of_their_own",
        ),
    ),
    Sabotage(
        name="snooze-counts",
        guard="A run that snoozes keeps the attempt that its claim has counted.",
        rule="2.6",
        edits=(Edit("queues.sql.PUT_OFF", "outcome.reason IN ('snoozed', 'owned')", "false"),),
        tests=("tests/worker/test_running.py::test_snooze_costs_no_attempt",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "snoozing", "--every", "1000"),
            checks=("attempts",),
            why="A job is put off as snoozed with the attempts that its claim has counted.",
        ),
    ),
    Sabotage(
        name="wakes-before-the-commit",
        guard="Workers are woken inside the caller's transaction, before what they are to find is committed.",
        rule="1.5",
        edits=(
            Edit(
                "queues.wake.after_commit",
                "    hook = hook_of(connection, _Hook)\n",
                "    _speak(levels, due or {})\n    return\n    hook = hook_of(connection, _Hook)\n",
            ),
        ),
        tests=("tests/queues/test_wake.py::test_levels_are_written_after_the_commit_in_a_transaction_of_their_own",),
    ),
)
