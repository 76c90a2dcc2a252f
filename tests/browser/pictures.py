"""
The pictures of the docs: `pytest tests/browser/pictures.py` takes them anew, into docs/images. No test: nothing is asserted.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from django_pgbus.models import BlockedExecution, DeadLetter, Message, Semaphore, Slot, UniquenessKey
from tests.admin import rows
from tests.browser.batched import some_batches
from tests.browser.locked import ODD, a_locked_shop
from tests.browser.measured import a_week_of_runs
from tests.browser.published import published_events
from tests.browser.shop import a_busy_shop
from tests.browser.streamed import some_streams

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True, databases="__all__")]

FOLDER = Path(__file__).parents[2] / "docs" / "images"
HIGHEST = 1150  # pixels


def overview(scheme: str = "light") -> str:
    a_busy_shop()
    some_streams()
    a_week_of_runs()
    return reverse("admin:app_list", args=["pgbus"])


def insights() -> str:
    a_busy_shop()
    a_week_of_runs()
    return reverse("admin:pgbus_runcount_changelist")


def jobs() -> str:
    a_busy_shop()
    letters = DeadLetter.objects.order_by("-pk").values_list("pk", flat=True)
    DeadLetter.objects.filter(pk__in=list(letters[2:])).delete()
    for number in range(1, 4):
        rows.a_parked(f"customer-{4700 + number}")
    return reverse("admin:pgbus_message_changelist")


def retried_job() -> str:
    return reverse("admin:pgbus_delayed_change", args=[a_busy_shop().retrying.pk])


def dead_letter() -> str:
    return reverse("admin:pgbus_deadletter_change", args=[a_busy_shop().dead.pk])


def locks() -> str:
    a_locked_shop()
    return reverse("admin:pgbus_semaphore_changelist")


def release() -> str:
    return reverse("admin:pgbus_semaphore_release", query={"key": a_locked_shop().running})


def stream() -> str:
    return reverse("admin:pgbus_streamlog_change", args=[some_streams().ledger.pk])


def events() -> str:
    published_events()
    return reverse("admin:pgbus_subscription_changelist")


def batch() -> str:
    return reverse("admin:pgbus_batch_change", args=[some_batches().failed.pk])


PICTURES: dict[str, tuple[Callable[[], str], str]] = {
    "overview": (overview, "light"),
    "overview-dark": (overview, "dark"),
    "insights": (insights, "light"),
    "jobs": (jobs, "light"),
    "job": (retried_job, "light"),
    "dead-letter": (dead_letter, "light"),
    "locks": (locks, "light"),
    "release": (release, "light"),
    "stream": (stream, "light"),
    "events": (events, "light"),
    "batch": (batch, "light"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_take(name: str, admin_user: Any, opened: Any, page: Any) -> None:
    fill, scheme = PICTURES[name]
    address = fill()
    _without_what_only_tests_want()
    shown = opened(address, scheme)
    shown.add_style_tag(content="#nav-sidebar, #toggle-nav-sidebar { display: none !important }")
    high = shown.evaluate("() => document.documentElement.scrollHeight")
    FOLDER.mkdir(exist_ok=True)
    box = {"x": 0, "y": 0, "width": 1280, "height": min(high, HIGHEST)}
    shown.screenshot(path=FOLDER / f"{name}.png", full_page=True, clip=box)


def _without_what_only_tests_want() -> None:
    """Take out names that are there to be escaped."""
    Message.objects.filter(queue__contains="<").delete()
    for model in (BlockedExecution, Semaphore, Slot):
        model._default_manager.filter(key=ODD).delete()
    UniquenessKey.objects.filter(key__contains="<").delete()
