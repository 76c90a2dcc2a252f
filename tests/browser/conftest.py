"""
A real Chromium, driven by Playwright; without one these tests are skipped, visibly.

    CHROMIUM                  the browser to use, if it is not on PATH
    PGBUS_SCREENSHOTS         folder to keep a picture of each page in
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "true")  # Playwright's sync API runs a loop in this thread

HERE = Path(__file__).parent
FLAGS = ["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if not chromium():
                item.add_marker(pytest.mark.skip(reason="no Chromium"))


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    flags = [*FLAGS, "--no-sandbox"] if os.geteuid() == 0 else FLAGS
    return {**browser_type_launch_args, "executable_path": chromium(), "args": flags}


@pytest.fixture(scope="session")
def browser_context_args(browser_context_args: dict[str, Any]) -> dict[str, Any]:
    return {
        **browser_context_args,
        "viewport": {"width": 1280, "height": 900},
        "locale": "en-GB",
        "timezone_id": "UTC",
        "reduced_motion": "reduce",
    }


@pytest.fixture
def complaints(page: Any) -> Iterator[list[str]]:
    """What the browser complains about, CSP included; a test that ends with one fails."""
    heard: list[str] = []

    def hear(message: Any) -> None:
        if message.type == "error" and "favicon" not in message.location.get("url", ""):
            heard.append(message.text)

    page.on("console", hear)
    page.on("pageerror", lambda error: heard.append(str(error)))
    yield heard
    assert not heard


@pytest.fixture
def opened(page: Any, live_server: Any, admin_client: Any, complaints: list[str]) -> Any:
    """A page with somebody logged in who may do everything; `opened(path, scheme)` goes there."""
    cookie = admin_client.cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])

    def go(path: str, scheme: str = "light") -> Any:
        page.emulate_media(color_scheme=scheme)
        page.goto(live_server.url + path)
        return page

    return go
