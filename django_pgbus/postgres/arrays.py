"""
Arrays as PostgreSQL reads them, for the statements that carry one row per job.

psycopg writes an array element by element in Python; a job has a handful of them, so this is a third of what a
short job costs.
"""

from __future__ import annotations

from collections.abc import Iterable


def numbers(values: Iterable[float | int]) -> str:
    """Return the text of an array of numbers."""
    return "{" + ",".join(map(repr, values)) + "}"


def seconds(values: Iterable[float]) -> str:
    """Return the text of an array of durations to the microsecond: all the digits of a float take three times as long."""
    return "{" + ",".join(["%.6f" % value for value in values]) + "}"  # noqa: UP031


def texts(values: Iterable[str | None]) -> str:
    """Return the text of an array of texts; None is NULL."""
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
