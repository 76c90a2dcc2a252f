"""Keys of a payload whose values nobody may read, at whatever depth they stand."""

from __future__ import annotations

from typing import Any

from django_pgbus.tasks.masking import MASK


def secrets_in(body: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the values of sensitive keys, at whatever depth they stand."""
    if not names:
        return []
    match body:
        case dict():
            inner = [secret for value in body.values() for secret in secrets_in(value, names)]
            return [value for key, value in body.items() if key in names] + inner
        case list():
            return [secret for value in body for secret in secrets_in(value, names)]
    return []


def masked(body: Any, names: tuple[str, ...]) -> Any:
    """Return the payload as people may see it: the values of sensitive keys are masked, at whatever depth they stand."""
    match body:
        case dict():
            return {key: MASK if key in names else masked(value, names) for key, value in body.items()}
        case list():
            return [masked(value, names) for value in body]
    return body
