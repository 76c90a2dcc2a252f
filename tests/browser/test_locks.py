"""Locks and parked jobs, seen: light and dark, narrow, clean for axe, under the strictest policy, without a mouse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.urls import reverse

from django_pgbus.models import Archived, BlockedExecution, Slot, UniquenessKey
from django_pgbus.postgres.keys import stored
from tests.admin.conftest import long_up as stats_long_up  # noqa: F401
from tests.browser.locked import LONG, ODD, LockedShop, a_locked_shop
from tests.browser.test_keyboard import reach
from tests.browser.test_pages import assert_clean, keep, violations
from tests.line import long_up  # noqa: F401
from tests.sessions import sessions

# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True, databases="__all__"),
    pytest.mark.usefixtures("stats_long_up"),
]


def locks(page: str = "changelist", **query: Any) -> str:
    return reverse(f"admin:pgbus_semaphore_{page}", query=query)


def parked(**query: Any) -> str:
    return reverse("admin:pgbus_blockedexecution_changelist", query=query)


PAGES: dict[str, Callable[[LockedShop], str]] = {
    "index-locked": lambda shop: reverse("admin:app_list", args=["pgbus"]),
    "locks": lambda shop: locks(),
    "locks-found": lambda shop: locks(q=ODD),
    "locks-nothing": lambda shop: locks(q="no such key"),
    "parked": lambda shop: parked(),
    "parked-for-key": lambda shop: parked(waits_for="semaphore", key=shop.running),
    "job-parked": lambda shop: reverse("admin:pgbus_blockedexecution_change", args=[shop.parked.pk]),
    "confirm-release": lambda shop: locks("release", key=shop.waiting),
    "confirm-release-running": lambda shop: locks("release", key=shop.running),
    "confirm-discard-parked": lambda shop: locks("discard_parked", key=ODD),
    "confirm-discard-lock": lambda shop: locks("discard_lock", key=shop.unique.key, job=shop.unique.message_id),
    "confirm-release-long": lambda shop: locks("release", key=stored(LONG)),
}


@pytest.fixture
def shop(admin_user: Any) -> Iterator[LockedShop]:
    """A shop in which somebody holds the row of a semaphore."""
    shop = a_locked_shop()
    with sessions() as other:
        other.sql("SET application_name = 'shop-web'")
        other.open()
        other.sql("SELECT key FROM pgbus_semaphores WHERE key = 'customer-4702' FOR UPDATE")
        yield shop
        other.roll_back()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_light_and_dark(
    name: str, shop: LockedShop, strict: None, opened: Any, complaints: list[str]
) -> None:
    assert_clean(opened, complaints, PAGES[name](shop), name)


@pytest.mark.parametrize("name", ["locks", "parked", "job-parked", "confirm-release-running", "confirm-release-long"])
def test_a_page_fits_a_narrow_screen(name: str, shop: LockedShop, opened: Any) -> None:
    page = opened(PAGES[name](shop))
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_the_tables_fit_an_ordinary_screen(shop: LockedShop, opened: Any) -> None:
    page = opened(locks())
    assert page.evaluate(
        "() => [...document.querySelectorAll('.pgbus-scroll')].every(one => one.scrollWidth <= one.clientWidth)"
    )


def test_a_running_holder_is_released_after_the_sterner_text(shop: LockedShop, opened: Any) -> None:
    page = opened(locks(q=shop.running))
    reach(page, "a[href*='/release/']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/release/?key=*")
    assert "probably still running" in page.locator(".pgbus-stern").inner_text()
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/semaphore/")
    assert "3 slots were released." in page.content()
    assert Slot.objects.filter(key=shop.running, leased_until__isnull=False).count() == 0


def test_a_key_with_newlines_and_markup_is_decided_about_as_it_is(shop: LockedShop, opened: Any) -> None:
    for decision, button in (("discard_parked", "Discard 2 parked jobs"), ("discard_lock", "Discard lock")):
        page = opened(locks(q=ODD))
        reach(page, f"a[href*='/{decision}/'][aria-label*='label']")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{decision}/?key=*")
        assert ODD in page.locator(".pgbus-key code").inner_text()
        reach(page, "input[type=submit]")
        assert page.evaluate("() => document.activeElement.value") == button
        page.keyboard.press("Enter")
        page.wait_for_url("**/semaphore/")
    assert not BlockedExecution.objects.filter(key=ODD).exists()
    assert not UniquenessKey.objects.filter(key=ODD).exists()


def test_a_decision_is_taken_back(shop: LockedShop, opened: Any) -> None:
    page = opened(locks("discard_parked", key=shop.running))
    reach(page, "a.pgbus-back")
    page.keyboard.press("Enter")
    page.wait_for_url("**/semaphore/")
    assert BlockedExecution.objects.filter(key=shop.running).count() == 37


def test_from_a_lock_to_its_parked_jobs_and_to_one_of_them(shop: LockedShop, opened: Any) -> None:
    page = opened(locks())
    page.locator("#pgbus-key-search").focus()
    page.keyboard.type(shop.running)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/semaphore/?q={shop.running}")
    reach(page, "a[href*='/blockedexecution/'][aria-label]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/blockedexecution/?*")
    reach(page, f"a[href*='/{shop.parked.pk}/change/']")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/blockedexecution/{shop.parked.pk}/change/**")
    reach(page, "a[href$='/discard/']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/discard/")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/archived/{shop.parked.pk}/change/**")
    assert Archived.objects.get(pk=shop.parked.pk).outcome == "discarded"
