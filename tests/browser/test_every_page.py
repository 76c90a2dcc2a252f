"""
Every page there is, in Chromium, as projects have them: in German, narrow and dark, on a site of their own under a script's
prefix, and beside django-unfold.

Which pages there are the URL patterns say (`tests/scale/pages.py`): a new one is not forgotten.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
from django.contrib import admin
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application
from django.urls import include, path

from django_pgbus import admin as ours
from tests.browser.test_pages import keep, violations
from tests.scale.pages import MONITORS, Page, every_page
from tests.scale.seed import seed

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.django_db(transaction=True, databases="__all__"),
]

WITH_UNFOLD = "PGBUS_TEST_UNFOLD"  # read by tests/settings.py
ROWS = 200
PREFIX = "/tools"
MOST_STOPS = 80  # of the tabulator that are made on one page: lists have fifty rows of one kind
REACHABLE = """() => {
  const kinds = "a[href], button, input:not([type=hidden]), select, textarea, summary";
  const first = one => {  // of the radio buttons of one name only one is a stop
    const group = [...document.querySelectorAll(`input[type=radio][name="${one.name}"]`)];
    return (group.find(other => other.checked) || group[0]) === one;
  };
  return [...document.querySelectorAll(kinds)].filter(one => one.type !== "radio" || first(one)).filter(
    one => !one.disabled && one.tabIndex >= 0 && one.checkVisibility({visibilityProperty: true})
  ).length;
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  if (!one.dataset.stop) one.dataset.stop = String(document.querySelectorAll("[data-stop]").length + 1);
  return {stop: Number(one.dataset.stop), html: one.outerHTML.slice(0, 120), seen: one.matches(":focus-visible")
    && one.checkVisibility({visibilityProperty: true})};
}"""
ENGLISH = (
    "Discard",
    "Queue",
    "Workers",
    "Finished",
    "Dead letters",
    "Pause",
    "Search",
)  # words of our own buttons and heads

site = admin.AdminSite(name="office")
ours.register(site)
urlpatterns = [path("office/", site.urls), path("pgbus/", include("django_pgbus.observability.urls"))]


@pytest.fixture
def each(admin_user: Any) -> Iterator[Page]:
    """One page of each pattern, over a database that has one of everything."""
    seed(ROWS)
    seen: set[str] = set()
    found = []
    for page in every_page():
        pattern = page.name.split()[0]
        if page.status == 200 and pattern not in seen and not page.name.startswith(MONITORS):
            seen.add(pattern)
            found.append(page)
    assert len(found) > 40
    return iter(found)


def name_of(page: Page) -> str:
    return page.name.split()[0].replace("pgbus_", "").replace("/", "-")


def faults_of(page: Any, complaints: list[str]) -> list[str]:
    """Return what is wrong with the page that is open, for eyes, fingers and screen readers."""
    heard = list(complaints)
    found = violations(page)
    complaints.clear()  # axe itself measures with a style of its own
    overflow = page.evaluate("() => document.documentElement.scrollWidth - window.innerWidth")
    return [*heard, *found, *([f"wider than the window by {overflow}"] if overflow > 0 else [])]


def gathered(pages: Iterator[Page], visit: Callable[[Page], list[str]]) -> dict[str, list[str]]:
    """Return the faults of all pages: whoever mends one wants to know of the others."""
    return {page.name: faults for page in pages if (faults := visit(page))}


def test_in_german_under_the_strictest_policy(
    each: Iterator[Page], settings: Any, strict: None, opened: Any, complaints: list[str]
) -> None:
    settings.LANGUAGE_CODE = "de"

    def visit(page: Page) -> list[str]:
        shown = opened(page.address)
        keep(shown, f"german-{name_of(page)}")
        text = set(shown.inner_text("body").split("\n"))
        left = [f"English: {word}" for word in ENGLISH if word in text]
        if shown.evaluate("document.documentElement.lang") != "de":
            left.append("not German")
        return [*left, *faults_of(shown, complaints)]

    assert gathered(each, visit) == {}


def test_narrow_and_dark(each: Iterator[Page], opened: Any, page: Any, complaints: list[str]) -> None:
    page.set_viewport_size({"width": 390, "height": 800})

    def visit(which: Page) -> list[str]:
        shown = opened(which.address, "dark")
        keep(shown, f"narrow-dark-{name_of(which)}")
        return faults_of(shown, complaints)

    assert gathered(each, visit) == {}


def stops(page: Any) -> list[str]:
    """Return what is wrong for whoever has no mouse: each stop is a new one, is seen, and all there is gets one."""
    wanted = min(page.evaluate(REACHABLE), MOST_STOPS)
    for number in range(1, wanted + 1):
        page.keyboard.press("Tab")
        focused = page.evaluate(FOCUSED)
        if focused is None:
            return [f"{number - 1} of {wanted} are reached"]
        if focused["stop"] != number:
            return [f"stop {number} is stop {focused['stop']} again: {focused['html']}"]
        if not focused["seen"]:
            return [f"stop {number} is not seen: {focused['html']}"]
    return []


def test_without_a_mouse(each: Iterator[Page], opened: Any) -> None:
    assert gathered(each, lambda page: stops(opened(page.address))) == {}


def test_on_a_site_of_ones_own_under_a_scripts_prefix(
    each: Iterator[Page], settings: Any, admin_client: Any, page: Any, complaints: list[str]
) -> None:
    every = list(each)  # while the addresses are those of the default site
    settings.ROOT_URLCONF = __name__
    settings.STATIC_URL = f"{PREFIX}/static/"  # Django adds the prefix once in a process, and this one had none before
    with served_below(PREFIX) as url:
        cookie = admin_client.cookies["sessionid"].value
        page.context.add_cookies([{"name": "sessionid", "value": cookie, "url": url}])

        def visit(which: Page) -> list[str]:
            answer = page.goto(url + PREFIX + which.address.replace("/admin/", "/office/", 1))
            heard = list(complaints)
            complaints.clear()
            astray = page.eval_on_selector_all(
                "a[href], form[action], link[href], script[src], img[src]",
                f"""found => found.map(one => one.href || one.action || one.src)
                    .filter(where => where.startsWith('{url}') && !where.startsWith('{url}{PREFIX}'))""",
            )
            return [*heard, *astray, *([] if answer.status == 200 else [str(answer.status)])]

        assert gathered(iter(every), visit) == {}


class served_below:  # noqa: N801  (reads like a function)
    """A server whose application lives below a prefix, as a web server in front of it says by SCRIPT_NAME."""

    def __init__(self, prefix: str) -> None:
        application = get_wsgi_application()
        files = StaticFilesHandler(application)

        def below(environ: dict[str, Any], start_response: Any) -> Any:
            before, prefixed, rest = environ["PATH_INFO"].partition(prefix)
            if before or not prefixed:
                start_response("404 Not Found", [("Content-Type", "text/plain")])
                return [b"outside of the prefix"]
            if rest.startswith("/static/"):
                return files(environ, start_response)
            return application({**environ, "SCRIPT_NAME": prefix, "PATH_INFO": rest}, start_response)

        self.server = WSGIServer(("127.0.0.1", 0), Quiet)
        self.server.set_app(below)
        self.thread = threading.Thread(target=self.server.serve_forever)

    def __enter__(self) -> str:
        self.thread.start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *exception: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class Quiet(WSGIRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.mark.skipif(not find_spec("unfold"), reason="django-unfold is not installed")
def test_beside_django_unfold() -> None:
    """In a process of its own: unfold takes over the admin when its app is loaded."""
    command = [sys.executable, "-m", "pytest", __file__, "-q", "-p", "no:cacheprovider", "-k", "with_unfold"]
    suffix = f"{os.environ.get('PGBUS_TEST_SUFFIX', '')}_unfold"
    env = {**os.environ, WITH_UNFOLD: "1", "PGBUS_TEST_SUFFIX": suffix}
    for name in [name for name in env if name.startswith("PYTEST_")]:
        del env[name]
    ended = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-5000:] + ended.stderr[-2000:]
    assert "1 passed" in ended.stdout


@pytest.mark.skipif(WITH_UNFOLD not in os.environ, reason="django-unfold is not among the apps of this process")
def test_with_unfold(each: Iterator[Page], opened: Any, page: Any) -> None:
    """Its own scripts and styles are its own matter; our pages are whole in its frame, and what they do works."""
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))

    def visit(which: Page) -> list[str]:
        shown = opened(which.address)
        keep(shown, f"unfold-{name_of(which)}")
        heard = list(broken)
        broken.clear()
        has_content = shown.inner_text("body").strip() and "Server Error" not in shown.inner_text("body")
        return [*heard, *([] if has_content else ["nothing is shown"])]

    assert gathered(each, visit) == {}
