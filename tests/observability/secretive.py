"""Tasks, handlers and consumers that are given a secret, and say it wherever they can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from django_pgbus import Snooze, subscribe, task
from django_pgbus.events import subscriptions
from django_pgbus.events.handlers import handlers
from django_pgbus.streams.consumers import consume

CORE: Final = "core-of-it-0815"  # what no escaping changes
SECRET: Final = f"\"'{CORE}<b>\n"
NESTED: Final = {"deep": [[SECRET], {"er": {SECRET: SECRET}}]}
SENSITIVE: Final = ("token", "cards")
LATER: Final = 3600.0


class Refused(Exception):
    """Quotes what it refuses, as a text and as a part of itself."""

    def __init__(self, *refused: Any) -> None:
        super().__init__(*refused)
        self.add_note(f"It was {refused!r}.")


def quote(*told: Any) -> None:
    """Raise what holds the secret in its message, its notes, its cause and its context."""
    try:
        try:
            raise Refused(*told)
        except Refused as error:
            raise KeyError(str(told[0])) from error
    except KeyError:
        raise ValueError(f"{told[0]} and {told!r}, as a document {told[-1]}")  # noqa: B904


@task(sensitive=SENSITIVE, max_attempts=2, backoff=lambda exception, result: 0)
def dies(order: int, token: str, *, cards: Any = None) -> None:
    quote(token, cards)


@task(sensitive=SENSITIVE, max_attempts=1)
async def adies(order: int, token: str, *, cards: Any = None) -> None:
    quote(token, cards)


@task(sensitive=SENSITIVE, max_attempts=2, backoff=lambda exception, result: LATER)
def is_tried_again(order: int, token: str, cards: Any = None) -> None:
    quote(token, cards)


@task(sensitive=SENSITIVE)
def returns(order: int, token: str, cards: Any = None) -> Any:
    return {"said": f"told {token}", "list": [token], token: cards}


@task(sensitive=SENSITIVE)
def snoozes(order: int, token: str, cards: Any = None) -> None:
    raise Snooze(LATER)


@task(sensitive=SENSITIVE, max_attempts=1)
def exits(order: int, token: str, cards: Any = None) -> None:
    raise SystemExit(token)


@task(sensitive=SENSITIVE, queue_name="unserved")
def waits(order: int, token: str, cards: Any = None) -> None: ...


TASKS: Final = (dies, adies, is_tried_again, returns, snoozes, exits, waits)


@subscribe("secretive.told", sensitive=SENSITIVE, max_attempts=1)
def hears(event: Any) -> None:
    quote(event.payload["token"], event.payload["in"]["cards"])


@subscribe("secretive.told", sensitive=SENSITIVE, max_attempts=2, backoff=lambda exception, result: LATER)
def hears_again(event: Any) -> None:
    quote(event.payload["token"], event.payload["in"]["cards"])


@consume("secretive", group="dead", sensitive=SENSITIVE, max_attempts=1)
def follows(entry: Any) -> None:
    quote(entry.payload["token"], entry.payload["in"]["cards"])


@consume("secretive", group="tried", sensitive=SENSITIVE, max_attempts=2, backoff=lambda exception, result: LATER)
def follows_again(entry: Any) -> None:
    quote(entry.payload["token"], entry.payload["in"]["cards"])


HANDLERS: Final = {path: handlers[path] for path in (f"{__name__}.hears", f"{__name__}.hears_again")}
for _path, _handler in HANDLERS.items():  # no other test's events come here
    handlers[_path] = replace(_handler, patterns=())


def declare() -> None:
    """Write the subscriptions of this module alone."""
    subscriptions.declare(HANDLERS.values())
