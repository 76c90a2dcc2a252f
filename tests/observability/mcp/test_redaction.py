"""What users' jobs carry is told only if the server allows it and the caller asks; what is sensitive never."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from django_pgbus.observability.mcp.tools import TOOLS
from tests.admin import rows
from tests.admin.stream_rows import a_dead, a_failed, a_group, a_stream, append
from tests.line import COMMITTED
from tests.observability.mcp.asking import ask

pytestmark = COMMITTED

HERE = "tests.observability.mcp.carrying"
OPEN = "open-sesame-4711"  # nobody says that it is sensitive
NEVER = 'never"ever-0815'  # declared as sensitive; JSON writes it otherwise than Python
NUMBER = 918273645  # sensitive too, and no text
NESTED = {"deep": [[OPEN, {"er": [OPEN]}], OPEN]}
EVENT = uuid.UUID("0192b3f4-0000-7000-8000-00000000beef")
OPEN_TRACE = f"Traceback:\n  charge({OPEN!r})\nValueError: {OPEN}"
TRACE = f"{OPEN_TRACE} {NEVER!r} {NEVER} {NUMBER}"


def errors(traceback: str = TRACE) -> list[dict[str, Any]]:
    return [rows.error(traceback=traceback, exception="builtins.ValueError")]


def texts(told: Any) -> Iterator[str]:
    """Yield what stands in an answer as it is meant: a document within a text is read, lest a secret hides in escapes."""
    match told:
        case dict():
            for key, inner in told.items():
                yield from texts(key)
                yield from texts(inner)
        case list():
            for inner in told:
                yield from texts(inner)
        case str():
            yield told
            with contextlib.suppress(ValueError):
                document = json.loads(told)
                if document != told:
                    yield from texts(document)
        case _:
            yield str(told)


@dataclass
class Planted:
    questions: list[tuple[str, dict[str, Any]]]

    def told(self, **more: Any) -> str:
        """Return everything that every tool says."""
        said: list[str] = []
        for tool, given in self.questions:
            asked = more if "include_payload" in TOOLS[tool].asked.model_fields else {}
            said += texts(ask(tool, **given, **asked))
        return "\n".join(said)


@pytest.fixture
def planted() -> Planted:
    """Secrets wherever one can stand, and questions for all of them."""
    bare = rows.payload(OPEN, [OPEN, NESTED], word=OPEN, list=[OPEN], deep=NESTED)
    partly = rows.payload({"id": OPEN}, NEVER, cards=[NEVER, {"no": NUMBER}], note=[OPEN])
    result = json.dumps({"said": OPEN, "list": [NEVER, NUMBER], NEVER: f"told {NEVER}"})
    jobs = [
        rows.a_message(task=f"{HERE}.plain", payload=bare, errors=errors(OPEN_TRACE)),
        rows.a_running(task=f"{HERE}.plain", payload=bare, errors=errors(OPEN_TRACE)),
        rows.a_delayed(task=f"{HERE}.guarded", payload=partly, errors=errors(), reason="retry", attempts=1),
        rows.a_parked(task=f"{HERE}.guarded", payload=partly, errors=errors()),
        rows.an_archived(task=f"{HERE}.guarded", payload=partly, result=result, errors=errors()),
        rows.a_dead_letter(task=f"{HERE}.guarded", payload=partly, errors=errors()),
        rows.a_dead_letter(task="shop.tasks.renamed", payload=partly, errors=errors()),
        rows.a_message(task=f"{HERE}.guarded", payload=json.dumps({"odd": [OPEN, NEVER, NUMBER]}), errors=errors()),
    ]
    body = {"name": OPEN, "list": [OPEN], "token": NEVER, "in": {"cards": [NEVER, NUMBER]}}
    for path in (f"{HERE}.heard", "shop.handlers.renamed"):
        of_event = rows.event(body, {"token": NEVER, "trace": OPEN}, task=path, topic="secrets.told", event_id=EVENT)
        jobs.append(rows.a_message(**of_event, errors=errors()))
    routed = json.dumps({"position": 7, "at": 1, "payload": body})
    jobs.append(rows.a_message(task=f"{HERE}.followed", topic="secret-log/guarded", payload=routed, errors=errors()))
    stream = a_stream("secret-log")
    append(stream, body, body, body)
    for name, path in (("guarded", f"{HERE}.followed"), ("renamed", "shop.consumers.renamed")):
        group = a_group(stream, name, claimed=3, handler=path)
        a_dead(group, 2, body, traceback=TRACE)
        a_failed(group, 3, traceback=TRACE)
    rows.a_batch(1, properties=json.dumps(body))
    given: dict[str, dict[str, Any]] = {
        "pgbus_queue": {"name": "default"},
        "pgbus_stream": {"name": "secret-log"},
        "pgbus_event": {"id": str(EVENT)},
    }
    alone = [(name, given.get(name, {})) for name in TOOLS if name not in {"pgbus_why", "pgbus_job"}]
    of_jobs = [(name, {"id": job.pk}) for name in ("pgbus_why", "pgbus_job") for job in jobs]
    return Planted([*alone, *of_jobs])


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_nothing_is_told_unless_it_is_allowed_and_asked(
    planted: Planted, settings: Any, allowed: bool, asked: bool
) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": allowed}
    told = planted.told(include_payload=asked)
    assert (OPEN in told) is (allowed and asked)
    for secret in (NEVER, json.dumps(NEVER)[1:-1], repr(NEVER)[1:-1], str(NUMBER)):
        assert secret not in told


def test_what_is_told_is_all_but_what_is_sensitive(settings: Any) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": True}
    job = ask(
        "pgbus_job",
        id=rows.a_dead_letter(
            task=f"{HERE}.guarded",
            payload=rows.payload({"id": OPEN}, NEVER, cards=[NEVER], note=[OPEN]),
            errors=errors(),
        ).pk,
        include_payload=True,
    )
    assert json.loads(job["payload"]) == {
        "args": [{"id": OPEN}, "********"],
        "kwargs": {"cards": "********", "note": [OPEN]},
    }
    assert job["redaction"] == ""
    assert f"ValueError: {OPEN} '********' ********" in job["failed_attempts"][0]["traceback"]


def test_it_says_why_it_says_nothing() -> None:
    id = rows.a_message().pk
    assert "include_payload=true" in ask("pgbus_job", id=id)["redaction"]
    assert 'PGBUS["MCP_PAYLOADS"] is False' in ask("pgbus_job", id=id, include_payload=True)["redaction"]


def test_an_event_is_masked_as_the_strictest_of_its_handlers_wants(settings: Any) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": True}
    body = {"name": OPEN, "token": NEVER}
    for path in ("overheard", "heard"):
        rows.a_message(**rows.event(body, task=f"{HERE}.{path}", event_id=EVENT))
    told = json.loads(ask("pgbus_event", id=str(EVENT), include_payload=True)["payload"])
    assert told["payload"] == {"name": OPEN, "token": "********"}


def test_names_and_keys_are_told() -> None:
    """They are what explains; a secret has no place in them, and the guide says so."""
    rows.a_worker(name="worker-of-anna")
    rows.a_parked(key="customer-17")
    assert "worker-of-anna" in json.dumps(ask("pgbus_workers"))
    assert "customer-17" in json.dumps(ask("pgbus_concurrency"))


def test_what_stands_for_a_class_of_errors_is_told_only_if_it_can_be_one() -> None:
    letter = rows.a_dead_letter(errors=[rows.error(exception=f"it said {OPEN}")])
    assert OPEN not in json.dumps(
        [ask("pgbus_job", id=letter.pk), ask("pgbus_dead_letters"), ask("pgbus_why", id=letter.pk)]
    )


def test_a_long_payload_is_cut(settings: Any) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": True}
    told = ask("pgbus_job", id=rows.a_message(payload=rows.payload("x" * 100_000)).pk, include_payload=True)
    assert len(told["payload"]) < 5_000
    assert "cut here" in told["payload"]


@pytest.mark.parametrize(
    "payload", ['{"args": ["\\ud800"], "kwargs": {}}', "[1]", "null", '"' + "[" * 50 + '"', "[" * 3000 + "]" * 3000]
)
@pytest.mark.parametrize("path", [f"{HERE}.plain", f"{HERE}.guarded", "gone.for.good"])
def test_whatever_is_stored_can_be_asked_for(settings: Any, payload: str, path: str) -> None:
    settings.PGBUS = {"MCP_PAYLOADS": True}
    broken: list[Any] = [7, None, {}, {"traceback": 7, "attempt": "x", "failed_at": "never"}]
    job = rows.an_archived(task=path, payload=payload, result=payload, errors=broken)
    told = ask("pgbus_job", id=job.pk, include_payload=True)
    json.dumps(told, ensure_ascii=False).encode()
