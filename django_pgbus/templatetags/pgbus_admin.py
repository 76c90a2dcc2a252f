"""What our templates cannot get from a view: the list of an app's pages is a view of Django's."""

from __future__ import annotations

from typing import Any

from django import template

from django_pgbus.admin.overview import overview

register = template.Library()


@register.inclusion_tag("admin/pgbus/overview.html", takes_context=True)
def pgbus_overview(context: dict[str, Any]) -> dict[str, Any]:
    """Show how the things stand whose pages this person may see."""
    return overview(context.get("app_list") or [])
