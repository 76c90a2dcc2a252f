"""The decision to let a group handle entries again: it asks where to, then names how many, and asks whether."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from django.contrib import messages
from django.db import transaction
from django.http import QueryDict
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import stream_words, words
from django_pgbus.admin.key_decisions import Log, Told
from django_pgbus.admin.stream_decisions import (
    VIEW,
    Group,
    GroupDecision,
    find_group,
    log_about,
)
from django_pgbus.conf import database
from django_pgbus.exceptions import StreamDoesNotExist
from django_pgbus.postgres import retrying
from django_pgbus.streams import groups, stats
from django_pgbus.streams.states import GroupState, StreamState

MOST_DIGITS: Final = 18  # of a position


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewinding:
    """A group, and where to: None while nobody has said it, or not so that it can be."""

    group: Group
    position: int | None
    given: str
    error: str


class Rewind(GroupDecision):
    """Lets a group handle entries again; asks where to first."""

    name = "rewind"
    permissions = (VIEW, "pgbus.rewind_group")
    label = _("Rewind")

    def find(self, query: QueryDict) -> Rewinding | None:
        """Return the group and where to, as far as that was said; None if the group is gone or has not begun."""
        group = find_group(query)
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
                    log_about(
                        log, group.stream, gettext("Group %(group)s was rewound to position %(position)s.") % told
                    )
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


REWIND: Final = Rewind()


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


def _not_kept(stream: StreamState, position: int) -> str:
    """Return that what was dropped does not come again."""
    first = stream.head + 1 if stream.oldest is None else stream.oldest
    if position + 1 >= first or first == 1:
        return ""
    text = gettext("Entries before position %(first)s are not kept any more, so they do not come again.")
    return text % {"first": words.number(first)}
