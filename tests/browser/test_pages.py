"""Every page, seen: light and dark, clean for axe, without a complaint of the browser, usable without a mouse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from tests.browser.batched import Batches, some_batches
from tests.browser.published import Published, published_events
from tests.browser.shop import Shop, a_busy_shop
from tests.browser.streamed import Streamed, some_streams

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

# Django's own breadcrumbs before 6.1 tell links from text by colour alone.
OURS = {"include": [["body"]], "exclude": [["div.breadcrumbs"]]}
# To say of all that is well, node by node, takes as long as the search.
RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"],
    "resultTypes": ["violations"],
    "preload": False,
}


def listed(name: str, query: str = "") -> Callable[[Shop], str]:
    return lambda shop: reverse(f"admin:pgbus_{name}_changelist") + query


def shown(which: str, page: str = "change") -> Callable[[Shop], str]:
    def path(shop: Shop) -> str:
        obj = getattr(shop, which)
        return reverse(f"admin:pgbus_{obj._meta.model_name}_{page}", args=[obj.pk])

    return path


PAGES: dict[str, Callable[[Shop], str]] = {
    "index": lambda shop: reverse("admin:app_list", args=["pgbus"]),
    "jobs": listed("message"),
    "jobs-found": listed("message", "?q=charge"),
    "jobs-none": listed("message", "?q=nothing"),
    "jobs-ready": listed("message", "?state=ready"),
    "jobs-running": listed("message", "?state=running"),
    "job-ready": shown("ready"),
    "job-running": shown("running"),
    "job-paused": shown("paused"),
    "delayed": listed("delayed"),
    "job-retrying": shown("retrying"),
    "finished": listed("archived"),
    "job-finished": shown("done"),
    "dead-letters": listed("deadletter"),
    "dead-letter": shown("dead"),
    "dead-letter-gone": shown("gone"),
    "confirm-redrive": shown("dead", "redrive"),
    "confirm-discard": shown("running", "discard"),
    "confirm-hand-back": shown("running", "hand_back"),
    "confirm-run-now": shown("retrying", "run_now"),
    "queues": listed("queuestate"),
    "confirm-pause": lambda shop: reverse("admin:pgbus_queuestate_pause", args=["imports"]),
    "workers": listed("worker"),
    "insights-none": listed("runcount"),
}


OF_BATCHES: dict[str, Callable[[Batches], str]] = {
    "batches": lambda batches: reverse("admin:pgbus_batch_changelist"),
    "batches-finished": lambda batches: reverse("admin:pgbus_batch_changelist", query={"state": "finished"}),
    "batch": lambda batches: reverse("admin:pgbus_batch_change", args=[batches.open.pk]),
    "batch-failed": lambda batches: reverse("admin:pgbus_batch_change", args=[batches.failed.pk]),
    "batch-done": lambda batches: reverse("admin:pgbus_batch_change", args=[batches.done.pk]),
    "batch-members": lambda batches: reverse("admin:pgbus_message_changelist", query={"batch": batches.open.pk}),
    "job-of-batch": lambda batches: reverse("admin:pgbus_message_change", args=[batches.member.pk]),
    "confirm-redrive-member": lambda batches: reverse("admin:pgbus_deadletter_redrive", args=[batches.letter.pk]),
    "locks-batch": lambda batches: reverse("admin:pgbus_semaphore_changelist", query={"q": batches.lock.key}),
    "confirm-discard-lock-batch": lambda batches: reverse(
        "admin:pgbus_semaphore_discard_lock", query={"key": batches.lock.key, "job": batches.open.pk}
    ),
}

OF_EVENTS: dict[str, Callable[[Published], str]] = {
    "events": lambda events: reverse("admin:pgbus_subscription_changelist"),
    "events-found": lambda events: reverse("admin:pgbus_subscription_changelist", query={"q": "orders.paid"}),
    "event": lambda events: reverse("admin:pgbus_subscription_changelist", query={"q": events.masked.event_id}),
    "confirm-unbind": lambda events: reverse(
        "admin:pgbus_subscription_unbind",
        query={"handler": events.subscription.handler, "pattern": events.subscription.pattern},
    ),
    "jobs-of-events": lambda events: reverse("admin:pgbus_message_changelist", query={"kind": "events"}),
    "finished-of-events": lambda events: reverse("admin:pgbus_archived_changelist", query={"kind": "events"}),
    "copy": lambda events: reverse("admin:pgbus_message_change", args=[events.ready.pk]),
    "copy-masked": lambda events: reverse("admin:pgbus_message_change", args=[events.masked.pk]),
    "copy-owned": lambda events: reverse("admin:pgbus_delayed_change", args=[events.owned.pk]),
    "copy-skipped": lambda events: reverse("admin:pgbus_archived_change", args=[events.done.pk]),
    "copy-dead": lambda events: reverse("admin:pgbus_deadletter_change", args=[events.dead.pk]),
    "copy-gone": lambda events: reverse("admin:pgbus_deadletter_change", args=[events.gone.pk]),
}


def of_ledger(page: str, **query: Any) -> Callable[[Streamed], str]:
    return lambda streams: reverse(f"admin:pgbus_streamlog_{page}", query={"stream": streams.ledger.pk, **query})


def failed(which: str) -> Callable[[Streamed], str]:
    def path(streams: Streamed) -> str:
        entry = getattr(streams, which)
        return reverse("admin:pgbus_streamlog_entry", args=[entry.group.stream_id, entry.pk])

    return path


OF_STREAMS: dict[str, Callable[[Streamed], str]] = {
    "index-streams": lambda streams: reverse("admin:app_list", args=["pgbus"]),
    "streams": lambda streams: reverse("admin:pgbus_streamlog_changelist"),
    "streams-nothing": lambda streams: reverse("admin:pgbus_streamlog_changelist", query={"q": "no such stream"}),
    "stream": lambda streams: reverse("admin:pgbus_streamlog_change", args=[streams.ledger.pk]),
    "stream-of-a-group": lambda streams: reverse(
        "admin:pgbus_streamlog_change", args=[streams.ledger.pk], query={"group": "mail"}
    ),
    "stream-calm": lambda streams: reverse("admin:pgbus_streamlog_change", args=[streams.calm.pk]),
    "stream-empty": lambda streams: reverse("admin:pgbus_streamlog_change", args=[streams.empty.pk]),
    "entry-masked": failed("masked"),
    "entry-gone": failed("gone"),
    "entry-retried": failed("retried"),
    "entry-waits": failed("waits"),
    "confirm-pause-group": of_ledger("pause", group="totals"),
    "rewind": of_ledger("rewind", group="totals"),
    "rewind-refused": of_ledger("rewind", group="totals", to="position", position="99999999"),
    "confirm-rewind": of_ledger("rewind", group="totals", to="position", position="55000"),
    "confirm-rewind-all": of_ledger("rewind", group="totals", to="beginning"),
    "confirm-override": of_ledger("override"),
    "confirm-discard-dead": of_ledger("discard_dead", group="search-index"),
    "confirm-redrive-entry": lambda streams: of_ledger("redrive", entry=streams.masked.pk)(streams),
}


@pytest.fixture
def streams(admin_user: Any) -> Streamed:
    return some_streams()


@pytest.fixture
def events(admin_user: Any) -> Published:
    return published_events()


@pytest.fixture
def batches(admin_user: Any) -> Batches:
    return some_batches()


@pytest.fixture
def shop(admin_user: Any) -> Shop:
    return a_busy_shop()


def keep(page: Any, name: str) -> None:
    if folder := os.environ.get("PGBUS_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def violations(page: Any) -> list[str]:
    found = axe.Axe().run(page, context=OURS, options=RULES).response["violations"]
    return [f"{v['id']}: {node['html']}" for v in found for node in v["nodes"]]


def assert_clean(opened: Any, complaints: list[str], path: str, name: str) -> None:
    """Assert that a page is accessible in light and dark, without a complaint of the browser, and keep its pictures."""
    for scheme in ("light", "dark"):
        page = opened(path, scheme)
        keep(page, f"{name}-{scheme}")
        assert complaints == []
        assert violations(page) == []
        complaints.clear()  # axe itself measures with a style of its own


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_light_and_dark(name: str, shop: Shop, opened: Any) -> None:
    for scheme in ("light", "dark"):
        page = opened(PAGES[name](shop), scheme)
        keep(page, f"{name}-{scheme}")
        assert violations(page) == []


@pytest.mark.parametrize("name", OF_BATCHES)
def test_a_page_of_batches_is_accessible_in_light_and_dark(
    name: str, batches: Batches, strict: None, opened: Any, complaints: list[str]
) -> None:
    assert_clean(opened, complaints, OF_BATCHES[name](batches), name)


@pytest.mark.parametrize("name", ["batches", "batch", "batch-failed"])
def test_a_page_of_batches_fits_a_narrow_screen(name: str, batches: Batches, opened: Any) -> None:
    page = opened(OF_BATCHES[name](batches))
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("name", OF_EVENTS)
def test_a_page_of_events_is_accessible_in_light_and_dark(
    name: str, events: Published, strict: None, opened: Any, complaints: list[str]
) -> None:
    assert_clean(opened, complaints, OF_EVENTS[name](events), name)


@pytest.mark.parametrize("name", ["events", "event", "copy-masked", "copy-dead"])
def test_a_page_of_events_fits_a_narrow_screen(name: str, events: Published, opened: Any) -> None:
    page = opened(OF_EVENTS[name](events))
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


def test_the_page_of_events_fits_an_ordinary_screen(events: Published, opened: Any) -> None:
    page = opened(OF_EVENTS["events"](events))
    assert page.evaluate(
        "() => [...document.querySelectorAll('.pgbus-scroll')].every(one => one.scrollWidth <= one.clientWidth)"
    )


def test_the_list_of_batches_fits_an_ordinary_screen(batches: Batches, opened: Any) -> None:
    page = opened(OF_BATCHES["batches"](batches))
    assert page.evaluate(
        "() => [...document.querySelectorAll('.results')].every(one => one.scrollWidth <= one.clientWidth)"
    )


@pytest.mark.parametrize("name", OF_STREAMS)
def test_a_page_of_streams_is_accessible_in_light_and_dark(
    name: str, streams: Streamed, strict: None, opened: Any, complaints: list[str]
) -> None:
    assert_clean(opened, complaints, OF_STREAMS[name](streams), name)


@pytest.mark.parametrize("name", ["streams", "stream", "entry-masked", "rewind", "confirm-rewind"])
def test_a_page_of_streams_fits_a_narrow_screen(name: str, streams: Streamed, opened: Any) -> None:
    page = opened(OF_STREAMS[name](streams))
    page.set_viewport_size({"width": 390, "height": 800})
    keep(page, f"narrow-{name}")
    assert violations(page) == []
    assert page.evaluate("() => document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize("name", ["streams", "stream"])
def test_a_page_of_streams_fits_an_ordinary_screen(name: str, streams: Streamed, opened: Any) -> None:
    page = opened(OF_STREAMS[name](streams))
    assert page.evaluate(
        "() => [...document.querySelectorAll('.pgbus-scroll')].every(one => one.scrollWidth <= one.clientWidth)"
    )


def test_from_the_batches_to_a_member_without_a_mouse(batches: Batches, opened: Any) -> None:
    page = opened(reverse("admin:pgbus_batch_changelist"))
    for selector, url in (
        (f"a[href*='/batch/{batches.open.pk}/change/']", f"**/batch/{batches.open.pk}/change/**"),
        (".pgbus-cards a[href*='state=ready']", "**/message/?batch=*"),
        (f"a[href*='/message/{batches.member.pk}/change/']", f"**/message/{batches.member.pk}/change/**"),
        (f".field-member_of a[href*='/batch/{batches.open.pk}/change/']", f"**/batch/{batches.open.pk}/change/**"),
    ):
        for _ in range(120):
            page.keyboard.press("Tab")
            if page.evaluate("selector => document.activeElement.matches(selector)", selector):
                break
        page.keyboard.press("Enter")
        page.wait_for_url(url)
