"""What a person may decide about failed entries of a stream: those that were chosen, or all that are dead of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.db import transaction
from django.http import QueryDict
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.decisions import BATCH, LISTED
from django_pgbus.admin.given import parsed_moment
from django_pgbus.admin.key_decisions import Log, Told
from django_pgbus.admin.stream_decisions import (
    VIEW,
    Group,
    GroupDecision,
    StreamDecision,
    find_group,
    find_stream,
    log_about,
)
from django_pgbus.conf import database
from django_pgbus.postgres import retrying
from django_pgbus.queues.stats import LIMIT, Count
from django_pgbus.streams import exceptions, stats
from django_pgbus.streams.states import FailedEntry, StreamState
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker.waiting import Text

NAMED: Final = 10  # positions in one line of the log
MOST_CHOSEN: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Failed entries of one stream."""

    stream: StreamState
    entries: tuple[FailedEntry, ...]


class EntryDecision(StreamDecision):
    """One thing that may be done to failed entries that were chosen one by one."""

    gone: ClassVar[Text] = _("Nothing was changed: the failed entries are not here any more, or none was chosen.")

    def find(self, query: QueryDict) -> Chosen | None:
        """Return those of the chosen entries that it may be done to, None if there is none."""
        ids = [id for id in map(parsed_id, query.getlist("entry")[:MOST_CHOSEN]) if id is not None]
        stream = find_stream(query) if ids else None
        if stream is None:
            return None
        entries = tuple(entry for entry in stats.failed(stream.id, ids) if self.may_be(entry))
        return Chosen(stream=stream, entries=entries) if entries else None

    def may_be(self, entry: FailedEntry) -> bool:
        """Return whether it may be done to an entry."""
        raise NotImplementedError

    def asked(self, found: Chosen) -> dict[str, Any]:
        """Return the entries as the confirmation lists them."""
        shown = found.entries[:LISTED]
        left = len(found.entries) - len(shown)
        return {
            "rows": [_Listed(entry) for entry in shown],
            "not_listed": words.number(left) if left else "",
        }

    def batches(self, found: Chosen, log: Log, text: str) -> int:
        """Do it a thousand at a time, each with its line in the log, and return to how many."""
        return _in_batches([entry.id for entry in found.entries], lambda ids: self._transaction(found, ids, log, text))

    def _transaction(self, found: Chosen, ids: Sequence[int], log: Log, text: str) -> int:
        with transaction.atomic(using=database()):
            done = self.do(ids, log)
            if done:
                chosen = frozenset(ids)
                log_about(log, found.stream, text % _listed([one for one in found.entries if one.id in chosen], done))
            return done

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Do it, and return to how many."""
        raise NotImplementedError


class Redrive(EntryDecision):
    """Lets dead letters be tried again."""

    name = "redrive"
    permissions = (VIEW, "pgbus.redrive_entry")
    label = _("Redrive")

    def may_be(self, entry: FailedEntry) -> bool:
        """Return whether it is a dead letter."""
        return entry.status == "dead"

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Redrive them."""
        return exceptions.redrive(ids, by=log.by)

    def ask(self, found: Chosen) -> dict[str, Any]:
        """Return the text that names how many."""
        return {**_ask_redrive(Count(len(found.entries))), **self.asked(found)}

    def carry_out(self, found: Chosen, form: QueryDict, log: Log) -> Iterator[Told]:
        """Redrive them, and say how many."""
        yield _redriven(self.batches(found, log, gettext("Redrove %(number)s of %(groups)s: %(positions)s.")))


class Discard(EntryDecision):
    """Counts failed entries as done with."""

    name = "discard"
    permissions = (VIEW, "pgbus.discard_entry")
    label = _("Discard")

    def may_be(self, entry: FailedEntry) -> bool:
        """Return whether nobody is trying it just now."""
        return entry.status != "running"

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Discard them."""
        return exceptions.discard(ids, by=log.by)

    def ask(self, found: Chosen) -> dict[str, Any]:
        """Return the text that names how many."""
        return {**_ask_discard(Count(len(found.entries))), **self.asked(found)}

    def carry_out(self, found: Chosen, form: QueryDict, log: Log) -> Iterator[Told]:
        """Discard them, and say how many."""
        yield _discarded(self.batches(found, log, gettext("Discarded %(number)s of %(groups)s: %(positions)s.")))


class DeadDecision(GroupDecision):
    """One thing that may be done to all dead letters of a group that had died when the person looked."""

    def find(self, query: QueryDict) -> Group | None:
        """Return the group if it has dead letters."""
        found = find_group(query)
        return found if found and found.state.dead else None

    def confirmed(self, form: QueryDict) -> bool:
        """Return whether a form says when the person looked."""
        return super().confirmed(form) and _seen(form) is not None

    def asked(self, found: Group) -> dict[str, Any]:
        """Return when the person looked, and how many it is at most."""
        return {
            "hidden": [("seen", found.stream.now.isoformat())],
            "most": words.number(LIMIT) if found.state.dead.more else "",
        }

    def batches(self, found: Group, form: QueryDict, log: Log, text: Callable[[int], str]) -> int:
        """Do it a thousand at a time, each with its line in the log, and return to how many."""
        seen = _seen(form)
        assert seen is not None

        def transition(ids: Sequence[int]) -> int:
            with transaction.atomic(using=database()):
                done = self.do(ids, log)
                if done:
                    log_about(log, found.stream, text(done) % {**found.named, "number": words.number(done)})
                return done

        return _in_batches(stats.dead_ids(found.state.id, seen), transition)

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Do it, and return to how many."""
        raise NotImplementedError


class RedriveDead(DeadDecision):
    """Lets all dead letters of a group be tried again."""

    name = "redrive_dead"
    permissions = (VIEW, "pgbus.redrive_entry")
    label = _("Redrive dead")
    gone = _("Nothing was changed: this group has no dead letter any more.")

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Redrive them."""
        return exceptions.redrive(ids, by=log.by)

    def ask(self, found: Group) -> dict[str, Any]:
        """Return the text that names how many."""
        return {**_ask_redrive(found.state.dead, found.named["group"]), **self.asked(found)}

    def carry_out(self, found: Group, form: QueryDict, log: Log) -> Iterator[Told]:
        """Redrive them, and say how many."""
        yield _redriven(self.batches(found, form, log, _redrove_of_group))


class DiscardDead(DeadDecision):
    """Discards all dead letters of a group."""

    name = "discard_dead"
    permissions = (VIEW, "pgbus.discard_entry")
    label = _("Discard dead")
    gone = _("Nothing was changed: this group has no dead letter any more.")

    def do(self, ids: Sequence[int], log: Log) -> int:
        """Discard them."""
        return exceptions.discard(ids, by=log.by)

    def ask(self, found: Group) -> dict[str, Any]:
        """Return the text that names how many."""
        return {**_ask_discard(found.state.dead, found.named["group"]), **self.asked(found)}

    def carry_out(self, found: Group, form: QueryDict, log: Log) -> Iterator[Told]:
        """Discard them, and say how many."""
        yield _discarded(self.batches(found, form, log, _discarded_of_group))


REDRIVE: Final = Redrive()
DISCARD: Final = Discard()
REDRIVE_DEAD: Final = RedriveDead()
DISCARD_DEAD: Final = DiscardDead()


def _seen(form: QueryDict) -> datetime | None:
    """Return when the person looked, None for what is no moment."""
    seen = parsed_moment(form.get("seen", ""))
    return seen if seen is not None and seen.tzinfo is not None else None


class _Listed:
    """One line of a confirmation's list."""

    found_task = True  # nothing is said about its handler

    def __init__(self, entry: FailedEntry) -> None:
        self.entry = entry

    def __str__(self) -> str:
        told = {"position": words.number(self.entry.position), "group": words.showable(self.entry.group)}
        return gettext("entry %(position)s of group %(group)s") % told


def _ask_redrive(count: Count, group: str = "") -> dict[str, Any]:
    number = {"number": words.count(count), "group": group}
    title = ngettext("Redrive %(number)s dead letter?", "Redrive %(number)s dead letters?", count.number)
    if group:
        title = ngettext(
            "Redrive %(number)s dead letter of group %(group)s?",
            "Redrive %(number)s dead letters of group %(group)s?",
            count.number,
        )
    button = ngettext("Redrive %(number)s dead letter", "Redrive %(number)s dead letters", count.number)
    return {
        "title": title % number,
        "warning": _(
            "A redriven entry is tried again at once, on its own, and its attempts start again. If its group keeps the "
            "order of a key, later entries of its key have been handled meanwhile: it comes after them."
        ),
        "button": button % number,
    }


def _ask_discard(count: Count, group: str = "") -> dict[str, Any]:
    number = {"number": words.count(count), "group": group}
    title = ngettext("Discard %(number)s failed entry?", "Discard %(number)s failed entries?", count.number)
    if group:
        title = ngettext(
            "Discard %(number)s dead letter of group %(group)s?",
            "Discard %(number)s dead letters of group %(group)s?",
            count.number,
        )
    button = ngettext("Discard %(number)s failed entry", "Discard %(number)s failed entries", count.number)
    return {
        "title": title % number,
        "warning": _(
            "The group counts a discarded entry as done with: its handler never gets it again, unless the group is "
            "rewound. The entry itself stays in the stream as long as the stream keeps it. One that is being tried just "
            "now stays here."
        ),
        "button": button % number,
        "destroys": True,
    }


def _redriven(number: int) -> Told:
    text = ngettext("%(number)s dead letter was redriven.", "%(number)s dead letters were redriven.", number)
    return text % {"number": words.number(number)}, messages.SUCCESS if number else messages.WARNING


def _discarded(number: int) -> Told:
    text = ngettext("%(number)s failed entry was discarded.", "%(number)s failed entries were discarded.", number)
    return text % {"number": words.number(number)}, messages.SUCCESS if number else messages.WARNING


def _redrove_of_group(number: int) -> str:
    """Return the line of the log, its names and number still to be filled in."""
    return ngettext(
        "Redrove %(number)s dead letter of group %(group)s.",
        "Redrove %(number)s dead letters of group %(group)s.",
        number,
    )


def _discarded_of_group(number: int) -> str:
    """Return the same of a discard."""
    return ngettext(
        "Discarded %(number)s dead letter of group %(group)s.",
        "Discarded %(number)s dead letters of group %(group)s.",
        number,
    )


def _listed(entries: Sequence[FailedEntry], done: int) -> dict[str, str]:
    """Return entries as a line of the log names them; beyond the first few only how many."""
    positions = ", ".join(words.number(entry.position) for entry in entries[:NAMED])
    named = sorted({words.showable(entry.group) for entry in entries})[:NAMED]
    return {
        "number": ngettext("%(number)s failed entry", "%(number)s failed entries", done)
        % {"number": words.number(done)},
        "positions": positions + (" …" if len(entries) > NAMED else ""),
        "groups": ngettext("group %(names)s", "groups %(names)s", len(named)) % {"names": ", ".join(named)},
    }


def _in_batches(ids: Sequence[int], transition: Any) -> int:
    starts = range(0, len(ids), BATCH)
    return sum(retrying(lambda: transition(ids[start : start + BATCH])) for start in starts)  # noqa: B023
