"""The insights: how much ran, how long it took and waited, and what failed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.safestring import mark_safe

from tests.admin import rows
from tests.admin.conftest import Login
from tests.admin.test_markup import EVIL, harmless

pytestmark = pytest.mark.django_db
CHARGE = "tests.admin.tasks.charge"


def address(**query: Any) -> str:
    return reverse("admin:pgbus_runcount_changelist", query=query)


def shown(client: Client, **query: Any) -> Any:
    response = client.get(address(**query))
    assert response.status_code == 200
    return response.context


def plain(text: Any) -> str:
    return str(text).replace("\u00a0", " ")


def by_name(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in table["rows"]}


def test_before_anything_ran_it_says_what_will_be_here(admin_client: Client) -> None:
    text = " ".join(admin_client.get(address()).content.decode().split())
    assert "Nothing ran in this time. How much runs, how long it takes" in text
    assert "pgbus-chart" not in text


def test_the_numbers_of_all_together(admin_client: Client) -> None:
    rows.a_run_count(2, seconds=0.04, waited=0.2, succeeded=80, failed=15, dead=5)
    rows.a_run_count(2, snoozed=20, succeeded=0)
    rows.a_run_count(90, succeeded=9999)
    found = {plain(card["label"]): card for card in shown(admin_client)["cards"]}
    assert (found["runs"]["number"], found["runs"]["note"]) == ("120", "2 a minute")
    assert plain(found["failed"]["number"]) == "16.7%"
    assert found["failed"]["note"] == "15 to be tried again, 5 for good"
    assert plain(found["run time, p95"]["number"]).endswith(" ms")
    assert plain(found["wait, p95"]["note"]).startswith("p50 ")
    assert found["snoozed"]["number"] == "20"
    assert "superseded" not in found, "what did not happen is not told"


def test_tasks_and_queues_have_a_row_each(admin_client: Client) -> None:
    rows.a_run_count(2, seconds=4.0, queue="imports", succeeded=9, dead=1)
    rows.a_run_count(3, seconds=0.02, queue="default", task=CHARGE, succeeded=100)
    rows.a_run_count(3, queue="@events", task=rows.HANDLER, event=True, succeeded=3)
    context = shown(admin_client)
    tasks, queues = by_name(context["tasks"]), by_name(context["queues"])
    assert list(tasks) == [rows.TASK, CHARGE, rows.HANDLER], "the one that took most time first"
    assert list(queues) == ["default", "imports", "@events"], "the one that ran most first"
    assert (tasks[rows.TASK]["number"], plain(tasks[rows.TASK]["failed"])) == ("10", "10.0%")
    assert plain(tasks[rows.TASK]["time"]) == "40 s"
    assert plain(tasks[rows.TASK]["longest"]) == "4.0 s"
    assert plain(tasks[CHARGE]["failed"]) == "0%"
    assert [tasks[name]["event"] for name in (CHARGE, rows.HANDLER)] == [False, True]


@pytest.mark.parametrize(
    ("order", "first"),
    [("run_seconds", "busy"), ("number", "many"), ("failures", "failing"), ("slowest", "slow"), ("nonsense", "busy")],
)
def test_tasks_are_shown_in_the_order_that_is_chosen(order: str, first: str, admin_client: Client) -> None:
    rows.a_run_count(task="slow", seconds=50.0, succeeded=1)
    rows.a_run_count(task="busy", seconds=2.0, succeeded=90)
    rows.a_run_count(task="many", seconds=0.004, succeeded=500)
    rows.a_run_count(task="failing", seconds=0.004, succeeded=1, failed=8)
    context = shown(admin_client, order=order)
    assert context["tasks"]["rows"][0]["name"] == first
    text = admin_client.get(address(order=order)).content.decode()
    assert text.count('aria-sort="descending"') == 1


@pytest.mark.parametrize(
    ("window", "number", "points"),
    [("1h", "10", 60), ("24h", "20", 144), ("7d", "30", 168), ("8d", "10", 60), ("", "10", 60)],
)
def test_the_span_of_time_is_chosen_by_links(window: str, number: str, points: int, admin_client: Client) -> None:
    rows.a_run_count(5)
    rows.a_run_count(5 * 60, resolution="ten_minutes")
    rows.a_run_count(5 * 24 * 60, resolution="hour")
    context = shown(admin_client, window=window, queue="default")
    assert context["cards"][0]["number"] == number
    assert [len(chart["rows"]) for chart in context["charts"]] == [points] * 3
    assert [one["url"] for one in context["windows"]] == [
        f"?window={name}&order=run_seconds&queue=default" for name in ("1h", "24h", "7d")
    ]
    assert sum(one["chosen"] for one in context["windows"]) == 1


def test_one_task_or_one_queue_is_looked_at_by_itself(admin_client: Client) -> None:
    rows.a_run_count(queue="imports", succeeded=1)
    rows.a_run_count(queue="mail", succeeded=2)
    rows.a_run_count(queue="mail", task=CHARGE, succeeded=4)

    def found(**query: str) -> tuple[str, set[str], set[str], int]:
        context = shown(admin_client, **query)
        drawn = sum(int(row["cells"][0]) for row in context["charts"][0]["rows"]) if context["charts"] else 0
        tasks, queues = set(by_name(context["tasks"])), set(by_name(context["queues"]))
        return context["cards"][0]["number"], tasks, queues, drawn

    assert found() == ("7", {rows.TASK, CHARGE}, {"imports", "mail"}, 7)
    assert found(task=rows.TASK) == ("3", {rows.TASK}, {"imports", "mail"}, 3)
    assert found(queue="mail") == ("6", {rows.TASK, CHARGE}, {"mail"}, 6)
    assert found(task=rows.TASK, queue="mail") == ("2", {rows.TASK}, {"mail"}, 2)
    assert found(task="nothing") == ("0", set(), set(), 0)
    text = " ".join(admin_client.get(address(task="nothing")).content.decode().split())
    assert "Nothing ran of this in this time." in text


def test_a_row_leads_to_itself_and_back(admin_client: Client) -> None:
    rows.a_run_count(queue="a & b", task="shop.tasks.one")
    (task,) = shown(admin_client, order="number")["tasks"]["rows"]
    context = admin_client.get(address() + task["url"]).context
    assert (context["task"], context["order"]) == ("shop.tasks.one", "number")
    (queue,) = context["queues"]["rows"]
    context = admin_client.get(address() + queue["url"]).context
    assert (context["task"], context["queue"]) == ("shop.tasks.one", "a & b")
    assert context["all_url"] == "?window=1h&order=number"


def test_every_chart_has_its_numbers_beside_it(admin_client: Client) -> None:
    rows.a_run_count(succeeded=7, failed=2, dead=1)
    text = admin_client.get(address()).content.decode()
    assert text.count("<figure") == text.count("The same in numbers") == 3
    assert text.count('aria-hidden="true"') >= 3
    drawn = re.findall(r'<path class="pgbus-shape[^>]* d="([^"]*)"', text)
    assert len([path for path in drawn if path]) == 5
    assert all(re.fullmatch("[-MLhvz0-9. ]*", path) for path in drawn), "nothing but geometry"


def test_what_cannot_be_asked_for_is_not(admin_client: Client) -> None:
    rows.a_run_count()
    for query in ({"task": "a\x00b"}, {"queue": "x" * 5000}, {"window": "\x00"}, {"order": "1; DROP"}):
        assert admin_client.get(address(**query)).status_code == 200


def test_numbers_are_written_as_the_language_does(admin_client: Client) -> None:
    rows.a_run_count(succeeded=1_234, failed=100, seconds=2.5)
    with override_settings(USE_THOUSAND_SEPARATOR=True), translation.override("de"):
        text = admin_client.get(address()).content.decode()
    assert "1.334" in text
    assert "2,5" in text
    assert 'viewBox="0 0 1000 100"' in text


def test_only_whoever_may_see_it_does(login: Login) -> None:
    assert login("view_runcount", username="may").get(address()).status_code == 200
    assert login("view_message", "view_worker", username="may-not").get(address()).status_code == 403
    assert Client().get(address()).status_code == 302


def test_it_asks_as_often_for_many_as_for_none(admin_client: Client) -> None:
    def asked() -> int:
        ContentType.objects.clear_cache()
        with CaptureQueriesContext(connection) as queries:
            shown(admin_client, window="7d")
        return len(queries)

    few = asked()
    for number in range(200):
        rows.a_run_count(number, queue=f"q{number % 60}", task=f"shop.tasks.t{number}")
    assert asked() == few <= 12
    context = shown(admin_client, window="7d")
    assert (context["tasks"]["most"], context["queues"]["most"]) == ("50", "50")


def test_whatever_comes_from_outside_stays_text(admin_client: Client) -> None:
    rows.a_run_count(queue=EVIL, task=EVIL)
    rows.a_run_count(queue=mark_safe("<i>"), task=mark_safe("<b>.<b>"))
    assert harmless(admin_client, address()).count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 2
    assert "&lt;script&gt;alert(1)" in harmless(admin_client, address(task=EVIL, queue=EVIL))
    text = harmless(admin_client, address(task="<b>.<b>"))
    assert "<i>" not in text
    assert "&lt;b&gt;" in text
