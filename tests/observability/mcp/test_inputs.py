"""A wrong question is answered in words; it reaches no transaction, and is not repeated."""

from __future__ import annotations

from typing import Any

import pytest

from django_pgbus.observability.mcp import server
from tests.admin import rows
from tests.line import COMMITTED
from tests.observability.mcp.asking import ask, refusal

IDS: list[Any] = [
    0,
    -1,
    2**63,
    10**400,
    "0",
    "-5",
    "1e3",
    "abc",
    "",
    "\x00",
    "\ud800",
    "٣",
    " 7",
    True,
    1.5,
    None,
    [1],
    {},
]
TEXTS: list[Any] = ["\x00", "a\x00b", "\ud800", "x" * 1_001, 7, None, True, ["a"], {"a": 1}]
LIMITS: list[Any] = [0, -1, 101, 10**30, 1.5, "5", True, None, [], "\x00"]


@pytest.fixture
def nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*args: Any, **options: Any) -> Any:
        raise AssertionError("it was asked")

    monkeypatch.setattr(server, "reading", no)


@pytest.mark.parametrize("id", IDS, ids=repr)
@COMMITTED
def test_no_id_of_a_job(id: Any) -> None:
    for tool in ("pgbus_job", "pgbus_why"):
        text = refusal(tool, id=id)
        assert "id" in text
        assert "Traceback" not in text
        assert "\ud800" not in text


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text)[:20])
@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("pgbus_queues", "text"),
        ("pgbus_queue", "name"),
        ("pgbus_jobs", "queue"),
        ("pgbus_jobs", "text"),
        ("pgbus_dead_letters", "queue"),
        ("pgbus_locks", "key"),
        ("pgbus_concurrency", "key"),
        ("pgbus_events", "text"),
        ("pgbus_event", "id"),
        ("pgbus_streams", "text"),
        ("pgbus_stream", "name"),
    ],
)
@pytest.mark.usefixtures("nothing_is_asked")
def test_no_text_that_is_stored_anywhere(tool: str, name: str, text: Any) -> None:
    assert refusal(tool, **{name: text}).startswith(f"{name}: ")


@pytest.mark.parametrize("limit", LIMITS, ids=repr)
@pytest.mark.parametrize("tool", ["pgbus_jobs", "pgbus_locks", "pgbus_concurrency", "pgbus_workers", "pgbus_streams"])
@pytest.mark.usefixtures("nothing_is_asked")
def test_no_limit(tool: str, limit: Any) -> None:
    assert refusal(tool, limit=limit).startswith("limit: ")


@COMMITTED
@pytest.mark.parametrize("before", [0, -1, "x", "\x00", 2**63, 1.5, [], True], ids=repr)
def test_no_page(before: Any) -> None:
    assert "page" in (text := refusal("pgbus_jobs", before=before)) or text.startswith("before: ")


@pytest.mark.usefixtures("nothing_is_asked")
def test_what_a_tool_does_not_take() -> None:
    assert refusal("pgbus_jobs", state="lost").startswith("state: ")
    assert refusal("pgbus_job", id=1, include_payload="yes").startswith("include_payload: ")
    assert refusal("pgbus_job") == "id: field required."
    text = refusal("pgbus_queue", name="default", hunter2="hunter2")
    assert text == "an argument: there is no such argument; pgbus_queue takes name."
    assert "There are: pgbus_health, pgbus_why" in refusal("pgbus_hunter2")
    assert "hunter2" not in refusal("pgbus_hunter2")


@COMMITTED
@pytest.mark.parametrize("id", ["not an id", "0192b3f4", "{}", "'; DROP TABLE pgbus_messages; --"])
def test_no_id_of_an_event(id: str) -> None:
    assert refusal("pgbus_event", id=id).startswith("That is no id of an event")


@COMMITTED
@pytest.mark.parametrize("text", ["%", "_", "\\", "'", "%s", "{}", "💥", "İ"])
def test_a_text_is_only_a_text(text: str) -> None:
    rows.a_message(queue="default")
    for tool in ("pgbus_queues", "pgbus_jobs", "pgbus_events", "pgbus_streams"):
        ask(tool, text=text)
    assert ask("pgbus_locks", key=text)["locks"] == []
    assert ask("pgbus_concurrency", key=text)["keys"] == []
