"""Each check of the chaos is red for what it is there for, and green without it."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.chaos.checks import CHECKS, check
from tests.chaos.records import Ending, Fault, Move, Records, Run, Sent, pauses, under_its_delivery
from tests.chaos.samples import Samples
from tests.processes.harness import JOBS

START = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = UUID(int=1), UUID(int=2)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def enters(moment=0.0, place="line", delivery=0, attempts=0, reason=None):
    return Move(1, place, delivery, attempts, False, False, False, None, reason, at(moment))


def claims(moment, delivery=1, attempts=1, worker=ONE):
    return Move(1, "line", delivery, attempts, True, False, False, worker, None, at(moment))


def returns(moment, delivery=2, attempts=1, lapsed=False):
    return Move(1, "line", delivery, attempts, False, lapsed, True, ONE, None, at(moment))


def ends(moment, delivery=1, attempts=1, place="archive", reason="succeeded"):
    return Move(1, place, delivery, attempts, False, False, False, ONE, reason, at(moment))


def run(began=2.0, ended=3.0, outcome="succeeded", delivery=1, kind="plain", pid=7, worker=ONE):
    return Run(1, kind, worker, pid, at(began), None if ended is None else at(ended), outcome, delivery)


def fault(name, after, before, pid=7):
    return Fault(name, frozenset({pid}), at(after), at(before))


def records(kind="plain", **more):
    """Return the books of one job that was sent, claimed, run and archived."""
    usual = {
        "sent": {1: Sent(kind)},
        "moves": {1: [enters(), claims(1), ends(4)]},
        "runs": [run(kind=kind)],
        "endings": {1: [Ending("archive", "succeeded", 1, 1, "t")]},
    }
    return Records(**{**usual, **more})


def red(books: Records) -> set[str]:
    return {name for name, found in CHECKS.items() if list(found(books))}


TWICE = [enters(), claims(1), returns(5), claims(6, 3, 2, TWO), ends(9, 3, 2)]
TWO_RUNS = [run(2, None, None), run(7, 8, delivery=3, pid=8, worker=TWO)]
SECOND = {1: [Ending("archive", "succeeded", 2, 3, "t")]}


def test_a_job_that_ran_once_is_green():
    assert red(records()) == set()


def test_what_did_not_end_is_lost():
    assert red(records(endings={})) == {"lost"}
    assert "and is archive since" in next(CHECKS["lost"](records(endings={})))


def test_what_ended_twice_is_told():
    both = {1: [Ending("archive", "succeeded", 1, 1, "t"), Ending("dead", "exhausted", 1, 1, "t")]}
    assert "lost" in red(records(endings=both))


def test_what_was_rolled_back_is_nowhere():
    assert red(records(undone={2})) == set()
    assert red(records(sent={}, undone={1})) == {"rolled-back"}


@pytest.mark.parametrize(("name", "where"), [("left", "stranded"), ("held", "held"), ("batches", "batches")])
@pytest.mark.parametrize("text", ["#1"])
def test_what_is_left_is_told(name, where, text):
    assert red(records(**{name: [text]})) == {where}


@pytest.mark.parametrize(("name", "where"), [("over_the_limit", "over-the-limit"), ("two_holders", "two-holders")])
def test_what_the_books_of_the_storm_say_is_told(name, where):
    assert red(records(**{name: ["key: 2 at once"]})) == {where}


def test_a_second_run_without_a_cause_is_told():
    books = records(moves={1: TWICE}, runs=TWO_RUNS, endings=SECOND)
    assert red(books) == {"duplicated"}
    (said,) = CHECKS["duplicated"](books)
    assert "delivery 1 of process 7" in said
    assert "again delivery 3 of process 8" in said


@pytest.mark.parametrize(
    "cause",
    [fault("kill_child", 4, 4.5), fault("kill_worker", 4, 4.5), fault("deploy", 1, 4), fault("skew", 1, 4)],
    ids=lambda one: one.name,
)
def test_a_kill_or_a_deploy_explains_it(cause):
    assert red(records(moves={1: TWICE}, runs=TWO_RUNS, endings=SECOND, faults=[cause])) == set()


@pytest.mark.parametrize(
    "cause",
    [
        fault("kill_child", 4, 4.5, pid=9),
        fault("kill_child", 0, 0.5),
        fault("kill_child", 8, 8.5),
        *(
            fault(name, 1, 5)
            for name in ("end_listen_session", "slow_wal", "delay", "pause", "restart", "drop", "stall")
        ),
    ],
    ids=lambda one: f"{one.name} {one.after:%S}",
)
def test_nothing_else_explains_it(cause):
    assert "duplicated" in red(records(moves={1: TWICE}, runs=TWO_RUNS, endings=SECOND, faults=[cause]))


def test_a_poison_job_in_the_same_process_explains_it():
    poison = Run(2, "poison", ONE, 7, at(3), None, None, 1)
    assert "duplicated" not in red(records(moves={1: TWICE}, runs=[*TWO_RUNS, poison], endings=SECOND))


@pytest.mark.parametrize("outcome", ["failed", "snoozed"])
def test_a_failed_or_snoozed_run_is_followed_by_another(outcome):
    reason = "retry" if outcome == "failed" else "snoozed"
    counted = outcome == "failed"
    moves = [enters(), claims(1), enters(4, "delayed", 1, counted, reason), enters(5, "line", 1, counted)]
    moves += [claims(6, 2, 1 + counted, TWO), ends(9, 2, 1 + counted)]
    endings = {1: [Ending("archive", "succeeded", 1 + counted, 2, "t")]}
    runs = [run(2, 3, outcome), run(7, 8, delivery=2, worker=TWO)]
    assert red(records(moves={1: moves}, runs=runs, endings=endings)) == set()


def test_two_runs_of_one_delivery_are_told():
    assert "duplicated" in red(records(runs=[run(), run(3.1, 3.5)]))


def test_a_lapsed_lease_explains_a_second_run_and_wants_an_explanation_itself():
    moves = [enters(), claims(1), returns(7, 1, lapsed=True), claims(8, 2, 2, TWO), ends(9, 2, 2)]
    runs = [run(2, None, None), run(8.1, 8.5, delivery=2, pid=8, worker=TWO)]
    books = {"moves": {1: moves}, "runs": runs, "endings": {1: [Ending("archive", "succeeded", 2, 2, "t")]}}
    assert red(records(**books)) == {"lapsed"}
    assert red(records(**books, faults=[fault("stop_child", 2, 9)])) == set()
    assert red(records(**books, faults=[fault("stop_child", 2, 9, pid=8)])) == {"lapsed"}
    assert red(records(**books, faults=[fault("delay", 2, 9)])) == {"lapsed"}


def test_two_jobs_of_a_key_are_there_one_after_the_other():
    def books(second):
        return records(
            sent={1: Sent("unique", "k"), 2: Sent("unique", "k")},
            moves={1: [enters(), claims(1), ends(4)], 2: [enters(second), claims(second + 1), ends(second + 2)]},
        )

    assert "two-alive" not in red(books(5))
    assert "two-alive" in red(books(3))


@pytest.mark.parametrize(("effects", "wrong"), [({1: 1}, False), ({}, True), ({1: 2}, True), ({1: 1, 5: 1}, True)])
def test_a_transactional_job_has_one_effect(effects, wrong):
    assert ("effects" in red(records("transactional", effects=Counter(effects)))) is wrong


def test_who_should_not_die_is_told_and_who_should():
    dead = {1: [Ending("dead", "exhausted", 3, 1, "t")]}
    assert "endings" in red(records(endings=dead))
    assert "endings" not in red(records("always", endings=dead))
    assert "endings" in red(records("always"))
    assert "endings" in red(records("poison", endings={1: [Ending("dead", "exhausted", 5, 1, "t")]}))


def test_a_success_was_run_to_its_end_under_its_delivery():
    assert red(records(runs=[run(2, None, None)])) == {"unearned"}
    assert "unearned" in red(records(runs=[run(delivery=2)]))
    assert red(records(runs=[run(2, 5)])) == {"unearned"}


def test_a_job_ends_its_process_as_often_as_it_has_attempts_and_once_more():
    runs = [run(n, None, None, delivery=n, kind="poison", pid=n) for n in range(1, 6)]
    assert "poison" not in red(records("poison", runs=runs[:4]))
    assert "poison" in red(records("poison", runs=runs))


@pytest.mark.parametrize(
    ("steps", "wrong"),
    [
        ([claims(1, 2)], {"deliveries"}),
        ([claims(1), claims(2, 2, 2)], {"deliveries"}),
        ([claims(1), returns(2, 1)], {"deliveries"}),
        ([claims(1), returns(2, 0)], {"deliveries"}),
        ([claims(1, 1, 2)], {"attempts"}),
        ([claims(1), returns(2, 2, -1)], {"attempts"}),
        ([claims(1), returns(2, 2, 2)], {"attempts"}),
        ([claims(1), enters(3, "delayed", 1, 0, "retry")], {"attempts"}),
        ([claims(1), enters(3, "delayed", 1, 1, "snoozed")], {"attempts"}),
        ([claims(1), enters(3, "parked", 2, 1, "key")], {"attempts"}),
        ([claims(1), enters(3, "parked", 2, 0, "key")], set()),
        ([claims(1), enters(3, "parked", 3, 0, "key")], {"deliveries"}),
    ],
)
def test_each_step_counts_as_it_should(steps, wrong):
    books = records(moves={1: [enters(), *steps]}, runs=[run(2, 2.5, "failed")])
    assert red(books) & {"deliveries", "attempts"} == wrong


def test_an_attempt_that_counts_as_failed_was_a_failed_run():
    moves = {1: [enters(), claims(1), enters(4, "delayed", 1, 1, "retry")]}
    assert "counted" not in red(records(moves=moves, runs=[run(2, 3, "failed")]))
    assert "counted" in red(records(moves=moves, runs=[]))
    assert "counted" in red(records(moves=moves, runs=[run(2, 3, "succeeded")]))
    assert "counted" not in red(records("old_new", moves=moves, runs=[]))
    other = [run(0.5, 0.6)._replace(id=2)]  # by which the process is known
    assert "counted" in red(records("transactional", moves=moves, runs=other))
    away = [fault("restart", 1.5, 3)]
    assert "counted" not in red(records("transactional", moves=moves, runs=other, faults=away))
    assert "counted" in red(records("plain", moves=moves, runs=other, faults=away))


def test_a_failed_run_counts():
    moves = {1: [enters(), claims(1), returns(4, 2, 0)]}
    assert "counted" in red(records(moves=moves, runs=[run(2, 3, "failed")]))
    killed = records(moves=moves, runs=[run(2, 3, "failed")], faults=[fault("kill_child", 3, 4)])
    assert "counted" not in red(killed)


def test_nobody_claims_in_a_queue_that_was_paused_for_a_while():
    def books(moment, queue="default", **more):
        return records(
            moves={1: [enters(), claims(moment)._replace(queue=queue)]}, pauses=[("default", at(10), at(15))], **more
        )

    assert "paused" in red(books(13))
    assert "paused" not in red(books(11))
    assert "paused" not in red(books(16))
    assert "paused" not in red(books(13, "mail"))
    assert "paused" not in red(books(13, faults=[fault("stop_child", 9, 14)]))
    assert "paused" in red(books(13, faults=[fault("stop_child", 9, 14, pid=8)]))


def test_a_pause_lasts_until_the_queue_is_resumed():
    rows = [("a", True, at(1)), ("b", True, at(2)), ("a", True, at(3)), ("a", False, at(4)), ("a", False, at(5))]
    assert pauses(rows) == [("a", at(1), at(4))]


def test_a_run_belongs_to_the_last_claim_of_its_process():
    moves = [enters(), claims(1), returns(5), claims(6, 3, 2, TWO)]
    assert [under_its_delivery(one._replace(delivery=None), moves).delivery for one in TWO_RUNS] == [1, 3]
    assert under_its_delivery(run(0.5, None, None), moves).delivery is None


def seen(*sessions, memory=(), open=0, unbalanced=()):
    return Samples(
        sessions=[Counter(one) for one in sessions],
        in_transaction=[open],
        memory={7: [(float(second), kib) for second, kib in enumerate(memory)]},
        unbalanced=list(unbalanced),
    )


QUIET = {"pgbus heart": 6, JOBS: 0, "sampler": 1}


def of_samples(samples: Samples) -> set[str]:
    return {name for name, lines in check(records(), samples, processes=6).items() if lines}


def test_no_more_sessions_in_the_end_than_processes_want():
    assert of_samples(seen(QUIET)) == set()
    assert of_samples(seen({**QUIET, "pgbus heart": 7})) == {"connections"}
    assert of_samples(seen({**QUIET, JOBS: 1})) == {"connections"}
    assert of_samples(seen({**QUIET, "psql": 20})) == set()
    assert of_samples(seen(QUIET, open=1)) == {"connections"}
    assert of_samples(seen()) == {"connections"}


def test_memory_that_grows_is_told():
    flat = [80_000] * 90
    assert of_samples(seen(QUIET, memory=flat)) == set()
    assert of_samples(seen(QUIET, memory=[80_000 + 1500 * second for second in range(90)])) == {"memory"}
    assert of_samples(seen(QUIET, memory=[80_000 + 1500 * second for second in range(50)])) == set()


def test_batches_that_do_not_add_up_at_a_look_are_told():
    assert of_samples(seen(QUIET, unbalanced=["batch 1"])) == {"batch-counts"}
