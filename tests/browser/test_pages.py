"""Every page, seen: light and dark, clean for axe, without a complaint of the browser, usable without a mouse."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from tests.browser.shop import Shop, a_busy_shop

axe = pytest.importorskip("axe_playwright_python.sync_playwright")
# All databases: the live server's requests close what connections earlier tests have left open.
pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

# Django's own breadcrumbs before 6.1 tell links from text by colour alone.
OURS = {"include": [["body"]], "exclude": [["div.breadcrumbs"]]}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}


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
    "jobs-running": listed("message", "?state=running"),
    "jobs-none": listed("message", "?q=nothing"),
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
    "queues": listed("queuestate"),
    "confirm-pause": lambda shop: reverse("admin:pgbus_queuestate_pause", args=["imports"]),
    "workers": listed("worker"),
}


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


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_accessible_in_light_and_dark(name: str, shop: Shop, opened: Any) -> None:
    for scheme in ("light", "dark"):
        page = opened(PAGES[name](shop), scheme)
        keep(page, f"{name}-{scheme}")
        assert violations(page) == []
