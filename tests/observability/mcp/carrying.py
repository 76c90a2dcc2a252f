"""Tasks, handlers and consumers that carry secrets; some of it is declared as sensitive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django_pgbus import subscribe, task
from django_pgbus.events.handlers import handlers
from django_pgbus.streams.consumers import consume


@task
def plain(*args: Any, **kwargs: Any) -> Any:
    return args


@task(sensitive=("token", "cards"))
def guarded(order: Any, token: str, *, cards: Any = None, note: Any = None) -> Any:
    return order


@subscribe("secrets.#", sensitive=("token", "cards"))
def heard(event: Any) -> None: ...


@subscribe("secrets.#")
def overheard(event: Any) -> None: ...


@consume("secret-log", group="guarded", sensitive=["token", "cards"])
def followed(entry: Any) -> None: ...


# The tests write what they want to show: no other test's events come here.
for _path in (f"{__name__}.heard", f"{__name__}.overheard"):
    handlers[_path] = replace(handlers[_path], patterns=())
