"""The pages of streams: how far groups are and what holds them up, what failed, what is kept, and what may be decided."""

from __future__ import annotations

import os
import uuid
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib.contenttypes.models import ContentType
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgbus.admin import entry_decisions, stream_words
from django_pgbus.models import ConsumerGroup, Cursor, EntryException, RangeLease, StreamLog, Worker
from django_pgbus.queues.stats import Count
from django_pgbus.streams import groups, stats
from django_pgbus.streams.states import GroupState, HeldByEntry, HeldByHole, HeldByLease, Refusal
from django_pgbus.tasks.masking import MASK
from django_pgbus.worker.waiting import Kind, situation
from tests.admin import consumers, rows  # noqa: F401  (the consumers are declared)
from tests.admin.conftest import Login
from tests.admin.stream_rows import (
    GONE_CONSUMER,
    a_dead,
    a_failed,
    a_group,
    a_lease,
    a_stream,
    a_waiting,
    age,
    append,
    skip,
)
from tests.admin.test_locks import ask, confirm, logged, told
from tests.admin.test_markup import EVIL, SHORT, harmless
from tests.sessions import sessions
from tests.streams.following import let_others_end

pytestmark = pytest.mark.django_db
SECRET = "tok_live_31337"


@pytest.fixture(autouse=True)
def nothing_declared() -> None:
    """Begin without the streams that `post_migrate` may have made of what is loaded, and with somebody who works."""
    StreamLog.objects.all().delete()
    rows.a_worker(streams="ledger/totals, ledger/audit, ledger/mail")


def listed(client: Client, **query: Any) -> Any:
    response = client.get(reverse("admin:pgbus_streamlog_changelist", query=query))
    assert response.status_code == 200
    return response.context


def address(stream: StreamLog, page: str = "change", **query: Any) -> str:
    return reverse(f"admin:pgbus_streamlog_{page}", args=[stream.pk], query=query)


def shown(client: Client, stream: StreamLog, **query: Any) -> Any:
    response = client.get(address(stream, **query))
    assert response.status_code == 200
    return response.context


def text(client: Client, path: str) -> str:
    return unescape(" ".join(client.get(path).content.decode().split()))


def decision(name: str, stream: StreamLog, **query: Any) -> str:
    return reverse(f"admin:pgbus_streamlog_{name}", query={"stream": stream.pk, **query})


def only(stream: StreamLog) -> GroupState:
    """Return the state of the only group of a stream."""
    state = stats.stream(stream.pk)
    assert state is not None
    (group,) = state.groups
    return group


def standing(stream: StreamLog) -> Any:
    state = stats.stream(stream.pk)
    assert state is not None
    return stream_words.standing(state, state.groups[0], situation())


def held(stream: StreamLog) -> str:
    return " ".join(stream_words.holds(only(stream), situation()))


# --- how far a group is -------------------------------------------------------------------------------


def test_a_stream_tells_what_its_log_holds() -> None:
    stream = a_stream(entries=25, partition_size=10)
    skip(stream, 3)
    state = stats.stream(stream.pk)
    assert state is not None
    assert (state.name, state.head, state.entries, state.oldest) == ("ledger", 28, 28, 1)
    assert state.partitions.number >= 3
    assert state.bytes > 0
    assert state.oldest_seconds is not None
    parts = stats.partitions(state)
    assert [(part.lower, part.upper) for part in parts[:3]] == [(0, 10), (10, 20), (20, 30)]
    assert [part.entries for part in parts[:3]] == [9, 10, 9]
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE pgbus_stream_{stream.pk}_p0")
        cursor.execute(f"DELETE FROM pgbus_stream_{stream.pk} WHERE position < 5")
    state = stats.stream(stream.pk)
    assert state is not None
    assert (state.oldest, state.entries) == (5, 24)
    assert stats.partitions(state)[0].entries == 5


def test_what_is_committed_is_the_live_number() -> None:
    stream = a_stream(entries=100)
    group = a_group(stream, claimed=90, committed=10)
    assert (only(stream).committed, only(stream).lag) == (90, 10)
    a_dead(group, 20)  # keeps nothing
    a_failed(group, 71)
    assert only(stream).committed == 70
    a_lease(group, 60, 80)
    assert only(stream).committed == 60
    RangeLease.objects.update(low=5)  # handed back by hand: what is written down holds
    assert only(stream).committed == 10


def test_a_redriven_dead_letter_holds_nothing_up() -> None:
    stream = a_stream(entries=10)
    a_dead(a_group(stream, claimed=10), 3, status="ready")
    assert (only(stream).committed, only(stream).holds) == (10, ())


def test_a_group_that_routes_is_as_far_as_its_mark() -> None:
    stream = a_stream(entries=10)
    a_failed(a_group(stream, claimed=7, routes=True), 3)
    assert only(stream).committed == 7


def test_lag_is_in_entries_and_in_seconds() -> None:
    stream = a_stream(entries=10)
    age(stream, timedelta(hours=1), up_to=6)
    a_group(stream, claimed=5)
    group = only(stream)
    assert group.lag == 5
    assert group.lag_seconds == pytest.approx(3600, abs=60)
    Cursor.objects.update(claimed=6, committed=6)
    group = only(stream)
    assert group.lag == 4
    assert group.lag_seconds is not None
    assert group.lag_seconds < 60
    Cursor.objects.update(claimed=10, committed=10)
    assert (only(stream).lag, only(stream).lag_seconds) == (0, None)


def test_counts_say_where_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = a_stream(entries=20)
    group = a_group(stream, claimed=20)
    monkeypatch.setattr(stats, "LIMIT", 2)
    for nth in range(1, 4):
        a_failed(group, nth)
        a_failed(group, 5 + nth, status="running", until=rows.now())
        a_dead(group, 10 + nth)
        a_lease(group, 15 + nth, 16 + nth)
    state = only(stream)
    assert state.ready == state.running == state.dead == state.leases == Count(2, more=True)


# --- what holds it up, in words -----------------------------------------------------------------------


def test_a_group_that_is_done_is_caught_up() -> None:
    stream = a_stream(entries=3)
    a_group(stream, claimed=3)
    assert (standing(stream).kind, str(standing(stream).state)) == (Kind.READY, "caught up")


def test_an_open_range_is_told_with_its_worker() -> None:
    worker = rows.a_worker(name="shop-7")
    stream = a_stream(entries=10)
    lease = a_lease(a_group(stream, claimed=8, committed=2), 2, 8, worker.id)
    assert standing(stream).kind is Kind.RUNNING
    assert held(stream).startswith("Entries after 2 to 8 are with worker shop-7 since ")
    assert isinstance(only(stream).holds[0], HeldByLease)
    lease.until = rows.now() - timedelta(seconds=5)
    lease.save()
    assert str(standing(stream).state) == "worker silent"
    assert "the next that claims takes them" in held(stream)


def test_a_failed_entry_is_told_with_its_time() -> None:
    stream = a_stream(entries=10)
    failed = a_failed(a_group(stream, claimed=10, committed=2), 3)
    assert str(standing(stream).state) == "held by an entry"
    assert held(stream).startswith("Entry 3 has failed, and is tried again ")
    failed.due_at = rows.now() - timedelta(seconds=5)
    failed.save()
    assert "is to be tried again since" in held(stream)
    failed.status = "running"
    failed.save()
    assert held(stream) == "Entry 3 is being tried on its own."
    failed.delete()
    a_waiting(ConsumerGroup.objects.get(), 4)
    assert held(stream) == "Entry 4 waits for its turn."
    assert isinstance(only(stream).holds[0], HeldByEntry)


def test_what_is_lowest_is_told_first() -> None:
    stream = a_stream(entries=10)
    skip(stream)
    append(stream, 1)
    group = a_group(stream, claimed=10, committed=2)
    a_lease(group, 6, 10)
    a_failed(group, 4)
    assert [type(hold) for hold in only(stream).holds] == [HeldByEntry, HeldByLease, HeldByHole]


@pytest.mark.django_db(transaction=True)
def test_a_hole_is_told_with_the_oldest_transaction() -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("the oldest transaction of this server may be that of the other test process")
    stream = a_stream(entries=2)
    a_group(stream, claimed=2)
    with sessions() as other:
        other.sql("SET application_name = 'shop-import'")
        let_others_end()
        other.open()
        other.sql(f"INSERT INTO pgbus_stream_{stream.pk} (payload) VALUES ('1')")
        append(stream, "later")
        (hole,) = only(stream).holds
        assert isinstance(hole, HeldByHole)
        assert (hole.position, hole.proven) == (3, False)
        assert hole.writer is not None
        assert hole.writer.application == "shop-import"
        assert hole.writer.database == connection.settings_dict["NAME"]
        assert str(standing(stream).state) == "waits for a transaction"
        assert "Position 3 is not committed." in held(stream)
        assert "(shop-import), open for" in held(stream)
    (hole,) = only(stream).holds
    assert isinstance(hole, HeldByHole)
    assert hole.writer is None
    assert "was rolled back" in held(stream)


def test_a_hole_that_is_proven_is_passed_by_the_next_claim() -> None:
    stream = a_stream(entries=2)
    skip(stream)
    append(stream, "later")
    a_group(stream, claimed=2)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgbus_stream_cursors SET pending_xid = '3'")
    (hole,) = only(stream).holds
    assert isinstance(hole, HeldByHole)
    assert hole.proven
    assert held(stream) == "Position 3 was rolled back: the next claim passes it."
    assert str(standing(stream).state) == "behind"


def test_a_group_that_no_worker_consumes_says_so() -> None:
    Worker.objects.all().delete()
    stream = a_stream(entries=2)
    group = a_group(stream)
    for streams in ("", "ledger/mail", "ledger/totals-by-day", "old-ledger/totals"):
        rows.a_worker(streams=streams)
    rows.a_worker(streams="ledger/totals", state="draining")
    rows.a_worker(streams="ledger/totals", beat_at=rows.now() - timedelta(minutes=5))
    assert (standing(stream).kind, str(standing(stream).state)) == (Kind.LOST, "no worker")
    a_lease(group, 0, 1)
    assert str(standing(stream).state) == "working"
    RangeLease.objects.all().delete()
    Cursor.objects.update(claimed=2, committed=2)
    assert (standing(stream).kind, str(standing(stream).state)) == (Kind.WAITING, "caught up, no worker")
    rows.a_worker(streams="ledger/mail, ledger/totals")
    assert str(standing(stream).state) == "caught up"
    Cursor.objects.update(claimed=1, committed=1)
    assert str(standing(stream).state) == "behind"


@pytest.mark.parametrize(
    ("changes", "refusal", "why"),
    [
        ({"fence": 99}, Refusal.FENCE, "another rule"),
        ({"epoch": "7000000000000000000/16384"}, Refusal.EPOCH, "belongs to another log"),
        ({"claimed": 99}, Refusal.HEAD, "past the end of the log"),
    ],
)
def test_a_group_that_refuses_says_why_and_what_to_do(
    changes: dict[str, Any], refusal: Refusal, why: str, admin_client: Client
) -> None:
    stream = a_stream(entries=2)
    a_group(stream, **changes)
    assert only(stream).refusal is refusal
    said = text(admin_client, address(stream))
    assert why in said
    assert "pgbus_doctor --repair-cursor ledger/totals" in said
    (row,) = listed(admin_client)["rows"]
    assert row["warnings"] == [{"kind": "lost", "text": "Group totals: refuses."}]


def test_a_group_without_a_cursor_and_one_that_is_paused_say_so() -> None:
    stream = a_stream(entries=2)
    group = a_group(stream)
    ConsumerGroup.objects.update(paused_at=rows.now())
    assert str(standing(stream).state) == "paused"
    group.cursor.delete()
    assert str(standing(stream).state) == "not begun"


def test_a_stream_without_its_log_breaks_no_page(admin_client: Client) -> None:
    stream = StreamLog.objects.create(name="lost", partition_size=10)
    group = ConsumerGroup.objects.create(stream=stream, name="totals", handler="a.b")
    Cursor.objects.create(group=group, claimed=5, committed=5, fence=1, epoch="1/2")
    failed = a_failed(group, 3)
    assert "Its log is not there" in text(admin_client, reverse("admin:pgbus_streamlog_changelist"))
    assert "refuses" in text(admin_client, address(stream))
    path = reverse("admin:pgbus_streamlog_entry", args=[stream.pk, failed.pk])
    assert "does not have it any more" in text(admin_client, path)
    for name in ("pause", "rewind"):
        ask(admin_client, decision(name, stream, group="totals"))


# --- what is kept -------------------------------------------------------------------------------------


def test_who_keeps_what_is_past_its_age_is_told(admin_client: Client) -> None:
    stream = a_stream(entries=45, partition_size=10, retention=timedelta(days=1))
    age(stream, timedelta(days=3), up_to=29)
    a_group(stream, "audit", claimed=4)
    a_group(stream, "mail", claimed=15)
    a_group(stream, "totals", claimed=45)
    state = stats.stream(stream.pk)
    assert state is not None
    pins = stats.pins(state, stats.partitions(state))
    assert [(pin.group, pin.committed, pin.partitions, pin.entries) for pin in pins] == [
        ("audit", 4, 3, 25),
        ("mail", 15, 2, 14),
    ]
    (row,) = listed(admin_client)["rows"]
    assert "Kept beyond its age for groups audit, mail." in [warning["text"] for warning in row["warnings"]]
    said = text(admin_client, address(stream))
    assert "Entries are kept for 1 d 0 h, and until every group has handled them." in said
    StreamLog.objects.update(drops_unhandled=True)
    state = stats.stream(stream.pk)
    assert state is not None
    assert stats.pins(state, stats.partitions(state)) == []
    assert "whether or not every group has handled them" in text(admin_client, address(stream))


def test_a_part_of_a_partition_can_be_kept_too(admin_client: Client) -> None:
    stream = a_stream(entries=5, retention=timedelta(days=1))
    age(stream, timedelta(days=3), up_to=3)
    a_group(stream, claimed=1)
    (pin,) = shown(admin_client, stream)["retention"]["pins"]
    assert (pin["group"], pin["partitions"], pin["entries"]) == ("totals", "0", "")
    assert "some, in a partition with younger ones" in text(admin_client, address(stream))


# --- the list and the page ----------------------------------------------------------------------------


def test_the_list_tells_the_worst_of_each_stream(admin_client: Client) -> None:
    ledger = a_stream(entries=10)
    a_dead(a_group(ledger, "audit", claimed=3), 2)
    a_group(ledger, "totals", claimed=10)
    a_stream("orders")
    first, second = listed(admin_client)["rows"]
    assert (first["name"], first["head"], first["groups"], first["lag"], first["lag_of"], first["dead"]) == (
        "ledger",
        "10",
        "2",
        "7 entries",
        "audit",
        "1",
    )
    assert (second["name"], second["head"], second["lag"], second["dead"]) == ("orders", "0", "", "")
    assert "Group audit: 1 dead letter." in [warning["text"] for warning in first["warnings"]]
    assert [row["name"] for row in listed(admin_client, q="ORD")["rows"]] == ["orders"]
    assert "No stream is called so." in text(
        admin_client, reverse("admin:pgbus_streamlog_changelist", query={"q": "%"})
    )
    assert listed(admin_client, q="a\x00b")["search"] == "ab"


def test_the_index_warns_of_what_needs_a_person(admin_client: Client, login: Login) -> None:
    index = reverse("admin:app_list", args=["pgbus"])
    assert "consumer group" not in text(admin_client, index).lower()
    stream = a_stream(entries=10)
    a_dead(a_group(stream, "audit", claimed=10, paused_at=rows.now()), 3)
    a_group(stream, "mail", claimed=11)
    a_group(stream, "totals", claimed=10)
    said = text(admin_client, index)
    assert "A consumer group refuses to work: ledger/mail." in said
    assert "Paused consumer group: ledger/audit." in said
    assert "1 dead letter of a stream waits for a person." in said
    assert "ledger/" not in text(login("view_queuestate"), index)
    StreamLog.objects.all().delete()
    assert "consumer group" not in text(admin_client, index).lower()


def test_the_list_has_an_end(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MOST_STREAMS", 2)
    monkeypatch.setattr(stats, "OF_EACH", 1)
    for name in ("a", "b", "c"):
        stream = a_stream(name)
        a_group(stream, "one")
        a_group(stream, "two")
    context = listed(admin_client)
    assert [(row["name"], row["groups"]) for row in context["rows"]] == [("a", "1+"), ("b", "1+")]
    assert context["most"] == "2"


def test_the_page_shows_groups_failures_and_leases(admin_client: Client) -> None:
    worker = rows.a_worker(name="shop-7")
    stream = a_stream(entries=30)
    group = a_group(stream, claimed=30, committed=2)
    other = a_group(stream, "audit", claimed=20, handler=GONE_CONSUMER, keyed=True)
    failed, dead, waits = a_failed(group, 4), a_dead(group, 3), a_waiting(other, 19)
    a_lease(group, 20, 30, worker.id, reclaims=2)
    context = shown(admin_client, stream)
    audit, totals = context["groups"]["rows"]
    assert (totals["name"], totals["importable"], totals["failed"], totals["dead"]) == ("totals", True, "1", "1")
    assert (audit["importable"], audit["badges"]) == (False, ["in order of a key"])
    assert [(row["id"], str(row["state"])) for row in context["failed"]["rows"]] == [
        (str(dead.pk), "dead letter"),
        (str(waits.pk), "waits for its key"),
        (str(failed.pk), "retrying"),
    ]
    assert "BrokenRow: line 1043" in context["failed"]["rows"][0]["error"]
    (lease,) = context["leases"]["rows"]
    assert (lease["range"], lease["worker"], lease["reclaims"]) == ("after 20 to 30", "shop-7", "2")
    cards = {str(card["label"]): card["number"] for card in context["cards"]}
    assert (cards["head"], cards["retrying"], cards["dead letter"]) == ("30", "2", "1")
    for row in context["failed"]["rows"]:
        assert admin_client.get(row["url"]).status_code == 200
    assert [row["id"] for row in shown(admin_client, stream, group="audit")["failed"]["rows"]] == [str(waits.pk)]
    assert shown(admin_client, stream, group="audit")["leases"]["rows"] == []
    assert len(shown(admin_client, stream, group="nobody")["failed"]["rows"]) == 3


@pytest.mark.parametrize("id", ["999999", "0", "nonsense", "a%2Fb", "9" * 30])
def test_a_stream_that_is_not_there_is_said_to_be_gone(id: str, admin_client: Client) -> None:
    for path in (f"/admin/pgbus/streamlog/{id}/change/", f"/admin/pgbus/streamlog/{id}/entry/1/"):
        assert admin_client.get(path).status_code == 302, path
    for name in ("pause", "resume", "rewind", "override", "redrive", "discard", "redrive_dead", "discard_dead"):
        path = reverse(f"admin:pgbus_streamlog_{name}", query={"stream": id, "group": "a", "entry": id})
        assert "Nothing was changed" in " ".join(told(admin_client.get(path, follow=True)))


def test_an_entry_of_another_stream_is_not_shown(admin_client: Client) -> None:
    failed = a_failed(a_group(a_stream(entries=2), claimed=2), 1)
    other = a_stream("orders")
    assert admin_client.get(reverse("admin:pgbus_streamlog_entry", args=[other.pk, failed.pk])).status_code == 302
    response = admin_client.get(decision("discard", other, entry=failed.pk), follow=True)
    assert "none was chosen" in " ".join(told(response))


def test_many_partitions_are_shown_by_their_ends(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgbus.admin.streams.MOST_PARTITIONS_SHOWN", 2)
    stream = a_stream(entries=45, partition_size=10)
    found = shown(admin_client, stream)["partitions"]
    assert found["rows"][0]["lower"] == "1"
    assert (len(found["rows"]), found["most"]) == (2, "2")
    assert int(found["all"]) >= 5


# --- what an entry carries ----------------------------------------------------------------------------


def entry_page(client: Client, failed: EntryException) -> str:
    path = reverse("admin:pgbus_streamlog_entry", args=[failed.group.stream_id, failed.pk])
    return unescape(client.get(path).content.decode())


def test_an_entry_is_shown_from_the_log_or_from_the_dead_letter(admin_client: Client) -> None:
    stream = a_stream(entries=2)
    group = a_group(stream, claimed=2)
    assert '"n": 2' in entry_page(admin_client, a_failed(group, 2))
    said = entry_page(admin_client, a_dead(group, 1))
    assert '"order_id": 1043' in said
    assert "shop.rows.BrokenRow: line 1043" in said
    assert "does not have it any more" in entry_page(admin_client, a_failed(group, 77))


def test_sensitive_keys_are_masked_and_scrubbed(admin_client: Client) -> None:
    stream = a_stream(entries=2)
    group = a_group(stream, "mail", claimed=2, handler="tests.admin.consumers.mail")
    body = {"order_id": 1043, "token": SECRET, "lines": [{"token": [SECRET], "sku": "LP-17"}]}
    said = entry_page(admin_client, a_dead(group, 1, body, traceback=f"ValueError: bad token {SECRET!r}"))
    for part in ('"order_id": 1043', '"sku": "LP-17"', MASK):
        assert part in said
    assert SECRET not in said


@pytest.mark.parametrize("path", [GONE_CONSUMER, "", "nowhere", "tests.admin.exits.on_import"])
def test_of_a_consumer_that_is_not_known_only_the_shape_is_shown(path: str, admin_client: Client) -> None:
    stream = a_stream(entries=2)
    group = a_group(stream, "old", claimed=2, handler=path)
    said = entry_page(admin_client, a_dead(group, 1, {"token": SECRET, "cents": 1999}))
    assert SECRET not in said
    assert "1999" not in said
    assert '"token": "********"' in said
    assert "its values are hidden" in said


# --- decisions ----------------------------------------------------------------------------------------


def test_a_group_is_paused_and_resumed(admin_client: Client) -> None:
    stream = a_stream(entries=2)
    a_group(stream)
    assert "Pause group totals of stream ledger?" in text(admin_client, decision("pause", stream, group="totals"))
    response = confirm(admin_client, decision("pause", stream, group="totals"))
    assert told(response) == ["Group totals is paused."]
    assert response.redirect_chain[-1][0] == address(stream)
    assert ConsumerGroup.objects.get().paused_at is not None
    (row,) = shown(admin_client, stream)["groups"]["rows"]
    assert [str(one["label"]) for one in row["decisions"]] == ["Resume"], "it has claimed nothing yet"
    asked = ask(admin_client, decision("resume", stream, group="totals"))
    assert asked.context["stands"] == "It is behind by 2 entries."
    assert told(confirm(admin_client, decision("resume", stream, group="totals"))) == ["Group totals is resumed."]
    assert ConsumerGroup.objects.get().paused_at is None
    about = ("streamlog", str(stream.pk))
    assert logged() == [(*about, "Group totals was paused."), (*about, "Group totals was resumed.")]
    assert "Group totals was resumed." in text(admin_client, address(stream, "history"))


@pytest.mark.parametrize("name", ["pause", "resume"])
def test_a_group_that_goes_while_it_is_decided_about_is_said_to_be_gone(
    name: str, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = a_stream()
    a_group(stream)
    change = getattr(groups, name)

    def too_late(*args: Any, **kwargs: Any) -> Any:
        ConsumerGroup.objects.all().delete()
        return change(*args, **kwargs)

    monkeypatch.setattr(groups, name, too_late)
    response = confirm(admin_client, decision(name, stream, group="totals"))
    assert told(response) == ["Nothing was changed: there is no such consumer group any more."]


def test_a_rewind_asks_where_to_and_then_names_how_many(admin_client: Client) -> None:
    stream = a_stream(entries=30)
    skip(stream, 10)
    append(stream, *range(10))
    group = a_group(stream, claimed=50)
    a_failed(group, 40), a_dead(group, 50)
    a_lease(group, 45, 50)
    asked = ask(admin_client, decision("rewind", stream, group="totals"))
    assert "hidden" not in asked.context
    assert "claimed entries up to position 50" in text(admin_client, decision("rewind", stream, group="totals"))
    path = decision("rewind", stream, group="totals", to="position", position=20)
    asked = ask(admin_client, path)
    assert asked.context["title"] == "Handle 20 entries of stream ledger again with group totals?"
    assert "not undone" in asked.context["warning"]
    assert logged() == []
    response = confirm(admin_client, path)
    assert told(response) == ["Group totals was rewound to position 20: 30 positions are handled again."]
    assert (Cursor.objects.get().claimed, EntryException.objects.count(), RangeLease.objects.count()) == (20, 0, 0)
    assert logged() == [("streamlog", str(stream.pk), "Group totals was rewound to position 20.")]


def test_a_rewind_to_the_beginning_says_what_is_not_kept(admin_client: Client) -> None:
    stream = a_stream(entries=30)
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM pgbus_stream_{stream.pk} WHERE position <= 12")
    a_group(stream, claimed=30)
    path = decision("rewind", stream, group="totals", to="beginning")
    asked = ask(admin_client, path)
    assert asked.context["title"] == "Handle 18 entries of stream ledger again with group totals?"
    assert asked.context["stands"].startswith("Entries before position 13 are not kept any more")
    confirm(admin_client, path)
    assert Cursor.objects.get().claimed == 0


def test_beyond_what_is_counted_a_rewind_names_an_estimate(admin_client: Client) -> None:
    stream = a_stream(entries=1)
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO pgbus_stream_{stream.pk} (payload) SELECT '1' FROM generate_series(1, 12344)")
    a_group(stream, claimed=12_345)
    path = decision("rewind", stream, group="totals", to="beginning")
    assert (
        ask(admin_client, path).context["title"]
        == "Handle about 12,300 entries of stream ledger again with group totals?"
    )
    path = decision("rewind", stream, group="totals", to="position", position=2345)
    assert ask(admin_client, path).context["title"] == "Handle 10,000 entries of stream ledger again with group totals?"


@pytest.mark.parametrize("position", ["", "-1", "7", "8", "1.5", "x", "\N{FULLWIDTH DIGIT ONE}", "1" * 40])
def test_a_position_that_cannot_be_is_refused(position: str, admin_client: Client) -> None:
    stream = a_stream(entries=9)
    a_group(stream, claimed=7)
    path = decision("rewind", stream, group="totals", to="position", position=position)
    assert ask(admin_client, path).context["error"] == "Give a whole number from 0 to 6."
    for data in ({"post": "yes"}, {"post": "yes", "after": "3"}, {"post": "yes", "after": "x"}):
        admin_client.post(path, data)
    assert Cursor.objects.get().claimed == 7
    assert logged() == []


def test_a_rewind_that_somebody_else_has_overtaken_changes_nothing(admin_client: Client) -> None:
    stream = a_stream(entries=9)
    a_group(stream, claimed=7)
    path = decision("rewind", stream, group="totals", to="position", position=5)
    groups.rewind("ledger", "totals", 2)
    response = admin_client.post(path, {"post": "yes", "after": "5"}, follow=True)
    assert told(response) == ["Nothing was changed: the group has not claimed that far."]
    assert Cursor.objects.get().claimed == 2


def test_a_group_that_has_claimed_nothing_cannot_be_rewound(admin_client: Client) -> None:
    stream = a_stream(entries=9)
    a_group(stream)
    assert "nothing to handle again" in text(admin_client, decision("rewind", stream, group="totals"))
    assert "nothing to handle again" in text(admin_client, decision("rewind", stream, group="totals", to="beginning"))


def test_what_is_not_handled_is_dropped_or_kept_by_a_decision(admin_client: Client) -> None:
    stream = a_stream(entries=9, retention=timedelta(days=1))
    a_group(stream, claimed=7)
    asked = ask(admin_client, decision("override", stream))
    assert asked.context["stands"] == "Behind now: group totals (2 entries)."
    response = confirm(admin_client, decision("override", stream))
    assert told(response) == ["Retention drops what is past its age, handled or not."]
    assert StreamLog.objects.get().drops_unhandled
    response = admin_client.post(decision("override", stream), {"post": "yes", "drops": "yes"}, follow=True)
    assert len(logged()) == 1, "nothing was changed"
    assert told(confirm(admin_client, decision("override", stream))) == ["Retention keeps what is not handled."]
    assert not StreamLog.objects.get().drops_unhandled
    assert len(logged()) == 2


def test_chosen_entries_are_redriven(admin_client: Client) -> None:
    stream = a_stream(entries=9)
    group = a_group(stream, claimed=9)
    dead, other, failed = a_dead(group, 3), a_dead(group, 4), a_failed(group, 5)
    path = f"{reverse('admin:pgbus_streamlog_redrive')}?stream={stream.pk}&entry={dead.pk}&entry={failed.pk}&entry=x"
    asked = ask(admin_client, path)
    assert asked.context["title"] == "Redrive 1 dead letter?", "only the dead can be"
    assert [str(row) for row in asked.context["rows"]] == ["entry 3 of group totals"]
    response = confirm(admin_client, path)
    assert told(response) == ["1 dead letter was redriven."]
    dead.refresh_from_db(), other.refresh_from_db()
    assert (dead.status, dead.attempts, other.status) == ("ready", 0, "dead")
    assert logged() == [("streamlog", str(stream.pk), "Redrove 1 failed entry of group totals: 3.")]
    assert "none was chosen" in " ".join(told(admin_client.get(decision("redrive", stream), follow=True)))


def test_chosen_entries_are_discarded_but_not_one_that_runs(admin_client: Client) -> None:
    stream = a_stream(entries=9)
    group = a_group(stream, claimed=9)
    gone = [a_dead(group, 3), a_failed(group, 4)]
    running = a_failed(group, 5, status="running", until=rows.now() + timedelta(seconds=30))
    path = f"{reverse('admin:pgbus_streamlog_discard')}?stream={stream.pk}"
    path += "".join(f"&entry={failed.pk}" for failed in (*gone, running))
    assert ask(admin_client, path).context["title"] == "Discard 2 failed entries?"
    assert told(confirm(admin_client, path)) == ["2 failed entries were discarded."]
    assert list(EntryException.objects.values_list("pk", flat=True)) == [running.pk]
    assert logged() == [("streamlog", str(stream.pk), "Discarded 2 failed entries of group totals: 3, 4.")]


@pytest.mark.parametrize(("name", "left"), [("redrive_dead", 5), ("discard_dead", 1)])
def test_all_dead_letters_of_a_group_are_decided_about_in_batches(
    name: str, left: int, admin_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_decisions, "BATCH", 2)
    stream = a_stream(entries=9)
    group, other = a_group(stream, claimed=9), a_group(stream, "audit", claimed=9)
    for nth in range(1, 4):
        a_dead(group, nth)
    spared = a_dead(other, 1)
    path = decision(name, stream, group="totals")
    asked = ask(admin_client, path)
    later = a_dead(group, 8, failed_at=rows.now() + timedelta(minutes=1))  # it died after the person looked
    response = admin_client.post(path, {**dict(asked.context["hidden"]), "post": "yes"}, follow=True)
    assert told(response)[0].startswith("3 ")
    assert set(EntryException.objects.filter(status="dead").values_list("pk", flat=True)) == {spared.pk, later.pk}
    assert EntryException.objects.count() == left if name == "redrive_dead" else 2
    assert [line[2].split(" ")[1] for line in logged()] == ["2", "1"]
    assert ask(admin_client, decision(name, stream, group="audit")).context["title"].endswith("of group audit?")


def test_the_page_offers_only_what_a_person_may_decide(login: Login) -> None:
    stream = a_stream(entries=9, retention=timedelta(days=1))
    group = a_group(stream, claimed=9)
    dead = a_dead(group, 3)
    pages = [address(stream), reverse("admin:pgbus_streamlog_entry", args=[stream.pk, dead.pk])]
    names = {
        "pause_group": {"pause"},
        "rewind_group": {"rewind"},
        "redrive_entry": {"redrive", "redrive_dead"},
        "discard_entry": {"discard", "discard_dead"},
        "override_retention": {"override"},
    }
    every = set().union(*names.values())
    for codenames, allowed in [((), set()), *(((codename,), found) for codename, found in names.items())]:
        client = login("view_streamlog", *codenames, username=f"member-{len(allowed)}-{codenames}")
        said = "".join(client.get(page).content.decode() for page in pages)
        assert {name for name in every if f"/streamlog/{name}/" in said} == allowed
        assert ('type="checkbox"' in said) == bool(allowed & {"redrive", "discard"})


# --- markup and questions -----------------------------------------------------------------------------


def test_whatever_comes_from_outside_stays_text(admin_client: Client) -> None:
    rows.a_worker(name=EVIL)
    stream = a_stream(entries=9, retention=timedelta(seconds=1))
    age(stream, timedelta(days=1))
    worker = uuid.uuid4()
    rows.a_worker(id=worker, name=EVIL)
    group = a_group(stream, EVIL[:100], claimed=8, handler=EVIL)
    other = a_group(stream, SHORT, claimed=8, handler=f"tests.admin.{SHORT}", fence=9)
    a_lease(group, 6, 8, worker)
    changes = {"key": EVIL, "exception": EVIL, "traceback": f"Traceback\n{EVIL}"}
    made = [a_dead(group, 2, {SHORT: EVIL}, **changes), a_failed(other, 3, **changes), a_waiting(group, 4, EVIL)]
    StreamLog.objects.update(name=EVIL[:100])
    listing = reverse("admin:pgbus_streamlog_changelist")
    for path in (listing, f"{listing}?q=script", address(stream), address(stream, group=group.name)):
        assert "&lt;script&gt;" in harmless(admin_client, path)
    for failed in made:
        harmless(admin_client, reverse("admin:pgbus_streamlog_entry", args=[stream.pk, failed.pk]))
        for name in ("redrive", "discard"):
            harmless(admin_client, decision(name, stream, entry=failed.pk))
    about = {"group": group.name, "to": "position"}
    for name in ("pause", "redrive_dead", "discard_dead", "override"):
        harmless(admin_client, decision(name, stream, group=group.name))
    for position in (EVIL, "3"):
        harmless(admin_client, decision("rewind", stream, **about, position=position))
    for path in (
        decision("pause", stream, group=group.name),
        decision("rewind", stream, **about, position=3),
        decision("discard", stream, entry=made[1].pk),
        decision("override", stream),
    ):
        confirm(admin_client, path)
        harmless(admin_client, address(stream))
    harmless(admin_client, address(stream, "history"))
    harmless(admin_client, reverse("admin:index"))  # recent actions


def test_as_many_questions_for_thousands_of_rows_as_for_ten(admin_client: Client) -> None:
    stream = a_stream(entries=10, partition_size=1000, retention=timedelta(days=1))
    group = a_group(stream, claimed=5)
    asked = []
    for number in (10, 20_000):
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO pgbus_stream_{stream.pk} (payload) SELECT '1' FROM generate_series(1, %s)", [10]
            )
            for status in ("ready", "running", "dead"):
                cursor.execute(
                    "INSERT INTO pgbus_stream_exceptions (group_id, position, status, payload, failed_at)"
                    " SELECT %s, (SELECT coalesce(max(position), 0) FROM pgbus_stream_exceptions) + n, %s,"
                    " CASE WHEN %s = 'dead' THEN '1'::json END, now() FROM generate_series(1, %s) AS n",
                    [group.pk, status, status, number],
                )
            cursor.execute(
                "INSERT INTO pgbus_stream_groups (stream_id, name, handler)"
                " SELECT %s, 'z' || %s || '-' || n, 'a.b' FROM generate_series(1, %s) AS n",
                [stream.pk, number, min(number, 300)],
            )
            cursor.execute(
                "INSERT INTO pgbus_stream_leases (token, group_id, low, high, worker, until)"
                " SELECT gen_random_uuid(), %s, n, n + 1, gen_random_uuid(), now() FROM generate_series(1, %s) AS n",
                [group.pk, number],
            )
        dead = EntryException.objects.filter(status="dead").latest("id")
        paths = [
            reverse("admin:pgbus_streamlog_changelist"),
            address(stream),
            address(stream, group="totals"),
            reverse("admin:pgbus_streamlog_entry", args=[stream.pk, dead.pk]),
            decision("pause", stream, group="totals"),
            decision("rewind", stream, group="totals", to="beginning"),
            decision("redrive", stream, entry=dead.pk),
            decision("discard_dead", stream, group="totals"),
        ]
        counts = []
        for path in paths:
            ContentType.objects.clear_cache()
            with CaptureQueriesContext(connection) as queries:
                assert admin_client.get(path).status_code == 200, path
            counts.append(len(queries))
        asked.append(counts)
    assert asked[0] == asked[1]
    assert max(asked[0]) <= 16
    context = shown(admin_client, stream)
    assert (len(context["failed"]["rows"]), len(context["leases"]["rows"])) == (50, 50)
    assert (len(context["groups"]["rows"]), context["groups"]["most"]) == (200, "200")


def test_a_list_of_streams_asks_as_often_for_many() -> None:
    asked = []
    for number in (1, 4):
        for nth in range(number):
            a_group(a_stream(f"s{number}-{nth}", entries=2))
        with CaptureQueriesContext(connection) as queries:
            found = stats.overview()
        asked.append((len(found), len(queries)))
    assert asked == [(1, 4), (5, 4)]


def slow(*args: Any, **kwargs: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(10)")


def test_a_page_that_takes_too_long_says_so(admin_client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = a_stream(entries=2)
    monkeypatch.setattr("django_pgbus.admin.bounds.PATIENCE", 50)
    monkeypatch.setattr("django_pgbus.streams.stats.partitions", slow)
    monkeypatch.setattr("django_pgbus.streams.stats.overview", slow)
    for path in (address(stream), reverse("admin:pgbus_streamlog_changelist")):
        response = admin_client.get(path)
        assert response.status_code == 503
        assert "told to stop" in response.content.decode()
