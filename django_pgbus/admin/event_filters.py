"""Copies of events in the lists of jobs: all of them, or those of one event; their index gives the order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin.lists import ChoiceFilter, GivenFilter

NEWEST_EVENTS = ("-event_id", "-id")


class EventsFilter(ChoiceFilter):
    """Copies of events alone; the page of events leads here."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the kind that an index knows."""
        return [("events", _("Events"))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the copies of events."""
        return queryset.filter(event_id__isnull=False) if value == "events" else queryset.none()


class EventFilter(GivenFilter):
    """The copies of one event; the page of events leads here."""

    title = _("event")
    parameter_name = "event"

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the copies of the event."""
        id = parsed_event(value)
        return queryset.none() if id is None else of_event(queryset, id)


def parsed_event(text: str) -> UUID | None:
    """Return the id of an event, or None for any other text."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def of_event(queryset: QuerySet[Any], id: UUID) -> QuerySet[Any]:
    """Return the copies of an event, asked for so that no index but theirs gives their order (`events/stats_sql.py`)."""
    return queryset.filter(event_id__range=(id, id))


def by_event(request: HttpRequest) -> bool:
    """Return whether a list holds copies of events alone."""
    return bool({"kind", "event"} & request.GET.keys()) or parsed_event(request.GET.get("q", "")) is not None
