"""Sabotages of the streams: what is settled, ranges, the end of a range."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

STREAMS: Final = (
    Sabotage(
        name="position-before-the-transaction-id",
        guard="The trigger of a log takes no transaction id, so a producer may take its position first.",
        rule="6.2",
        edits=(
            Edit(
                "django_pgbus/migrations/0004_streams.py",
                "            PERFORM pg_current_xact_id();\n",
                "            PERFORM 1;\n",
            ),
        ),
        tests=(
            "tests/races/test_fence.py::test_a_model_of_the_log_that_waits_between_position_and_row[holds-created]",
            "tests/races/test_fence.py::test_who_writes_into_a_partition_and_waits_between_position_and_row[holds-INSERT]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.8", "--kinds", "streams", "--every", "1000"),
            checks=("stream-gaps",),
            why="An entry appears below where the groups are already.",
        ),
    ),
    Sabotage(
        name="fence-by-xmax",
        guard="What was observed is proven by the xmax of its snapshot, though a producer may run at or above it.",
        rule="6.3",
        edits=(
            Edit(
                "streams.sql.CLAIM",
                "WHEN leap.is_free AND leap.high = leap.low THEN pg_current_xact_id()",
                "WHEN leap.is_free AND leap.high = leap.low THEN pg_snapshot_xmax(pg_current_snapshot())",
            ),
            Edit(
                "streams.sql.CLAIM",
                "CASE WHEN EXISTS (SELECT FROM cursor) THEN pg_current_xact_id()::text::bigint END",
                "CASE WHEN EXISTS (SELECT FROM cursor) THEN pg_snapshot_xmax(pg_current_snapshot())::text::bigint END",
            ),
        ),
        tests=("tests/races/test_fence.py::test_the_older_one_commits_first[holds-commits-one worker]",),
        chaos=Chaos(
            options=("--minutes", "0.8", "--kinds", "streams", "--every", "1000"),
            checks=("stream-gaps",),
            why="An entry appears below where the groups are already.",
        ),
    ),
    Sabotage(
        name="holes-are-passed",
        guard="A hole counts as settled once it is seen: nobody proves that nothing can appear in it.",
        rule="6.3",
        edits=(
            Edit(
                "streams.sql.CLAIM",
                "cursor.claimed, %(settled)s::bigint AS settled",
                "cursor.claimed, %(head)s::bigint + 0 * %(settled)s::bigint AS settled",
            ),
        ),
        tests=(
            "tests/races/test_holes.py::test_savepoints[holds]",
            "tests/races/test_holes.py::test_prepared_transactions[holds-COMMIT]",
            "tests/races/test_fence.py::test_the_older_one_commits_first[holds-commits-one worker]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--every", "1000"),
            checks=("stream-gaps",),
            why="An entry appears below where the groups are already.",
        ),
    ),
    Sabotage(
        name="prefix-with-holes",
        guard="Whatever is visible counts as contiguous, with or without holes.",
        rule="6.3",
        edits=(
            Edit(
                "streams.sql.CLAIM",
                "WHEN seen.entries = seen.last - proof.claimed THEN seen.last",
                "WHEN true THEN seen.last",
            ),
        ),
        tests=("tests/races/test_fence.py::test_the_older_one_commits_first[holds-commits-one worker]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--every", "1000"),
            checks=("stream-gaps",),
            why="An entry appears below where the groups are already.",
        ),
    ),
    Sabotage(
        name="newest-observation-replaces",
        guard="Each new observation replaces the one before, which so is never proven while transactions overlap.",
        rule="6.3",
        edits=(
            Edit(
                "streams.fence.Fence.observe",
                "        if head > newest and len(self.observations) < RING:\n"
                "            self.observations.append((head, xid))\n",
                "        self.observations = [(head, xid)]\n",
            ),
            Edit(
                "streams.sql.CLAIM",
                "WHEN leap.is_free AND leap.high = leap.low THEN %(head)s",
                "WHEN leap.high = leap.low THEN %(head)s",
            ),
            Edit(
                "streams.sql.CLAIM",
                "WHEN leap.is_free AND leap.high = leap.low THEN pg_current_xact_id()",
                "WHEN leap.high = leap.low THEN pg_current_xact_id()",
            ),
            Edit("streams.sql.CLAIM", "OR (leap.is_free AND %(head)s", "OR (%(head)s"),
        ),
        tests=(
            "tests/races/test_holes.py::test_a_worker_keeps_what_it_has_observed[holds]",
            "tests/races/test_holes.py::test_transactions_that_overlap[holds-one worker]",
        ),
    ),
    Sabotage(
        name="cursor-not-locked",
        guard="Two workers claim at the same time: neither locks the cursor.",
        rule="6.4",
        edits=(Edit("streams.sql.CLAIM", "        FOR NO KEY UPDATE\n", ""),),
        tests=("tests/races/test_ranges.py::test_two_workers_claim_at_the_same_time[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--every", "1000"),
            checks=("stream-together",),
            why="Two workers handle the same entries.",
        ),
    ),
    Sabotage(
        name="range-taken-from-the-living",
        guard="A range is taken over although its holder is under a lease.",
        rule="6.4",
        edits=(
            Edit("streams.sql.PROBE", " AND lease.until < statement_timestamp()", ""),
            Edit("streams.sql.RECLAIM", "          AND lease.until < statement_timestamp()\n", ""),
        ),
        tests=("tests/races/test_ranges.py::test_a_range_under_its_lease_is_not_taken_over[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--only", "stop_child"),
            checks=("stream-together",),
            why="The history of the leases shows a range under a lease that passes to another worker.",
        ),
    ),
    Sabotage(
        name="range-ended-without-its-token",
        guard="The end of a range asks for its group and not for its token: who has lost it ends another's.",
        rule="6.5",
        edits=(Edit("streams.sql.COMMIT", "WHERE token = %(token)s::uuid", "WHERE true"),),
        tests=("tests/races/test_ranges.py::test_who_has_lost_a_range_commits_nothing[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--every", "1000"),
            checks=(
                "stream-repeats",
                "stream-doubles",
                "stream-undone",
                "stream-gaps",
            ),
            why="Who ends its range ends those of others too, which they handle for nothing or not at all.",
        ),
    ),
    Sabotage(
        name="lost-range-goes-on",
        guard="A transactional handler whose range was lost commits what it wrote.",
        rule="7.1",
        edits=(
            Edit(
                "streams.handling._transactional",
                "                if not ended:\n                    raise LeaseLost\n",
                "",
            ),
        ),
        tests=(
            "tests/races/test_ranges.py::test_what_a_transactional_handler_wrote_goes_with_its_lease[holds-claimed again]",
        ),
        chaos=Chaos(
            options=(
                *("--minutes", "0.7", "--kinds", "streams", "--only", "stop_child,stop_worker", "--every", "1.5"),
                *("--totals-take", "0.3"),
            ),
            checks=("stream-doubles", "stream-effects"),
            why="A process that stood still within its transaction commits it, after another had handled the same entries.",
        ),
    ),
    Sabotage(
        name="routed-twice",
        guard="What was routed above a hole is not remembered, and is routed once more when the mark passes it.",
        rule="6.6",
        edits=(Edit("streams.sql.NOTE_ROUTED", "AS routed (position)\n", "AS routed (position)\n    WHERE false\n"),),
        tests=("tests/races/test_routing.py::test_what_was_routed_above_a_hole_is_not_routed_again[holds]",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "streams", "--every", "1000"),
            checks=("stream-routed",),
            why="An entry above a hole is routed once more when the hole is closed.",
        ),
    ),
    Sabotage(
        name="committed-passes-an-open-range",
        guard="`committed` is what is claimed, whatever ranges are still open below.",
        rule="6.5",
        edits=(
            Edit(
                "streams.sql.COMPUTE_COMMITTED",
                "            (SELECT min(lease.low) FROM pgbus_stream_leases AS lease"
                " WHERE lease.group_id = cursors.group_id),\n",
                "",
            ),
        ),
        tests=("tests/races/test_ranges.py::test_committed_does_not_pass_a_range_that_is_being_claimed[holds]",),
    ),
)
