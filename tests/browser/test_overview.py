"""Overview and insights, seen: light and dark, narrow, under the strictest policy, without a mouse; and kept up to date."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse

from django_pgbus.models import DeadLetter, Message, RunCount, StreamLog
from tests.admin import rows
from tests.browser.measured import a_week_of_runs
from tests.browser.shop import a_busy_shop
from tests.browser.streamed import some_streams
from tests.browser.test_keyboard import reach
from tests.browser.test_pages import assert_clean, keep, violations

# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

CARD = "#pgbus-cards li:first-child strong"
BUTTON = ".pgbus-refresh button"
KEEPS_TAB_HIDDEN = """hidden => {
  Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def overview() -> str:
    return reverse("admin:app_list", args=["pgbus"])


def insights(**query: str) -> str:
    return reverse("admin:pgbus_runcount_changelist", query=query)


PAGES: dict[str, Callable[[], str]] = {
    "overview": overview,
    "insights": insights,
    "insights-day": lambda: insights(window="24h", order="slowest"),
    "insights-week": lambda: insights(window="7d"),
    "insights-task": lambda: insights(task="shop.tasks.payments.charge"),
    "insights-nothing": lambda: insights(task="shop.tasks.none"),
}


@pytest.fixture
def shop(admin_user: Any) -> None:
    a_busy_shop()
    some_streams()
    a_week_of_runs()


@pytest.fixture
def calm(admin_user: Any) -> None:
    StreamLog.objects.all().delete()
    rows.a_worker(queues="*, @*: 10", running=0)


@pytest.fixture
def clocked(page: Any) -> Any:
    """The page's clock in our hands, so that nobody waits for five seconds."""
    page.clock.install()
    return page.clock


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_light_and_dark(
    name: str, shop: None, strict: None, opened: Any, complaints: list[str]
) -> None:
    assert_clean(opened, complaints, PAGES[name](), name)


@pytest.mark.parametrize("name", ["overview", "insights"])
def test_an_empty_page_says_so(name: str, calm: None, strict: None, opened: Any, complaints: list[str]) -> None:
    assert_clean(opened, complaints, PAGES[name](), f"{name}-empty")


@pytest.mark.parametrize("name", ["overview", "insights", "insights-week"])
def test_a_page_fits_a_narrow_screen(name: str, shop: None, opened: Any) -> None:
    page = opened(PAGES[name]())
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("name", ["overview", "insights"])
def test_the_tables_fit_an_ordinary_screen(name: str, shop: None, opened: Any) -> None:
    page = opened(PAGES[name]())
    too_wide = "one => one.scrollWidth > one.clientWidth"
    assert (
        page.evaluate(
            f"() => [...document.querySelectorAll('.pgbus-scroll')].filter({too_wide}).map("
            "one => `${one.getAttribute('aria-labelledby')}: ${one.scrollWidth} > ${one.clientWidth}`)"
        )
        == []
    )


def test_the_numbers_behind_a_chart_are_reached_without_a_mouse(
    shop: None, strict: None, opened: Any, complaints: list[str]
) -> None:
    page = opened(insights())
    reach(page, "#pgbus-numbers-runs summary")
    page.keyboard.press("Enter")
    rows = page.locator("#pgbus-numbers-runs tbody tr")
    assert rows.count() == 60
    assert rows.first.is_visible()
    keep(page, "insights-numbers")
    assert complaints == []
    assert violations(page) == []
    complaints.clear()
    reach(page, "#pgbus-numbers-runs .pgbus-scroll")  # scrolled by the arrow keys


def test_from_a_warning_to_the_page_behind_it_without_a_mouse(shop: None, opened: Any) -> None:
    page = opened(overview())
    reach(page, ".pgbus-warnings a[href*='/worker/']")
    page.keyboard.press("Enter")
    page.wait_for_url("**/worker/")


def test_a_task_is_chosen_without_a_mouse(shop: None, opened: Any) -> None:
    page = opened(insights())
    reach(page, "#pgbus-task")
    page.keyboard.type("shop.tasks.payments.charge")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runcount/?*task=shop.tasks.payments.charge*")
    assert page.locator(".pgbus-runs").first.locator("tbody tr").count() == 1


# --- kept up to date ----------------------------------------------------------------------------------------


def resume(page: Any) -> None:
    """Press the button until the page is refreshed: with reduced motion it starts paused."""
    assert page.locator(BUTTON).inner_text() == "Refresh every five seconds"
    with page.expect_response("**/pgbus/"):
        page.locator(BUTTON).click()
    assert page.locator(BUTTON).inner_text() == "Pause refreshing"
    at_rest(page)


def turn(page: Any, clock: Any) -> None:
    """Let five seconds pass, and what is asked for then be answered and taken over."""
    with page.expect_response("**/pgbus/"):
        clock.run_for(5_000)
    at_rest(page)


def at_rest(page: Any) -> None:
    page.wait_for_function("() => !document.querySelector('.pgbus-asking')")


def asks(page: Any) -> list[str]:
    """Return what is asked for from now on."""
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.resource_type == "fetch" else None)
    return asked


def test_numbers_are_replaced(calm: None, strict: None, clocked: Any, opened: Any, complaints: list[str]) -> None:
    page = opened(overview())
    resume(page)
    assert page.locator(CARD).inner_text() == "0"
    for _ in range(7):
        rows.a_message(queue="imports")
    turn(page, clocked)
    page.wait_for_function("card => document.querySelector(card).textContent === '7'", arg=CARD)
    assert page.locator("#pgbus-queues tbody tr").count() == 1
    Message.objects.all().delete()
    turn(page, clocked)
    page.wait_for_function("card => document.querySelector(card).textContent === '0'", arg=CARD)
    assert complaints == []


def test_it_refreshes_by_itself_unless_somebody_asks_for_less_motion(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    asked = asks(page)
    clocked.run_for(30_000)
    assert asked == [], "paused, since less motion is asked for"
    page.emulate_media(reduced_motion="no-preference")
    page.reload()
    assert page.locator(BUTTON).inner_text() == "Pause refreshing"
    turn(page, clocked)


def test_the_button_pauses_and_the_tab_remembers(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.reload()
    assert page.locator(BUTTON).inner_text() == "Pause refreshing", "kept"
    reach(page, BUTTON)
    page.keyboard.press("Enter")
    assert page.locator(BUTTON).inner_text() == "Refresh every five seconds"
    asked = asks(page)
    clocked.run_for(60_000)
    assert asked == []
    page.reload()
    asked = asks(page)
    clocked.run_for(60_000)
    assert asked == []
    assert page.evaluate("() => sessionStorage.getItem('pgbus-refresh')") == "paused"


def test_it_rests_while_the_tab_is_hidden(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.evaluate(KEEPS_TAB_HIDDEN, True)
    asked = asks(page)
    clocked.run_for(60_000)
    assert asked == []
    with page.expect_response("**/pgbus/"):
        page.evaluate(KEEPS_TAB_HIDDEN, False)
    assert len(asked) == 1, "at once when it is seen again"


def test_focus_scrolling_and_what_is_open_stay(shop: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.locator("#pgbus-hour summary").click()
    page.evaluate("() => document.querySelector('#pgbus-hour .pgbus-scroll').scrollTop = 120")
    page.locator("#pgbus-cards a[href*='/deadletter/']").focus()
    page.evaluate("() => scrollTo(0, 200)")
    before = page.evaluate("() => scrollY")
    DeadLetter.objects.all().delete()
    RunCount.objects.filter(queue="mail_receipts").delete()
    turn(page, clocked)
    page.wait_for_function(
        "() => document.querySelector(\"#pgbus-cards a[href*='/deadletter/'] strong\").textContent === '0'"
    )
    assert page.evaluate("() => document.activeElement.getAttribute('href')").endswith("/deadletter/")
    assert page.evaluate("() => document.querySelector('#pgbus-hour').open")
    assert page.evaluate("() => document.querySelector('#pgbus-hour .pgbus-scroll').scrollTop") == 120
    assert page.evaluate("() => scrollY") == before > 0


def test_what_somebody_has_selected_is_left_alone(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.evaluate("card => getSelection().selectAllChildren(document.querySelector(card))", CARD)
    rows.a_message()
    turn(page, clocked)
    page.wait_for_function("() => document.querySelector('#pgbus-queues tbody tr') !== null")
    assert page.locator(CARD).inner_text() == "0"
    page.evaluate("() => getSelection().removeAllRanges()")
    turn(page, clocked)
    page.wait_for_function("card => document.querySelector(card).textContent === '1'", arg=CARD)


def test_a_failure_is_told_once_and_quietly(calm: None, clocked: Any, opened: Any, complaints: list[str]) -> None:
    page = opened(overview())
    resume(page)
    said = page.locator(".pgbus-refresh [role=status]")
    page.route("**/pgbus/", lambda route: route.fulfill(status=500, body="no"))
    turn(page, clocked)
    page.wait_for_function("() => document.querySelector('.pgbus-refresh [role=status]').textContent !== ''")
    assert said.inner_text().startswith("It could not be refreshed")
    assert page.locator(CARD).inner_text() == "0"
    keep(page, "overview-failed")
    page.unroute("**/pgbus/")
    turn(page, clocked)
    page.wait_for_function("() => document.querySelector('.pgbus-refresh [role=status]').textContent === ''")
    assert [text for text in complaints if "500" not in text] == []
    complaints.clear()


def test_whoever_is_logged_out_is_told_and_asked_no_more(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.context.clear_cookies()
    turn(page, clocked)
    page.wait_for_function("() => document.querySelector('.pgbus-refresh [role=status]').textContent !== ''")
    assert page.locator(BUTTON).is_hidden()
    asked = asks(page)
    clocked.run_for(60_000)
    assert asked == []


def test_an_answer_that_takes_long_is_not_asked_for_twice(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    waiting: list[Any] = []
    page.route("**/pgbus/", lambda route: waiting.append(route))
    asked = asks(page)
    with page.expect_request("**/pgbus/"):
        clocked.run_for(5_000)
    clocked.run_for(14_000)
    assert len(asked) == 1
    page.locator(BUTTON).click()  # which ends it, too
    at_rest(page)
    page.unroute("**/pgbus/")
    resume(page)
    assert len(asked) == 2
    assert page.locator(".pgbus-refresh [role=status]").inner_text() == ""


def test_an_answer_that_never_comes_is_given_up_and_told(calm: None, clocked: Any, opened: Any) -> None:
    page = opened(overview())
    resume(page)
    page.route("**/pgbus/", lambda route: None)
    with page.expect_request("**/pgbus/"):
        clocked.run_for(5_000)
    clocked.run_for(20_000)
    at_rest(page)
    assert page.locator(".pgbus-refresh [role=status]").inner_text().startswith("It could not be refreshed")
    page.unroute("**/pgbus/")
    turn(page, clocked)
    assert page.locator(".pgbus-refresh [role=status]").inner_text() == ""
