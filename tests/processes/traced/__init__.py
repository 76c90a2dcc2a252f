"""An app whose spans are written into a file for each process, as an SDK sends them: in the background, and at the end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from django.apps import AppConfig
from django.conf import settings


class TracedConfig(AppConfig):
    name = "tests.processes.traced"
    label = "pgbus_test_traced"

    def ready(self) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

        from django_pgbus.observability import opentelemetry

        out = (Path(settings.SPANS) / f"{os.getpid()}.jsonl").open("a")
        provider = TracerProvider()
        exporter = ConsoleSpanExporter(out=out, formatter=line)
        provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=3_600_000))
        opentelemetry.instrument(provider)


def line(span: Any) -> str:
    about = json.loads(span.to_json())
    kept = {name: about[name] for name in ("name", "kind", "parent_id", "attributes")}
    return json.dumps({**kept, **{name: about["context"][name] for name in ("trace_id", "span_id")}}) + "\n"
