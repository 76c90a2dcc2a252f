"""Every tool answers, within bounds, from the same numbers as the admin."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation

from django_pgbus.concurrency import stats as concurrency_stats
from django_pgbus.insights import stats as insights
from django_pgbus.models import DeadLetter, Message, UniquenessKey
from django_pgbus.observability.mcp.server import _offered, answer
from django_pgbus.observability.mcp.tools import TOOLS
from django_pgbus.tasks import lifecycle
from tests.admin import rows
from tests.admin.conftest import Places
from tests.insights.rows import a_row
from tests.line import COMMITTED
from tests.observability.mcp.asking import ask, refusal

pytestmark = COMMITTED

EVENT = uuid.UUID("0192b3f4-0000-7000-8000-0123456789ab")


def questions(places: Places) -> dict[str, dict[str, Any]]:
    """Return for every tool something that it can answer."""
    given = {
        "pgbus_why": {"id": places.parked.pk},
        "pgbus_job": {"id": str(places.dead.pk)},
        "pgbus_queue": {"name": "default"},
        "pgbus_stream": {"name": "ledger"},
        "pgbus_event": {"id": str(EVENT)},
    }
    return {name: given.get(name, {}) for name in TOOLS}


def test_every_tool_answers_as_its_schema_says(places: Places) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rows.a_message(**rows.event(event_id=EVENT))
    for name, given in questions(places).items():
        jsonschema.validate(given, TOOLS[name].input_schema)
        jsonschema.validate(ask(name, **given), TOOLS[name].output_schema)


def test_every_tool_is_offered_as_one_that_only_reads() -> None:
    for tool in TOOLS.values():
        offered = _offered(tool)
        hints = offered.annotations
        assert hints is not None
        assert (hints.read_only_hint, hints.idempotent_hint, hints.destructive_hint) == (True, True, False)
        assert offered.description
        for parameter in offered.input_schema["properties"].values():
            assert parameter["description"]


def test_the_text_is_the_structured_answer(places: Places) -> None:
    answered = answer("pgbus_queues", {})
    (content,) = answered.content
    assert json.loads(content.text) == answered.structured_content


# --- the numbers are those of everybody else -----------------------------------------------------------


def test_concurrency_says_what_the_stats_say(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in range(4):
        rows.a_parked("printer", priority=nth)
    rows.a_limit("scanner", capacity=3)
    rows.a_beating_slot(places.running.pk, "scanner")
    rows.a_parked("of-a-key", waits_for="key", semaphore=None)
    seen: dict[str, Any] = {}
    for name in ("totals", "busiest"):
        real = getattr(concurrency_stats, name)

        def noted(*args: Any, name: str = name, real: Any = real) -> Any:
            seen[name] = real(*args)
            return seen[name]

        monkeypatch.setattr(concurrency_stats, name, noted)
    told = ask("pgbus_concurrency")
    totals = seen["totals"]
    assert told["parked_total"] == {"number": 5, "more": False}
    assert told["parked_total"]["number"] == totals.parked.number.number
    assert told["oldest_parked_seconds"] == pytest.approx(totals.parked.oldest, abs=0.001)
    assert told["parked_for_uniqueness_keys"]["number"] == totals.parked_for_keys.number.number == 1
    assert told["slots_held"]["number"] == totals.slots.number == 2
    assert told["keys_at_limit"]["number"] == totals.at_limit.number == 1
    assert [key["key"] for key in told["keys"]] == [key.key for key in seen["busiest"]] == ["printer", "scanner"]
    for shown, key in zip(told["keys"], seen["busiest"], strict=True):
        assert (shown["value"]["number"], shown["limit"]) == (key.slots.number, key.capacity)
        assert (shown["parked"]["number"], shown["not_due"]) == (key.parked.number, key.not_due)
        assert shown["oldest_wait_seconds"] == (None if key.oldest is None else pytest.approx(key.oldest, abs=0.001))
        assert (shown["beating"], shown["waiting"], shown["silent"]) == (key.beating, key.waiting, key.silent)
        assert [holder["job"] for holder in shown["holders"]] == [holder.message for holder in key.holders]


def test_one_key_is_found_as_it_was_chosen_and_as_it_is_stored(places: Places) -> None:
    assert ask("pgbus_concurrency", key="printer")["keys"][0]["holders"] == [
        {"job": places.ready.pk, "lease": "waiting"}
    ]
    assert ask("pgbus_concurrency", key="nobody")["keys"] == []
    (lock,) = ask("pgbus_locks", key="order-17")["locks"]
    assert (lock["holder"], lock["holder_kind"], lock["holder_is"]) == (places.delayed.pk, "job", "delayed")
    assert ask("pgbus_locks", key="nobody")["locks"] == []


def test_locks_say_who_waits(places: Places) -> None:
    rows.a_parked("order-17", waits_for="key", semaphore=None)
    (lock,) = ask("pgbus_locks")["locks"]
    assert lock["waiting"] == {"number": 1, "more": False}
    UniquenessKey.objects.create(
        key="nightly", message_id=places.batch.pk, strategy="until_finished", queue="default", name=""
    )
    assert ask("pgbus_locks", key="nightly")["locks"][0]["holder_kind"] == "batch"


def test_queues_say_who_serves_them_and_who_paused_them(places: Places) -> None:
    lifecycle.pause_queue("default", by="anna")
    rows.a_message(queue="reports")
    told = {queue["name"]: queue for queue in ask("pgbus_queues")["queues"]}
    assert (told["default"]["state"], told["default"]["paused_by"]) == ("paused", "anna")
    assert told["default"]["paused_at"].endswith("Z")
    assert told["reports"]["workers"] == ["shop-1"]
    assert told["reports"] == {
        **ask("pgbus_queue", name="reports"),
        "oldest_ready_seconds": told["reports"]["oldest_ready_seconds"],
    }
    assert [queue["name"] for queue in ask("pgbus_queues", text="REP")["queues"]] == ["reports"]
    assert ask("pgbus_queues", limit=1)["more"]
    assert "no queue" in refusal("pgbus_queue", name="nowhere")


def test_workers_say_how_they_are(places: Places) -> None:
    (worker,) = ask("pgbus_workers")["workers"]
    assert (worker["name"], worker["health"], worker["running"], worker["threads"]) == ("shop-1", "beating", 3, 10)


def test_batches_say_how_far_they_are(places: Places) -> None:
    batch = rows.a_batch(4, 2, 1, description="nightly", key="nightly")
    rows.a_message(batch_id=batch.pk)
    told = ask("pgbus_batches", id=batch.pk)["batches"][0]
    assert (told["percent"], told["outstanding"]["number"], told["places"]["ready"]["number"]) == (75, 1, 1)
    first = ask("pgbus_batches", limit=1)
    assert [one["id"] for one in first["batches"]] == [batch.pk] == [first["next"]]
    assert [one["id"] for one in ask("pgbus_batches", before=first["next"])["batches"]] == [places.batch.pk]
    assert "no batch" in refusal("pgbus_batches", id=batch.pk + 1)


def test_events_say_what_became_of_each_copy(places: Places) -> None:
    ready = rows.a_message(**rows.event(event_id=EVENT))
    done = rows.an_archived(
        **rows.event(event_id=EVENT, task="tests.admin.handlers.receipt"), outcome="skipped", note="completed"
    )
    rows.a_claim(ready)
    rows.an_event_count("orders.lost")
    told = ask("pgbus_event", id=str(EVENT))
    assert [(copy["job"], copy["state"]) for copy in told["copies"]] == [(ready.pk, "ready"), (done.pk, "skipped")]
    assert told["claims"][0]["state"] == "running"
    listed = ask("pgbus_events")
    assert [copy["job"] for copy in listed["copies"]] == [ready.pk]
    assert listed["unrouted"][0]["topic"] == "orders.lost"
    assert listed["counts"]["processed"]["number"] == 1
    assert [copy["job"] for copy in ask("pgbus_events", where="processed")["copies"]] == [done.pk]
    assert "no copy" in refusal("pgbus_event", id=str(uuid.uuid4()))


def test_streams_say_what_holds_their_groups(places: Places) -> None:
    told = ask("pgbus_stream", name="ledger")
    (group,) = told["stream"]["groups"]
    assert (told["stream"]["head"], group["lag"], group["committed"]) == (9, 2, 7)
    assert "Entries after 5 to 7 are with worker" in group["holds"][0]
    assert [(lease["low"], lease["high"]) for lease in told["leases"]] == [(5, 7)]
    assert [(entry["position"], entry["status"]) for entry in told["failed"]] == [(3, "dead")]
    assert "ledger" in [stream["name"] for stream in ask("pgbus_streams")["streams"]]
    assert [stream["name"] for stream in ask("pgbus_streams", text="LEDG", limit=1)["streams"]] == ["ledger"]
    assert "no stream" in refusal("pgbus_stream", name="ledge")


# --- jobs ----------------------------------------------------------------------------------------------


def test_jobs_are_listed_in_any_state(places: Places) -> None:
    found = {job["id"]: job["state"] for job in ask("pgbus_jobs")["jobs"]}
    assert found == {
        places.ready.pk: "ready",
        places.running.pk: "running",
        places.delayed.pk: "delayed",
        places.archived.pk: "succeeded",
        places.dead.pk: "dead",
        places.parked.pk: "parked",
    }
    for id, state in found.items():
        assert [job["id"] for job in ask("pgbus_jobs", state=state)["jobs"]] == [id]
    assert ask("pgbus_jobs", state="skipped")["jobs"] == []


def test_jobs_are_paged_and_none_is_left_out_or_told_twice(places: Places) -> None:
    for _ in range(5):
        rows.a_message()
        rows.a_dead_letter()
    seen: list[int] = []
    before = None
    while True:
        page = ask("pgbus_jobs", limit=3, before=before)
        seen += [job["id"] for job in page["jobs"]]
        rows.a_message()  # what comes meanwhile moves nothing
        if (before := page["next"]) is None:
            break
    assert seen == sorted(seen, reverse=True)
    assert len(seen) == len(set(seen)) == 16


def test_one_job_is_found_wherever_it_is(places: Places) -> None:
    for place in ("ready", "running", "delayed", "parked", "archived", "dead"):
        told = ask("pgbus_job", id=getattr(places, place).pk)
        assert told["id"] == getattr(places, place).pk
        assert told["task"] == rows.TASK
    assert ask("pgbus_job", id=places.running.pk)["worker"] == "shop-1"
    dead = ask("pgbus_dead_letters")["jobs"]
    assert [(job["id"], job["exception"]) for job in dead] == [(places.dead.pk, "shop.rows.BrokenRow")]


def test_an_unknown_id_says_so(db: None) -> None:
    for tool in ("pgbus_job", "pgbus_why"):
        assert "There is no job of this id" in refusal(tool, id=12345)


# --- bounds --------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let tools use the connection of this thread, so that their queries can be counted."""
    from contextlib import nullcontext

    from django_pgbus.observability.mcp import server

    monkeypatch.setattr(server, "reading", nullcontext)

    def count(name: str, given: dict[str, Any]) -> tuple[int, int]:
        with CaptureQueriesContext(
            connection,
        ) as queries:
            told = ask(name, **given)
        return len(queries), len(json.dumps(told))

    return count


def test_two_thousand_rows_cost_as_many_queries_as_a_few(places: Places, counted: Any) -> None:
    rows.a_message(**rows.event(event_id=EVENT))
    few = {name: counted(name, given)[0] for name, given in questions(places).items()}
    Message.objects.bulk_create(
        [Message(queue=f"queue-{n % 200}", task=rows.TASK, payload=rows.payload("x" * 500)) for n in range(2_000)]
    )
    DeadLetter.objects.bulk_create(
        [
            DeadLetter(queue="default", task=rows.TASK, payload="{}", reason="exhausted", errors=[rows.error()])
            for _ in range(2_000)
        ]
    )
    UniquenessKey.objects.bulk_create(
        [
            UniquenessKey(key=f"key-{n}", message_id=10_000 + n, strategy="until_executed", queue="q")
            for n in range(2_000)
        ]
    )
    rows_of_events = [Message(**{**rows.event(), "payload": rows.payload()}) for _ in range(2_000)]
    Message.objects.bulk_create(rows_of_events)
    for n in range(200):
        rows.a_worker(name=f"worker-{n}")
    for name, given in questions(places).items():
        queries, size = counted(name, given)
        assert queries == few[name], name
        assert size < 100_000, name
    assert len(ask("pgbus_jobs", limit=100)["jobs"]) == 100
    assert len(ask("pgbus_workers", limit=100)["workers"]) == 100


# --- languages -----------------------------------------------------------------------------------------


def test_answers_are_english_whatever_the_language(places: Places) -> None:
    with translation.override("de"):
        answered = ask("pgbus_why", id=places.delayed.pk)["answer"]
    assert answered[0] == "It was enqueued for a later time."


def test_throughput_says_what_insights_say(places: Places) -> None:
    a_row(task="shop.tasks.slow", number=4, run=7.0, succeeded=3, failed=1)
    told = ask("pgbus_throughput")
    overall = insights.overall(insights.Window.HOUR)
    assert (
        (told["overall"]["runs"], told["overall"]["failure_rate"])
        == (overall.number, overall.failure_rate)
        == (4, 0.25)
    )
    assert [row["task"] for row in told["rows"]] == ["shop.tasks.slow"]
    assert told["overall"]["run_p95_seconds"] == pytest.approx(overall.run_percentile(0.95), abs=0.001)
    assert (len(told["series"]), told["step_seconds"]) == (len(insights.series(insights.Window.HOUR)), 60)
    assert sum(step["succeeded"] for step in told["series"]) == 3
    assert [row["queue"] for row in ask("pgbus_throughput", of="queues", window="7d")["rows"]] == ["default"]
    assert sum(step["succeeded"] for step in ask("pgbus_throughput", task="shop.tasks.other")["series"]) == 0
