"""
How many limited jobs were at work at once, seen from the jobs themselves.

A job notes when it began and when it ended, by the database's clock, in the transaction that holds its work where it has
one. A run that was killed, or told that it is superseded, leaves no note: nobody can say when it ceased to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import connection

from shop.models import Run


def clock() -> datetime:
    """Return the time of the database, which all workers share."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment


@contextmanager
def noted(task: str, key: str, *failing: type[Exception]) -> Iterator[None]:
    """Note when the block began and ended; one that raises only if it is one of `failing`."""
    began = clock()
    try:
        yield
    except failing:
        Run.objects.create(task=task, key=key, began=began, ended=clock())
        raise
    Run.objects.create(task=task, key=key, began=began, ended=clock())


def most_at_once(task: str) -> int:
    """Return how many runs of one key there were at once, at most."""
    events: list[tuple[datetime, int, str]] = []
    for key, began, ended in Run.objects.filter(task=task).values_list("key", "began", "ended"):
        events += [(began, 1, key), (ended, -1, key)]
    running: Counter[str] = Counter()
    most = 0
    for _moment, change, key in sorted(events):  # of one moment, ends come first
        running[key] += change
        most = max(most, running[key])
    return most
