"""Batches: how far each is, where its members are, what becomes of them, and who may see it."""

from __future__ import annotations

import json
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus import Batch
from django_pgbus.admin.batches import BatchAdmin
from django_pgbus.batches import stats, stats_sql
from django_pgbus.models import Batch as Row
from django_pgbus.models import DeadLetter, UniquenessKey
from django_pgbus.queues.stats import Count
from django_pgbus.uniqueness import stats as uniqueness_stats
from tests.admin import rows
from tests.admin.conftest import Login
from tests.admin.test_decisions import decide, select, told
from tests.admin.test_lists import found, listed
from tests.admin.test_locks import address as lock_address
from tests.admin.test_locks import confirm, logged, unique_rows
from tests.admin.test_markup import EVIL, SHORT, harmless
from tests.batches.tasks import CALLBACKS
from tests.constrained import one
from tests.jobs import noop
from tests.line import claim, fail, give_up, long_up, succeed  # noqa: F401

pytestmark = pytest.mark.django_db
MODEL = "batch"


def change(batch: Any) -> str:
    return reverse("admin:pgbus_batch_change", args=[getattr(batch, "pk", None) or batch.id])


def page(client: Client, batch: Any) -> str:
    response = client.get(change(batch))
    assert response.status_code == 200
    return unescape(" ".join(response.content.decode().split()))


def context(client: Client, batch: Any) -> dict[str, Any]:
    return client.get(change(batch)).context["pgbus_batch"]


def cards(client: Client, batch: Any) -> dict[str, str]:
    return {str(card["label"]): card["number"] for card in context(client, batch)["cards"]}


def states(client: Client) -> dict[int, str]:
    return {row.pk: str(row.standing.state) for row in listed(client, MODEL).result_list}


def a_member_everywhere(batch: Any) -> dict[str, Any]:
    return {
        "ready": rows.a_message(batch_id=batch.pk),
        "running": rows.a_running(batch_id=batch.pk),
        "scheduled": rows.a_delayed(batch_id=batch.pk),
        "waits for a slot": rows.a_parked(batch_id=batch.pk),
        "succeeded": rows.an_archived(batch_id=batch.pk),
        "dead": rows.a_dead_letter(batch_id=batch.pk),
    }


# --- the list -----------------------------------------------------------------------------------------


def test_each_batch_says_in_words_how_far_it_is(admin_client: Client) -> None:
    batches = {
        "3 outstanding": rows.a_batch(10, 6, 1),
        "about to finish": rows.a_batch(2, 2),
        "finished": rows.a_finished_batch(4, 1),
    }
    assert states(admin_client) == {batch.pk: state for state, batch in batches.items()}
    text = admin_client.get(reverse("admin:pgbus_batch_changelist")).content.decode()
    assert '<progress max="10" value="7" aria-label="Progress of batch' in text
    for words in ("70%", "7 of 10", "100%", "4 of 4"):
        assert f">{words}</span>" in text


def test_what_was_counted_and_not_folded_counts(admin_client: Client) -> None:
    batch = rows.a_batch(10, 6, 1)
    rows.a_count(batch, added=5)
    rows.a_count(batch, succeeded=2)
    rows.a_count(batch, failed=1)
    found = stats.standing([batch.pk])[batch.pk]
    assert (found.total, found.succeeded, found.failed) == (Count(15), Count(8), Count(2))
    assert (found.done, found.outstanding, found.percent) == (Count(10), Count(5), 66)
    assert states(admin_client) == {batch.pk: "5 outstanding"}


def test_no_more_counts_are_read_than_are_allowed_and_it_says_so(
    admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "COUNTS", 2)
    batch = rows.a_batch()
    for _ in range(5):
        rows.a_count(batch, added=1)
    assert stats.standing([batch.pk])[batch.pk].total == Count(3, True)
    assert states(admin_client) == {batch.pk: "3+ outstanding"}


def test_an_empty_batch_is_done(admin_client: Client) -> None:
    batch = rows.a_finished_batch()
    assert stats.standing([batch.pk])[batch.pk].percent == 100
    assert '<progress max="1" value="1"' in page(admin_client, batch)
    assert "It had no members." in page(admin_client, batch)


def test_the_newest_stand_first_and_of_the_finished_what_ended_last(admin_client: Client) -> None:
    ended = [rows.a_finished_batch(finished_at=rows.now() - timedelta(minutes=ago)).pk for ago in (5, 1, 9)]
    open = [rows.a_batch(1).pk for _ in range(2)]
    assert found(admin_client, MODEL) == sorted([*ended, *open], reverse=True)
    assert found(admin_client, MODEL, state="open") == open[::-1]
    assert found(admin_client, MODEL, state="finished") == [ended[1], ended[0], ended[2]]
    assert found(admin_client, MODEL, state="nonsense") == []
    assert found(admin_client, MODEL, o="0") == sorted([*ended, *open])


def test_the_day_on_which_it_finished_is_said_where_it_is_another(admin_client: Client) -> None:
    noon = rows.now().replace(hour=12, minute=0, second=0)
    rows.a_finished_batch(created_at=noon - timedelta(days=1, hours=1), finished_at=noon - timedelta(days=1))
    rows.a_finished_batch(created_at=noon - timedelta(days=1), finished_at=noon)
    rows.a_batch(1)
    ended = [str(BatchAdmin(Row, site).ended(row)) for row in listed(admin_client, MODEL).result_list]
    assert (len(ended[1]) > 12, ended[2].count(":"), len(ended[2]), ended[0]) == (True, 2, 8, "-")


def test_a_search_is_for_an_id(admin_client: Client) -> None:
    batch, other = rows.a_batch(description="import"), rows.a_batch()
    assert found(admin_client, MODEL, q=f" {batch.pk} ") == [batch.pk]
    assert found(admin_client, MODEL, q="import") == found(admin_client, MODEL, q="9" * 30) == []
    assert found(admin_client, MODEL, q=" ") == [other.pk, batch.pk]


@pytest.mark.parametrize("query", ["description=x", "properties__contains=x", "finished_at__isnull=True", "id__gt=1"])
def test_nothing_but_our_filters_may_be_asked(query: str, admin_client: Client) -> None:
    assert admin_client.get(reverse("admin:pgbus_batch_changelist") + f"?{query}").status_code == 400


def test_nonsense_is_no_error(admin_client: Client) -> None:
    rows.a_batch(1)
    for query in ("state=%00", "q=%00", "p=-1", "o=9.x", "state="):
        response = admin_client.get(reverse("admin:pgbus_batch_changelist") + f"?{query}", follow=True)
        assert response.status_code == 200
    for number in ("4711", "x", "9" * 30):
        response = admin_client.get(reverse("admin:pgbus_batch_change", args=[number]), follow=True)
        assert "exist. Perhaps it was deleted?" in told(response)[0]


def test_nothing_is_sorted_that_has_no_index_and_long_texts_stay_in_the_database(admin_client: Client) -> None:
    rows.a_batch(1)
    for index in range(7):
        listing = listed(admin_client, MODEL, o=str(index))
        assert set(listing.queryset.query.order_by) <= {"id", "-pk", "-id"}
        assert {"description", "properties", "callbacks"} <= listing.result_list[0].get_deferred_fields()


# --- one batch ----------------------------------------------------------------------------------------


def test_members_are_counted_by_where_they_are_and_lead_there(admin_client: Client) -> None:
    batch = rows.a_batch(6, 1, 1)
    members = a_member_everywhere(batch)
    for make in (rows.a_message, rows.a_running, rows.a_delayed, rows.a_parked, rows.an_archived, rows.a_dead_letter):
        make()
    names = ("ready", "running", "delayed", "parked", "succeeded", "failed")
    assert cards(admin_client, batch) == {"members": "6", **dict.fromkeys(names, "1")}
    expected = dict(zip(names, members.values(), strict=True))
    for card in context(admin_client, batch)["cards"][1:]:
        listing = admin_client.get(card["url"]).context["cl"]
        assert [job.pk for job in listing.result_list] == [expected[str(card["label"])].pk]


def test_its_first_members_are_listed_with_how_they_stand(admin_client: Client) -> None:
    rows.a_worker()
    batch = rows.a_batch(6, 1, 1)
    members = a_member_everywhere(batch)
    shown = context(admin_client, batch)
    outstanding = {str(row["standing"].state): row["job"] for row in shown["outstanding"]["rows"]}
    assert outstanding == {state: str(members[state].pk) for state in outstanding}
    assert set(outstanding) == {"ready", "running", "scheduled", "waits for a slot"}
    (failed,) = shown["failed"]["rows"]
    assert failed["job"] == str(members["dead"].pk)
    assert "is not a date" in failed["error"]
    assert failed["end"] == "no attempts left, after 5 attempts"
    for row in (*shown["outstanding"]["rows"], failed):
        assert admin_client.get(row["url"]).status_code == 200


def test_no_more_members_are_listed_than_fit_and_it_says_so(admin_client: Client) -> None:
    batch = rows.a_batch(110, 0, 55)
    for _ in range(50):
        rows.a_message(batch_id=batch.pk)
        rows.a_dead_letter(batch_id=batch.pk)
    note = "Listed are the first 50 by ID; the numbers above lead to all of them."
    assert note not in page(admin_client, batch)
    first = rows.a_delayed(batch_id=batch.pk, id=1)
    shown = context(admin_client, batch)
    assert len(shown["outstanding"]["rows"]) == len(shown["failed"]["rows"]) == 50
    assert shown["outstanding"]["rows"][0]["job"] == str(first.pk)
    assert page(admin_client, batch).count(note) == 1


def test_members_are_counted_to_the_limit(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "LIMIT", 2)
    batch = rows.a_batch(14)
    for make in (rows.a_message, rows.a_delayed, rows.a_parked, rows.a_dead_letter):
        for _ in range(3):
            make(batch_id=batch.pk)
    places = stats.places(batch.pk)
    assert (places.ready, places.running) == (Count(2, True), Count(0, True))
    assert places.delayed == places.parked == places.dead == Count(2, True)
    assert cards(admin_client, batch)["ready"] == "2+"


def test_failed_members_that_are_not_there_any_more_are_told_of(admin_client: Client) -> None:
    batch = rows.a_finished_batch(9, 3)
    rows.a_dead_letter(batch_id=batch.pk)
    text = page(admin_client, batch)
    assert "3 of its 9 members failed." in text
    assert "2 failed members are not among the dead letters: they were redriven, discarded or removed since." in text
    assert "A redriven job does not count again." in text
    rows.a_dead_letter(batch_id=batch.pk)
    assert "1 failed member is not among the dead letters: it was redriven" in page(admin_client, batch)
    rows.a_dead_letter(batch_id=batch.pk)
    assert "not among the dead letters" not in page(admin_client, batch)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (
            {"total": 2},
            [
                "when the last member has ended",
                "when the last member has ended, if none fails",
                "when the last member has ended, if any fails",
            ],
        ),
        (
            {"total": 2, "failed": 1},
            ["when the last member has ended", "not enqueued: a member failed", "when the last member has ended"],
        ),
        (
            {"total": 1, "succeeded": 1, "ended": True},
            ["enqueued when it finished", "enqueued when it finished", "not enqueued: no member failed"],
        ),
        (
            {"total": 1, "failed": 1, "ended": True},
            ["enqueued when it finished", "not enqueued: a member failed", "enqueued when it finished"],
        ),
    ],
)
def test_callbacks_say_what_becomes_of_them(batch: dict[str, Any], expected: list[str], admin_client: Client) -> None:
    ended = {"finished_at": rows.now()} if batch.pop("ended", False) else {}
    shown = context(admin_client, rows.a_batch(**batch, **ended, callbacks=rows.callbacks(queue="mail", due_in=300)))
    assert [one["event"] for one in shown["callbacks"]] == ["on_finish", "on_success", "on_failure"]
    assert [one["when"] for one in shown["callbacks"]] == expected
    for callback in shown["callbacks"]:
        assert callback["later"] == ("" if callback["when"].startswith("not ") else "5\xa0min\xa00\xa0s")
        assert callback["queue"] == "mail"


def test_what_a_batch_carries_is_shown(admin_client: Client) -> None:
    text = page(
        admin_client,
        rows.a_batch(1, description="Orders of 30 November", key="import-2026", properties='{"file": "orders.csv"}'),
    )
    assert "Orders of 30 November" in text
    assert '{ "file": "orders.csv" }' in text
    assert '<code class="pgbus-key">import-2026</code> <span class="pgbus-quiet">held until it is finished' in text
    assert reverse("admin:pgbus_semaphore_changelist", query={"q": "import-2026"}) in text
    assert "Nothing is enqueued when it ends." in text
    assert "free since it finished" in page(admin_client, rows.a_finished_batch(key="import-2026"))


@pytest.mark.parametrize(
    "damaged",
    [
        "[]",
        "7",
        "null",
        '{"on_finish": 7}',
        '{"on_finish": {"due_in": 1e400}}',
        '{"x": ' + "[" * 5000 + "]" * 5000 + "}",
    ],
)
def test_damaged_documents_are_no_error(damaged: str, admin_client: Client) -> None:
    assert page(admin_client, rows.a_batch(1, callbacks=damaged, properties=damaged))


def test_a_batch_that_was_opened_in_code_is_shown_as_it_is(admin_client: Client) -> None:
    with Batch("Orders", properties={"file": "orders.csv"}, key="orders", **CALLBACKS) as batch:
        for _ in range(3):
            noop.enqueue()
        one.enqueue("a")
        one.enqueue("a")
        noop.using(run_after=timedelta(hours=1)).enqueue()
    deliveries = claim(limit=3)
    succeed(deliveries[0])
    give_up(deliveries[1])
    fail(deliveries[2], delay=60)
    assert states(admin_client)[batch.id] == "4 outstanding"
    assert cards(admin_client, batch) == {
        "members": "6",
        "ready": "0",
        "running": "0",
        "delayed": "2",
        "parked": "2",
        "succeeded": "1",
        "failed": "1",
    }
    assert [one["event"] for one in context(admin_client, batch)["callbacks"]] == [
        "on_finish",
        "on_success",
        "on_failure",
    ]


# --- bounds -------------------------------------------------------------------------------------------


def queries(client: Client, *addresses: str) -> list[int]:
    numbers = []
    for address in addresses:
        ContentType.objects.clear_cache()
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address).status_code == 200
        numbers.append(len(captured))
    return numbers


def test_as_many_queries_for_two_hundred_batches_and_members_as_for_one(admin_client: Client) -> None:
    batch = rows.a_batch(1, callbacks=rows.callbacks())
    members = a_member_everywhere(batch)
    listing = reverse("admin:pgbus_batch_changelist")
    job = reverse("admin:pgbus_message_change", args=[members["ready"].pk])
    one = queries(admin_client, listing, change(batch), job)
    for number in range(200):
        rows.a_count(rows.a_batch(number), added=1)
        rows.a_message(batch_id=batch.pk, task=f"shop.tasks.task{number}")
        if number % 4 == 0:
            a_member_everywhere(batch)
    assert queries(admin_client, listing, change(batch), job) == one
    assert max(one) <= 16


def test_a_batch_is_found_by_the_index_of_members_however_much_others_hold() -> None:
    """A planner who believes that it is much of a table would walk through all of it to find that it has left."""
    most, left = rows.a_batch(3_000), rows.a_batch(3_000)
    work = "queue, priority, task, backend, payload, batch_id"
    member = "'q', 0, 't', 'default', '{}'::json, batch_id"
    many = f"FROM generate_series(1, 3000), unnest(ARRAY[{most.pk}, {left.pk}]) AS batch_id"
    filled = {
        "pgbus_messages": (work, member),
        "pgbus_delayed": (f"{work}, due_at", f"{member}, now()"),
        "pgbus_blocked_executions": (f"{work}, waits_for, key", f"{member}, 'key', 'k'"),
        "pgbus_dead_letters": (f"{work}, reason", f"{member}, 'exhausted'"),
    }
    asked = [
        (stats_sql.STANDING, {"ids": [left.pk, most.pk], "each": 1000}),
        (stats_sql.PLACES, {"id": left.pk, "limit": 100}),
        (stats_sql.OUTSTANDING, {"id": left.pk, "most": 50}),
        (stats_sql.DEAD, {"id": left.pk, "most": 50}),
    ]
    with connection.cursor() as cursor:
        for table, (columns, values) in filled.items():
            cursor.execute(f"INSERT INTO {table} ({columns}) SELECT {values} {many}")
            cursor.execute(f"ANALYZE {table}")
            cursor.execute(f"DELETE FROM {table} WHERE batch_id = {left.pk}")
        cursor.execute(
            f"INSERT INTO pgbus_batch_counts (batch_id, added) SELECT {most.pk}, 1 FROM generate_series(1, 3000)"
        )
        cursor.execute("ANALYZE pgbus_batch_counts")
        for statement, params in asked:
            cursor.execute(f"EXPLAIN {statement.sql}", params)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            for table in (*filled, "pgbus_batch_counts"):
                assert f"{table}_pkey" not in plan, plan
                assert f"Seq Scan on {table}" not in plan, plan


# --- whatever comes from outside is text --------------------------------------------------------------


def test_markup_stays_text(admin_client: Client) -> None:
    fields = {
        "description": EVIL,
        "key": EVIL,
        "properties": json.dumps({SHORT: EVIL}),
        "callbacks": json.dumps({EVIL: {"task": EVIL, "queue": EVIL}}),
    }
    batch = rows.a_batch(6, 1, 1, **fields)
    rows.a_finished_batch(**fields)
    work = {"batch_id": batch.pk, "task": EVIL, "queue": EVIL, "errors": [rows.error(traceback=EVIL, exception=EVIL)]}
    jobs = [rows.a_message(**work), rows.a_delayed(**work), rows.a_parked(EVIL, **work), rows.a_dead_letter(**work)]
    rows.a_lock(batch.pk, EVIL, strategy="until_finished", queue="")
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;"
    for path in (
        reverse("admin:pgbus_batch_changelist"),
        change(batch),
        reverse("admin:pgbus_batch_history", args=[batch.pk]),
        *(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]) for job in jobs),
        reverse("admin:pgbus_semaphore_changelist"),
        lock_address("discard_lock", key=EVIL, job=batch.pk),
    ):
        assert escaped in harmless(admin_client, path), path
    harmless(admin_client, reverse("admin:pgbus_message_changelist", query={"batch": EVIL}))


# --- who may see what ---------------------------------------------------------------------------------


def test_jobs_are_linked_for_those_who_may_see_them(login: Login) -> None:
    batch = rows.a_batch(6, 1, 1, key="orders")
    a_member_everywhere(batch)
    text = page(login("view_batch", username="only"), batch)
    for model in ("message", "delayed", "blockedexecution", "archived", "deadletter", "semaphore"):
        assert f"/{model}/" not in text
    assert "tests.<wbr>admin.<wbr>tasks.<wbr>import_order" in text
    assert "is not a date" not in text, "what it died of"
    text = page(login("view_batch", "view_message", "view_deadletter", username="more"), batch)
    assert "/message/" in text
    assert "/deadletter/" in text
    assert "is not a date" in text
    assert "/delayed/" not in text


def test_a_job_says_which_batch_it_belongs_to(login: Login, admin_client: Client) -> None:
    batch = rows.a_batch(6, 1, 1, description="Orders of 30 November")
    for job in a_member_everywhere(batch).values():
        view = reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk])
        text = admin_client.get(view).content.decode()
        assert (
            f'<a href="{change(batch)}">{batch.pk}</a> <span class="pgbus-quiet">Orders of 30 November</span>' in text
        )
        member = login(f"view_{job._meta.model_name}", username=f"{job._meta.model_name}{job.pk}").get(view)
        text = " ".join(member.content.decode().split())
        assert f"<dt>Batch</dt><dd>{batch.pk}</dd>" in text.replace("> <", "><")
        assert "Orders of 30 November" not in text
    assert (
        "<dt>Batch</dt>"
        not in admin_client.get(reverse("admin:pgbus_message_change", args=[rows.a_message().pk])).content.decode()
    )


def test_a_job_outlives_its_batch(admin_client: Client) -> None:
    job = rows.a_dead_letter(batch_id=4711)
    text = admin_client.get(reverse("admin:pgbus_deadletter_change", args=[job.pk])).content.decode()
    assert '4711 <span class="pgbus-quiet">finished, and not kept any longer</span>' in text


@pytest.mark.parametrize("query", ["batch=x", "batch=%00", "batch=", "batch=-1", f"batch={'9' * 30}"])
def test_a_batch_that_cannot_be_is_no_error(query: str, admin_client: Client) -> None:
    for model in ("message", "delayed", "archived", "deadletter", "blockedexecution"):
        response = admin_client.get(reverse(f"admin:pgbus_{model}_changelist") + f"?{query}", follow=True)
        assert response.status_code == 200


# --- redriven members ---------------------------------------------------------------------------------


def test_a_redrive_says_that_a_batch_does_not_count_its_member_again(admin_client: Client) -> None:
    batch = rows.a_finished_batch(9, 3)
    letters = [rows.a_dead_letter(batch_id=batch.pk) for _ in range(3)]
    other = rows.a_dead_letter()
    asked = select(admin_client, "deadletter", "redrive", letters, index=0).content.decode()
    assert "has counted it as failed does not count again, and no finished batch is opened again." in asked
    assert told(decide(admin_client, letters[0], "redrive")) == [
        "1 dead letter was redriven.",
        "1 redriven job was a member of a batch that has counted it as failed: it does not count again, and no finished "
        "batch is opened again.",
    ]
    assert told(select(admin_client, "deadletter", "redrive", [*letters[1:], other], post="yes")) == [
        "3 dead letters were redriven.",
        "2 redriven jobs were members of a batch that has counted them as failed: they do not count again, and no "
        "finished batch is opened again.",
    ]
    assert not DeadLetter.objects.exists()
    assert LogEntry.objects.count() == 4
    assert told(decide(admin_client, rows.a_dead_letter(), "redrive")) == ["1 dead letter was redriven."]
    assert Row.objects.get(pk=batch.pk).failed == 3


# --- its key ------------------------------------------------------------------------------------------


def test_the_key_of_a_batch_is_held_by_the_batch(admin_client: Client, login: Login) -> None:
    with Batch("Orders", key="orders") as batch:
        noop.enqueue()
    lock = uniqueness_stats.lock("orders")
    assert lock is not None
    assert (lock.place, lock.of_batch, lock.message) == ("batch", True, batch.id)
    row = unique_rows(admin_client)["orders"]
    assert (row["holder"], str(row["place"]), row["queue"]) == (f"batch {batch.id}", "not finished", "")
    assert (row["strategy"], row["job_url"]) == ("until the batch is finished", change(batch))
    text = " ".join(admin_client.get(reverse("admin:pgbus_semaphore_changelist")).content.decode().split())
    assert f'<a href="{change(batch)}">batch {batch.id}</a>' in text
    assert "nowhere" not in text
    text = login("view_uniquenesskey").get(reverse("admin:pgbus_semaphore_changelist")).content.decode()
    assert f"batch {batch.id}" in text
    assert change(batch) not in text


def test_the_key_of_a_batch_that_is_nowhere_says_so(admin_client: Client) -> None:
    for batch in (rows.a_finished_batch(), None):
        rows.a_lock(batch.pk if batch else 4711, f"key {batch}", strategy="until_finished", queue="")
    for row in unique_rows(admin_client).values():
        assert str(row["place"]) == "nowhere: its key is freed within a minute"
        assert row["holder"].startswith("batch ")


@pytest.mark.django_db(transaction=True)
def test_discarding_the_lock_of_a_batch_warns_of_another_batch(admin_client: Client) -> None:
    with Batch("Orders", key="orders") as batch:
        noop.enqueue()
    url = unique_rows(admin_client)["orders"]["discard_url"]
    asked = admin_client.get(url).content.decode()
    assert f"Discard the lock of batch {batch.id}?" in asked
    assert "another batch with this key may then run beside it" in asked
    assert UniquenessKey.objects.exists(), "GET changes nothing"
    assert told(confirm(admin_client, url)) == [f"The lock of batch {batch.id} was discarded."]
    assert logged() == [("uniquenesskey", "orders", f"The lock that batch {batch.id} held was discarded.")]
    assert not UniquenessKey.objects.exists()
    with Batch("Orders again", key="orders"):
        noop.enqueue()
    assert states(admin_client)[batch.id] == "1 outstanding"
