"""Every signal has a log line, and the line can be written."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from django.dispatch import Signal

from django_pgbus import log, signals


def test_every_signal_has_a_line():
    announced = {value for value in vars(signals).values() if isinstance(value, Signal)}
    assert announced == set(log.LINES)


EVENT = UUID(int=7)
COPY = SimpleNamespace(task="shop.handlers.audit", id=12, topic="orders.created", event=EVENT, delivery=3, attempts=2)
TASK = SimpleNamespace(task="shop.tasks.pay", id=13, topic=None, event=None, delivery=1, attempts=6)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_a_failure_names_the_event_and_its_last_one_tells_all(caplog):
    about = f"shop.handlers.audit #12 on orders.created ({EVENT}) (delivery 3, attempt 2)"
    traceback = "Traceback ...\nValueError: ********\n"
    signals.event_failed.send(None, delivery=COPY, exception=ValueError("secret"), delay=5.0, traceback=traceback)
    signals.event_failed.send(None, delivery=COPY, exception=ImportError("no 'audit'"), delay=5.0, traceback=traceback)
    signals.event_failed.send(None, delivery=COPY, exception=ValueError("secret"), delay=None, traceback=traceback)
    assert said(caplog) == [
        (logging.WARNING, f"{about} failed: ValueError. Next attempt in 5.0 s."),
        (logging.WARNING, f"{about} failed: ImportError: no 'audit'. Next attempt in 5.0 s."),
        (logging.ERROR, f"{about} failed.\nTraceback ...\nValueError: ********"),
    ]


def test_a_dead_letter_that_was_not_run_any_more_tells_the_attempts_that_were(caplog):
    signals.task_dead_lettered.send(None, delivery=TASK, exception=None, reason="exhausted")
    assert said(caplog) == [(logging.ERROR, "shop.tasks.pay #13 (delivery 1, attempt 5) is a dead letter: exhausted.")]


def test_an_event_for_nobody_is_a_warning_once_for_each_topic(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "django_pgbus")
    monkeypatch.setattr(log, "_for_nobody", set())
    monkeypatch.setattr(log, "MOST_TOPICS", 2)
    for topic in ("a", "a", "b", "c", "a"):
        signals.event_unrouted.send(None, topic=topic, event_id=EVENT)
    assert [message.split()[3] for _, message in said(caplog)] == ["a", "b"]


def test_a_receiver_that_exits_ends_nobody_who_announces(caplog):
    def exits(**kwargs):
        raise SystemExit(3)

    signals.sweep_done.connect(exits)
    try:
        assert signals.sweep_done.send_robust(None, name="a", count=1) == []
    finally:
        signals.sweep_done.disconnect(exits)
    assert [message for level, message in said(caplog) if level == logging.ERROR] == [
        "The receiver of a signal failed and goes on."
    ]


def fields(caplog: pytest.LogCaptureFixture) -> list[dict]:
    return [record.pgbus for record in caplog.records]


def test_a_record_tells_what_it_is_about_in_fields(caplog):
    caplog.set_level(logging.DEBUG, "django_pgbus")
    worker = UUID(int=9)
    job = SimpleNamespace(
        task="shop.tasks.pay", id=13, queue="money", topic=None, event=None, batch=5, delivery=1, attempts=6
    )
    signals.attempt_failed.send(None, delivery=job, exception=ValueError("secret"), delay=5.0)
    signals.task_dead_lettered.send(None, delivery=job, exception=None, reason="exhausted")
    signals.event_published.send(None, topic="orders.created", event_id=EVENT, handlers=3)
    signals.batch_finished.send(None, id=5, total=2, succeeded=1, failed=1)
    signals.entry_failed.send(None, stream="s", group="g", position=4, exception="builtins.ValueError", delay=1.0)
    signals.elected.send(None, worker=worker)
    about = {"task": "shop.tasks.pay", "id": 13, "queue": "money", "batch": 5, "delivery": 1}
    assert fields(caplog) == [
        {"signal": "attempt_failed", **about, "attempt": 6, "delay": 5.0, "exception": "builtins.ValueError"},
        {"signal": "task_dead_lettered", **about, "attempt": 5, "reason": "exhausted"},
        {"signal": "event_published", "topic": "orders.created", "event": str(EVENT), "handlers": 3},
        {"signal": "batch_finished", "batch": 5, "total": 2, "succeeded": 1, "failed": 1},
        {
            "signal": "entry_failed",
            "stream": "s",
            "group": "g",
            "position": 4,
            "delay": 1.0,
            "exception": "builtins.ValueError",
        },
        {"signal": "elected", "worker": str(worker)},
    ]
    assert all(record.funcName.startswith("_") for record in caplog.records), "the place of a line is its own"


def test_no_field_tells_a_key_or_the_text_of_an_exception(caplog):
    caplog.set_level(logging.DEBUG, "django_pgbus")
    secret = "hunter2"
    signals.job_not_unique.send(None, task="shop.tasks.pay", key=secret, holder=7, policy="log")
    signals.limit_reached.send(None, task="shop.tasks.pay", key=secret, limit=3)
    signals.event_failed.send(None, delivery=COPY, exception=ValueError(secret), delay=None, traceback=secret)
    signals.sweep_failed.send(None, name="a", exception=ValueError(secret))
    assert secret not in repr(fields(caplog))
    assert fields(caplog)[0] == {"signal": "job_not_unique", "task": "shop.tasks.pay", "holder": 7, "policy": "log"}


def test_every_field_is_of_a_signal():
    named = Path(signals.__file__).read_text()
    assert [name for name in (*log.FIELDS, *log.RENAMED) if not re.search(rf"Signal\(\)  #.*\b{name}\b", named)] == []


def test_one_line_within_another_keeps_its_own_fields(caplog):
    def swept(**kwargs):
        signals.elected.send(None, worker="inner")

    signals.sweep_done.connect(swept)
    try:
        signals.sweep_done.send_robust(None, name="a", count=1)
    finally:
        signals.sweep_done.disconnect(swept)
    log.logger.error("of nobody")
    assert fields(caplog)[-1] == {"signal": ""}
