"""What stands around messages and runs changes nothing about them, whatever it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_pgbus import JobNotUnique, signals
from django_pgbus.models import Message
from django_pgbus.tasks import tracing
from django_pgbus.tasks.payload import decode, encode
from django_pgbus.testing import run_enqueued
from tests import constrained, jobs

said: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    said.clear()
    jobs.calls.clear()
    before = tracing.hooks
    yield
    tracing.hooks = before


def hook(name: str) -> tracing.Hook:
    """Return a hook that says when it is entered and left, and what came of what it stood around."""

    @contextmanager
    def sends(sending: tracing.Sending) -> Iterator[None]:
        said.append(f"{name} before {sending.operation}")
        sending.headers[name] = "x"
        yield
        said.append(f"{name} after {sending.operation}")

    @contextmanager
    def runs(running: tracing.Running) -> Iterator[None]:
        said.append(f"{name} before {running.task}, {running.headers.get(name)}")
        yield
        said.append(f"{name} after {running.outcome} {running.exception}".rstrip())

    return tracing.Hook(sends=sends, runs=runs)


@pytest.mark.django_db
def test_hooks_stand_around_one_another():
    outer, inner = hook("outer"), hook("inner")
    tracing.register(outer)
    tracing.register(inner)
    jobs.note.enqueue(1)
    assert said == ["outer before send", "inner before send", "inner after send", "outer after send"]
    tracing.unregister(outer)
    said.clear()
    run_enqueued()
    assert said == ["inner before tests.jobs.note, x", "inner after succeeded"]
    tracing.unregister(inner)
    assert tracing.hooks == ()


@pytest.mark.django_db
def test_a_hook_sees_no_exception_pass_by_and_cannot_swallow_one():
    class Swallows:
        def __enter__(self) -> None: ...

        def __exit__(self, *raised: Any) -> bool:
            passed.append(raised)
            return True

    passed: list[Any] = []

    tracing.register(tracing.Hook(sends=lambda sending: Swallows(), runs=lambda running: Swallows()))
    tracing.register(hook("inner"))
    jobs.fails.enqueue("no")
    with pytest.raises(ValueError, match="no"):
        run_enqueued()
    assert said[-1] == "inner after failed builtins.ValueError"
    constrained.unique.enqueue("key")
    with pytest.raises(JobNotUnique):
        constrained.unique.enqueue("key")
    assert passed == [(None, None, None)] * 4


@pytest.mark.django_db
def test_one_that_breaks_is_announced_once_and_harms_no_other():
    heard = []
    signals.loop_failed.connect(hear := lambda part, exception, **kwargs: heard.append((part, str(exception))))

    @contextmanager
    def breaks(about: Any) -> Iterator[None]:
        yield
        raise RuntimeError(f"no {type(about).__name__}")

    tracing.register(tracing.Hook(sends=breaks, runs=breaks))
    tracing.register(hook("inner"))
    tracing.register(tracing.Hook(sends=lambda sending: None, runs=lambda running: None))  # type: ignore[arg-type,return-value]
    try:
        for number in range(3):
            jobs.note.enqueue(number)
        run_enqueued()
    finally:
        signals.loop_failed.disconnect(hear)
    assert jobs.calls == [0, 1, 2]
    assert said.count("inner after succeeded") == 3
    assert len(heard) == 2, "one for each kind of exception"
    assert heard[1] == (tracing.PART, "no Sending")


@pytest.mark.django_db
def test_a_hook_for_runs_alone_writes_nothing():
    tracing.register(tracing.Hook(runs=hook("inner").runs))
    jobs.note.enqueue(1)
    assert Message.objects.get().payload == '{"args":[1],"kwargs":{}}'
    run_enqueued()
    assert said == ["inner before tests.jobs.note, None", "inner after succeeded"]


@pytest.mark.django_db
def test_a_hook_is_given_no_arguments():
    abouts: list[Any] = []

    @contextmanager
    def keeps(about: Any) -> Iterator[None]:
        abouts.append(about)
        yield

    tracing.register(tracing.Hook(sends=keeps, runs=keeps))
    jobs.note.enqueue("hunter2-hunter2")
    run_enqueued()
    assert [type(about).__name__ for about in abouts] == ["Sending", "Running"]
    assert "hunter2" not in repr(abouts)


# --- headers in a document ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((), {}),
        ((1, "two"), {"three": 3}),
        (('","trace":{"a":"b"}}',), {}),
        ((), {"trace": {"a": "b"}}),
        ((), {"x": 1, "trace": {"a": "b"}}),
        (([{"x": 1, "trace": {"a": "b"}}],), {}),
    ],
)
def test_headers_are_found_where_they_were_put_and_nowhere_else(args, kwargs):
    document = encode(args, kwargs)
    assert tracing.headers_in(document) == {}
    assert tracing.carried(document, {}) == document
    carrying = tracing.carried(document, {"traceparent": "00-1-2-01", "tracestate": 'a="b\\c"'})
    assert json.loads(carrying) == {
        **json.loads(document),
        "trace": {"traceparent": "00-1-2-01", "tracestate": 'a="b\\c"'},
    }
    assert tracing.headers_in(carrying) == {"traceparent": "00-1-2-01", "tracestate": 'a="b\\c"'}
    assert decode(carrying) == (list(args), kwargs)
    assert carrying == json.dumps(json.loads(carrying), separators=(",", ":")), "as compact as the rest"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        '{"args":[],"kwargs":{},"trace":',
        '{"args":[],"kwargs":{},"trace":' + "[" * 100_000,
        '{"a":1,"trace":7}',
    ],
)
def test_what_cannot_be_read_carries_no_headers(text):
    assert tracing.headers_in(text) == {}


@pytest.mark.parametrize("value", ["\x00", "\ud800", "é", "a\nb", 7, None, "x" * 9000])
def test_a_header_that_cannot_travel_is_left_out(value):
    document = tracing.carried('{"args":[],"kwargs":{}}', {"bad": value, "good": "1"})
    assert tracing.headers_in(document) == {"good": "1"}


def test_headers_are_bounded_together():
    many = {f"name-{number}": "x" * 100 for number in range(1000)}
    kept = tracing.kept(many)
    assert 0 < sum(len(name) + len(value) for name, value in kept.items()) <= tracing.MOST
