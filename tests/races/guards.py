"""Breaking a rule on purpose, to see its test fail; and telling who waits for whom, without a clock."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import lifecycle
from tests.constrained import claim_and_pick_up, enqueue
from tests.line import changed, placed
from tests.sessions import PATIENCE, Session

Break = Callable[[pytest.MonkeyPatch], Any]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pick-up wait for another transaction for as long as a test needs, where it would give up soon."""
    monkeypatch.setattr(lifecycle, "PATIENCE", "5s")


def fails_if(*broken: Break) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test as it is, and once more with each of the rules broken, when it has to fail."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        names = ["holds", *(f"fails {break_it.__doc__ or break_it.__name__}" for break_it in broken)]

        @pytest.mark.parametrize("break_it", [None, *broken], ids=names)
        def run(break_it: Break | None, monkeypatch: pytest.MonkeyPatch, **given: Any) -> None:
            if break_it is None:
                test(**given)
                return
            break_it(monkeypatch)
            with pytest.raises(AssertionError):
                test(**given)

        functools.update_wrapper(run, test)
        del run.__wrapped__
        own = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("break_it", "monkeypatch")]
        run.__signature__ = inspect.Signature([*own, *inspect.signature(test).parameters.values()])
        return run

    return decorate


def without(name: str, *guards: str | tuple[str, str]) -> Break:
    """Take guards out of a statement, or put others in their place."""

    def break_it(monkeypatch: pytest.MonkeyPatch) -> None:
        for guard in guards:
            old, new = guard if isinstance(guard, tuple) else (guard, "")
            module, statement = placed(name)
            before, after = getattr(module, statement), changed(name, old, new)
            monkeypatch.setattr(module, statement, after)
            if getattr(lifecycle, statement, None) is before:  # imported there by its name
                monkeypatch.setattr(lifecycle, statement, after)

    removed = [guard if isinstance(guard, str) else guard[0] for guard in guards]
    break_it.__doc__ = f"without {' and '.join(map(repr, removed))} in {name}"
    return break_it


def at_the_same_time(*broken: Break) -> Break:
    """Break several rules, where each alone would do."""

    def break_it(monkeypatch: pytest.MonkeyPatch) -> None:
        for one in broken:
            one(monkeypatch)

    break_it.__doc__ = ", ".join(str(one.__doc__) for one in broken)
    return break_it


def nobody_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """if nobody looks again"""
    monkeypatch.setattr(lifecycle._Freed, "speak", lambda self: None)


@contextmanager
def as_if_it_died_before_it_looked() -> Iterator[None]:
    """Let what is committed in this block be committed by a process that died before its look."""
    with mock.patch.object(lifecycle._Freed, "speak"):
        yield


def waits(session: Session, call: Future[Any]) -> bool:
    """Return whether a call begun over there waits for a lock of somebody else; False once it is done."""
    deadline = time.monotonic() + PATIENCE
    while not call.done():
        if session.is_blocked():
            return True
        assert time.monotonic() < deadline, "it neither ends nor waits"
    return False


def came_to(call: Future[Any]) -> Any:
    """Return what a call begun over there came to: its value, or the class of its error."""
    error = call.exception(PATIENCE)
    return call.result() if error is None else type(error)


def at_once(session: Session, call: Callable[..., Any], *args: Any) -> Any:
    """Return what a call comes to over there, which must wait for nobody."""
    begun = session.begin(call, *args)
    assert not waits(session, begun), "it waits"
    return came_to(begun)


def started(task: Any, *args: Any, **more: Any) -> Delivery:
    """Enqueue a task, let it in and pick it up, whatever is broken."""
    id = enqueue(task, *args)
    with mock.patch.object(lifecycle._Freed, "speak"):
        found = lifecycle.constraints.of(lifecycle.find(id).constraints)
        if found.limit is not None:
            lifecycle.let_in([found.limit.key])
        (delivery,) = [delivery for delivery in claim_and_pick_up(**more).taken if delivery.id == id]
    return delivery
