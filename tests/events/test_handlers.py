"""What is subscribed is run as tasks are: its retries, its timeout, its dead letter; what cannot be is refused at once."""

from __future__ import annotations

import functools
import inspect
import json
import sys
import types
import uuid
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group

from django_pgbus import InvalidPayload, publish, signals, subscribe, task
from django_pgbus.events import handlers as declared
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import find_handler, handlers
from django_pgbus.exceptions import InvalidHandler, InvalidTopic
from django_pgbus.models import Archived, DeadLetter, Delayed, Message, ProcessedEvent
from django_pgbus.tasks import lifecycle, runnable
from django_pgbus.tasks.compat import TaskResultDoesNotExist, task_backends, task_enqueued, task_finished, task_started
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success
from django_pgbus.tasks.sensitive import masked
from tests.events import examples
from tests.events.examples import Notes, ends, nobody_subscribed, note, path_of, run, run_all, seen, take  # noqa: F401
from tests.events.test_publishing import heard
from tests.line import long_up, make_due  # noqa: F401
from tests.running import run_burst
from tests.sessions import execute

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _registry(monkeypatch):
    """Let no test leave a handler behind."""
    monkeypatch.setattr(declared, "handlers", handlers.copy())
    runnable.forget()
    yield
    runnable.forget()


def top(function):
    """Return a function as if it stood at the top level of this module."""
    function.__qualname__ = function.__name__
    return function


def refused(make, sentence, kind=InvalidHandler):
    before = dict(declared.handlers)
    with pytest.raises(kind, match=sentence) as caught:
        make()
    assert declared.handlers == before
    assert str(caught.value)[-1] in ".)"


# --- declaring ----------------------------------------------------------------------------------------


def test_what_is_subscribed_stays_what_it_is():
    assert inspect.isfunction(note)
    assert note.__doc__ == "A plain handler."
    assert inspect.isclass(Notes)
    note("an event")
    Notes().handle("another")
    assert seen[-2:] == ["an event", "another"]


def test_everything_that_is_declared_is_kept():
    def backoff(exception, event):
        return 1

    @subscribe(
        "a.#",
        "b",
        "a.#",
        queue_name="mail",
        priority=-7,
        idempotent=True,
        max_attempts=8,
        backoff=backoff,
        timeout=timedelta(minutes=1),
        transactional=True,
        sensitive=["token"],
    )
    @top
    def handler(event): ...

    one = declared.handlers[f"{__name__}.handler"]
    assert (one.target, one.patterns, one.queue, one.priority, one.idempotent) == (
        handler,
        ("a.#", "b"),
        "@mail",
        -7,
        True,
    )
    policy = one.policy
    assert (policy.max_attempts, policy.backoff, policy.timeout, policy.transactional, policy.sensitive) == (
        8,
        backoff,
        60.0,
        True,
        ("token",),
    )


def test_with_nothing_declared_the_defaults_hold():
    one = handlers[path_of(note)]
    assert (one.queue, one.priority, one.idempotent, one.is_async) == ("@events", 0, False, False)
    assert (one.policy.max_attempts, one.policy.timeout, one.policy.transactional) == (0, None, False)


@pytest.mark.parametrize("name", ["mail", "@mail"])
def test_a_queue_of_events_begins_with_an_at(name):
    subscribe("a", queue_name=name)(top(lambda_handler()))
    assert declared.handlers[f"{__name__}.handler"].queue == "@mail"


def lambda_handler():
    def handler(event): ...

    return handler


def test_a_module_that_is_loaded_again_declares_again():
    first, second = top(lambda_handler()), top(lambda_handler())
    subscribe("a")(first)
    subscribe("b")(second)
    assert declared.handlers[f"{__name__}.handler"].patterns == ("b",)


# --- what is refused ----------------------------------------------------------------------------------


def test_without_a_pattern_or_without_parentheses():
    refused(lambda: subscribe(), "needs at least one pattern")
    refused(lambda: subscribe(lambda_handler()), r'needs parentheses and a pattern: @subscribe\("orders.#"\)')


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("", "is empty"),
        ("a..b", "has an empty word"),
        ("a.b*", "has the word"),
        (["a", "b"], "not a list"),
        (5, "not a int"),
    ],
)
def test_a_pattern_that_is_none(pattern, sentence):
    with pytest.raises(InvalidTopic, match=sentence):
        subscribe("orders", pattern)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"queue_name": ""}, "is empty"),
        ({"queue_name": "@"}, "is empty"),
        ({"queue_name": "a*"}, r"contains '\*'"),
        ({"queue_name": "a,b"}, "contains ','"),
        ({"queue_name": None}, "is a text, not a NoneType"),
        ({"queue_name": "x" * 200}, "longer than 200"),
        ({"queue_name": "a\x00"}, "control character"),
        ({"priority": 101}, "priority is a whole number from -100 to 100, not 101"),
        ({"priority": "1"}, "priority is"),
        ({"priority": True}, "priority is"),
        ({"priority": None}, "priority is"),
        ({"idempotent": 1}, "idempotent is True or False, not 1"),
        ({"idempotent": None}, "idempotent is True or False"),
        ({"max_attempts": 0}, "max_attempts is a whole number from 1"),
        ({"max_attempts": True}, "max_attempts is"),
        ({"max_attempts": 2.0}, "max_attempts is"),
        ({"timeout": 0}, "timeout is a number of seconds above 0"),
        ({"timeout": "5"}, "timeout is"),
        ({"timeout": timedelta(0)}, "timeout is"),
        ({"backoff": 5}, r"backoff is a function \(exception, event\)"),
        ({"backoff": lambda: 5}, r"\(exception, event\).* cannot be called so"),
        ({"transactional": 1}, "transactional is True or False"),
        ({"sensitive": "token"}, r"sensitive is a tuple of keys of the payload, as in \('token',\)"),
        ({"sensitive": 5}, "sensitive is a tuple"),
        ({"sensitive": ("token", 5)}, "sensitive holds keys of the payload, not 5"),
    ],
)
def test_what_is_declared_wrongly(given, sentence):
    refused(lambda: subscribe("orders", **given)(top(lambda_handler())), sentence)


def test_what_workers_could_not_find():
    refused(lambda: subscribe("a")(lambda_handler()), "Workers cannot import lambda_handler.<locals>.handler: write")
    refused(lambda: subscribe("a")(lambda event: None), "Workers cannot import .*<lambda>")
    script = top(lambda_handler())
    script.__module__ = "__main__"
    refused(
        lambda: subscribe("a")(script), "Workers cannot import 'handler' from a script: move the handler into a module"
    )


def test_what_is_no_handler():
    @task
    @top
    def a_task(): ...

    class Instance:
        def __call__(self, event): ...

    refused(lambda: subscribe("a")(a_task), "a_task is a task. A handler is a plain function that takes an event")
    for value in (None, 5, "text", Instance(), functools.partial(note, 1), print, note.__get__(1)):
        refused(lambda value=value: subscribe("a")(value), "takes a function or a class with a method `handle`, not")


def test_what_does_not_take_one_event():
    @top
    def none(): ...

    @top
    def two(event, more): ...

    @top
    def named(*, event): ...

    for function in (none, two, named):
        refused(lambda function=function: subscribe("a")(function), "A handler takes one event; .* cannot be called so")

    @top
    def optional(event, more=None): ...

    @top
    def anything(*args, **kwargs): ...

    for function in (optional, anything):
        subscribe("a")(function)


def test_classes_that_cannot_be_handlers():
    @top
    class Nothing: ...

    @top
    class Attribute:
        handle = 5

    @top
    class Needy:
        def __init__(self, needed): ...

        def handle(self, event): ...

    @top
    class Taking:
        def handle(self): ...

    @top
    class Static:
        @staticmethod
        def handle(event): ...

    @top
    class Transactional:
        async def handle(self, event): ...

    for made in (Nothing, Attribute):
        refused(lambda made=made: subscribe("a")(made), r"has no method `handle\(self, event\)`")
    for made in (Needy, Taking, Static):
        refused(
            lambda made=made: subscribe("a")(made), "A handler is made without arguments and its `handle` takes one"
        )
    refused(lambda: subscribe("a", transactional=True)(Transactional), "An async function cannot be transactional")


def test_what_would_make_a_generator_and_run_nothing():
    @top
    def generates(event):
        yield

    @top
    async def agenerates(event):
        yield

    @top
    class Generates:
        def handle(self, event):
            yield

    for made in (generates, agenerates, Generates):
        refused(lambda made=made: subscribe("a")(made), "contains a yield: calling it would")


def test_two_of_them_on_one_handler():
    """The patterns of the second would be lost, also where another decorator stands between."""

    def stacked():
        @subscribe("a")
        @subscribe("b")
        @top
        def handler(event): ...

    def with_one_between():
        @subscribe("a")
        @examples.shouting
        @examples.shouting
        @subscribe("b")
        @top
        def handler(event): ...

    for make in (stacked, with_one_between):
        with pytest.raises(
            InvalidHandler, match=r"handler is subscribed twice\. Give one subscribe\(\) all its patterns"
        ):
            make()
        declared.handlers.clear()


# --- running ------------------------------------------------------------------------------------------


@pytest.fixture
def subscribed(nobody_subscribed):  # noqa: F811
    examples.declare()


@pytest.mark.usefixtures("subscribed")
class TestRunning:
    @pytest.mark.parametrize("topic", ["examples.note", "examples.anote", "examples.class", "examples.aclass"])
    def test_functions_and_classes_plain_and_async(self, topic):
        id = uuid.uuid4()
        for n in (1, 2):
            publish(topic, {"n": n}, event_id=id, headers={"h": n})
        assert [type(outcome) for outcome in run_all()] == [Success, Success]
        assert [(event.id, event.topic, event.payload, event.headers, event.attempt) for event in seen] == [
            (id, topic, {"n": n}, {"h": n}, 1) for n in (1, 2)
        ]
        assert not Message.objects.exists()
        for row in Archived.objects.all():
            assert (row.outcome, row.result, row.event_id, row.topic) == ("succeeded", "null", id, topic)

    def test_each_of_two_patterns(self):
        publish("examples.note")
        publish("examples.note.a.b")
        publish("examples.any.more")
        publish("examples.note.more")
        run_all()
        assert [event.topic for event in seen] == [
            "examples.note",
            "examples.note.a.b",
            "examples.any.more",
            "examples.note.more",
        ]

    def test_a_decorator_above_or_below_runs_too(self):
        for topic in ("examples.above", "examples.below"):
            seen.clear()
            publish(topic)
            (outcome,) = run_all()
            assert isinstance(outcome, Success)
            assert [what if isinstance(what, str) else what.topic for what in seen] == ["called", topic]

    def test_a_coroutine_that_nobody_awaits_is_a_failed_attempt(self):
        """A decorator that is not async around an async handler: the event would count as done."""
        publish("examples.lost")
        (outcome,) = run_all()
        assert isinstance(outcome, GaveUp)
        assert "It returned a coroutine that nobody awaits, so nothing was done." in outcome.error

    def test_what_it_returns_is_not_kept(self, monkeypatch):
        for value in (object(), {1, 2}, "x" * 3_000_000):
            monkeypatch.setattr(examples, "note", lambda event, value=value: value)
            runnable.forget()
            publish("examples.note")
            (outcome,) = run_all()
            assert (type(outcome), outcome.result) == (Success, "null")

    @pytest.mark.proves("each-handler-has-its-own-copy")
    def test_one_handler_s_failure_repeats_only_itself(self):
        publish("examples.chain.second")
        publish("examples.fails")
        run_all()
        assert Delayed.objects.get().task == path_of(examples.fails)
        assert Archived.objects.filter(task=path_of(ends), topic="examples.chain.second").count() == 1

    def test_its_own_backoff_is_asked_with_the_event_and_may_give_up(self):
        publish("examples.fails", event_id=(id := uuid.uuid4()))
        waits = []
        for _ in range(2):
            (outcome,) = run_all()
            assert (type(outcome), outcome.reason) == (PutOff, "retry")
            waits.append(outcome.delay)
            row = Delayed.objects.get()
            assert (row.event_id, row.topic, row.reason) == (id, "examples.fails", "retry")
            make_due(row.id)
            lifecycle.move_due(["@events"])
        (outcome,) = run_all()
        assert waits == [7.5, 60.0]
        assert seen == [("ValueError", 1), ("ValueError", 2), ("ValueError", 3)]
        assert (type(outcome), outcome.reason) == (GaveUp, "gave_up")
        letter = DeadLetter.objects.get()
        assert (letter.event_id, letter.topic, letter.reason, letter.attempts) == (id, "examples.fails", "gave_up", 3)
        assert [error["attempt"] for error in letter.errors] == [1, 2, 3]

    def test_after_max_attempts_it_is_a_dead_letter_and_redriven_the_same_event(self):
        publish("examples.fails.twice", {"a": 1}, event_id=(id := uuid.uuid4()))
        published_at = Message.objects.get().enqueued_at
        run_all()
        make_due(Delayed.objects.get().id)
        lifecycle.move_due(["@events"])
        run_all()
        assert seen == [1, 2]
        letter = DeadLetter.objects.get()
        assert letter.reason == "exhausted"
        assert lifecycle.redrive([letter.id]).ids == [letter.id]
        (delivery,) = take()
        assert (delivery.event, delivery.topic, delivery.attempts) == (id, "examples.fails.twice", 1)
        assert delivery.enqueued_at == published_at

    @pytest.mark.parametrize("setting", [1, 2])
    def test_without_max_attempts_the_setting_counts(self, settings, monkeypatch, setting):
        def raises(event):
            raise ValueError("no")

        settings.PGBUS = {"MAX_ATTEMPTS": setting}
        monkeypatch.setattr(examples, "note", raises)
        publish("examples.note")
        (outcome,) = run_all()
        assert type(outcome) is (GaveUp if setting == 1 else PutOff)

    def test_snooze_costs_no_attempt_and_gives_its_claim_back(self):
        publish("examples.snoozes")
        (outcome,) = run_all()
        assert (type(outcome), outcome.reason, outcome.delay) == (PutOff, "snoozed", 120.0)
        row = Delayed.objects.get()
        assert (row.attempts, row.reason, row.errors or []) == (0, "snoozed", [])
        assert not ProcessedEvent.objects.exists()

    def test_transactional_it_happens_with_its_settlement_or_not_at_all(self):
        publish("examples.transactional", "fine", event_id=(fine := uuid.uuid4()))
        publish("examples.transactional", "fails")
        run_all()
        assert list(Group.objects.values_list("name", flat=True)) == [str(fine)]
        assert Archived.objects.get().event_id == fine
        assert DeadLetter.objects.count() == 1

    def test_sensitive_values_are_masked_in_what_is_recorded(self):
        payload = {"user": "ann", "token": "t0k3n-1", "inner": [{"card": {"number": "4111 1111"}, "x": "shown"}]}
        publish("examples.secret", payload)
        run_all()
        recorded = json.dumps(DeadLetter.objects.get().errors)
        assert "cannot log in with" in recorded
        assert "ann" in recorded
        assert "shown" in recorded
        for secret in ("t0k3n-1", "4111 1111"):
            assert secret not in recorded

    def test_a_stored_event_that_is_damaged_is_a_failed_attempt_with_a_sentence(self):
        broken = ['{"payload": 1}', '{"headers": {}}', "[]", "null", '{"payload": 1, "headers": []}', '"text"']
        for payload in broken:
            publish("examples.note", event_id=(id := uuid.uuid4()))
            execute("UPDATE pgbus_messages SET payload = %s::json WHERE event_id = %s", [payload, id])
            (outcome,) = run_all()
            assert (type(outcome), outcome.reason) == (PutOff, "retry")
            error = json.loads(outcome.error)
            assert error["exception"] == f"{InvalidPayload.__module__}.InvalidPayload"
            assert 'The stored event has not the shape {"payload": ..., "headers": {...}}.' in error["traceback"]
        assert seen == []

    def test_headers_of_any_kind_give_a_correlation_id_that_is_a_text(self):
        for value, shown in ((5, "5"), ("", None), (None, None), ({"a": 1}, "{'a': 1}")):
            publish("examples.note", headers={"correlation_id": value})
            run_all()
            event = seen.pop()
            assert event.correlation_id == (str(event.id) if shown is None else shown)


# --- a handler whose code is gone ---------------------------------------------------------------------


@pytest.fixture
def module():
    """A module that can be imported, and be changed."""
    made = types.ModuleType("pgbus_handlers_of_a_test")
    sys.modules[made.__name__] = made
    yield made
    del sys.modules[made.__name__]


def in_module(module, function):
    function.__module__ = module.__name__
    setattr(module, function.__name__, top(function))
    return function


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("nowhere.at.all", "The handler nowhere.at.all cannot be imported: there is no module 'nowhere'"),
        (f"{__name__}.gone", f"The handler {__name__}.gone cannot be imported: .* has no 'gone'"),
        ("tests.events.examples.seen", "there is a list that is not subscribed to anything. Was @subscribe"),
        ("tests.events.examples.shouting", "there is a function that is not subscribed to anything"),
        ("tests.jobs.noop", "that is not subscribed to anything"),
        ("", "is not the path of a handler"),
        ("no spaces.please", "is not the path of a handler"),
        ("tests.events.examples.Notes.handle", "there is a function that is not subscribed to anything"),
    ],
)
def test_a_handler_that_is_gone_is_a_failed_attempt_with_a_sentence(path, sentence):
    with pytest.raises(ImportError, match=sentence):
        find_handler(path)


@pytest.mark.usefixtures("nobody_subscribed")
def test_copies_for_a_handler_that_is_gone_end_as_dead_letters_with_the_reason(module, settings):
    settings.PGBUS = {"MAX_ATTEMPTS": 2}
    handler = in_module(module, lambda_handler())
    subscribe("orders")(handler)
    subscriptions.declare([declared.handlers[f"{module.__name__}.handler"]])
    del module.handler
    assert publish("orders") == 1
    run_all()
    make_due(Delayed.objects.get().id)
    lifecycle.move_due(["@events"])
    run_all()
    letter = DeadLetter.objects.get()
    assert (letter.reason, letter.attempts) == ("exhausted", 2)
    for error in letter.errors:
        assert error["exception"] == "builtins.ImportError"
        assert "has no 'handler'" in error["traceback"]
    module.handler = handler  # and is back with the next deployment
    assert lifecycle.redrive([letter.id]).ids == [letter.id]
    assert [type(outcome) for outcome in run_all()] == [Success]


@pytest.mark.usefixtures("nobody_subscribed")
def test_an_idempotent_one_that_is_gone_claims_nothing_for_ever(settings):
    settings.PGBUS = {"MAX_ATTEMPTS": 1}
    examples.many_handlers(1, "orders", idempotent=True)
    publish("orders")
    run_all()
    assert DeadLetter.objects.count() == 1
    assert not ProcessedEvent.objects.exists()


# --- what is said of it -------------------------------------------------------------------------------


@pytest.mark.usefixtures("subscribed")
def test_signals_tell_of_the_runs_and_those_of_tasks_do_not():
    processed, _1 = heard(signals.event_processed)
    failed, _2 = heard(signals.event_failed)
    dead, _3 = heard(signals.task_dead_lettered)
    attempts, _4 = heard(signals.attempt_failed)
    of_tasks = []

    def hear(**kwargs):
        of_tasks.append(kwargs)

    for signal in (task_enqueued, task_started, task_finished):
        signal.connect(hear)
    try:
        for topic in ("examples.note", "examples.anote", "examples.transactional", "examples.fails"):
            publish(topic)
        run_all()
        publish("examples.secret", {"token": "hunter2"})
        run_all()
    finally:
        for signal in (task_enqueued, task_started, task_finished):
            signal.disconnect(hear)
    assert sorted(call["delivery"].topic for call in processed) == [
        "examples.anote",
        "examples.note",
        "examples.transactional",
    ]
    assert all(call["seconds"] >= 0 for call in processed)
    assert [(call["delivery"].topic, call["delay"]) for call in failed] == [
        ("examples.fails", 7.5),
        ("examples.secret", None),
    ]
    assert [(call["delivery"].topic, call["reason"]) for call in dead] == [("examples.secret", "exhausted")]
    assert not attempts
    assert not of_tasks


@pytest.mark.usefixtures("subscribed")
def test_a_receiver_that_fails_does_not_fail_the_run():
    def fails(**kwargs):
        raise ValueError("no")

    for signal in (signals.event_processed, signals.event_failed):
        signal.connect(fails)
    for topic in ("examples.note", "examples.anote", "examples.fails"):
        publish(topic)
    assert sorted(type(outcome).__name__ for outcome in run_all()) == ["PutOff", "Success", "Success"]


def test_a_payload_is_shown_with_what_is_sensitive_masked():
    body = {"a": 1, "token": {"x": 1}, "list": [{"token": "s"}, ["token"]]}
    assert masked(body, ("token",)) == {"a": 1, "token": "********", "list": [{"token": "********"}, ["token"]]}
    assert masked(body, ()) == body
    assert masked("token", ("token",)) == "token"


# --- its copies are no tasks --------------------------------------------------------------------------


@pytest.mark.usefixtures("subscribed")
def test_a_copy_of_an_event_has_no_result_wherever_it_is():
    def asked_for(id):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(str(id))

    publish("examples.note")
    id = Message.objects.get().id
    asked_for(id)
    (delivery,) = take()
    asked_for(id)
    run(delivery)
    assert Archived.objects.get(id=id)
    asked_for(id)
    execute("UPDATE pgbus_archive SET outcome = 'skipped' WHERE id = %s", [id])
    asked_for(id)
    publish("examples.note", delay=60)
    asked_for(Delayed.objects.get().id)
    publish("examples.secret", {"token": "hunter2"})
    run_all()
    asked_for(DeadLetter.objects.get().id)


# --- by a worker --------------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("subscribed")
def test_a_worker_runs_them_and_ends_those_past_their_timeout():
    publish("examples.endless")
    for topic in ("examples.note", "examples.anote", "examples.class", "examples.aclass"):
        publish(topic)
    assert run_burst("*, @*") == 1
    assert sorted(event.topic for event in seen) == [
        "examples.aclass",
        "examples.anote",
        "examples.class",
        "examples.note",
    ]
    letter = DeadLetter.objects.get()
    assert letter.errors[0]["exception"] == "django_pgbus.exceptions.TaskTimeout"
    assert letter.topic == "examples.endless"


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("subscribed")
def test_a_worker_of_tasks_leaves_events_alone():
    publish("examples.note")
    assert run_burst("*") == 0
    assert Message.objects.count() == 1
    assert seen == []
