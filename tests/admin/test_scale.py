"""Every page there is, over few rows and over ten times as many: it answers, and asks the database as often."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.contrib.auth import get_user_model
from django.db import transaction
from django.urls import path

from tests.scale import pages
from tests.scale.measure import MOST_QUERIES, Visit, visit_all
from tests.scale.pages import NoExample, every_page
from tests.scale.seed import analyze, seed

FEW, MANY = 200, 2000


def visited(rows: int) -> dict[str, Visit]:
    with transaction.atomic():
        seed(rows)
        visits = list(visit_all(times=1))
        transaction.set_rollback(True)
    analyze()  # estimates outlive what is rolled back
    found = {visit.page: visit for visit in visits}
    assert len(found) == len(visits), "two pages have one name"
    return found


@pytest.mark.proves("pages-are-bounded")
@pytest.mark.timeout(300)
@pytest.mark.django_db
def test_every_page_answers_and_asks_as_often_over_many_rows() -> None:
    few, many = visited(FEW), visited(MANY)

    assert [visit for visit in many.values() if visit.status != visit.expected] == []
    assert few.keys() <= many.keys()
    assert {name: visit.queries for name, visit in few.items()} == {name: many[name].queries for name in few}
    over = {name: visit.queries for name, visit in many.items() if visit.queries > MOST_QUERIES}
    assert over == {}


@pytest.mark.django_db
def test_a_page_that_nobody_measures_is_missed(monkeypatch: pytest.MonkeyPatch, settings: object) -> None:
    seed(FEW)
    get_user_model().objects.create_superuser("ann")
    assert list(every_page())
    page = admin.site._registry[pages.Message]
    urls = [path("fresh/", page.changelist_view, name="pgbus_message_fresh"), *page.get_urls()]
    forgotten = [("admin/pgbus/message/fresh/", urls[0])]
    monkeypatch.setattr(pages, "_patterns", lambda *args: forgotten)
    with pytest.raises(NoExample, match="pgbus_message_fresh"):
        list(every_page())
