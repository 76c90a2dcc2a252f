"""
A decision about more jobs than one request carries out: in parts, one request each, with a page that says how far it is.

Parts are taken in the order of the ids, each behind the last id of the one before: nothing is done twice, and it ends,
whatever comes meanwhile. How far it is travels in the form. It tells nobody what to do: which jobs are meant, and what
may be done to them, is asked anew with each part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext

from django_pgbus.admin import words
from django_pgbus.admin.bounds import BoundedPaginator, TookTooLongError, bounded, estimated

MOST_COUNTED: Final = 1_000_000
COUNTING: Final = 2_000  # milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a decision is: done, left as they were, of how many; `about` says that nobody has counted these."""

    total: int
    about: bool = False
    done: int = 0
    left: int = 0
    after: int = 0
    over: bool = False

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Progress | None:
        """Return what a form says, None if it is not about parts."""
        try:
            total, done, left, after = (int(data[name]) for name in ("total", "done", "left", "after"))
        except (KeyError, ValueError):
            return None
        sane = all(0 <= number < 2**63 for number in (total, done, left, after))
        return cls(total=total, about=data.get("about") == "1", done=done, left=left, after=after) if sane else None

    def hidden(self) -> list[tuple[str, Any]]:
        """Return the fields of the form that goes on."""
        numbers = [(name, getattr(self, name)) for name in ("total", "done", "left", "after")]
        return [*numbers, ("about", int(self.about))]

    def and_then(self, ids: Sequence[int], done: int, *, over: bool) -> Progress:
        """Return how far it is after a part of these ids, `done` of which were changed."""
        left = self.left + len(ids) - done
        return replace(self, done=self.done + done, left=left, after=ids[-1] if ids else self.after, over=over)

    @property
    def gone_through(self) -> int:
        """Return how many have been looked at."""
        return self.done + self.left

    @property
    def most(self) -> int:
        """Return the end of the bar: an estimate may be too low."""
        return max(self.total, self.gone_through, 1)

    @property
    def text(self) -> str:
        """Return how far it is, in a sentence."""
        number, total = words.number(self.done), words.number(self.total)
        if self.over:
            return gettext("Finished: %(number)s done.") % {"number": number}
        told = (
            gettext("%(number)s of about %(total)s done.") if self.about else gettext("%(number)s of %(total)s done.")
        )
        return told % {"number": number, "total": total}

    @property
    def left_text(self) -> str:
        """Return how many were left as they were, nothing if none was."""
        if not self.left:
            return ""
        text = ngettext("%(number)s was left as it was.", "%(number)s were left as they were.", self.left)
        return text % {"number": words.number(self.left)}


def counted(paginator: Any) -> tuple[int, bool]:
    """Return how many rows a decision is about, and whether that is an estimate: counted to a million, if in time."""
    assert isinstance(paginator, BoundedPaginator)
    if not paginator.more:
        return paginator.found, False
    rows: Any = paginator.object_list
    try:
        with bounded(COUNTING):
            number = int(rows.order_by().values("pk")[: MOST_COUNTED + 1].count())
    except TookTooLongError:
        return paginator.found, True
    if number <= MOST_COUNTED:
        return number, False
    return max(number - 1, 0 if rows.query.where else estimated(rows.model)), True


def log_together(request: HttpRequest, rows: Sequence[Any], log: str) -> None:
    """Write one entry for many rows of one transaction: how many, and which."""
    ids = sorted(row.pk for row in rows)
    text = ngettext("%(log)s %(number)s job: %(ids)s", "%(log)s %(number)s jobs: %(ids)s", len(ids))
    kind = ContentType.objects.get_for_model(rows[0], for_concrete_model=False)
    LogEntry.objects.create(
        user_id=request.user.pk,  # type: ignore[misc]
        content_type_id=kind.pk,
        object_id=None,
        object_repr=gettext("%(number)s jobs, from %(first)s to %(last)s")
        % {"number": words.number(len(ids)), "first": ids[0], "last": ids[-1]},
        action_flag=CHANGE,
        change_message=text % {"log": log, "number": words.number(len(ids)), "ids": ", ".join(_runs(ids))},
    )


def _runs(ids: Iterable[int]) -> Iterator[str]:
    """Yield ascending numbers, neighbours as "first-last"."""
    first = last = None
    for id in ids:
        if first is not None and last is not None and id == last + 1:
            last = id
            continue
        if first is not None:
            yield str(first) if first == last else f"{first}-{last}"
        first = last = id
    if first is not None:
        yield str(first) if first == last else f"{first}-{last}"
