"""The decision to remove the subscription of a handler to one pattern."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

from django.contrib import messages
from django.db import transaction
from django.http import QueryDict
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_pgbus.admin import words
from django_pgbus.admin.key_decisions import KeyDecision, Log, Told
from django_pgbus.conf import database
from django_pgbus.events import subscriptions
from django_pgbus.events.models import Subscription
from django_pgbus.worker.waiting import Text


class Unbind(KeyDecision):
    """Removes one pattern of one handler."""

    name = "unbind"
    permissions = ("pgbus.view_subscription", "pgbus.unbind_subscription")
    label: ClassVar[Text] = _("Unbind")
    gone: ClassVar[Text] = _("Nothing was changed: this handler is not subscribed to this pattern any more.")

    def find(self, query: QueryDict) -> Subscription | None:
        """Return the subscription, None if it is gone."""
        handler, pattern = query.get("handler", ""), query.get("pattern", "")
        if "\x00" in handler + pattern:
            return None
        rows = Subscription.objects.using(database())
        return rows.filter(handler=handler, pattern=pattern).first()

    def key(self, found: Any) -> str:
        """Return nothing: handler and pattern stand in the question."""
        return ""

    def ask(self, found: Subscription) -> dict[str, Any]:
        """Return what unbinding does, and what it does not."""
        named = _named(found)
        return {
            "title": gettext("Unbind %(handler)s from %(pattern)s?") % named,
            "warning": gettext(
                "Events that are published from now on and match %(pattern)s get no copy for this handler. What was "
                "published before still comes to it. A worker whose code has the handler subscribes it again when it "
                "starts: take the subscription out of the code too."
            )
            % named,
            "button": _("Unbind"),
            "destroys": True,
        }

    def carry_out(self, found: Subscription, form: QueryDict, log: Log) -> Iterator[Told]:
        """Remove it and log that, in one transaction."""
        named = _named(found)
        with transaction.atomic(using=database()):
            removed = subscriptions.unbind(found.handler, found.pattern, by=log.by)
            if removed:
                log(found, gettext("Unbound from %(pattern)s.") % named)
        if removed:
            yield gettext("Handler %(handler)s was unbound from %(pattern)s.") % named, messages.SUCCESS
        else:
            yield str(self.gone), messages.WARNING


UNBIND: Final = Unbind()


def _named(found: Subscription) -> dict[str, str]:
    return {"handler": words.showable(found.handler), "pattern": words.showable(found.pattern)}
