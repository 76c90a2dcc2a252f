"""What a person writes after --queues, and which queues that means."""

from __future__ import annotations

import math
import pickle
from argparse import ArgumentTypeError

import pytest
from django.test import override_settings

from django_pgbus import task
from django_pgbus.tasks.compat import InvalidTask
from django_pgbus.worker import options
from django_pgbus.worker.plan import Capsule, ProcessPlan, WorkerPlan, make_plan, parse_queues
from tests.jobs import noop


def process_plan(**given):
    plan = {"database": "default", "lease": 30.0, "beat": 10.0, "poll": 1.0, "grace": 30.0}
    return ProcessPlan(**{"capsules": parse_queues("*", threads=10), **plan, **given})


def test_capsules_are_declared_with_their_threads():
    assert parse_queues(" default, mail : 10; critical: 5 ;", threads=3) == (
        Capsule(queues=("default", "mail"), threads=10),
        Capsule(queues=("critical",), threads=5),
    )
    assert parse_queues("*", threads=3) == (Capsule(queues=("*",), threads=3),)


def test_a_capsule_serves_names_prefixes_and_all():
    (capsule,) = parse_queues("mail_*, default", threads=1)

    assert [q for q in ("mail_", "mail_in", "mail", "default", "defaults") if capsule.serves(q)] == [
        "mail_",
        "mail_in",
        "default",
    ]
    assert parse_queues("*", threads=1)[0].serves("whatever")


def test_queues_are_chosen_in_declared_order_then_by_name():
    (capsule,) = parse_queues("urgent, mail_*, *", threads=1)

    assert capsule.choose(["a", "mail_b", "urgent", "mail_a", "mail_b", "Z"]) == [
        "urgent",
        "mail_a",
        "mail_b",
        "Z",
        "a",
    ]
    assert capsule.names == ["urgent"]


def test_excluded_queues_are_left_alone_by_every_capsule():
    first, second = parse_queues("*, !reports: 2; default, reports_*: 1", threads=9, excluded="reports_big, slow_*")

    assert first.choose(["reports", "reports_big", "reports_small", "slow_one", "x"]) == ["reports_small", "x"]
    assert second.choose(["default", "reports_big", "reports_small"]) == ["default", "reports_small"]


QUEUES = ["@events", "@mail", "@mail_in", "default", "mail", "mail_in"]


@pytest.mark.parametrize(
    ("text", "served"),
    [
        ("*", ["default", "mail", "mail_in"]),
        ("@*", ["@events", "@mail", "@mail_in"]),
        ("@mail*", ["@mail", "@mail_in"]),
        ("@mail_*", ["@mail_in"]),
        ("@mail", ["@mail"]),
        ("mail*", ["mail", "mail_in"]),
        ("*, @*", QUEUES),
        ("*, @mail", ["default", "mail", "mail_in", "@mail"]),
        ("*, @*, !@mail*", ["@events", "default", "mail", "mail_in"]),
        ("*, @*, !mail*", ["@events", "@mail", "@mail_in", "default"]),
        ("*, @*, !*", ["@events", "@mail", "@mail_in"]),
        ("*, @*, !@*", ["default", "mail", "mail_in"]),
        ("*, !@mail", ["default", "mail", "mail_in"]),
        ("@*, !@mail", ["@events", "@mail_in"]),
        ("@*, !mail", ["@events", "@mail", "@mail_in"]),
    ],
)
def test_queues_of_events_are_meant_where_an_at_is_written_only(text, served):
    (capsule,) = parse_queues(text, threads=1)

    assert capsule.choose(QUEUES) == served
    assert [queue for queue in QUEUES if capsule.serves(queue)] == sorted(served)
    assert parse_queues(f"{text}: 1", threads=1) == (capsule,)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("*, @*", {"default": 0, "@events": 0, "mail": 0}),
        ("@*, *", {"default": 0, "@events": 0, "mail": 0}),
        ("mail, *, @*", {"mail": 0, "default": 1, "@events": 1}),
        ("@mail, mail, @*, *", {"@mail": 0, "mail": 1, "default": 2, "@events": 2}),
        ("*, mail, @*", {"mail": 0, "default": 0, "@events": 2}),
        ("@*, mail, *", {"@events": 0, "mail": 1, "default": 2}),
        ("@mail*, @*, *", {"@mail": 0, "@events": 1, "default": 1}),
        ("*, @mail*", {"default": 0, "@mail": 1, "@events": None}),
    ],
)
def test_tasks_and_events_take_turns_where_both_stars_stand_side_by_side(text, ranks):
    (capsule,) = parse_queues(text, threads=1)

    assert {queue: capsule.place(queue) for queue in ranks} == ranks


def test_events_get_a_group_of_their_own_beside_the_queues_that_are_named():
    assert make_plan(events=True, threads=3).process.queues_text == "@*: 3"
    assert make_plan(queues="mail: 2; *", events=True, threads=3).process.queues_text == "mail: 2; *: 3; @*: 3"
    assert make_plan(events=True, excluded="@slow", threads=1).process.queues_text == "@*,!@slow: 1"
    with override_settings(PGBUS={"QUEUES": "default"}):
        assert make_plan(events=True, threads=1).process.queues_text == "@*: 1"


def test_without_being_told_a_worker_does_both():
    plan = make_plan(threads=1).process

    assert plan.queues_text == "*,@*: 1"
    assert plan.serves("default")
    assert plan.serves("@events")


@pytest.mark.parametrize("name", ["@", "@events", "@@", "@ x"])
def test_no_queue_of_tasks_begins_with_an_at(name):
    with pytest.raises(InvalidTask, match=r"begins with @, as queues of events do"):
        task(queue_name=name)(noop.func)
    with pytest.raises(InvalidTask, match=r"begins with @, as queues of events do"):
        noop.using(queue_name=name)
    assert noop.using(queue_name="a@b").queue_name == "a@b"


@pytest.mark.parametrize(
    "text", ["default,mail: 10; critical: 5", "*: 3", "mail_*,*,!reports: 20", "a b: 1", "*,@*,!@mail_*: 2; @mail_*: 1"]
)
def test_a_plan_reads_back_what_it_prints(text):
    plan = process_plan(capsules=parse_queues(text, threads=7))

    assert plan.queues_text == text
    assert parse_queues(plan.queues_text, threads=1) == plan.capsules


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "No queue is named"),
        (" ; ", "No queue is named"),
        (": 5", "names no queue"),
        ("!mail: 5", "names no queue"),
        ("default: many", "a number of threads, not 'many'"),
        ("default: -1", "a number of threads, not '-1'"),
        ("default: 1.5", "a number of threads, not '1.5'"),
        ("default:", "a number of threads, not ''"),
        ("default: ٣", "a number of threads"),
        ("default: 0", "1 to 1000 threads, not 0"),
        ("default: 100000", "1 to 1000 threads, not 100000"),
        ("a*b", "a star in the middle"),
        ("**", "a star in the middle"),
        ("a, b, a", "'a' stands twice"),
        ("mail, !mail", "leaves out every queue"),
        ("mail_in, mail_*, !mail*", "leaves out every queue"),
        ("@mail, !@*", "leaves out every queue"),
        ("@*, @mail, !@*", "leaves out every queue"),
        ("@mail_*, !@mail*", "leaves out every queue"),
        ("*, !@*, !*", "leaves out every queue"),
        ("@*, @*", "stands twice"),
        ("@*x", "a star in the middle"),
        ("@: 3", "is empty"),
        ("@@mail", "more than one @"),
        ("x" * 201, "longer than 200 characters"),
        ("a\x00b", "control character"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_sentence(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        parse_queues(text, threads=1)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"beat": 11.0}, "more than a third of the lease"),
        ({"burst": True, "reload": True}, "drop --burst or --reload"),
        ({"grace": -1.0}, "grace must be a number from 0 on"),
        ({"grace": math.nan}, "grace must be a number from 0 on"),
        ({"poll": math.inf}, "poll must be a number"),
        ({"max_jobs": 0}, "max jobs must be a number from 1 on"),
        ({"capsules": ()}, "at least one queue"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(given, sentence):
    with pytest.raises(ValueError, match=sentence):
        process_plan(**given)


def test_a_worker_reloads_in_one_process_only():
    with pytest.raises(ValueError, match="drop --processes or --reload"):
        WorkerPlan(process=process_plan(reload=True), processes=2, name="w")
    with pytest.raises(ValueError, match="at least one process"):
        WorkerPlan(process=process_plan(), processes=0, name="w")


@pytest.mark.parametrize("text", ["", " ", ","])
def test_no_group_at_all_is_no_way_to_name_groups(text):
    with pytest.raises(ValueError, match=r"--streams names no group; write ledger/totals, ledger, or '\*'\."):
        make_plan(streams=text)


def test_patterns_that_match_no_group_are_found():
    plan = process_plan(streams=("*/*", "ledger/*", "ledger/totals", "legder/*", "ledger/t*", "ledger/x"))
    assert plan.unmatched(["ledger/totals"]) == ["legder", "ledger/x"]
    assert plan.unmatched([]) == ["ledger", "ledger/totals", "legder", "ledger/t*", "ledger/x"]


def test_a_plan_crosses_a_pipe():
    plan = process_plan(capsules=parse_queues("a: 1; *, !b: 2", threads=1), max_memory=1 << 30)

    assert pickle.loads(pickle.dumps(plan)) == plan
    assert plan.threads == 3
    assert plan.serves("b") is False


@override_settings(PGBUS={"QUEUES": "a: 2; b", "THREADS": 4, "PROCESSES": 3, "HEALTH_PORT": 8001, "SHUTDOWN_GRACE": 7})
def test_what_is_not_given_comes_from_the_settings():
    plan = make_plan()

    assert plan.process.queues_text == "a: 2; b: 4"
    assert (plan.processes, plan.health, plan.process.grace) == (3, ("", 8001), 7.0)
    given = make_plan(queues="c", threads=1, processes=1, grace=0.0, health=("127.0.0.1", 1), name="me")
    assert given.process.queues_text == "c: 1"
    assert (given.processes, given.health, given.process.grace, given.name) == (1, ("127.0.0.1", 1), 0.0, "me")
    assert make_plan(reload=True).processes == 1


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("512MB", 512 << 20), ("512MiB", 512 << 20), ("1.5g", 3 << 29), ("100", 100), ("2K", 2048)],
)
def test_sizes_are_read(text, size):
    assert options.size(text) == size


@pytest.mark.parametrize(
    ("read", "text", "sentence"),
    [
        (options.size, "nan", "no amount of memory"),
        (options.size, "-1M", "no amount of memory"),
        (options.size, "0", "no amount of memory"),
        (options.size, "infM", "no amount of memory"),
        (options.size, "M", "no amount of memory"),
        (options.size, "12Q", "no amount of memory"),
        (options.seconds, "nan", "not negative"),
        (options.seconds, "inf", "finite"),
        (options.seconds, "-1", "not negative"),
        (options.seconds, "soon", "no number of seconds"),
        (options.some_seconds, "0", "above 0"),
        (options.count, "0", "from 1 on"),
        (options.count, "1.5", "no whole number"),
        (options.address, "99999", "no port"),
        (options.address, "localhost", "no port"),
        (options.address, "-1", "no port"),
        (options.name, "x" * 64, "1 to 63"),
        (options.name, "", "1 to 63"),
    ],
)
def test_options_refuse_nonsense_with_a_sentence(read, text, sentence):
    with pytest.raises(ArgumentTypeError, match=sentence):
        read(text)


def test_addresses_are_read():
    assert options.address("8001") == ("", 8001)
    assert options.address("127.0.0.1:8001") == ("127.0.0.1", 8001)
    assert options.address("[::1]:8001") == ("::1", 8001)
