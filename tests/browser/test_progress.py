"""A decision about many: it goes on by itself and stops when it is told to; without its script a person goes on."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from django_pgbus.admin import decisions
from django_pgbus.models import Archived, DeadLetter, Message
from tests.admin.rows import a_dead_letter, now, payload
from tests.browser.shop import Shop, a_busy_shop
from tests.browser.test_keyboard import reach
from tests.browser.test_pages import keep, violations

# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

LETTERS = 60  # in six parts


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a request carry out ten."""
    for module in ("decisions", "bounds"):
        monkeypatch.setattr(f"django_pgbus.admin.{module}.LIMIT", 10)
    monkeypatch.setattr(decisions, "BATCH", 5)


@pytest.fixture
def letters(admin_user: Any) -> int:
    for number in range(LETTERS):
        a_dead_letter(died_at=now(), payload=payload(number))
    return LETTERS


def confirm(page: Any) -> None:
    """Select every dead letter across all pages, and confirm that they are discarded."""
    page.locator("#action-toggle").check()
    page.locator("span.question a").click()
    page.locator("select[name=action]").select_option("discard")
    page.locator("button[name=index]").click()
    page.wait_for_selector(".pgbus-confirm")
    assert f"Discard {LETTERS} dead letters?" in page.content()
    assert violations(page) == []
    keep(page, "confirm-parts")
    page.locator(".pgbus-choice input[type=submit]").click()
    page.wait_for_selector(".pgbus-parts")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_goes_on_by_itself_until_it_is_finished(
    scheme: str, letters: int, strict: None, opened: Any, complaints: list[str]
) -> None:
    page = opened(reverse("admin:pgbus_deadletter_changelist"), scheme)
    confirm(page)
    page.get_by_text("Finished: 60 done.").wait_for()
    keep(page, f"progress-over-{scheme}")
    assert violations(page) == []
    assert Archived.objects.filter(outcome="discarded").count() == letters
    assert complaints == []


def test_it_stops_when_it_is_told_to_and_goes_on_again(letters: int, strict: None, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_deadletter_changelist"))
    confirm(page)
    page.wait_for_function("() => document.activeElement.matches('[data-pgbus-stop]')")
    page.keyboard.press("Enter")
    page.get_by_text("Stopped.").wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, "narrow-progress")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")
    left = DeadLetter.objects.count()
    assert 0 < left < LETTERS, "the part that was under way is the last one"
    page.wait_for_timeout(1500)
    assert DeadLetter.objects.count() == left
    assert page.locator("[data-pgbus-continue]").is_visible()
    page.locator("[data-pgbus-continue]").click()
    page.get_by_text("Finished: 60 done.").wait_for()


def test_without_its_script_a_person_goes_on(letters: int, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_deadletter_changelist"))
    page.route("**/pgbus/progress.js", lambda route: route.fulfill(body="", content_type="text/javascript"))
    confirm(page)
    assert not page.locator("[data-pgbus-stop]").is_visible()
    keep(page, "progress-without-script")
    for said in ("20 of 60 done.", "30 of 60 done."):
        reach(page, "[data-pgbus-continue]")
        page.keyboard.press("Enter")
        page.get_by_text(said).wait_for()
    assert DeadLetter.objects.count() == 30


def test_jobs_of_several_states_are_chosen_and_decided_about_without_a_mouse(admin_user: Any, opened: Any) -> None:
    shop: Shop = a_busy_shop()
    page = opened(reverse("admin:pgbus_message_changelist"))
    page.locator("select[name=action]").select_option("redrive")
    for job in (shop.dead, shop.retrying):
        reach(page, f"input.action-select[value='{job.pk}']")
        page.keyboard.press("Space")
    assert "2 of 50 selected" in page.content()
    page.locator("button[name=index]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".pgbus-confirm")
    keep(page, "confirm-mixed")
    assert "1 of the chosen jobs is in no state for this" in page.content()
    reach(page, ".pgbus-choice input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist")
    assert "1 dead letter was redriven." in page.content()
    assert Message.objects.filter(pk=shop.dead.pk).exists()


@pytest.mark.parametrize("query", ["", "?q=charge"])
def test_the_list_of_all_jobs_fits_an_ordinary_screen(query: str, admin_user: Any, opened: Any) -> None:
    a_busy_shop()
    page = opened(reverse("admin:pgbus_message_changelist") + query)
    assert page.evaluate(
        "() => [...document.querySelectorAll('.results')].every(one => one.scrollWidth <= one.clientWidth)"
    )
