"""One number, one place: whoever shows the limits shows the same at the same instant."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import words
from django_pgbus.concurrency import stats
from django_pgbus.queues.stats import Count
from tests.admin import rows
from tests.observability.mcp.asking import ask
from tests.observability.reading import Scraped

pytestmark = pytest.mark.django_db(transaction=True)  # MCP reads on a connection of its own

Numbers = tuple[
    str, str, str, str
]  # as the Locks page writes them: parked, oldest wait, slots held, keys at their limit


def of_the_page(client: Client) -> Numbers:
    response = client.get(reverse("admin:pgbus_semaphore_changelist"))
    parked, oldest, slots, at_limit = (str(card["number"]) for card in response.context["limited"]["cards"])
    return parked, oldest, slots, at_limit


def of_the_scrape() -> Numbers:
    found = Scraped()
    return _written(
        found.value("pgbus_concurrency_blocked_executions"),
        found.value("pgbus_concurrency_blocked_oldest_age_seconds"),
        found.value("pgbus_concurrency_slots_held"),
        found.value("pgbus_concurrency_keys_at_limit"),
    )


def of_the_statistics() -> Numbers:
    totals = stats.totals()
    return _written(
        totals.parked.number.number, totals.parked.oldest or 0.0, totals.slots.number, totals.at_limit.number
    )


def of_the_tool() -> Numbers:
    found = ask("pgbus_concurrency")
    return _written(
        found["parked_total"]["number"],
        found["oldest_parked_seconds"] or 0.0,
        found["slots_held"]["number"],
        found["keys_at_limit"]["number"],
    )


# Whoever else shows them adds a function here: (client) -> Numbers.
SHOWN: dict[str, Any] = {
    "page": of_the_page,
    "mcp": lambda client: of_the_tool(),
    "scrape": lambda client: of_the_scrape(),
    "statistics": lambda client: of_the_statistics(),
}


def _written(parked: float, oldest: float, slots: float, at_limit: float) -> Numbers:
    number = [words.count(Count(int(value))) for value in (parked, slots, at_limit)]
    return number[0], words.age(oldest), number[1], number[2]


@pytest.mark.proves("the-same-numbers-everywhere")
def test_everybody_shows_the_same(admin_client: Client) -> None:
    for key, capacity in (("a", 1), ("b", 2), ("c", 1)):
        rows.a_limit(key, capacity)
        rows.a_slot(rows.a_message().pk, key)
    for nth in range(1_200):
        rows.a_parked("a", parked_at=rows.now() - timedelta(minutes=150, seconds=nth / 100))
    rows.a_parked("u", waits_for="key", semaphore=None, parked_at=rows.now() - timedelta(days=2))
    shown = {name: look(admin_client) for name, look in SHOWN.items()}
    assert set(shown.values()) == {shown["page"]}, shown
    assert shown["page"][0] == "1,200"
    assert shown["page"][2:] == ("3", "2")
