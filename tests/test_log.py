"""Every signal has a log line, and the line can be written."""

from __future__ import annotations

import logging
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
