"""
A real Chromium, driven by Playwright; without one these tests are skipped, visibly.

    CHROMIUM                  the browser to use, if it is not on PATH
    PGBUS_SCREENSHOTS         folder to keep a picture of each page in
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import pytest
from django.core.signals import request_finished, request_started

HERE = Path(__file__).parent
POLICY = "default-src 'self'"
DOCUMENTS = re.compile(r"^\w+://[^/]+/admin/")  # not what lies under /static/admin/: a policy is a document's
FLAGS = ["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking"]


def chromium() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark these tests, and run them last: from the first one on, Playwright has a loop running in this thread."""
    ours = [item for item in items if HERE in item.path.parents]
    items[:] = [item for item in items if HERE not in item.path.parents] + ours
    for item in ours:
        item.add_marker(pytest.mark.browser)
        if not chromium():
            item.add_marker(pytest.mark.skip(reason="no Chromium"))


@pytest.fixture(scope="session", autouse=True)
def _queries_beside_a_loop() -> None:
    """Let Django query in a thread that has a loop, until the databases of the tests are gone."""
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"


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
def strict(page: Any) -> None:
    """Let every page come with the strictest policy, whatever this Django can do itself."""

    def answer(route: Any) -> None:
        response = route.fetch(max_redirects=0)
        route.fulfill(response=response, headers={**response.headers, "content-security-policy": POLICY})

    page.route(DOCUMENTS, answer)


@pytest.fixture
def opened(page: Any, live_server: Any, admin_client: Any, complaints: list[str]) -> Iterator[Any]:
    """A page with somebody logged in who may do everything; `opened(path, scheme)` goes there."""
    cookie = admin_client.cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": cookie, "url": live_server.url}])

    def go(path: str, scheme: str = "light") -> Any:
        page.emulate_media(color_scheme=scheme)
        page.goto(live_server.url + path)
        return page

    with requests_come_to_their_end():
        yield go
        page.goto("about:blank")


@contextmanager
def requests_come_to_their_end(quiet: float = 0.3, most: float = 10.0) -> Iterator[None]:
    """Wait at the end for requests that nobody waits for any more: emptying the tables would be in their way."""
    under_way: list[float] = [0, time.monotonic()]  # how many, and since when
    lock = Lock()

    def count(change: int) -> Callable[..., None]:
        def counted(**kwargs: Any) -> None:
            with lock:
                under_way[:] = [under_way[0] + change, time.monotonic()]

        return counted

    began, ended = count(1), count(-1)
    request_started.connect(began)
    request_finished.connect(ended)
    try:
        yield
        deadline = time.monotonic() + most
        while (under_way[0] > 0 or time.monotonic() < under_way[1] + quiet) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        request_started.disconnect(began)
        request_finished.disconnect(ended)
