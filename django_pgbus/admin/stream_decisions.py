"""
What a person may decide about a stream and its consumer groups; about their failed entries: `entry_decisions.py`.

The stream's id and the group's name travel in the query string of the confirmation, to which that page posts back. Every
line of the log is about the stream, whose history holds them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.db import transaction
from django.http import QueryDict
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import stream_words, words
from django_pgbus.admin.key_decisions import KeyDecision, Log, Told
from django_pgbus.conf import database
from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.streams import groups, stats
from django_pgbus.streams.models import StreamLog
from django_pgbus.streams.states import GroupState, StreamState
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker.waiting import Text

VIEW: Final = "pgbus.view_streamlog"
NAMED: Final = 10  # groups that are behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group, and the stream it reads."""

    stream: StreamState
    state: GroupState

    @property
    def named(self) -> dict[str, str]:
        """Return what both are called."""
        return {"stream": words.showable(self.stream.name), "group": words.showable(self.state.name)}


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
        return find_group(query)


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
        try:
            with transaction.atomic(using=database()):
                if groups.pause(found.stream.name, found.state.name, by=log.by):
                    log_about(log, found.stream, gettext("Group %(group)s was paused.") % found.named)
        except StreamDoesNotExist:
            yield str(self.gone), messages.WARNING
            return
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
        try:
            with transaction.atomic(using=database()):
                if groups.resume(found.stream.name, found.state.name, by=log.by):
                    log_about(log, found.stream, gettext("Group %(group)s was resumed.") % found.named)
        except StreamDoesNotExist:
            yield str(self.gone), messages.WARNING
            return
        yield gettext("Group %(group)s is resumed.") % found.named, messages.SUCCESS


class Override(StreamDecision):
    """Lets retention drop what groups have not handled, or keep it again."""

    name = "override"
    permissions = (VIEW, "pgbus.override_retention")
    label = _("Retention")
    gone = _("Nothing was changed: there is no such stream any more.")

    def find(self, query: QueryDict) -> StreamState | None:
        """Return the stream, None if it is gone."""
        return find_stream(query)

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
                log_about(log, found, text)
        yield text, messages.SUCCESS


PAUSE: Final = Pause()
RESUME: Final = Resume()
OVERRIDE: Final = Override()


def find_stream(query: QueryDict) -> StreamState | None:
    """Return the stream that a query names, None if it is gone."""
    id = parsed_id(query.get("stream", ""))
    return None if id is None else stats.stream(id)


def find_group(query: QueryDict) -> Group | None:
    """Return the group that a query names, None if it is gone."""
    id, name = parsed_id(query.get("stream", "")), query.get("group", "")
    stream = None if id is None or "\x00" in name else stats.stream(id, name)
    return Group(stream=stream, state=stream.groups[0]) if stream and stream.groups else None


def log_about(log: Log, stream: StreamState, text: str) -> None:
    """Write a line of the log about a stream."""
    log(StreamLog(id=stream.id, name=stream.name), text)


def _behind(late: Sequence[GroupState]) -> str:
    if not late:
        return gettext("No group is behind now.")
    text = ngettext("Behind now: group %(names)s.", "Behind now: groups %(names)s.", len(late))
    told = [f"{words.showable(group.name)} ({stream_words.lag(group)})" for group in late[:NAMED]]
    return text % {"names": ", ".join(told) + (" …" if len(late) > NAMED else "")}
