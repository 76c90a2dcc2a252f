"""
The streams: how long each log is, how far its consumer groups are, what holds them up, what failed, and what is kept.

One page lists them, one shows a stream with its groups, one a failed entry with what it carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import stream_contents, stream_words, words
from django_pgbus.admin.base import within_bounds
from django_pgbus.admin.contents import last_line
from django_pgbus.admin.entry_decisions import DISCARD, DISCARD_DEAD, REDRIVE, REDRIVE_DEAD
from django_pgbus.admin.given import parsed_text
from django_pgbus.admin.key_decisions import KeyDecision
from django_pgbus.admin.key_pages import KeyDecidingAdmin
from django_pgbus.admin.rewind import REWIND
from django_pgbus.admin.shown import shown_path
from django_pgbus.admin.stream_decisions import OVERRIDE, PAUSE, RESUME
from django_pgbus.queues.stats import Count
from django_pgbus.streams import stats
from django_pgbus.streams.consumers import consumer_of
from django_pgbus.streams.states import (
    Content,
    Failed,
    FailedEntry,
    GroupState,
    LeaseState,
    PartitionState,
    StreamState,
)
from django_pgbus.tasks.results import parsed_id
from django_pgbus.worker import waiting
from django_pgbus.worker.waiting import Kind, Situation, Text

MOST_OF_A_SEARCH: Final = 100
MOST_PARTITIONS_SHOWN: Final = 30
MOST_OF_A_KEY: Final = 80
STATUS: Final[dict[str, tuple[Kind, Text]]] = {
    "dead": (Kind.LOST, _("dead letter")),
    "running": (Kind.RUNNING, _("running")),
    "ready": (Kind.WAITING, _("retrying")),
}


class StreamsAdmin(KeyDecidingAdmin):
    """A list of the streams, a page for each, and a page for each failed entry."""

    key_decisions = (PAUSE, RESUME, REWIND, OVERRIDE, REDRIVE, DISCARD, REDRIVE_DEAD, DISCARD_DEAD)

    def get_urls(self) -> list[URLPattern]:
        """Return the list, its decisions, and the pages of one stream."""
        wrap, name = self.admin_site.admin_view, self.opts.model_name
        return [
            *super().get_urls(),
            path("<path:object_id>/entry/<int:entry>/", wrap(self.entry_view), name=f"pgbus_{name}_entry"),
            path("<path:object_id>/history/", wrap(self.history_view), name=f"pgbus_{name}_history"),
            path("<path:object_id>/change/", wrap(self.change_view), name=f"pgbus_{name}_change"),
        ]

    def home(self, request: HttpRequest) -> str:
        """Return the page of the stream that is decided about."""
        id = parsed_id(request.GET.get("stream", ""))
        return self.url("changelist") if id is None else self.url("change", id)

    # --- the list -----------------------------------------------------------------------------------------

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Return the list of streams."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        search = parsed_text(request.GET, "q", MOST_OF_A_SEARCH)
        found = stats.overview(stats.MOST_STREAMS + 1, search)
        shown = found[: stats.MOST_STREAMS]
        situation = waiting.situation()
        context = {
            "title": _("Streams"),
            "rows": [self._row(stream, situation) for stream in shown],
            "search": words.showable(search),
            "all_url": self.url("changelist"),
            "most": words.number(len(shown)) if len(found) > len(shown) else "",
        }
        return self.page(request, "streams.html", {**context, **(extra_context or {})})

    def _row(self, stream: StreamState, situation: Situation) -> dict[str, Any]:
        worst = stream.worst
        return {
            "name": words.showable(stream.name),
            "url": self.url("change", stream.id),
            "head": words.number(stream.head),
            "entries": stream_words.about(stream.entries),
            "size": stream_words.size(stream.bytes),
            "groups": f"{words.number(len(stream.groups))}{'+' if stream.more_groups else ''}",
            "lag": stream_words.lag(worst) if worst and worst.lag else "",
            "lag_age": words.age(worst.lag_seconds) if worst and worst.lag_seconds is not None else "",
            "lag_of": words.showable(worst.name) if worst and worst.lag and len(stream.groups) > 1 else "",
            "dead": words.count(stream.dead) if stream.dead else "",
            "many_dead": stream.dead.number,
            "warnings": list(stream_words.attention(stream, situation)),
        }

    # --- one stream ---------------------------------------------------------------------------------------

    @within_bounds
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the page of one stream; with `group` in the query string, what failed and is leased of that group alone."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        stream = self._found(object_id)
        if stream is None:
            return self._missing(request, object_id)
        chosen = next((group for group in stream.groups if group.name == request.GET.get("group")), None)
        groups = stream.groups if chosen is None else (chosen,)
        situation = waiting.situation()
        parts = stats.partitions(stream)
        context = {
            "title": gettext("Stream %(name)s") % {"name": words.showable(stream.name)},
            "crumb": words.showable(stream.name),
            "object_url": self.url("change", stream.id),
            "history_url": self.url("history", stream.id),
            "warnings": list(stream_words.attention(stream, situation)),
            "cards": list(_cards(stream)),
            "groups": self._groups(request, stream, situation),
            "chosen": words.showable(chosen.name) if chosen else "",
            "failed": self._failed(request, stream, groups),
            "leases": self._leases(stream, groups, situation),
            "retention": self._retention(request, stream, parts),
            "partitions": _partitions(stream, parts),
        }
        return self.page(request, "streams/stream.html", {**context, **(extra_context or {})})

    def _found(self, object_id: str) -> StreamState | None:
        id = parsed_id(unquote(object_id))
        return None if id is None else stats.stream(id)

    def _missing(self, request: HttpRequest, object_id: str) -> HttpResponse:
        missing: HttpResponse = self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        return missing

    def _groups(self, request: HttpRequest, stream: StreamState, situation: Situation) -> dict[str, Any]:
        rows = [self._group(request, stream, group, situation) for group in stream.groups]
        return {
            "rows": rows,
            "decides": any(row["decisions"] for row in rows),
            "most": words.number(len(rows)) if stream.more_groups else "",
        }

    def _group(
        self, request: HttpRequest, stream: StreamState, group: GroupState, situation: Situation
    ) -> dict[str, Any]:
        of_group = f"{self.url('change', stream.id)}?{urlencode({'group': group.name})}"
        failed = group.ready + group.running
        return {
            "name": words.showable(group.name),
            "url": of_group,
            "path": shown_path(group.handler),
            "badges": [
                *([gettext("in order of a key")] if group.keyed else []),
                *([gettext("routes into queues")] if group.routes else []),
            ],
            "importable": consumer_of(stream.name, group.name, group.handler) is not None,
            "standing": stream_words.standing(stream, group, situation),
            "command": stream_words.repair(stream.name, group.name) if group.refusal else "",
            "holds": stream_words.holds(group, situation),
            "committed": words.number(group.committed),
            "claimed": words.number(group.claimed) if group.claimed != group.committed else "",
            "lag": words.number(group.lag),
            "age": words.age(group.lag_seconds) if group.lag_seconds is not None else "",
            "leases": words.count(group.leases) if group.leases else "",
            "failed": words.count(failed) if failed else "",
            "dead": words.count(group.dead) if group.dead else "",
            "many": {"leases": group.leases.number, "failed": failed.number, "dead": group.dead.number},
            "decisions": list(self._group_decisions(request, stream, group)),
        }

    def _group_decisions(
        self, request: HttpRequest, stream: StreamState, group: GroupState
    ) -> Iterator[dict[str, Any]]:
        about = {"stream": stream.id, "group": group.name}
        switch = RESUME if group.paused else PAUSE
        offered: list[KeyDecision] = [switch, *([REWIND] if group.begun and group.claimed else [])]
        if group.dead:
            offered += [REDRIVE_DEAD, DISCARD_DEAD]
        for decision in offered:
            if self.may(request, decision):
                yield {"label": decision.label, "url": self.decide_url(decision, **about)}

    def _failed(self, request: HttpRequest, stream: StreamState, groups: Sequence[GroupState]) -> dict[str, Any]:
        names = {group.id: group.name for group in groups}
        found = stats.exceptions(names, stats.MOST_LISTED + 1)
        shown = found[: stats.MOST_LISTED]
        decisions = [
            {"label": text, "url": self.url(decision.name), "destroys": decision is DISCARD}
            for decision, text in ((REDRIVE, _("Redrive selected")), (DISCARD, _("Discard selected")))
            if self.may(request, decision)
        ]
        return {
            "rows": [self._failed_row(stream, entry, names[entry.group]) for entry in shown],
            "most": words.number(len(shown)) if len(found) > len(shown) else "",
            "stream": stream.id,
            "decisions": decisions,
        }

    def _failed_row(self, stream: StreamState, entry: Failed, group: str) -> dict[str, Any]:
        kind, state = _state(entry)
        return {
            "id": str(entry.id),
            "position": words.number(entry.position),
            "url": self.url("entry", stream.id, entry.id),
            "group": words.showable(group),
            "kind": kind.value,
            "state": state,
            "when": _when(entry),
            "attempts": words.number(entry.attempts),
            "error": last_line(entry.exception, entry.traceback),
            "key": "" if entry.key is None else words.shortened(entry.key, MOST_OF_A_KEY),
        }

    def _leases(self, stream: StreamState, groups: Sequence[GroupState], situation: Situation) -> dict[str, Any]:
        names = {group.id: group.name for group in groups}
        found = stats.leases(names, stats.MOST_LISTED + 1)
        shown = found[: stats.MOST_LISTED]
        return {
            "rows": [_lease(lease, names[lease.group], situation) for lease in shown],
            "most": words.number(len(shown)) if len(found) > len(shown) else "",
        }

    def _retention(self, request: HttpRequest, stream: StreamState, parts: Sequence[PartitionState]) -> dict[str, Any]:
        age = "" if stream.retention is None else words.age(stream.retention.total_seconds())
        if stream.retention is None:
            rule = gettext("Every entry is kept: this stream declares no retention.")
        elif stream.drops_unhandled:
            rule = gettext("Entries are kept for %(age)s, then dropped, whether or not every group has handled them.")
        else:
            rule = gettext("Entries are kept for %(age)s, and until every group has handled them.")
        return {
            "rule": rule % {"age": age} if age else rule,
            "pins": [
                {
                    "group": words.showable(pin.group),
                    "committed": words.number(pin.committed),
                    "entries": stream_words.about(pin.entries) if pin.partitions else "",
                    "partitions": words.number(pin.partitions),
                }
                for pin in stats.pins(stream, parts)
            ],
            "override_url": self.decide_url(OVERRIDE, stream=stream.id) if self.may(request, OVERRIDE) else "",
            "override": _("Keep what is not handled") if stream.drops_unhandled else _("Drop what is not handled"),
        }

    # --- a failed entry -----------------------------------------------------------------------------------

    @within_bounds
    def entry_view(self, request: HttpRequest, object_id: str, entry: int) -> HttpResponse:
        """Return the page of a failed entry: what it carries, and what went wrong."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        stream = self._found(object_id)
        found = next(iter(stats.failed(stream.id, [entry], 1)), None) if stream and parsed_id(entry) else None
        if stream is None or found is None:
            return self._missing(request, object_id if stream is None else str(entry))
        position = words.number(found.position)
        context = {
            "title": gettext("Entry %(position)s of group %(group)s")
            % {"position": position, "group": words.showable(found.group)},
            "crumb": gettext("Entry %(position)s") % {"position": position},
            "stream_name": words.showable(stream.name),
            "object_url": self.url("change", stream.id),
            "decisions": [
                {
                    "label": decision.label,
                    "url": self.decide_url(decision, stream=stream.id, entry=found.id),
                    "destroys": decision is DISCARD,
                }
                for decision in (REDRIVE, DISCARD)
                if self.may(request, decision) and decision.may_be(found)
            ],
            **self._entry(stream, found),
        }
        return self.page(request, "streams/entry.html", context)

    def _entry(self, stream: StreamState, entry: FailedEntry) -> dict[str, Any]:
        consumer = consumer_of(stream.name, entry.group, entry.handler)
        content = stats.content(stream.id, entry) if stream.has_log else Content(payload=None, appended_at=None)
        kind, state = _state(entry)
        traceback = stream_contents.traceback(entry.traceback, content.payload, consumer)
        return {
            "kind": kind.value,
            "state": state,
            "when": _when(entry),
            "path": shown_path(entry.handler),
            "importable": consumer is not None,
            "position": words.number(entry.position),
            "attempts": words.number(entry.attempts),
            "key": None if entry.key is None else words.showable(entry.key),
            "appended": words.moment(content.appended_at),
            "since": words.moment(entry.created_at),
            "failed_at": words.moment(entry.failed_at),
            "payload": None if content.payload is None else stream_contents.payload(content.payload, consumer),
            "error": last_line(entry.exception, traceback),
            "exception": words.showable(entry.exception),
            "traceback": traceback,
        }


def _cards(stream: StreamState) -> Iterator[dict[str, Any]]:
    worst = stream.worst
    yield {"label": _("head"), "number": words.number(stream.head)}
    oldest = ""
    if stream.oldest_seconds is not None:
        oldest = gettext("oldest %(age)s") % {"age": words.age(stream.oldest_seconds)}
    yield {"label": _("entries kept, about"), "number": stream_words.rounded(stream.entries), "note": oldest}
    parts = ngettext("%(number)s partition", "%(number)s partitions", stream.partitions.number)
    yield {
        "label": _("on disk"),
        "number": stream_words.size(stream.bytes),
        "note": parts % {"number": words.count(stream.partitions)},
    }
    age = words.age(worst.lag_seconds) if worst and worst.lag_seconds is not None else ""
    lag = words.number(max((group.lag for group in stream.groups), default=0))
    note = gettext("oldest waits for %(age)s") % {"age": age} if age else ""
    yield {"label": _("worst lag"), "number": lag, "note": note}
    waiting = sum((group.ready + group.running for group in stream.groups), Count(0))
    yield {"label": _("retrying"), "number": words.count(waiting), "url": "#failed" if waiting else ""}
    dead = stream.dead
    yield {
        "label": ngettext("dead letter", "dead letters", dead.number),
        "number": words.count(dead),
        "url": "#failed" if dead else "",
        "alarm": bool(dead),
    }


def _state(entry: Failed | FailedEntry) -> tuple[Kind, Text]:
    """Return how an entry stands in a word or two, and the kind that colours them."""
    if entry.status == "ready" and not entry.attempts and not entry.failed_at:
        return Kind.WAITING, _("waits") if entry.key is None else _("waits for its key")
    return STATUS.get(entry.status, (Kind.WAITING, entry.status))


def _when(entry: Failed | FailedEntry) -> str:
    """Return when it died, or is tried again, or for how long its worker has it."""
    match entry.status:
        case "dead":
            return gettext("died %(time)s") % {"time": words.clock(entry.failed_at)} if entry.failed_at else ""
        case "running":
            return gettext("leased until %(time)s") % {"time": words.clock(entry.until)} if entry.until else ""
    if not entry.attempts and not entry.failed_at:  # it waits for another entry, not for a time
        return ""
    return gettext("due %(time)s") % {"time": words.clock(entry.due_at)}


def _lease(lease: LeaseState, group: str, situation: Situation) -> dict[str, Any]:
    return {
        "range": gettext("after %(low)s to %(high)s")
        % {"low": words.number(lease.low), "high": words.number(lease.high)},
        "group": words.showable(group),
        "worker": words.showable(situation.name_of(lease.worker)),
        "claimed": words.clock(lease.claimed_at),
        "kind": "lost" if lease.lapsed else "running",
        "state": (gettext("ended %(time)s") if lease.lapsed else gettext("beating until %(time)s"))
        % {"time": words.clock(lease.until)},
        "reclaims": words.number(lease.reclaims) if lease.reclaims > 0 else "",
    }


def _partitions(stream: StreamState, parts: Sequence[PartitionState]) -> dict[str, Any]:
    shown = parts[:MOST_PARTITIONS_SHOWN]
    if len(parts) > len(shown):  # the ends say more than the middle
        half = MOST_PARTITIONS_SHOWN // 2
        shown = [*parts[:half], *parts[-half:]]
    return {
        "rows": [
            {
                "name": part.name,
                "lower": "" if part.lower is None else words.number(max(1, part.lower)),
                "upper": "" if part.upper is None else words.number(part.upper - 1),
                "entries": stream_words.about(part.entries),
                "size": stream_words.size(part.bytes),
                "newest": "" if part.newest_seconds is None else words.age(part.newest_seconds),
                "is_current": part.lower is not None
                and part.upper is not None
                and part.lower <= max(1, stream.head) < part.upper,
            }
            for part in shown
        ],
        "most": words.number(len(shown)) if len(parts) > len(shown) else "",
        "all": f"{words.number(len(parts))}{'+' if stream.partitions.more else ''}",
    }
