"""An app that imports the handlers of events and streams, which only the workers of the chaos have installed."""

from __future__ import annotations

from django.apps import AppConfig


class ChaosConfig(AppConfig):
    name = "tests.chaos"
    label = "pgbus_test_chaos"
