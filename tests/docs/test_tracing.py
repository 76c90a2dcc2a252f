"""What the guide to tracing lets a project write does what it says: hooks, Sentry, lines of JSON."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest
import sentry_sdk
from opentelemetry import trace
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from django_pgbus import publish
from django_pgbus.observability import opentelemetry
from django_pgbus.tasks import tracing
from django_pgbus.testing import deliver_published, run_enqueued
from tests.docs.pages import Block, blocks_of, text_of
from tests.observability import traced
from tests.sessions import execute as execute_sql

pytestmark = pytest.mark.django_db

BLOCKS = {block.mark: block for block in blocks_of("guides/tracing.md")}


@pytest.fixture(autouse=True)
def mysite() -> Iterator[ModuleType]:
    """The package that the guide writes its modules into; hooks are forgotten afterwards."""
    made = ModuleType("mysite")
    made.__path__ = []
    sys.modules["mysite"] = made
    before = tracing.hooks
    yield made
    tracing.hooks = before
    for name in [name for name in sys.modules if name.partition(".")[0] == "mysite"]:
        del sys.modules[name]


def written(file: str) -> ModuleType:
    """Return the module that the block with this name makes."""
    made = ModuleType(file.removesuffix(".py").replace("/", "."))
    sys.modules[made.__name__] = made
    setattr(sys.modules["mysite"], made.__name__.rpartition(".")[2], made)
    execute(BLOCKS[f"file: {file}"], made.__dict__)
    return made


def execute(block: Block, names: dict[str, Any]) -> None:
    exec(compile("\n" * block.line + block.text, f"docs/{block.page}", "exec"), names)


def test_the_app_turns_spans_on():
    app = written("mysite/apps.py").MySite
    try:
        app.ready(None)
        traced.label.enqueue(1)
        run_enqueued()
        assert len(tracing.hooks) == 1
    finally:
        opentelemetry.uninstrument()
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_hook_of_ones_own(capsys):
    written("mysite/hooks.py")
    traced.fails.enqueue("no")
    run_enqueued(raise_failures=False)
    assert capsys.readouterr().out.startswith(f"{traced.__name__}.fails 1 failed web-1 0.")


@pytest.mark.parametrize(("name", "kind"), [("sending", tracing.Sending), ("running", tracing.Running)])
def test_the_fields_of_hooks_are_those_of_the_code(name, kind):
    table = text_of("guides/tracing.md").split(f"| `{name}` | |\n| --- | --- |\n")[1].split("\n\n")[0]
    told = [field for row in table.splitlines() for field in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(told) == sorted(field.name for field in fields(kind))


# --- Sentry -------------------------------------------------------------------------------------------


class Kept(Transport):
    """What would be sent, as (type, body)."""

    items: list[tuple[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.type, item.payload.json) for item in envelope.items]


@pytest.fixture
def sentry() -> Iterator[None]:
    Kept.items = []
    written("mysite/sentry.py")
    # Others change Django for the rest of the tests.
    only = {"default_integrations": False, "auto_enabling_integrations": False, "integrations": [LoggingIntegration()]}
    dsn = "https://key@sentry.invalid/1"
    sentry_sdk.init(dsn=dsn, transport=Kept, traces_sample_rate=1.0, **only)
    yield
    sentry_sdk.init(default_integrations=False, auto_enabling_integrations=False)


def sent(kind: str) -> list[Any]:
    sentry_sdk.flush()
    return [body for type, body in Kept.items if type == kind]


def test_sentry_follows_a_request_into_its_tasks_and_handlers(sentry):
    traced.declare()
    with sentry_sdk.start_transaction(op="http.server", name="GET /"):
        traced.order.enqueue(1)
    run_enqueued()
    deliver_published()
    request, task, handler = sent("transaction")
    names = [f"{traced.__name__}.{name}" for name in ("order", "ship")]
    assert [task["transaction"], handler["transaction"]] == names
    assert len({body["contexts"]["trace"]["trace_id"] for body in (request, task, handler)}) == 1
    for child, parent in ((task, request), (handler, task)):
        spans = [span["span_id"] for span in parent["spans"] if span["op"] == "queue.publish"]
        assert [child["contexts"]["trace"]["parent_span_id"]] == spans
    assert task["contexts"]["trace"]["status"] == "ok"
    assert (task["tags"]["pgbus.task"], task["tags"]["pgbus.queue"]) == (names[0], "default")


def test_sentry_hears_once_of_a_task_that_has_failed_for_good(sentry):
    traced.fails.enqueue("no")
    run_enqueued(include_delayed=True, raise_failures=False)
    (issue,) = sent("event")
    assert [error["type"] for error in issue["exception"]["values"]] == ["ValueError"]
    assert issue["fingerprint"] == ["{{ default }}", f"{traced.__name__}.fails"]
    assert issue["tags"]["pgbus.attempt"] == 2
    runs = sent("transaction")
    assert [body["contexts"]["trace"]["status"] for body in runs] == ["internal_error"] * 2
    assert issue["contexts"]["trace"]["trace_id"] == runs[1]["contexts"]["trace"]["trace_id"]


def test_sentry_hears_of_a_task_that_could_not_even_be_called(sentry):
    traced.gone.enqueue()
    execute_sql("UPDATE pgbus_messages SET task = %s, attempts = 4", [f"{traced.__name__}.nowhere"])
    run_enqueued(raise_failures=False)
    (issue,) = sent("event")
    assert issue["logentry"]["message"] == "%s is a dead letter: %s."
    assert issue["extra"]["pgbus"]["task"] == f"{traced.__name__}.nowhere"


def test_sentry_hears_once_of_a_handler_that_has_failed_for_good(sentry):
    traced.declare()
    publish("traced.ordered", None)
    execute_sql("UPDATE pgbus_messages SET attempts = 4")
    deliver_published(raise_failures=False)
    (issue,) = sent("event")
    assert issue["fingerprint"] == ["{{ default }}", f"{traced.__name__}.ship"]
    assert issue["extra"]["pgbus"]["signal"] == "event_failed"


def test_sentry_is_told_nothing_sensitive(sentry):
    traced.login.enqueue("ann", token=traced.SECRET)
    run_enqueued(raise_failures=False)
    (issue,) = sent("event")
    assert issue["exception"]["values"][-1]["value"] == "ValueError: ann has the bad token ********"
    assert traced.SECRET not in json.dumps(Kept.items)


def test_tags_of_one_run_do_not_reach_the_next(sentry):
    tracing.hooks = ()
    traced.tags.enqueue()
    traced.fails.enqueue("no")
    run_enqueued(include_delayed=True, raise_failures=False)
    line_of_django, line_of_ours = sent("event")
    assert "mine" not in {**line_of_django.get("tags", {}), **line_of_ours.get("tags", {})}


# --- logs ---------------------------------------------------------------------------------------------


@pytest.fixture
def configured() -> Iterator[io.StringIO]:
    """Loggers as the guide has them, and what they write; dictConfig() itself would close the handlers of pytest."""
    written("mysite/logs.py")
    names: dict[str, Any] = {}
    execute(BLOCKS["logging"], names)
    asked = logging.config.DictConfigurator(names["LOGGING"])
    formatters, handlers = asked.config["formatters"], asked.config["handlers"]
    formatters["json"] = asked.configure_formatter(formatters["json"])
    handlers["stderr"] = asked.configure_handler(handlers["stderr"])
    handlers["stderr"].setStream(io.StringIO())
    before = []
    for name in asked.config["loggers"]:
        logger = logging.getLogger(name)
        before.append((logger, logger.handlers[:], logger.level, logger.propagate))
        asked.configure_logger(name, asked.config["loggers"][name])
    yield handlers["stderr"].stream
    for logger, had, level, propagate in before:
        logger.handlers[:], logger.propagate = had, propagate
        logger.setLevel(level)


def test_lines_of_json(configured):
    traced.fails.enqueue(traced.SECRET)
    run_enqueued(raise_failures=False)
    lines = [json.loads(line) for line in configured.getvalue().splitlines()]
    first = next(line for line in lines if line["logger"] == "django_pgbus")
    shown = json.loads(next(block.text for block in blocks_of("guides/tracing.md") if block.language == "json"))
    assert first.keys() == shown.keys()
    assert (first["signal"], first["task"], first["attempt"]) == ("attempt_failed", f"{traced.__name__}.fails", 1)
    assert traced.SECRET not in json.dumps(first)
