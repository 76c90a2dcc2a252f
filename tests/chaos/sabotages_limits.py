"""Sabotages of the limits and of what waits: slots, promotion, parking."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

LIMITS: Final = (
    Sabotage(
        name="limit-not-counted",
        guard="Whoever is parked is let in, however many slots of its key are held.",
        rule="4.1",
        edits=(
            Edit("concurrency.slots.look", "terms.to is None or held < terms.to", "True"),
            Edit("concurrency.slots._let_in", "if len(held) >= terms.to:", "if False:"),
            Edit("concurrency.sql.CANDIDATES", "wanted.most - cardinality(held.ordinals)", "wanted.most"),
        ),
        tests=("tests/concurrency/test_limits.py::test_after_an_enqueue_a_task_is_ready_with_a_slot_or_parked",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "limited", "--every", "1000"),
            checks=("over-the-limit",),
            why="More runs of a limit are fenced in at once than allowed.",
        ),
    ),
    Sabotage(
        name="promotes-without-the-lock",
        guard="Two who let in count at the same time: neither locks the semaphore.",
        rule="4.1",
        edits=(Edit("concurrency.sql.LOCK_FREE", "    FOR UPDATE SKIP LOCKED\n", ""),),
        tests=("tests/races/test_promotion.py::test_of_two_who_promote_one_passes_over[holds]",),
    ),
    Sabotage(
        name="promotion-waits",
        guard="Who lets in waits for a semaphore that somebody has locked, a caller's open transaction included.",
        rule="4.1",
        edits=(Edit("concurrency.sql.LOCK_FREE", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),),
        tests=(
            "tests/races/test_promotion.py::test_of_two_who_promote_one_passes_over[holds]",
            "tests/races/test_parking.py::test_a_completion_waits_for_no_callers_transaction[holds]",
        ),
    ),
    Sabotage(
        name="counted-with-the-lock",
        guard="Slots are counted in the statement that waits for the semaphore: the count dates from before the wait.",
        rule="4.1",
        edits=(
            Edit(
                "concurrency.slots.reserve",
                "    while True:\n",
                "    before = _held(keys)\n    while True:\n",
            ),
            Edit("concurrency.slots.reserve", "held = _held(keys)\n    most", "held = before\n    most"),
        ),
        tests=("tests/races/test_promotion.py::test_of_two_that_raise_the_second_waits_and_counts_the_first[holds]",),
    ),
    Sabotage(
        name="limit-not-checked-at-pick-up",
        guard="A run begins though its slot was taken away between its promotion and its pick-up.",
        rule="4.6",
        edits=(Edit("concurrency.slots.start_leases", "{id for (id,) in ", "set(ids) | {id for (id,) in "),),
        tests=(
            "tests/races/test_release.py::test_a_job_whose_slot_was_released_before_its_pick_up_is_parked[holds]",
            "tests/races/test_slots.py::test_one_lapsed_lease_never_becomes_a_chain_of_runs",
        ),
    ),
    Sabotage(
        name="slot-freed-at-start",
        guard="A slot is given back when its run begins, and not when it ends.",
        rule="4.4",
        edits=(
            Edit(
                "tasks.lifecycle._take_both",
                "semaphores = set(slots.free(sorted(waits_for_key.keys() & placed)))",
                "semaphores = set(slots.free(sorted(placed)))",
            ),
        ),
        tests=("tests/concurrency/test_limits.py::test_a_running_holder_that_falls_silent_is_presumed_dead",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "limited", "--every", "1000"),
            checks=("over-the-limit",),
            why="The next of a limit is let in while the one before it runs.",
        ),
    ),
    Sabotage(
        name="presumed-dead-and-not-fenced-out",
        guard="The slot of a silent holder is given to the next while the holder's delivery is still the newest.",
        rule="4.5",
        edits=(
            Edit(
                "tasks.lifecycle._evict",
                "freed += slots.free(sorted(_return(fenced_out, queue.RELEASED if even_running else queue.LOST)))",
                "freed += slots.free(sorted(id for id, *_ in fenced_out))",
            ),
        ),
        tests=("tests/races/test_slots.py::test_a_holder_that_was_presumed_dead_comes_back_and_changes_nothing",),
    ),
    Sabotage(
        name="locked-counts-as-silent",
        guard="A holder whose message is locked, and which so lives, is waited for and then evicted.",
        rule="4.5",
        edits=(Edit("queues.sql.LOCK_QUIET", "FOR UPDATE SKIP LOCKED", "FOR UPDATE"),),
        tests=(
            "tests/races/test_slots.py::test_a_holder_that_beats_at_this_moment_is_not_presumed_dead[holds]",
            "tests/races/test_take_over.py::test_a_holder_whose_message_is_locked_is_alive[holds]",
        ),
    ),
    Sabotage(
        name="nobody-looks-again",
        guard="Nobody looks again after the commit with which something was freed or parked.",
        rule="4.1",
        edits=(Edit("tasks.lifecycle._Freed.speak", "let_in(self.semaphores, self.keys)", "pass"),),
        tests=("tests/races/test_parking.py::test_a_job_that_is_parked_while_the_slot_is_freed_is_let_in",),
    ),
    Sabotage(
        name="parks-and-does-not-look",
        guard="Who parks a delivery does not look whether what it waits for was freed meanwhile.",
        rule="3.2",
        edits=(
            Edit("tasks.lifecycle._picked_up", "    let_in_after_commit(semaphores, unique_keys, batches)", "    pass"),
        ),
        tests=("tests/races/test_take_over.py::test_who_waits_for_the_key_gives_its_slot_to_the_next[holds]",),
    ),
    Sabotage(
        name="no-sweep-of-the-parked",
        guard="Nobody lets in whom a process has parked, or made room for, that died before its look.",
        rule="4.1",
        edits=(Edit("tasks.sweeps.GoOn.sweep", "if there.parked:", "if False:"),),
        tests=(
            "tests/races/test_parking.py::test_the_sweep_lets_in_whom_a_process_parked_and_died",
            "tests/races/test_parking.py::test_the_sweep_lets_in_who_waits_for_what_a_process_freed_and_died",
        ),
    ),
    Sabotage(
        name="settled-in-two",
        guard="A job is archived in one transaction, and what it holds is let go in others: a crash leaves half of it.",
        rule="1.6",
        edits=(
            Edit(
                "tasks.lifecycle._settle", "        with transaction.atomic(using=database()):\n", "        if True:\n"
            ),
        ),
        tests=(
            "tests/races/test_parking.py::test_a_process_that_dies_while_it_settles_has_settled_nothing",
            "tests/races/test_event_claims.py::test_a_completion_whose_claim_is_anothers_rolls_back_and_its_neighbours_do_not[holds]",
        ),
    ),
    Sabotage(
        name="batch-counts-whatever-ended",
        guard="A batch counts a member for each delivery that ended, also for one that was settled before or superseded.",
        rule="4.11",
        edits=(
            Edit(
                "tasks.lifecycle._settle",
                "batches = [row[-1] for row in rows if row[0] not in waiting]",
                "batches = [o.delivery.batch for o in ordered if o.delivery.id not in waiting]",
            ),
        ),
        tests=("tests/batches/test_transitions.py::test_a_settlement_that_is_repeated_counts_once",),
        chaos=Chaos(
            options=("--minutes", "0.6", "--kinds", "batch", "--only", "stop_child"),
            checks=("batches", "batch-counts"),
            why="A member is counted by the run that was superseded and by its successor.",
        ),
    ),
    Sabotage(
        name="batch-finished-without-the-lock",
        guard="Two finish one batch at the same time: neither locks it, nor asks whether it is finished.",
        rule="4.11",
        edits=(Edit("batches.sql.LOCK_UNFINISHED", "    FOR UPDATE SKIP LOCKED\n", ""),),
        tests=("tests/races/test_batches.py::test_of_two_who_finish_one_passes_over[holds]",),
    ),
)
