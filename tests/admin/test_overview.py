"""The overview: what it shows to whom, what it warns of, and that nothing keeps the rest of it from being shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.safestring import mark_safe

from django_pgbus.admin import overview, reading, words
from django_pgbus.models import QueueState, StreamLog
from django_pgbus.postgres.stats import TableStats
from django_pgbus.worker import hindrances
from django_pgbus.worker.hindrances import Held
from tests.admin import rows
from tests.admin.conftest import Login, Places
from tests.admin.stream_rows import a_dead, a_group, a_stream
from tests.admin.test_markup import EVIL, harmless
from tests.sessions import sessions

pytestmark = pytest.mark.django_db

TABLES = ("queues", "workers", "database", "streams")
SEEN: dict[str, tuple[set[str], set[str]]] = {
    "view_message": ({"ready", "oldest ready", "running"}, set()),
    "view_delayed": ({"delayed", "retrying"}, set()),
    "view_blockedexecution": ({"parked"}, set()),
    "view_deadletter": ({"dead letter"}, set()),
    "view_worker": ({"worker"}, {"workers", "database"}),
    "view_runcount": ({"finished a minute", "failures"}, set()),
    "view_queuestate": (set(), {"queues"}),
    "view_streamlog": (set(), {"streams"}),
    "view_archived": (set(), set()),
    "view_batch": (set(), set()),
    "view_semaphore": (set(), set()),
    "view_subscription": (set(), set()),
}


def address() -> str:
    return reverse("admin:app_list", args=["pgbus"])


def shown(client: Client) -> Any:
    response = client.get(address())
    assert response.status_code == 200
    return response


def cards(client: Client) -> dict[str, dict[str, Any]]:
    return {card["label"]: card for card in shown(client).context["cards"]}


def table(client: Client, name: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in shown(client).context[name]["rows"]}


def warned(client: Client) -> dict[str, str]:
    """Return the warnings, and where each leads."""
    return {warning["text"]: warning["url"] for warning in shown(client).context["warnings"]}


def plain(text: Any) -> str:
    return str(text).replace("\u00a0", " ")


def listed(model: str, query: str = "") -> str:
    return reverse(f"admin:pgbus_{model}_changelist") + query


# --- numbers ------------------------------------------------------------------------------------------------


def test_the_cards_say_how_much_there_is_and_lead_to_it(admin_client: Client) -> None:
    rows.a_message(ready_at=rows.now() - timedelta(minutes=7))
    rows.a_message(queue="paused", ready_at=rows.now() - timedelta(hours=7))
    QueueState.objects.create(queue="paused", paused_at=rows.now())
    worker = rows.a_worker(capacity=10, running=3)
    rows.a_running(worker.id)
    rows.a_delayed()
    rows.a_delayed(reason="retry")
    rows.a_parked(parked_at=rows.now() - timedelta(hours=2))
    rows.a_dead_letter()
    rows.a_dead_letter(died_at=rows.now() - timedelta(hours=2))
    found = cards(admin_client)
    assert plain(found.pop("oldest ready")["number"]).startswith("7 min ")
    assert {label: card["number"] for label, card in found.items()} == {
        "ready": "2",
        "running": "1",
        "delayed": "2",
        "retrying": "1",
        "parked": "1",
        "dead letters": "2",
        "worker": "1",
        "finished a minute": "0",
        "failures": words.NOTHING,
    }
    assert plain(found["parked"]["note"]) == "oldest for 2 h 0 min"
    assert found["dead letters"]["note"] == "1 in the last hour"
    assert found["worker"]["note"] == "3 of 10 threads busy"
    assert found["retrying"]["url"] == listed("delayed", "?reason=retry")
    assert found["failures"]["url"] == listed("runcount")
    for card in found.values():
        assert admin_client.get(card["url"]).status_code == 200


def test_the_rates_are_of_the_last_minutes_and_of_the_last_hour(admin_client: Client) -> None:
    rows.a_run_count(1, succeeded=30, failed=10)
    rows.a_run_count(3, succeeded=8, dead=2)
    rows.a_run_count(40, succeeded=140, dead=10)
    rows.a_run_count(120, succeeded=9999, dead=9999)
    response = shown(admin_client)
    found = {card["label"]: card for card in response.context["cards"]}
    assert found["finished a minute"]["number"] == "10", "fifty in five minutes"
    assert plain(found["failures"]["number"]) == "11.0%"
    assert found["failures"]["note"] == "22 of 200 in the last hour"
    hour = response.context["hour"]
    assert len(hour) == 60
    assert [hour[nth] for nth in (1, 3)] == [
        {"at": hour[1]["at"], "finished": "40", "failed": "10", "dead": "0"},
        {"at": hour[3]["at"], "finished": "10", "failed": "0", "dead": "2"},
    ]
    text = response.content.decode()
    assert text.count('class="pgbus-sparkline') == 2
    assert "The last hour in numbers" in text


def test_the_queues_say_who_works_on_them(admin_client: Client) -> None:
    rows.a_worker(queues="imports, reports: 5")
    rows.a_message(queue="imports", ready_at=rows.now() - timedelta(minutes=3))
    rows.a_message(queue="mail")
    rows.a_message(queue="reports")
    QueueState.objects.create(queue="reports", paused_at=rows.now(), paused_by="anna")
    rows.a_run_count(2, queue="imports", succeeded=60)
    found = table(admin_client, "queues")
    assert {name: (row["state"], row["ready"], row["workers"]) for name, row in found.items()} == {
        "imports": ("working", "1", "1"),
        "mail": ("no worker", "1", "0"),
        "reports": ("paused", "1", "1"),
    }
    assert plain(found["imports"]["oldest"]).startswith("3 min ")
    assert 9 < float(found["imports"]["rate"]) < 13, "a minute, over five of them and what has begun"
    assert found["mail"]["rate"] == "0"


def test_of_many_queues_those_are_shown_that_need_somebody(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_pgbus.admin.overview_tables.MOST", 3)
    rows.a_worker(queues="a*, b*: 5")
    rows.a_message(queue="a1")
    rows.a_message(queue="a2", ready_at=rows.now() - timedelta(minutes=3))
    rows.a_message(queue="z-nobody")
    rows.a_message(queue="b-paused")
    QueueState.objects.create(queue="b-paused", paused_at=rows.now())
    response = shown(admin_client)
    assert [row["name"] for row in response.context["queues"]["rows"]] == ["a2", "b-paused", "z-nobody"]
    assert response.context["queues"]["most"] == "3"


def test_the_workers_that_are_not_well_stand_first(admin_client: Client) -> None:
    rows.a_worker(name="a")
    rows.a_worker(name="b", state="draining")
    rows.a_worker(name="c", listening=False)
    rows.a_worker(name="d", beat_at=rows.now() - timedelta(minutes=2))
    found = table(admin_client, "workers")
    assert [(name, str(row["state"])) for name, row in found.items()] == [
        ("d", "silent"),
        ("c", "deaf"),
        ("b", "stopping"),
        ("a", "beating"),
    ]


def test_the_streams_say_how_far_behind_they_are(admin_client: Client) -> None:
    StreamLog.objects.all().delete()
    stream = a_stream(entries=10)
    a_dead(a_group(stream, "audit", claimed=10), 3)
    a_group(stream, "mail", claimed=4)
    other = a_stream("orders", entries=2)
    a_group(other, "totals", claimed=2)
    found = table(admin_client, "streams")
    assert (found["ledger"]["behind"], found["ledger"]["groups"], found["ledger"]["lag"]) == ("1", "2", "6")
    assert (found["ledger"]["of"], found["ledger"]["dead"]) == ("mail", "1")
    assert (found["orders"]["behind"], found["orders"]["lag"]) == ("0", "")
    assert admin_client.get(found["ledger"]["url"]).status_code == 200


# --- who sees what ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permission", SEEN)
def test_each_number_is_seen_by_whoever_may_see_its_page(permission: str, places: Places, login: Login) -> None:
    labels, tables = SEEN[permission]
    context = shown(login(permission)).context
    assert {card["label"] for card in context.get("cards") or ()} == labels
    assert {name for name in TABLES if context.get(name)} == tables
    assert bool(context.get("hour")) is (permission == "view_runcount")


def test_a_rate_of_a_queue_is_seen_by_whoever_may_see_the_insights(places: Places, login: Login) -> None:
    assert not shown(login("view_queuestate", username="queues")).context["queues"]["has_rates"]
    assert shown(login("view_queuestate", "view_runcount", username="both")).context["queues"]["has_rates"]


def test_only_what_somebody_sees_is_asked_for(places: Places, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    for name, part in overview.PARTS.items():
        monkeypatch.setitem(overview.PARTS, name, replace(part, ask=lambda name=name: asked.append(name)))
    shown(login("view_blockedexecution"))
    assert asked == ["parked"]


def test_warnings_say_nothing_of_pages_that_one_may_not_see(login: Login) -> None:
    rows.a_dead_letter()
    rows.a_worker(queues="imports: 5")
    rows.a_worker(name="gone", queues="mail: 1", beat_at=rows.now() - timedelta(minutes=2))
    rows.a_message(queue="mail")
    rows.a_message(queue="imports", task=rows.GONE)
    (text,) = warned(login("view_queuestate", username="queues"))
    assert "queue mail" in text
    assert "gone" not in text
    assert list(warned(login("view_deadletter", username="dead"))) == [
        "1 job became a dead letter within the last hour."
    ]


def test_nobody_else_gets_in(places: Places, login: Login) -> None:
    response = Client().get(address())
    assert response.status_code == 302
    assert "/login/" in response["Location"]
    assert login(username="without").get(address()).status_code == 404
    assert login(username="customer", is_staff=False).get(address()).status_code == 302


def test_the_list_of_pages_stands_below(admin_client: Client) -> None:
    text = shown(admin_client).content.decode()
    assert "All pages" in text
    for model in ("message", "semaphore", "runcount"):
        assert f'href="{listed(model)}"' in text.split("All pages")[1]


# --- warnings -----------------------------------------------------------------------------------------------


def test_nothing_wrong_is_said_too(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindrances, "tables", list)  # other tests leave dead rows
    monkeypatch.setattr(hindrances, "held", list)  # and other processes have transactions
    StreamLog.objects.all().delete()
    rows.a_worker(queues="*, @*: 5")
    assert warned(admin_client) == {}
    assert "Nothing needs a person." in shown(admin_client).content.decode()


def test_without_a_worker_it_says_since_when(admin_client: Client) -> None:
    assert "No worker is running: whatever is enqueued waits." in warned(admin_client)
    gone = rows.a_worker(beat_at=rows.now() - timedelta(minutes=5))
    found = warned(admin_client)
    (text,) = [text for text in found if text.startswith("No worker is running")]
    assert words.clock(gone.beat_at) in text
    assert found[text] == listed("worker")
    assert found["1 worker fell silent."] == listed("worker")


def test_a_queue_without_a_worker_is_named_with_the_last_that_served_it(admin_client: Client) -> None:
    rows.a_worker(queues="imports: 5")
    rows.a_worker(name="mailer", queues="mail: 5", beat_at=rows.now() - timedelta(minutes=5))
    rows.a_message(queue="mail", ready_at=rows.now() - timedelta(minutes=4))
    rows.a_message(queue="imports")
    (text,) = [text for text in warned(admin_client) if text.startswith("No running worker serves queue")]
    assert text.startswith("No running worker serves queue mail: 1 ready, the oldest for 4\u00a0min")
    assert "The last that did, mailer, was heard of" in text


@pytest.mark.usefixtures("places")
def test_the_other_warnings_lead_to_where_they_can_be_mended(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows.a_worker(queues="*, @*: 5", listening=False)
    QueueState.objects.create(queue="reports", paused_at=rows.now())
    rows.a_message(queue="reports", task=rows.GONE)
    messages = TableStats(name="pgbus_messages", live=100, dead=120_000, size=1 << 20, vacuumed=900.0)
    levels = TableStats(name="pgbus_levels", live=1, dead=0, size=1 << 13, vacuumed=None)
    session = Held(prepared=False, name="4711", about="shop-web, shop, idle", seconds=843.0, holds_snapshot=True)
    monkeypatch.setattr(hindrances, "tables", lambda: [messages, levels])
    monkeypatch.setattr(hindrances, "held", lambda: [session])
    found = {plain(text): url for text, url in warned(admin_client).items()}
    assert found["1 worker hears no notifications and only polls."] == listed("worker")
    (paused,) = [text for text in found if text.startswith("Queue reports is paused since")]
    assert paused.endswith("and 1 job waits in it.")
    assert found[paused] == listed("queuestate")
    assert found["1 job became a dead letter within the last hour."] == listed("deadletter")
    assert found["1 dead letter of a stream waits for a person."] == listed("streamlog")
    unknown = f"{rows.GONE} waits, and the code of this server does not have it."
    assert found[unknown] == listed("message", f"?q={rows.GONE}")
    assert found["A transaction has been open for 14 min 3 s, of process 4711 (shop-web, shop, idle)."] == (
        "#pgbus-database"
    )
    assert (
        found["pgbus_messages has 120,000 dead rows beside 100 live ones: autovacuum lags behind."] == "#pgbus-database"
    )
    assert not [text for text in found if "pgbus_levels" in text]
    text = unescape(shown(admin_client).content.decode())
    assert 'id="pgbus-database"' in text
    assert "SELECT pg_terminate_backend(4711)" in text


@pytest.mark.django_db(transaction=True)
def test_code_that_exits_when_it_is_imported_leaves_the_page_and_its_server(admin_client: Client) -> None:
    rows.a_message(task="tests.admin.exits.on_import")
    found = {plain(text) for text in warned(admin_client)}
    assert "tests.admin.exits.on_import waits, and the code of this server does not have it." in found


def test_an_open_transaction_is_found_with_whose_it_is() -> None:
    with sessions() as other:
        other.sql("SET application_name = 'shop-web'")
        other.open()
        other.sql("SELECT 1")
        (found,) = [one for one in hindrances.held(0.0) if "shop-web" in one.about]
        assert (found.prepared, found.name) == (False, str(other.pid))
        assert hindrances.held() == []
        other.roll_back()


def test_a_prepared_transaction_is_ended_under_its_own_name() -> None:
    from django_pgbus.admin.overview_tables import transaction

    held = Held(prepared=True, name="it's", about="shop", seconds=700.0, holds_snapshot=True)
    assert transaction(held)["end"] == "ROLLBACK PREPARED 'it''s'"


def test_of_each_kind_only_some_are_said(admin_client: Client) -> None:
    rows.a_worker(queues="imports: 5")
    for number in range(9):
        rows.a_message(queue=f"q{number}")
    assert len([text for text in warned(admin_client) if text.startswith("No running worker serves queue")]) == 4


# --- a part that fails --------------------------------------------------------------------------------------


def away() -> Any:
    raise OperationalError("the database system is shutting down")


def wrong() -> Any:
    raise ValueError("a fault of ours")


def failing() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def slow() -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(20)")


@pytest.mark.parametrize("part", overview.PARTS)
@pytest.mark.parametrize("fault", [away, wrong, failing], ids=lambda fault: fault.__name__)
def test_a_part_that_fails_leaves_the_others_alone(
    part: str, fault: Callable[[], Any], places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(overview.PARTS, part, replace(overview.PARTS[part], ask=fault))
    response = shown(admin_client)
    assert response.context["unread"] == [str(overview.PARTS[part].label)]
    text = response.content.decode()
    assert "This cannot be read just now:" in text
    read = {card["label"] for card in response.context["cards"] if card["number"] != words.NOTHING}
    missing = {
        "queues": {"ready", "oldest ready", "running", "delayed", "dead letters", "dead letter"},
        "situation": {"worker"},
        "parked": {"parked"},
        "delays": {"retrying"},
        "series": {"finished a minute"},
    }
    everything = {"ready", "oldest ready", "running", "delayed", "retrying", "parked", "dead letter", "worker"}
    assert read == (everything | {"finished a minute"}) - missing.get(part, set())


def test_a_part_that_takes_too_long_says_so(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PATIENCE", 1_000)
    monkeypatch.setitem(overview.PARTS, "parked", replace(overview.PARTS["parked"], ask=slow))
    response = shown(admin_client)
    assert response.context["unread"] == ["parked jobs (took too long)"]
    assert cards(admin_client)["ready"]["number"] == "1"


def test_without_the_database_the_list_is_of_use_still(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "bounded", lambda patience: away())
    response = shown(admin_client)
    assert len(response.context["unread"]) == len(overview.PARTS)
    assert {card["number"] for card in response.context["cards"]} == {words.NOTHING}
    text = response.content.decode()
    assert "The queues cannot be read just now." in text
    assert f'href="{listed("semaphore")}"' in text


def test_a_fault_of_ours_is_logged(
    places: Places, admin_client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(overview.PARTS, "parked", replace(overview.PARTS["parked"], ask=away))
    shown(admin_client)
    assert not caplog.records
    monkeypatch.setitem(overview.PARTS, "parked", replace(overview.PARTS["parked"], ask=wrong))
    shown(admin_client)
    assert [record.exc_info[0] for record in caplog.records if record.name == "django_pgbus"] == [ValueError]


# --- bounds and markup --------------------------------------------------------------------------------------


def asked(client: Client) -> int:
    ContentType.objects.clear_cache()
    with CaptureQueriesContext(connection) as queries:
        shown(client)
    return len(queries)


def test_it_asks_as_often_for_many_as_for_none(admin_client: Client, login: Login) -> None:
    StreamLog.objects.all().delete()
    a_group(a_stream("first"), "totals")
    few = asked(admin_client)
    for number in range(30):
        rows.a_worker(name=f"w{number}")
        rows.a_message(queue=f"q{number}")
        rows.a_delayed(queue=f"q{number}")
        rows.a_dead_letter(queue=f"q{number}")
        rows.a_run_count(number, queue=f"q{number}", task=f"shop.tasks.t{number}")
        stream = a_stream(f"s{number}", entries=2)
        for name in ("one", "two"):
            a_group(stream, name, claimed=1)
    assert asked(admin_client) == few <= 25
    assert asked(login(*SEEN)) <= 25


def test_whatever_comes_from_outside_stays_text(admin_client: Client) -> None:
    rows.a_worker(name=EVIL, host=EVIL, queues=EVIL, streams=EVIL)
    rows.a_worker(name=EVIL, queues="<i>: 5", beat_at=rows.now() - timedelta(minutes=2))
    QueueState.objects.create(queue=EVIL, paused_at=rows.now(), paused_by=EVIL)
    rows.a_message(queue=EVIL, task=EVIL)
    rows.a_message(queue=mark_safe("<i>"), task=mark_safe(EVIL))
    rows.a_subscription("orders.evil", queue=EVIL)
    rows.a_run_count(queue=EVIL, task=EVIL)
    stream = a_stream("ledger", entries=3)
    StreamLog.objects.filter(pk=stream.pk).update(name=EVIL)
    a_group(stream, EVIL, claimed=1, paused_at=rows.now())
    a_group(stream, f"{EVIL}2", claimed=99)
    text = harmless(admin_client, address())
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 8
    assert "&lt;i&gt;" in text
    assert "<i>" not in text


def test_names_marked_as_safe_are_still_text(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(prepared=True, name=mark_safe(EVIL), about=mark_safe(EVIL), seconds=700.0, holds_snapshot=True)
    bloated = TableStats(name=mark_safe(EVIL), live=0, dead=20_000, size=1 << 20, vacuumed=None)
    monkeypatch.setattr(hindrances, "held", lambda: [held])
    monkeypatch.setattr(hindrances, "tables", lambda: [bloated])
    monkeypatch.setattr(hindrances, "unknown_tasks", lambda: [mark_safe(EVIL)])
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in harmless(admin_client, address())


def test_a_name_that_is_no_utf8_is_shown(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hindrances, "unknown_tasks", lambda: ["shop.\udcff"])
    assert "shop.\\udcff waits" in shown(admin_client).content.decode()
