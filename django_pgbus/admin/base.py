"""
The rules of all our pages.

Read only: nothing is added, changed or deleted here, and GET changes nothing. What a person may decide (`decisions.py`)
has a permission of its own, a confirmation that names the numbers, and an entry in the log. Pages are bounded
(`bounds.py`), work on every AdminSite and under every prefix, and hold no inline script or style.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import urlencode

from django.contrib import admin
from django.contrib.admin.exceptions import NotRegistered
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, reverse
from django.utils.translation import gettext as _

from django_pgbus.admin.bounds import REACH, BoundedPaginator, TookTooLongError, bounded
from django_pgbus.admin.lists import NEW_FRAME, BoundedChangeList
from django_pgbus.conf import database
from django_pgbus.postgres.keys import why_unusable

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin

P = ParamSpec("P")
Self = TypeVar("Self", bound="PgbusAdmin")
View = Callable[Concatenate[Self, HttpRequest, P], HttpResponse]


def within_bounds(view: View[Self, P]) -> View[Self, P]:
    """Let a page read under a time limit, and say so where it is reached."""

    @wraps(view)
    def answered(self: Self, request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if request.method == "POST":
            return view(self, request, *args, **kwargs)
        try:
            with bounded():
                return view(self, request, *args, **kwargs)
        except TookTooLongError:
            return self.page(request, "too_long.html", {"title": _("This took too long")}, status=503)

    return cast("View[Self, P]", answered)


class PgbusAdmin(ModelAdmin):
    """A read-only, bounded page for one of our tables."""

    heavy: ClassVar[tuple[str, ...]] = ()  # columns that lists leave in the database
    reach: ClassVar[str] = "id"  # the indexed column that says what is newest

    actions_on_top = True  # without any bar Django writes an inline style
    list_per_page = 50
    list_max_show_all = 50
    paginator = BoundedPaginator
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    view_on_site = False

    class Media:
        css: ClassVar[dict[str, Sequence[str]]] = {"all": ["pgbus/admin.css"]}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return that nothing is added here."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return that nothing is edited here."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return that nothing is deleted here: a discard settles what a job holds."""
        return False

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Return whether it is one of our filters; Django would allow to search a masked payload bit by bit."""
        return lookup in {declared.parameter_name for declared in self.list_filter}  # type: ignore[union-attr]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows, read where they are written."""
        return super().get_queryset(request).using(database())

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return a row, or None; also for what PostgreSQL cannot read, which Django would ask it for."""
        return None if why_unusable(object_id) else super().get_object(request, object_id, from_field)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[BoundedChangeList]:
        """Return our change list."""
        return BoundedChangeList

    def furnish(self, rows: Sequence[Any]) -> None:
        """Attach what it takes to explain the rows of a page, in a fixed number of queries."""

    def searches_text(self, term: str) -> bool:
        """Return whether a search looks at the text of rows."""
        return False

    def within_reach(self, queryset: QuerySet[Any]) -> tuple[QuerySet[Any], bool]:
        """Return the newest `REACH` rows of a queryset, and whether there are older ones."""
        newest: QuerySet[Any] = self.model._default_manager.using(database()).order_by(f"-{self.reach}")
        oldest = newest.values_list(self.reach, flat=True)[REACH : REACH + 1].first()
        if oldest is None:
            return queryset, False
        return queryset.filter(**{f"{self.reach}__gte": oldest}), True

    @within_bounds
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Return the list."""
        response = super().changelist_view(request, extra_context)
        if isinstance(response, TemplateResponse) and "cl" in (context := response.context_data or {}):
            self.finish_list(request, context)
        return response

    @within_bounds
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Return the page of one row."""
        response = super().change_view(request, object_id, form_url, extra_context)
        if isinstance(response, TemplateResponse) and "original" in (context := response.context_data or {}):
            self.finish_page(request, context)
        return response

    def finish_list(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add to what the template of the list gets."""

    def finish_page(self, request: HttpRequest, context: dict[str, Any]) -> None:
        """Add to what the template of one row gets."""

    @within_bounds
    def history_view(self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None) -> Any:
        """Return what people did to a row."""
        if not self.has_view_permission(request):  # Django looks for the row first, and tells whether it is there
            raise PermissionDenied
        return super().history_view(request, object_id, extra_context)

    def page(
        self, request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
    ) -> TemplateResponse:
        """Return a page of ours inside the admin's frame."""
        request.current_app = self.admin_site.name
        frame = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "pgbus_new_frame": NEW_FRAME,
        }
        return TemplateResponse(request, f"admin/pgbus/{template}", {**frame, **context}, status=status)

    def url(self, name: str, *args: Any) -> str:
        """Return the address of one of this model's pages."""
        return reverse(f"admin:pgbus_{self.opts.model_name}_{name}", args=args, current_app=self.admin_site.name)

    def link(self, request: HttpRequest, model: type[Model], name: str = "changelist", *args: Any, **query: Any) -> str:
        """Return the address of another model's page, empty where it is not registered or not for this person."""
        try:
            other = self.admin_site.get_model_admin(model)
            if not other.has_view_permission(request):
                return ""
            path = f"admin:{model._meta.app_label}_{model._meta.model_name}_{name}"
            address = reverse(path, args=args, current_app=self.admin_site.name)
        except (NoReverseMatch, NotRegistered):
            return ""
        return f"{address}?{urlencode(query)}" if query else address
