"""Sabotages of idempotent events."""

from __future__ import annotations

from typing import Final

from tests.chaos.sabotage import Chaos, Sabotage
from tests.chaos.shadow import Edit

EVENTS: Final = (
    Sabotage(
        name="claim-stolen-from-the-living",
        guard="A copy of an event claims it although another copy has claimed it and runs.",
        rule="5.4",
        edits=(
            Edit("tasks.event_claims._may_be_claimed", "    return claim is None or ", "    return True or "),
            Edit(
                "idempotency.sql.TAKE",
                "coalesce(claim.leased_until, '-infinity') < statement_timestamp()",
                "true",
            ),
            Edit("idempotency.sql.TAKE", "AND message.leased_until IS NOT NULL", "AND false"),
        ),
        tests=(
            "tests/races/test_event_claims.py::test_a_live_claim_of_another_message_lets_the_duplicate_be_skipped",
            "tests/races/test_event_claims.py::test_of_two_who_take_over_an_abandoned_claim_one_wins[holds]",
        ),
        chaos=Chaos(
            options=("--minutes", "0.5", "--kinds", "events", "--every", "1000"),
            checks=(
                "event-effects",
                "event-claims",
                "events",
            ),
            why="Two copies of an event are handled, the second beside the first.",
        ),
    ),
    Sabotage(
        name="own-copy-skipped",
        guard="A message that meets the claim of its own older delivery is archived as a duplicate: it was the only copy.",
        rule="5.4",
        edits=(
            Edit(
                "tasks.event_claims._judge",
                "elif claim.message != delivery.id and claim.has_message:",
                "elif claim.has_message:",
            ),
        ),
        tests=(
            "tests/races/test_event_claims.py::test_the_only_copy_of_an_event_is_never_skipped_for_its_own_claim[holds]",
        ),
    ),
    Sabotage(
        name="claim-taken-over-and-not-fenced-out",
        guard="A silent claim is taken over while its holder's delivery is still the newest of its message.",
        rule="5.4",
        edits=(
            Edit("tasks.lifecycle._claim_events", "    if silent and ", "    if False and "),
            Edit("idempotency.sql.TAKE", "AND message.leased_until IS NOT NULL", "AND false"),
        ),
        tests=(
            "tests/races/test_event_claims.py::test_a_silent_claim_is_taken_over_once_its_holder_is_fenced_out[holds]",
        ),
    ),
    Sabotage(
        name="completes-the-claim-of-another",
        guard="A run completes an event whose claim another delivery has taken over.",
        rule="5.5",
        edits=(
            Edit(
                "idempotency.sql.COMPLETE",
                "    WHERE claim.message_id = excluded.message_id\n      AND claim.delivery = excluded.delivery\n"
                "      AND claim.completed_at IS NULL\n",
                "",
            ),
            Edit(
                "idempotency.sql.COMPLETE",
                "SET completed_at = statement_timestamp(),",
                "SET message_id = excluded.message_id, completed_at = statement_timestamp(),",
            ),
        ),
        tests=(
            "tests/races/test_event_claims.py::test_a_completion_that_comes_after_anothers_rolls_back[holds]",
            "tests/races/test_event_effects.py::test_a_run_whose_claim_is_anothers_takes_its_effect_back[holds]",
        ),
    ),
    Sabotage(
        name="claim-not-completed",
        guard="A run that succeeded leaves its event pending: the completion is not part of what archives it.",
        rule="5.5",
        edits=(
            Edit("tasks.lifecycle._settle", "if succeeded and (lost := ", "if succeeded and False and (lost := "),
            Edit(
                "tasks.lifecycle._settle",
                "claimed=[] if succeeded else [",
                "claimed=[",
            ),
            Edit("tasks.lifecycle.succeed", "if not connections[database()].in_atomic_block:", "if False:"),
        ),
        tests=("tests/races/test_event_claims.py::test_what_is_completed_is_skipped",),
        chaos=Chaos(
            options=("--minutes", "0.4", "--kinds", "events", "--every", "1000"),
            checks=(
                "events",
                "event-effects",
                "event-claims",
            ),
            why="A second copy of an event that was done is handled once more.",
        ),
    ),
    Sabotage(
        name="beat-arms-what-is-completed",
        guard="A beat stamps claims that are completed, as if they ran.",
        rule="5.5",
        edits=(Edit("idempotency.sql.STAMP", "        WHERE claim.completed_at IS NULL\n", ""),),
        tests=("tests/races/test_event_claims.py::test_a_beat_never_arms_a_completed_claim_again[holds]",),
    ),
)
