"""The change list and the filters of our pages: bounded, and asked nothing that an index cannot answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import django
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import BooleanField, F, Func, QuerySet, Value
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.bounds import REACH, BoundedPaginator
from django_pgbus.admin.given import UNREADABLE
from django_pgbus.queues import stats

MOST_CHOICES: Final = 100
NEWEST: Final = _("Searched are the newest %(number)s. Older ones are found by their ID.")
NEW_FRAME: Final = django.VERSION >= (6, 1)  # breadcrumbs and pages are lists; styles for anything else are gone


def among(ids: list[int]) -> Func:
    """Match the rows of these ids, given as one array: to read ten thousand parameters takes longer than the rows."""
    return Func(
        F("pk"),
        Value(ids),
        template="(%(expressions)s::bigint[]))",
        arg_joiner=" = ANY (",
        output_field=BooleanField(),
    )


class BoundedChangeList(ChangeList):
    """
    A list of which nothing is asked that takes long.

    Sorted by nothing but what has an index, whatever the query string says; payload, errors and result stay in the
    database; a filter without an index looks at the newest rows only, and `notes` say so where there are others.
    """

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        # Django writes them into links before it asks for anything.
        if any(UNREADABLE.search(text) for name, values in request.GET.lists() for text in (name, *values)):
            raise IncorrectLookupParameters("unreadable")
        super().__init__(request, *args, **kwargs)
        self.title = str(capfirst(self.opts.verbose_name_plural))

    def get_ordering_field(self, field_name: Any) -> Any:
        """Return the field to sort by, or None for one that cannot be sorted by."""
        allowed = self.sortable_by or ()
        return super().get_ordering_field(field_name) if field_name in allowed else None

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return what is asked for, within reach."""
        queryset: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        admin: Any = self.model_admin
        active: list[Any] = [spec for spec in self.filter_specs if spec.value() is not None]  # type: ignore[attr-defined]
        self.notes = [spec.note for spec in active if spec.note]
        if admin.searches_text(self.query) or any(spec.looks_far for spec in active):
            queryset, beyond = admin.within_reach(queryset)
            if beyond:
                self.notes.append(NEWEST % {"number": words.number(REACH)})
        return queryset.defer(*admin.heavy)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page and what it takes to explain its rows."""
        super().get_results(request)
        paginator = self.paginator
        assert isinstance(paginator, BoundedPaginator)
        self.shown = paginator.shown
        self.paging_ends = words.number(self.result_count)
        self.new_frame = NEW_FRAME
        self.result_list = list(self.result_list)
        self.show_admin_actions = bool(self.result_list)
        if paginator.more or not (self.query or self.has_active_filters):
            # Beside the search field Django shows the number found, which it is not.
            self.full_result_count = self.result_count
        self.model_admin.furnish(self.result_list)  # type: ignore[attr-defined]


class ChoiceFilter(SimpleListFilter):
    """One choice out of a few; `looks_far` if no index finds it."""

    looks_far: ClassVar[bool] = False
    note: ClassVar[Any] = ""  # what a person has to know of its rows

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the choice."""
        value = self.value()
        return queryset if value is None else self.chosen(queryset, value)

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return the rows of `value`."""
        return queryset.filter(**{str(self.parameter_name): value})


class GivenFilter(ChoiceFilter):
    """A value that a link gives: there are too many to choose from."""

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the given value alone."""
        given = self.value()
        return [(given, words.showable(given))] if given else []


class QueueFilter(ChoiceFilter):
    """The queues that are known, without asking every row for its queue."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the first queues by name, and the chosen one."""
        known = stats.names(MOST_CHOICES)
        chosen = self.value()
        return [(name, name) for name in ([*known, chosen] if chosen and chosen not in known else known)]


class FarQueueFilter(QueueFilter):
    """The same where no index knows queues."""

    looks_far = True


class RunningFilter(ChoiceFilter):
    """Ready or with a worker."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the two halves of the line."""
        return [("ready", _("Ready")), ("running", _("Running"))]

    def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        """Return what runs by its ids; no index may tell who is leased."""
        match value:
            case "ready":
                return queryset.filter(leased_until__isnull=True)
            case "running":
                return queryset.filter(among(stats.running_ids()))
        return queryset.none()


class FieldChoiceFilter(ChoiceFilter):
    """One of a field's choices."""

    looks_far = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterator[tuple[str, Any]]:
        """Return the choices of the field."""
        field = model_admin.model._meta.get_field(self.parameter_name)
        return ((value, capfirst(label)) for value, label in field.choices)


def field_filter(
    name: str, title: Any, ids_of: Callable[[str], list[int]] | None = None, note: Any = ""
) -> type[FieldChoiceFilter]:
    """Return a filter over the choices of a field; `ids_of` returns the ids where an index can find them."""

    class Filter(FieldChoiceFilter):
        looks_far = ids_of is None

        def chosen(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
            return super().chosen(queryset, value) if ids_of is None else queryset.filter(among(ids_of(value)))

    Filter.title, Filter.parameter_name, Filter.note = title, name, note
    return Filter
