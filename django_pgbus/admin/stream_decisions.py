"""
What a person may decide about a stream, its consumer groups and their failed entries.

The stream's id and the group's name travel in the query string of the confirmation, to which that page posts back. Every
line of the log is about the stream, whose history holds them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.db import transaction
from django.http import QueryDict
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import stream_words, words
from django_pgbus.admin.decisions import BATCH, LISTED
from django_pgbus.admin.key_decisions import KeyDecision, Log, Told
from django_pgbus.conf import database
from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.postgres import retrying
from django_pgbus.queues.stats import LIMIT, Count
from django_pgbus.streams import exceptions, groups, stats
from django_pgbus.streams.models import StreamLog
from django_pgbus.streams.stats import FailedEntry, GroupState, StreamState
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker.waiting import Text

VIEW: Final = "pgbus.view_streamlog"
NAMED: Final = 10  # positions in one line of the log
MOST_DIGITS: Final = 18  # of a position


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, and the stream it reads."""

    stream: StreamState
    state: GroupState

    @property
    def named(self) -> dict[str, str]:
        """Return what both are called."""
        return {"stream": words.showable(self.stream.name), "group": words.showable(self.state.name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewinding:
    """A group, and where to: None while nobody has said it, or not so that it can be."""

    group: Group
    position: int | None
    given: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Failed entries of one stream."""

    stream: StreamState
    entries: tuple[FailedEntry, ...]


class StreamDecision(KeyDecision):
    """One thing that may be decided about a stream or what belongs to it."""

    def key(self, found: Any) -> str:
        """Return nothing: stream and group stand in the question."""
        return ""


class GroupDecision(StreamDecision):
    """One thing that may be decided about a group."""

    gone: ClassVar[Text] = _("Nothing was changed: there is no such consumer group any more.")

    def find(self, query: QueryDict) -> Any:
        """Return the group, None if it is gone."""
        return _group(query)


class Pause(GroupDecision):
    """Lets nobody claim for a group."""

    name = "pause"
    permissions = (VIEW, "pgbus.pause_group")
    label = _("Pause")

    def ask(self, found: Group) -> dict[str, Any]:
        """Return what pausing does, and what it keeps from being dropped."""
        return {
            "title": gettext("Pause group %(group)s of stream %(stream)s?") % found.named,
            "warning": _(
                "Within a second no worker claims entries for it. What was claimed is finished; what comes waits until "
                "somebody resumes the group, and retention keeps it for as long."
            ),
            "button": _("Pause group"),
        }

    def carry_out(self, found: Group, form: QueryDict, log: Log) -> Iterator[Told]:
        """Pause it and log that, in one transaction."""
        with transaction.atomic(using=database()):
            if groups.pause(found.stream.name, found.state.name, by=log.by):
                _log(log, found.stream, gettext("Group %(group)s was paused.") % found.named)
        yield gettext("Group %(group)s is paused.") % found.named, messages.SUCCESS


class Resume(GroupDecision):
    """Lets workers claim for a group again."""

    name = "resume"
    permissions = (VIEW, "pgbus.pause_group")
    label = _("Resume")

    def ask(self, found: Group) -> dict[str, Any]:
        """Return what resuming does."""
        return {
            "title": gettext("Resume group %(group)s of stream %(stream)s?") % found.named,
            "warning": _("Workers go on after the last entry it has claimed, at once."),
            "stands": gettext("It is behind by %(entries)s.") % {"entries": stream_words.lag(found.state)},
            "button": _("Resume group"),
        }

    def carry_out(self, found: Group, form: QueryDict, log: Log) -> Iterator[Told]:
        """Resume it and log that, in one transaction."""
        with transaction.atomic(using=database()):
            if groups.resume(found.stream.name, found.state.name, by=log.by):
                _log(log, found.stream, gettext("Group %(group)s was resumed.") % found.named)
        yield gettext("Group %(group)s is resumed.") % found.named, messages.SUCCESS


class Rewind(GroupDecision):
    """Lets a group handle entries again; asks where to first."""

    name = "rewind"
    permissions = (VIEW, "pgbus.rewind_group")
    label = _("Rewind")

    def find(self, query: QueryDict) -> Rewinding | None:
        """Return the group and where to, as far as that was said; None if the group is gone or has not begun."""
        group = _group(query)
        if group is None or not group.state.begun:
            return None
        position, error = _position(query, group.state)
        return Rewinding(group=group, position=position, given=query.get("position", "")[:20], error=error)

    def template(self, found: Rewinding) -> str:
        """Return the page that asks where to, or the one that asks whether."""
        return "streams/rewind.html" if found.position is None else "confirm.html"

    def confirmed(self, form: QueryDict) -> bool:
        """Return whether a form comes from a confirmation that named a position."""
        return super().confirmed(form) and _number(form.get("after", "")) is not None

    def ask(self, found: Rewinding) -> dict[str, Any]:
        """Return how many entries are handled again, or what to choose from."""
        group = found.group
        if found.position is None:
            return {
                "title": gettext("Rewind group %(group)s of stream %(stream)s") % group.named,
                "stream": group.stream.id,
                "group": group.named["group"],
                "given": words.showable(found.given),
                "error": found.error,
                "claimed": words.number(group.state.claimed),
                "most": group.state.claimed - 1,
                "first": words.number(group.stream.oldest) if group.stream.oldest else "",
                "can_rewind": group.state.claimed > 0,
            }
        again = stats.handled_again(group.stream, group.state, found.position)
        number = stream_words.about(again.number) if again.more else words.number(again.number)
        entries = ngettext("%(number)s entry", "%(number)s entries", again.number) % {"number": number}
        told = {**group.named, "entries": entries, "position": words.number(found.position)}
        warning = gettext(
            "Group %(group)s handles every entry after position %(position)s again: %(entries)s. What its handler did for "
            "them is not undone and is done once more, unless the handler sees that it has been. Ranges that are being "
            "handled now are not committed, and failed entries and dead letters after that position are forgotten, "
            "since their entries come again."
        )
        return {
            "title": gettext("Handle %(entries)s of stream %(stream)s again with group %(group)s?") % told,
            "warning": warning % told,
            "stern": True,
            "stands": _not_kept(group.stream, found.position),
            "button": gettext("Rewind, and handle %(entries)s again") % told,
            "destroys": True,
            "hidden": [("after", found.position)],
        }

    def carry_out(self, found: Rewinding, form: QueryDict, log: Log) -> Iterator[Told]:
        """Rewind it and log that, in one transaction."""
        group, position = found.group, _number(form.get("after", ""))
        if position is None or position != found.position:  # somebody else has rewound it further meanwhile
            yield gettext("Nothing was changed: the group has not claimed that far."), messages.WARNING
            return
        told = {**group.named, "position": words.number(position)}

        def transition() -> int:
            with transaction.atomic(using=database()):
                done = groups.rewind(group.stream.name, group.state.name, position, by=log.by)
                if done:
                    _log(log, group.stream, gettext("Group %(group)s was rewound to position %(position)s.") % told)
                return done

        try:
            done = retrying(transition)
        except (StreamDoesNotExist, ValueError) as error:
            yield words.showable(str(error)), messages.ERROR
            return
        if not done:
            yield gettext("Nothing was changed: group %(group)s has claimed nothing after it.") % told, messages.WARNING
            return
        text = ngettext(
            "Group %(group)s was rewound to position %(position)s: %(number)s position is handled again.",
            "Group %(group)s was rewound to position %(position)s: %(number)s positions are handled again.",
            done,
        )
        yield text % {**told, "number": words.number(done)}, messages.SUCCESS


class Override(StreamDecision):
    """Lets retention drop what groups have not handled, or keep it again."""

    name = "override"
    permissions = (VIEW, "pgbus.override_retention")
    label = _("Retention")
    gone = _("Nothing was changed: there is no such stream any more.")

    def find(self, query: QueryDict) -> StreamState | None:
        """Return the stream, None if it is gone."""
        return _stream(query)

    def ask(self, found: StreamState) -> dict[str, Any]:
        """Return what is lost, and for whom, or that nothing is any more."""
        named = {"stream": words.showable(found.name)}
        if found.drops_unhandled:
            return {
                "title": gettext("Keep what is not handled in stream %(stream)s?") % named,
                "warning": _("Retention drops an entry only once every group has handled it, however old it is."),
                "button": _("Keep what is not handled"),
                "hidden": [("drops", "no")],
            }
        late = [group for group in found.groups if group.lag]
        warning = gettext(
            "Retention drops entries of stream %(stream)s that are past their age, whether or not every group has "
            "handled them. A group that is behind never gets those. Nothing brings them back."
        )
        return {
            "title": gettext("Drop what is past its age in stream %(stream)s, handled or not?") % named,
            "warning": warning % named,
            "stern": True,
            "stands": _behind(late),
            "button": _("Drop it, handled or not"),
            "destroys": True,
            "hidden": [("drops", "yes")],
        }

    def confirmed(self, form: QueryDict) -> bool:
        """Return whether a form says which of the two."""
        return super().confirmed(form) and form.get("drops") in {"yes", "no"}

    def carry_out(self, found: StreamState, form: QueryDict, log: Log) -> Iterator[Told]:
        """Write it down and log that, in one transaction."""
        drops = form["drops"] == "yes"
        text = gettext("Retention keeps what is not handled.")
        if drops:
            text = gettext("Retention drops what is past its age, handled or not.")
        with transaction.atomic(using=database()):
            if (
                StreamLog.objects.using(database())
                .filter(pk=found.id, drops_unhandled=not drops)
                .update(drops_unhandled=drops)
            ):
                _log(log, found, text)
        yield text, messages.SUCCESS


class EntryDecision(StreamDecision):
    """One thing that may be done to failed entries that were chosen one by one."""

    gone: ClassVar[Text] = _("Nothing was changed: the failed entries are not here any more, or none was chosen.")

    def find(self, query: QueryDict) -> Chosen | None:
        """Return those of the chosen entries that it may be done to, None if there is none."""
        ids = [id for id in map(parsed_id, query.getlist("entry")[:LIMIT]) if id is not None]
        stream = _stream(query) if ids else None
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
                _log(log, found.stream, text % _listed([one for one in found.entries if one.id in chosen], done))
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
        found = _group(query)
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

    def batches(self, found: Group, form: QueryDict, log: Log, text: str) -> int:
        """Do it a thousand at a time, each with its line in the log, and return to how many."""
        seen = _seen(form)
        assert seen is not None

        def transition(ids: Sequence[int]) -> int:
            with transaction.atomic(using=database()):
                done = self.do(ids, log)
                if done:
                    _log(log, found.stream, text % {**found.named, "number": words.number(done)})
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
        yield _redriven(self.batches(found, form, log, gettext("Redrove %(number)s dead letters of group %(group)s.")))


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
        yield _discarded(
            self.batches(found, form, log, gettext("Discarded %(number)s dead letters of group %(group)s."))
        )


PAUSE: Final = Pause()
RESUME: Final = Resume()
REWIND: Final = Rewind()
OVERRIDE: Final = Override()
REDRIVE: Final = Redrive()
DISCARD: Final = Discard()
REDRIVE_DEAD: Final = RedriveDead()
DISCARD_DEAD: Final = DiscardDead()
STREAM_DECISIONS: Final[tuple[KeyDecision, ...]] = (
    PAUSE,
    RESUME,
    REWIND,
    OVERRIDE,
    REDRIVE,
    DISCARD,
    REDRIVE_DEAD,
    DISCARD_DEAD,
)


# --- what it is about -------------------------------------------------------------------------------------


def _stream(query: QueryDict) -> StreamState | None:
    id = parsed_id(query.get("stream", ""))
    return None if id is None else stats.stream(id)


def _group(query: QueryDict) -> Group | None:
    id, name = parsed_id(query.get("stream", "")), query.get("group", "")
    stream = None if id is None or "\x00" in name else stats.stream(id, name)
    return Group(stream=stream, state=stream.groups[0]) if stream and stream.groups else None


def _position(query: QueryDict, group: GroupState) -> tuple[int | None, str]:
    """Return the position that was chosen, or None and what is wrong with it."""
    match query.get("to", ""):
        case "beginning":
            return (0, "") if group.claimed else (None, "")
        case "position":
            position = _number(query.get("position", "").strip())
            if position is not None and position < group.claimed:
                return position, ""
            error = gettext("Give a whole number from 0 to %(most)s.")
            return None, error % {"most": words.number(max(0, group.claimed - 1))}
    return None, ""


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def _seen(form: QueryDict) -> datetime | None:
    """Return when the person looked, None for what is no moment."""
    try:
        seen = parse_datetime(form.get("seen", ""))
    except ValueError:
        return None
    return seen if seen is not None and seen.tzinfo is not None else None


# --- words ------------------------------------------------------------------------------------------------


class _Listed:
    """One line of a confirmation's list."""

    found_task = True  # nothing is said about its handler

    def __init__(self, entry: FailedEntry) -> None:
        self.entry = entry

    def __str__(self) -> str:
        told = {"position": words.number(self.entry.position), "group": words.showable(self.entry.group)}
        return gettext("entry %(position)s of group %(group)s") % told


def _not_kept(stream: StreamState, position: int) -> str:
    """Return that what was dropped does not come again."""
    first = stream.head + 1 if stream.oldest is None else stream.oldest
    if position + 1 >= first or first == 1:
        return ""
    text = gettext("Entries before position %(first)s are not kept any more, so they do not come again.")
    return text % {"first": words.number(first)}


def _behind(late: Sequence[GroupState]) -> str:
    if not late:
        return gettext("No group is behind now.")
    text = ngettext("Behind now: group %(names)s.", "Behind now: groups %(names)s.", len(late))
    told = [f"{words.showable(group.name)} ({stream_words.lag(group)})" for group in late[:NAMED]]
    return text % {"names": ", ".join(told) + (" …" if len(late) > NAMED else "")}


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
            "A redriven entry is tried again at once, on its own, and its attempts start again. Later entries of the same "
            "key have been handled meanwhile: it comes after them."
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


def _log(log: Log, stream: StreamState, text: str) -> None:
    log(StreamLog(id=stream.id, name=stream.name), text)


def _in_batches(ids: Sequence[int], transition: Any) -> int:
    starts = range(0, len(ids), BATCH)
    return sum(retrying(lambda: transition(ids[start : start + BATCH])) for start in starts)  # noqa: B023
