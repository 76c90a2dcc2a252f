"""
Arguments as people may see them.

What a task declares as `sensitive` is masked in results' repr, in recorded errors and in the admin. A task whose
code is gone cannot say what is sensitive, so all its arguments are masked.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from django_pgbus.tasks.compat import AnyTask, AnyTaskResult
from django_pgbus.tasks.missing import is_missing
from django_pgbus.tasks.policy import policy_of

MASK: Final = "********"

# Shorter texts would be replaced inside innocent words.
_SHORTEST_SECRET: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MaskedTaskResult(AnyTaskResult):  # type: ignore[misc]  # frozen in Django, not in its stubs
    """A result whose repr, which ends up in logs and error reports, does not tell what is sensitive."""

    def __post_init__(self) -> None:
        """Take the arguments as they are: all of ours come from JSON, Django's would be walked through once more."""

    def __repr__(self) -> str:
        args, kwargs = masked(self.task, self.args, self.kwargs)
        return (
            f"<TaskResult {self.id} of {self.task.module_path}: {self.status.value}, "
            f"attempts={self.attempts}, args={args!r}, kwargs={kwargs!r}>"
        )


def masked(task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments with every sensitive one masked, given by position or by name."""
    if is_missing(task):
        return [MASK] * len(args), dict.fromkeys(kwargs, MASK)
    hidden = policy_of(task).sensitive
    if not hidden:
        return list(args), dict(kwargs)
    positional, rest, named, others = _parameters(task.func, task.takes_context)
    names = [*positional[: len(args)], *[rest] * (len(args) - len(positional))]
    return (
        [MASK if name in hidden else value for name, value in zip(names, args, strict=True)],
        {
            name: MASK if name in hidden or (others in hidden and name not in named) else value
            for name, value in kwargs.items()
        },
    )


def scrubbed(text: str, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a text, such as a traceback, without the sensitive values of a run: exceptions like to quote them."""
    if not policy_of(task).sensitive:
        return text
    shown_args, shown_kwargs = masked(task, args, kwargs)
    pairs = [*zip(shown_args, args, strict=True), *((shown_kwargs[name], kwargs[name]) for name in kwargs)]
    return without(text, [value for shown, value in pairs if shown is MASK])


def without(text: str, secrets: Iterable[Any]) -> str:
    """Return a text in which these values are masked, whatever they hold."""
    for secret in sorted(set().union(*map(_texts, secrets)), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def value_without(value: Any, scrub: Callable[[str], str]) -> Any:
    """Return what JSON holds without what it quotes, as text or as a number; `scrub` takes it out of a text."""
    match value:
        case dict():
            return {scrub(key): value_without(inner, scrub) for key, inner in value.items()}
        case list():
            return [value_without(inner, scrub) for inner in value]
        case str():
            return scrub(value)
        case bool() | None:
            return value
    return value if scrub(str(value)) == str(value) else MASK


class Masked(Exception):
    """Stands in for an exception of a run with sensitive arguments where it would be logged."""


def loggable(error: BaseException, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BaseException:
    """
    Return what to raise for others to log: the error itself, or without the sensitive values of its run.

    Django's own log line of a failed task prints the exception in flight.
    """
    if not policy_of(task).sensitive:
        return error
    text = "".join(traceback.format_exception_only(error))
    stand_in = Masked(scrubbed(text, task, args, kwargs).strip())
    stand_in.__cause__ = None  # and so it shows no context either, which would be the error itself
    return stand_in


def _texts(value: Any) -> set[str]:
    match value:
        case dict():
            return set().union(*map(_texts, value.values()))
        case list() | tuple():
            return set().union(*map(_texts, value))
        case bool() | None:
            return set()
        case str():
            return {form for text in (value, value.strip()) for form in _forms(text) if len(form) >= _SHORTEST_SECRET}
        case _:
            return {form for form in (str(value),) if len(form) >= _SHORTEST_SECRET}


def _forms(text: str) -> tuple[str, ...]:
    """Return a text as it stands, and as repr() and JSON write it: with quotes and line breaks escaped."""
    return text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]


@lru_cache(maxsize=512)
def _parameters(func: Callable[..., Any], takes_context: bool) -> tuple[list[str], str, set[str], str]:  # noqa: FBT001
    """Return the names taken by position, the name of *args, all names, the name of **kwargs."""
    parameters = list(inspect.signature(func).parameters.values())[1 if takes_context else 0 :]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (
        [parameter.name for parameter in parameters if parameter.kind in by_position],
        next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), ""),
        {parameter.name for parameter in parameters},
        next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), ""),
    )
