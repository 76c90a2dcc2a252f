"""Small pieces of markup that several pages have in common."""

from __future__ import annotations

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext, ngettext

from django_pgbus.admin import words
from django_pgbus.queues.models import DeadLetter
from django_pgbus.worker.waiting import Standing


def shown_standing(standing: Standing) -> SafeString:
    """Return how something stands in a word or two, and why; the colour only repeats it."""
    return format_html(
        '<span class="pgbus-state pgbus-{}" title="{}">{}</span>', standing.kind.value, standing.reason, standing.state
    )


def shown_path(path: str) -> SafeString:
    """Return a task's path, which may be broken at its dots."""
    path = words.showable(path)
    parts = format_html_join(mark_safe(".<wbr>"), "{}", ((part,) for part in path.split(".")))
    return format_html('<span class="pgbus-path" title="{}">{}</span>', path, parts)


def shown_topic(topic: str | None) -> SafeString:
    """Return an event's topic, or that it has none: `publish` always gives one, whoever writes the row himself may not."""
    if topic is None:
        return format_html('<span class="pgbus-quiet">{}</span>', gettext("without a topic"))
    return format_html("<code>{}</code>", words.showable(topic))


def end(reason: str, attempts: int) -> str:
    """Return why a job was given up, and after how many attempts."""
    text = ngettext("%(reason)s, after %(number)s attempt", "%(reason)s, after %(number)s attempts", attempts)
    label = dict(DeadLetter.Reason.choices).get(reason, reason)
    return text % {"reason": label, "number": words.number(attempts)}
