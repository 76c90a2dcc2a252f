"""Every signal has a log line, and the line can be written."""

from __future__ import annotations

from django.dispatch import Signal

from django_pgbus import log, signals


def test_every_signal_has_a_line():
    announced = {value for value in vars(signals).values() if isinstance(value, Signal)}
    assert announced == set(log.LINES)
