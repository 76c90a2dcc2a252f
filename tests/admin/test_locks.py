"""The page of locks, and what a person may decide about one key."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus.models import BlockedExecution, Message, Semaphore, Slot, UniquenessKey
from django_pgbus.postgres.keys import shown as shown_name
from django_pgbus.postgres.keys import stored
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.admin.conftest import long_up as stats_long_up  # noqa: F401
from tests.constrained import alone, claim_and_pick_up, enqueue, keys, one, parked, run, slots, two, unique
from tests.line import lapse, long_up, snooze, state, succeed  # noqa: F401
from tests.sessions import sessions

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("stats_long_up")]
PAGE = "admin:pgbus_semaphore_changelist"
ODD = ["a/b?c#d&e=f", "x\ny\r\nz", "'\"<b>", " %2F ", "Ümläut 💿", "k" * 300]


def shown(client: Client, **query: Any) -> Any:
    response = client.get(reverse(PAGE, query=query))
    assert response.status_code == 200
    return response.context


def limited(client: Client, **query: Any) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in shown(client, **query)["limited"]["rows"]}


def unique_rows(client: Client, **query: Any) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in shown(client, **query)["unique"]["rows"]}


def leases(client: Client, key: str = "a") -> list[str]:
    return [lease["text"].split(" until ")[0].split(" since ")[0] for lease in limited(client)[key]["leases"]]


def cut(key: str) -> str:
    """Return a key as the tables show it."""
    return key if len(key) <= 120 else f"{key[:120]}…"


def address(decision: str, **query: Any) -> str:
    return reverse(f"admin:pgbus_semaphore_{decision}", query=query)


def ask(client: Client, url: str) -> Any:
    response = client.get(url)
    assert response.status_code == 200
    return response


def confirm(client: Client, url: str) -> Any:
    """Post what the confirmation holds, as a browser would."""
    return answer(client, url, ask(client, url))


def answer(client: Client, url: str, asked: Any) -> Any:
    hidden = dict(asked.context["hidden"]) if "hidden" in asked.context else {}
    return client.post(url, {**hidden, "post": "yes"}, follow=True)


def told(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def logged() -> list[tuple[str, str, str]]:
    return [
        (entry.content_type.model, entry.object_id, entry.get_change_message())
        for entry in LogEntry.objects.order_by("pk").select_related("content_type")
    ]


# --- the page -----------------------------------------------------------------------------------------


def test_the_concurrency_section_shows_who_holds_and_who_waits(admin_client: Client) -> None:
    ids = [enqueue(two, "a") for _ in range(5)]
    enqueue(one, "b")
    (running,) = [d.id for d in claim_and_pick_up(limit=1).taken]
    found = limited(admin_client)
    assert list(found) == ["a", "b"]
    row = found["a"]
    assert (row["slots"], row["capacity"], row["at_limit"], row["parked"]) == ("2", "2", True, "3")
    assert [holder["job"] for holder in row["holders"]] == ids[:2]
    assert leases(admin_client) == ["running and beating", "waiting"]
    assert leases(admin_client, "b") == ["waiting"]
    cards = {str(card["label"]): card["number"] for card in shown(admin_client)["limited"]["cards"]}
    assert (cards["parked jobs"], cards["slots held"], cards["keys at their limit"]) == ("3", "3", "2")
    assert cards["oldest wait"]
    listing = admin_client.get(row["parked_url"]).context["cl"]
    assert [job.pk for job in listing.result_list] == ids[2:]
    for holder in row["holders"]:
        assert admin_client.get(holder["url"]).status_code == 200
    assert running == ids[0]


def test_leases_are_said_in_words(admin_client: Client) -> None:
    enqueue(one, "a")
    delivery = run()
    assert leases(admin_client) == ["running and beating"]
    lapse(delivery.id)
    assert leases(admin_client) == ["silent"]
    Slot.objects.all().delete()
    rows.a_parked("a")
    assert leases(admin_client) == ["no holder"]


def test_the_uniqueness_section_shows_what_is_held(admin_client: Client) -> None:
    first, second = enqueue(unique, "a"), enqueue(unique, "b", after=60)
    found = unique_rows(admin_client)
    assert [(row["key"], row["job"], str(row["place"])) for row in found.values()] == [
        ("a", first, "in line"),
        ("b", second, "delayed"),
    ]
    for row in found.values():
        assert (row["strategy"], row["queue"], row["waiting"]) == ("until executed", "default", "")
        assert admin_client.get(row["job_url"]).status_code == 200


def test_who_waits_for_a_uniqueness_key_is_counted_apart(admin_client: Client) -> None:
    first, second = enqueue(alone, "a"), enqueue(alone, "a")
    claim_and_pick_up()
    row = unique_rows(admin_client)["a"]
    assert (row["job"], row["strategy"], row["waiting"]) == (first, "while executing", "1")
    assert [job.pk for job in admin_client.get(row["waiting_url"]).context["cl"].result_list] == [second]
    (card, *_) = shown(admin_client)["limited"]["cards"]
    assert (card["number"], card["note"]) == ("0", "and 1 for a uniqueness key")
    assert limited(admin_client) == {}


@pytest.mark.parametrize("key", ODD)
def test_a_key_is_found(key: str, admin_client: Client) -> None:
    enqueue(unique, key)
    enqueue(one, key)
    enqueue(unique, "other")
    enqueue(one, "other")
    assert list(unique_rows(admin_client, q=key)) == list(limited(admin_client, q=key)) == [cut(key)]
    assert unique_rows(admin_client, q="no such") == limited(admin_client, q="no such") == {}
    assert unique_rows(admin_client, q="a\x00b") == {}


def test_whoever_keeps_others_from_being_let_in_is_named(admin_client: Client) -> None:
    enqueue(one, "a")
    with sessions() as other:
        other.sql("SET application_name = 'shop web'")
        other.open()
        other.sql("SELECT key FROM pgbus_semaphores FOR UPDATE")
        text = limited(admin_client)["a"]["locked"]
        assert f"Locked by database session {other.pid} (shop web) since " in text
        other.commit()
    assert limited(admin_client)["a"]["locked"] == ""


def test_without_any_key_the_page_says_so(admin_client: Client) -> None:
    text = admin_client.get(reverse(PAGE)).content.decode()
    assert "No uniqueness key is held." in text
    assert "No slot is held and no job is parked." in text


def test_as_many_questions_for_a_thousand_keys_as_for_one(admin_client: Client) -> None:
    asked = []
    for number in (1, 1000):
        for key in range(number):
            prefix = f"{number} {key}"
            UniquenessKey.objects.create(key=prefix, message_id=key + 1, strategy="until_executed", queue="default")
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgbus_semaphore_slots (message_id, key, ordinal, duration)"
                " SELECT %s * 10000 + n, %s || 'k' || n, 1, 900 FROM generate_series(1, %s) AS n",
                [number, str(number), number],
            )
        admin_client.get(reverse(PAGE))
        with CaptureQueriesContext(connection) as queries:
            found = shown(admin_client)
        asked.append(len(queries))
    assert (len(found["unique"]["rows"]), len(found["limited"]["rows"])) == (100, 100)
    assert (found["unique"]["most"], found["limited"]["most"]) == ("100", "100")
    assert asked[0] == asked[1] <= 16


# --- release ------------------------------------------------------------------------------------------


def test_release_frees_what_waits_and_lets_in_the_next(admin_client: Client) -> None:
    first, second = enqueue(one, "a"), enqueue(one, "a")
    url = limited(admin_client)["a"]["release_url"]
    asked = ask(admin_client, url)
    assert "No job that holds a slot of this key is running under a lease." in asked.content.decode()
    assert "stern" not in asked.context
    assert slots() == {first: 1}, "GET changes nothing"
    assert told(answer(admin_client, url, asked)) == ["1 slot was released."]
    assert slots() == {second: 1}
    assert logged() == [("semaphore", "a", "1 slot was released.")]


@pytest.mark.proves("release-spares-who-runs")
def test_release_of_a_running_holder_needs_the_sterner_text(admin_client: Client) -> None:
    first, second = enqueue(one, "a"), enqueue(one, "a")
    old = run()
    url = address("release", key="a")
    asked = ask(admin_client, url)
    text = asked.content.decode()
    assert "Release 1 slot although a job is running?" in text
    assert "probably still running" in text
    assert "another will start beside it" in text
    assert dict(asked.context["hidden"]) == {"running": f"{first}:{old.delivery}"}
    assert told(answer(admin_client, url, asked)) == ["1 slot was released."]
    assert (state(first), state(second), slots()) == ("ready", "ready", {second: 1})
    assert succeed(old) == set()


def test_a_post_that_never_saw_the_sterner_text_leaves_the_running(admin_client: Client) -> None:
    first = enqueue(one, "a")
    run()
    response = admin_client.post(address("release", key="a"), {"post": "yes"}, follow=True)
    assert told(response) == ["1 job is running under a lease that was not confirmed: it keeps its slot."]
    assert slots() == {first: 1}
    assert logged() == []


def test_what_began_to_run_since_the_plain_text_keeps_its_slot(admin_client: Client) -> None:
    first, second = enqueue(two, "a"), enqueue(two, "a")
    url = address("release", key="a")
    asked = ask(admin_client, url)
    assert claim_and_pick_up(limit=1).taken[0].id == first
    assert told(answer(admin_client, url, asked)) == [
        "1 slot was released.",
        "1 job is running under a lease that was not confirmed: it keeps its slot.",
    ]
    assert first in slots()
    assert state(second) == "ready"


@pytest.mark.proves("release-spares-who-runs")
def test_another_run_than_the_one_confirmed_keeps_its_slot(admin_client: Client) -> None:
    enqueue(one, "a")
    second = enqueue(one, "a")
    old = run()
    url = address("release", key="a")
    asked = ask(admin_client, url)
    succeed(old)
    assert run().id == second
    assert told(answer(admin_client, url, asked)) == [
        "1 job is running under a lease that was not confirmed: it keeps its slot."
    ]
    assert slots() == {second: 1}


def test_a_later_delivery_of_the_same_job_is_another_run(admin_client: Client) -> None:
    first = enqueue(one, "a")
    old = run()
    url = address("release", key="a")
    asked = ask(admin_client, url)
    lifecycle.hand_back([(old.id, old.delivery)])
    assert run().delivery > old.delivery
    answer(admin_client, url, asked)
    assert slots() == {first: 1}


def test_a_silent_holder_is_released_by_the_plain_text(admin_client: Client) -> None:
    first, second = enqueue(one, "a"), enqueue(one, "a")
    old = run()
    lapse(first)
    url = address("release", key="a")
    assert "stern" not in ask(admin_client, url).context
    confirm(admin_client, url)
    assert slots() == {second: 1}
    assert succeed(old) == set()


# --- discard parked -----------------------------------------------------------------------------------


def test_discard_parked_names_the_number_and_leaves_what_came_since(admin_client: Client) -> None:
    first = enqueue(one, "a")
    shown_then = [enqueue(one, "a") for _ in range(3)]
    other = (enqueue(one, "b"), enqueue(one, "b"))[1]
    url = limited(admin_client)["a"]["discard_url"]
    asked = ask(admin_client, url)
    text = asked.content.decode()
    assert "Discard 3 parked jobs?" in text
    assert "3 jobs that are parked for this key are discarded and never run." in text
    since = enqueue(one, "a")
    assert parked() == sorted([*shown_then, other, since]), "GET changes nothing"
    assert told(answer(admin_client, url, asked)) == ["3 parked jobs were discarded."]
    assert [state(id) for id in shown_then] == ["discarded"] * 3
    assert (state(first), state(since), state(other)) == ("ready", "parked", "parked")
    assert logged() == [
        ("semaphore", "a", f"Decided to discard the parked jobs up to job {shown_then[-1]}."),
        ("semaphore", "a", "3 parked jobs were discarded."),
    ]


@pytest.mark.parametrize("up_to", ["", "x", "-1", "1e3", "9" * 30])
def test_discard_parked_asks_again_unless_it_is_said_up_to_where(up_to: str, admin_client: Client) -> None:
    enqueue(one, "a")
    second = enqueue(one, "a")
    response = admin_client.post(address("discard_parked", key="a"), {"post": "yes", "up_to": up_to})
    assert "Discard 1 parked job?" in response.content.decode()
    assert parked() == [second]
    assert logged() == []


# --- discard lock -------------------------------------------------------------------------------------


def test_discard_lock_frees_the_key_and_leaves_the_job(admin_client: Client) -> None:
    first = enqueue(unique, "a")
    url = unique_rows(admin_client)["a"]["discard_url"]
    assert "it may then exist twice" in ask(admin_client, url).content.decode()
    assert keys() == {"a": first}, "GET changes nothing"
    assert told(confirm(admin_client, url)) == [f"The lock of job {first} was discarded."]
    assert keys() == {}
    assert state(first) == "ready"
    assert logged() == [("uniquenesskey", "a", f"The lock that job {first} held was discarded.")]
    enqueue(unique, "a")


def test_discard_lock_lets_in_who_waits_for_the_key(admin_client: Client) -> None:
    first, second = enqueue(alone, "a"), enqueue(alone, "a")
    claim_and_pick_up()
    assert state(second) == "parked"
    url = address("discard_lock", key="a", job=first)
    assert "may then be done twice" in ask(admin_client, url).content.decode()
    confirm(admin_client, url)
    assert state(second) == "ready"


@pytest.mark.proves("a-lock-is-discarded-as-shown")
def test_the_lock_of_another_job_than_the_one_shown_stays(admin_client: Client) -> None:
    first = enqueue(unique, "a")
    url = address("discard_lock", key="a", job=first)
    succeed(run())
    second = enqueue(unique, "a")
    response = admin_client.post(url, {"post": "yes"}, follow=True)
    assert told(response) == ["Nothing was changed: the job or batch does not hold this lock any more."]
    assert keys() == {"a": second}


# --- any key ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ODD)
def test_any_key_is_decided_about(key: str, admin_client: Client) -> None:
    enqueue(one, key)
    second, third = enqueue(one, key), enqueue(one, key)
    lock = enqueue(unique, key)
    row = limited(admin_client)[cut(key)]
    assert f"/semaphore/release/?key={row['release_url'].split('=', 1)[1]}" in row["release_url"]
    confirm(admin_client, row["release_url"])
    assert slots(stored(key)) == {second: 1}
    confirm(admin_client, row["discard_url"])
    assert (state(third), parked()) == ("discarded", [])
    confirm(admin_client, unique_rows(admin_client)[cut(key)]["discard_url"])
    assert (keys(), state(lock)) == ({}, "ready")
    assert {object_id for _, object_id, _ in logged()} == {stored(key)}


@pytest.mark.parametrize("decision", ["release", "discard_parked", "discard_lock"])
@pytest.mark.parametrize("key", ["", "no such", "a\x00b"])
def test_a_key_that_is_not_there_is_no_error(decision: str, key: str, admin_client: Client) -> None:
    enqueue(one, "a")
    enqueue(unique, "a")
    for method in (admin_client.get, admin_client.post):
        response = method(
            address(decision, key=key, job=1),
            {"post": "yes", "up_to": 1} if method != admin_client.get else None,
            follow=True,
        )
        assert response.status_code == 200
    assert (len(slots()), len(keys())) == (1, 1)


def test_a_key_of_which_only_the_hash_is_stored_is_decided_about_too(admin_client: Client) -> None:
    key = "k" * 1001
    assert shown_name(key) != key
    enqueue(one, key)
    response = confirm_without_asking(admin_client, address("release", key=stored(key)))
    assert told(response) == ["1 slot was released."]
    assert slots() == {}


def test_a_run_that_began_after_the_page_was_shown_keeps_its_slot(admin_client: Client) -> None:
    first, second = enqueue(one, "a"), enqueue(one, "a")
    shown = run()
    url = address("release", key="a")
    hidden = dict(admin_client.get(url).context["hidden"])
    succeed(shown)
    assert run().id == second
    response = admin_client.post(url, {"post": "yes", **hidden}, follow=True)
    assert told(response) == ["1 job is running under a lease that was not confirmed: it keeps its slot."]
    assert list(slots()) == [second]
    assert state(first) == "succeeded"


def test_a_job_that_was_parked_after_the_page_was_shown_is_not_discarded(admin_client: Client) -> None:
    first, second, third = enqueue(one, "a"), enqueue(one, "a"), enqueue(one, "a")
    holder = run()
    url = address("discard_parked", key="a")
    hidden = dict(admin_client.get(url).context["hidden"])
    snooze(holder)  # it is parked now, under the lowest id
    admin_client.post(url, {"post": "yes", **hidden})
    assert [state(id) for id in (first, second, third)] == ["parked", "ready", "discarded"]


def confirm_without_asking(client: Client, url: str) -> Any:
    return client.post(url, {"post": "yes"}, follow=True)


@pytest.mark.proves("no-decision-without-its-log-entry")
def test_without_its_log_entry_nothing_is_done(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    enqueue(one, "a")
    second, lock = enqueue(one, "a"), enqueue(unique, "a")

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no log")

    before = slots()
    monkeypatch.setattr(type(LogEntry.objects), "log_actions", refuse)
    for url in (
        address("release", key="a"),
        address("discard_parked", key="a"),
        address("discard_lock", key="a", job=lock),
    ):
        with pytest.raises(RuntimeError):
            admin_client.post(url, {"post": "yes", "up_to": second})
    assert (slots(), parked(), keys()) == (before, [second], {"a": lock})
    assert (Semaphore.objects.count(), BlockedExecution.objects.count(), Message.objects.count()) == (1, 1, 2)
