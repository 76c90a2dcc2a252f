"""What our templates cannot get from a view: the list of an app's pages is a view of Django's."""

from __future__ import annotations

from typing import Any

from django import template

from django_pgbus.admin.summary import summary

register = template.Library()


@register.inclusion_tag("admin/pgbus/summary.html", takes_context=True)
def pgbus_summary(context: dict[str, Any]) -> dict[str, Any]:
    """Show the numbers of the pages that this person may see."""
    return summary(context.get("app_list") or [])
