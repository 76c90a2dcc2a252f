"""Handlers for the tests of this folder, and ways to run what was published without a worker."""

from __future__ import annotations

import functools
import time
from contextvars import Context
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group

from django_pgbus import Event, Snooze, apublish, publish, subscribe
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import Handler, handlers
from django_pgbus.events.topics import compiled
from django_pgbus.models import Subscription
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import lifecycle, outcomes
from django_pgbus.tasks.executor import Executor, Outcome, Run
from django_pgbus.tasks.policy import Policy
from django_pgbus.tasks.watch import Watch
from tests.line import claim

# What the handlers were given, in order: emptied by whoever looks.
seen: list[Any] = []


@subscribe("examples.note", "examples.note.#", "examples.*.more")
def note(event: Event) -> None:
    """A plain handler."""
    seen.append(event)


@subscribe("examples.anote", queue_name="slow", priority=7)
async def anote(event: Event) -> None:
    seen.append(event)


@subscribe("examples.class")
class Notes:
    """A class, made anew for each event."""

    def __init__(self) -> None:
        self.before: list[Event] = []

    def handle(self, event: Event) -> None:
        assert not self.before
        self.before.append(event)
        seen.append(event)


@subscribe("examples.aclass")
class ANotes:
    async def handle(self, event: Event) -> None:
        seen.append(event)


@subscribe("examples.chain.first")
def leads_on(event: Event) -> None:
    publish("examples.chain.second", {"after": event.payload}, headers={"tenant": "a"})


@subscribe("examples.chain.second")
async def leads_further(event: Event) -> None:
    await apublish("examples.chain.third")


@subscribe("examples.chain.third", "examples.chain.second")
def ends(event: Event) -> None:
    seen.append(event)


def by_attempt(exception: BaseException, event: Event) -> float | timedelta | None:
    """Wait for seven seconds, then for a minute, then give up."""
    seen.append((type(exception).__name__, event.attempt))
    return {1: 7.5, 2: timedelta(minutes=1)}.get(event.attempt)


@subscribe("examples.fails", backoff=by_attempt, max_attempts=5)
def fails(event: Event) -> None:
    raise ValueError("no")


@subscribe("examples.fails.twice", max_attempts=2)
def fails_twice(event: Event) -> None:
    seen.append(event.attempt)
    raise ValueError("no")


@subscribe("examples.snoozes", idempotent=True)
def snoozes(event: Event) -> None:
    raise Snooze(timedelta(minutes=2))


@subscribe("examples.endless", timeout=0.2, max_attempts=1)
def endless(event: Event) -> None:
    while True:
        time.sleep(0.01)


@subscribe("examples.transactional", transactional=True, max_attempts=1)
def transactional(event: Event) -> None:
    Group.objects.create(name=str(event.id))
    if event.payload == "fails":
        raise ValueError("no")


@subscribe("examples.secret", sensitive=("token", "card"), max_attempts=1)
def tells_secrets(event: Event) -> None:
    raise ValueError(f"cannot log in with {event.payload!r}, {event!r}")


def shouting(function: Any) -> Any:
    """A decorator as people write them, which knows nothing of coroutines."""

    @functools.wraps(function)
    def call(event: Event) -> Any:
        seen.append("called")
        return function(event)

    return call


@shouting
@subscribe("examples.above")
def decorated_above(event: Event) -> None:
    seen.append(event)


@subscribe("examples.below")
@shouting
def decorated_below(event: Event) -> None:
    seen.append(event)


@subscribe("examples.lost", max_attempts=1)
@shouting
async def never_awaited(event: Event) -> None:
    seen.append(event)


@pytest.fixture
def nobody_subscribed(db: None) -> None:
    """Let there be no subscription but those of the test: `migrate` writes those of the example."""
    Subscription.objects.all().delete()
    seen.clear()


PATHS = [path for path in handlers if path.startswith(f"{__name__}.")]


def path_of(target: Any) -> str:
    return f"{__name__}.{target.__qualname__}"


def declare() -> None:
    """Write the subscriptions of this module alone, and forget what was seen."""
    subscriptions.declare(handlers[path] for path in PATHS)
    seen.clear()


def a_handler(path: str, *patterns: str, **more: Any) -> Handler:
    """Return a handler as `subscribe` would declare it, of any path."""
    declared: dict[str, Any] = {
        "queue": "@events",
        "priority": 0,
        "idempotent": False,
        "policy": Policy(max_attempts=0),
    }
    texts = tuple(dict.fromkeys(compiled(pattern).text for pattern in patterns))
    return Handler(path=path, target=note, patterns=texts, **{**declared, **more})


def many_handlers(number: int, *patterns: str, **more: Any) -> list[str]:
    """Subscribe so many handlers to the same patterns and return their paths."""
    paths = [f"nowhere.handler_{n:05}" for n in range(number)]
    subscriptions.declare(a_handler(path, *patterns, **more) for path in paths)
    return paths


# --- running ------------------------------------------------------------------------------------------


def take(*levels: Level) -> list[Delivery]:
    """Claim the copies of events that wait."""
    return claim(levels=levels or (Level("@events", 0), Level("@events", 0, True), Level("@slow", 7)))


def run(delivery: Delivery) -> Outcome:
    """Run a delivery by the executor of the workers, and store what it came to."""
    executor = Executor(worker="w", watch=Watch())
    outcome: Any = executor.prepare(delivery)
    if isinstance(outcome, Run):
        is_async = outcome.runnable.is_async
        outcome = Context().run(async_to_sync(executor.arun), outcome) if is_async else outcome.sync()
    match outcome:
        case outcomes.Success():
            lifecycle.succeed([outcome], time.monotonic())
        case outcomes.PutOff():
            lifecycle.put_off([outcome], time.monotonic())
        case outcomes.GaveUp():
            lifecycle.give_up([outcome], time.monotonic())
    return outcome  # type: ignore[no-any-return]


def run_all() -> list[Outcome]:
    """Run what waits, and what that publishes, until nothing does."""
    ended: list[Outcome] = []
    while deliveries := take():
        ended += [run(delivery) for delivery in lifecycle.pick_up(deliveries).taken]
    return ended
