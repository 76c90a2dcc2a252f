"""Sabotages of the uniqueness keys."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

UNDER_A_LEASE: Final = "                AND message.leased_until IS NOT NULL\n"
FREE_FOR_ALL: Final = Edit("uniqueness.sql.TAKE_AWAY", UNDER_A_LEASE, "                AND false\n")

KEYS: Final = (
    Sabotage(
        name="enters-without-its-key",
        guard="An enqueue enters whether or not the insertion of its key met one that is held.",
        rule="3.1",
        edits=(Edit("tasks.sql.ENTER", "OR asked.id IN (SELECT message_id FROM taken)", "OR true"),),
        tests=(
            "tests/uniqueness/test_keys.py::test_a_second_job_with_the_key_is_refused_and_the_holder_named",
            "tests/races/test_unique_keys.py::test_an_enqueue_waits_for_the_transaction_that_holds_its_key_and_wins_or_is_refused",
        ),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "unique", "--every", "1000"),
            checks=("two-alive", "two-holders"),
            why="A second job of a key is enqueued while the first waits or runs.",
        ),
    ),
    Sabotage(
        name="key-freed-at-start",
        guard="A key that is held until its job is executed is freed when its run begins.",
        rule="3.1",
        edits=(
            Edit(
                "tasks.lifecycle._take_both",
                "freed = keys.free([id for id, one in gone.items() if one.discarded], sorted(gone))",
                "early = [d.id for d in picked.taken if bound[d.id].until_executed]\n"
                "    freed = keys.free([*(id for id, one in gone.items() if one.discarded), *early], sorted(gone))",
            ),
        ),
        tests=("tests/uniqueness/test_keys.py::test_the_key_is_held_until_the_job_is_settled",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "unique", "--every", "1000"),
            checks=("two-alive", "two-holders"),
            why="A second job of a key is enqueued while the first runs.",
        ),
    ),
    Sabotage(
        name="key-freed-by-a-failure",
        guard="A run that fails frees the key that its job holds until it is executed, and is tried again without it.",
        rule="3.1",
        edits=(
            Edit(
                "uniqueness.sql.FREE",
                "(held.strategy = 'while_executing' OR held.message_id = ANY (%(ids)s::bigint[]))",
                "true",
            ),
        ),
        tests=("tests/uniqueness/test_keys.py::test_the_key_is_held_until_the_job_is_settled",),
        chaos=Chaos(
            options=("--minutes", "0.5", "--kinds", "unique", "--every", "1000"),
            checks=("two-alive", "two-holders"),
            why="A second job of a key is enqueued while the first waits for its next attempt.",
        ),
    ),
    Sabotage(
        name="key-freed-after-the-settlement",
        guard="The key of a settled job is freed after the commit: a crash between the two leaves it held by nobody.",
        rule="1.6",
        edits=(
            Edit(
                "tasks.lifecycle.settled",
                "    unique_keys = keys.free(ids, waiting)\n",
                "    unique_keys: list[str] = []\n"
                "    transaction.on_commit(lambda: keys.free(ids, waiting), using=database())\n",
            ),
        ),
        tests=("tests/races/test_parking.py::test_a_process_that_dies_while_it_settles_has_settled_nothing",),
    ),
    Sabotage(
        name="key-of-anybody",
        guard="A run takes a key that a live run of another job holds while it executes.",
        rule="3.2",
        edits=(
            Edit(
                "uniqueness.sql.TAKE",
                "    SET delivery = excluded.delivery,\n        created_at = statement_timestamp()\n"
                "    WHERE held.message_id = excluded.message_id\n      AND held.strategy = 'while_executing'\n",
                "    SET delivery = excluded.delivery,\n        message_id = excluded.message_id\n",
            ),
        ),
        tests=(
            "tests/races/test_take_over.py::test_of_two_who_take_over_one_has_the_key[holds]",
            "tests/races/test_take_over.py::test_of_two_who_want_a_free_key_one_has_it[holds]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "alone", "--every", "1000"),
            checks=("two-holders",),
            why="Two runs of a key are fenced in at once.",
        ),
    ),
    Sabotage(
        name="key-taken-over-from-the-living",
        guard="A key is taken over although its holder is under a lease.",
        rule="3.2",
        edits=(
            Edit("uniqueness.sql.SILENT", "message.leased_until >= statement_timestamp()", "false"),
            FREE_FOR_ALL,
        ),
        tests=("tests/races/test_take_over.py::test_a_holder_that_beats_keeps_its_key[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "alone", "--every", "1000"),
            checks=("two-holders",),
            why="Two runs of a key are fenced in at once.",
        ),
    ),
    Sabotage(
        name="taken-over-and-not-fenced-out",
        guard="The key of a silent holder is taken over, and the holder's delivery stays the newest.",
        rule="3.2",
        edits=(
            Edit(
                "tasks.lifecycle._take_over",
                "fenced_out = _fenced_out([(h.message, h.delivery) for h in silent if h.delivery is not None])",
                "fenced_out: set[int] = set()",
            ),
            FREE_FOR_ALL,
        ),
        tests=("tests/races/test_take_over.py::test_the_old_holder_is_fenced_out_before_the_new_one_runs[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.6", "--kinds", "alone", "--only", "stop_child"),
            checks=("two-holders",),
            why="The run of a process that stood still is the newest of its job when the next of its key begins.",
        ),
    ),
    Sabotage(
        name="reaper-does-not-look-twice",
        guard="The reaper frees a key that was taken anew after it had looked.",
        rule="3.5",
        edits=(
            Edit(
                "uniqueness.sql.REAP",
                "      AND NOT EXISTS (SELECT 1 FROM pgbus_messages AS message WHERE message.id = held.message_id)\n"
                "      AND NOT EXISTS (SELECT 1 FROM pgbus_delayed AS delayed WHERE delayed.id = held.message_id)\n"
                "      AND NOT EXISTS (SELECT 1 FROM pgbus_blocked_executions AS blocked"
                " WHERE blocked.id = held.message_id)\n",
                "",
            ),
        ),
        tests=("tests/races/test_unique_keys.py::test_the_reaper_leaves_a_key_that_was_taken_anew_meanwhile",),
    ),
)
