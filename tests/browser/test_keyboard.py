"""Whatever can be decided can be decided without a mouse, and on a narrow screen."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from django_pgbus.models import Archived, Cursor, DeadLetter, EntryException, Message, QueueState, Subscription
from tests.browser.published import Published, published_events
from tests.browser.shop import Shop, a_busy_shop
from tests.browser.streamed import some_streams
from tests.browser.test_pages import keep, violations

# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

FAR = 120  # presses of Tab


@pytest.fixture
def shop(admin_user: Any) -> Shop:
    return a_busy_shop()


@pytest.fixture
def events(admin_user: Any) -> Published:
    return published_events()


def reach(page: Any, selector: str) -> None:
    """Press Tab until the element has the focus, and shows it."""
    for _ in range(FAR):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            ring = page.evaluate(
                "() => { const style = getComputedStyle(document.activeElement);"
                " return style.outlineStyle + style.boxShadow + style.backgroundColor; }"
            )
            assert ring
            return
    raise AssertionError(f"{selector} is not reached by {FAR} presses of Tab")


def test_a_dead_letter_is_redriven_from_its_page(shop: Shop, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_deadletter_change", args=[shop.dead.pk]))
    reach(page, "a[href$='/redrive/']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/redrive/")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/message/{shop.dead.pk}/change/")
    assert "1 dead letter was redriven." in page.content()
    assert Message.objects.filter(pk=shop.dead.pk).exists()


def test_a_decision_is_taken_back(shop: Shop, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_deadletter_discard", args=[shop.dead.pk]))
    reach(page, "a.pgbus-back")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/deadletter/{shop.dead.pk}/change/")
    assert DeadLetter.objects.filter(pk=shop.dead.pk).exists()


def test_jobs_are_discarded_from_the_list(shop: Shop, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_message_changelist", query={"q": shop.ready.pk}))
    reach(page, "select[name=action]")
    page.keyboard.type("Discard")
    reach(page, "input.action-select")
    page.keyboard.press("Space")
    page.keyboard.press("Shift+Tab")
    page.locator("button[name=index]").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector(".pgbus-confirm")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".messagelist")
    assert Archived.objects.get(pk=shop.ready.pk).outcome == "discarded"


def test_a_queue_is_paused(shop: Shop, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_queuestate_changelist"))
    reach(page, "a.button[href*='imports/pause']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/pause/")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queuestate/")
    assert QueueState.objects.get(queue="imports").paused_by == "admin"


def test_a_handler_is_unbound(events: Published, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_subscription_changelist"))
    reach(page, "a[href='#subscriptions']")
    page.keyboard.press("Enter")
    reach(page, "a.button[href*='unbind/?handler=tests.admin.handlers.audit']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/unbind/**")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/subscription/")
    assert "Handler tests.admin.handlers.audit was unbound from orders.#." in page.content()
    assert not Subscription.objects.filter(pk=events.subscription.pk).exists()


def test_from_the_events_to_one_event_to_its_copy_and_redriven(events: Published, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_subscription_changelist"))
    reach(page, f".pgbus-copy a[href*='q={events.dead.event_id}']")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/subscription/?q={events.dead.event_id}")
    reach(page, "a.button[href$='/redrive/']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/redrive/")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/message/{events.dead.pk}/change/")
    assert Message.objects.get(pk=events.dead.pk).event_id == events.dead.event_id


@pytest.mark.parametrize("name", ["queuestate", "worker", "message", "deadletter"])
def test_a_page_fits_a_narrow_screen(name: str, shop: Shop, opened: Any) -> None:
    page = opened(reverse(f"admin:pgbus_{name}_changelist"))
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_a_group_is_rewound_to_a_position(admin_user: Any, opened: Any) -> None:
    streams = some_streams()
    page = opened(reverse("admin:pgbus_streamlog_change", args=[streams.ledger.pk]))
    reach(page, "a[href*='/rewind/'][href$='group=totals']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/rewind/?**")
    reach(page, "#pgbus-position")
    page.keyboard.type("55000")
    page.keyboard.press("Enter")
    page.wait_for_url("**position=55000**")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/change/")
    assert "Group totals was rewound to position 55,000" in page.content()
    assert Cursor.objects.get(group=streams.totals).claimed == 55_000


def test_failed_entries_are_chosen_and_discarded(admin_user: Any, opened: Any) -> None:
    streams = some_streams()
    page = opened(reverse("admin:pgbus_streamlog_change", args=[streams.ledger.pk]))
    reach(page, f"input[name=entry][value='{streams.masked.pk}']")
    page.keyboard.press("Space")
    reach(page, "input[type=submit][formaction$='/discard/']")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/discard/?*entry={streams.masked.pk}")
    reach(page, "input[type=submit]")
    page.keyboard.press("Enter")
    page.wait_for_url("**/change/")
    assert not EntryException.objects.filter(pk=streams.masked.pk).exists()
