"""Prometheus's own parsers read what we write, whatever queues are called."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_text

from django_pgbus.observability.families import Kind
from django_pgbus.observability.metrics import declared
from django_pgbus.observability.prometheus import PgbusCollector, exposition
from tests.admin import rows
from tests.admin.stream_rows import a_group, a_stream
from tests.insights.rows import a_row
from tests.observability.reading import METRICS

OPEN = "application/openmetrics-text; version=1.0.0"
ODD = [
    'say "hello"',
    "C:\\mail\\",
    "two\nlines",
    "a\\nb",
    rows.MARKUP,
    "Ümläut 💿",
    "{a='b'} 1",
    "tab\tand\rreturn",
    "#",
]


def parsed(client: Client, accept: str = "") -> dict[str, Any]:
    response = client.get(METRICS, headers={"Accept": accept})
    assert response.status_code == 200
    parse = open_metrics if accept == OPEN else plain_text
    return {family.name: family for family in parse(response.content.decode())}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/html, */*", "text/plain; version=0.0.4"),
        (OPEN, "application/openmetrics-text"),
        (f"{OPEN},text/plain;version=0.0.4;q=0.5,*/*;q=0.1", "application/openmetrics-text"),
    ],
)
def test_the_format_is_what_was_asked_for(monitor: Client, accept: str, kind: str) -> None:
    response = monitor.get(METRICS, headers={"Accept": accept})
    assert response["Content-Type"].startswith(kind)
    assert response["Cache-Control"] == "no-store"
    assert not response.cookies


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["", OPEN])
def test_every_family_is_there_and_of_its_kind(monitor: Client, accept: str) -> None:
    rows.a_message()
    a_row()
    a_group(a_stream(entries=2))
    found = parsed(monitor, accept)
    for family in declared():
        metric = family.metric
        name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
        assert found[name].type == metric.kind.value, name
        assert found[name].documentation == metric.help


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["", OPEN])
def test_names_are_told_as_they_are(monitor: Client, accept: str) -> None:
    for name in ODD:
        rows.a_message(queue=name)
        a_row(task=name)
    found = parsed(monitor, accept)
    assert {one.labels["queue"]: one.value for one in found["pgbus_queue_depth"].samples} == dict.fromkeys(ODD, 1)
    assert {one.labels["task"] for one in found["pgbus_runs"].samples} == set(ODD)


@pytest.mark.django_db
@pytest.mark.parametrize("accept", ["", OPEN])
def test_a_histogram_counts_as_prometheus_does(monitor: Client, accept: str) -> None:
    """Each bucket with all below it, the last is how many there are."""
    a_row(task="t", run=0.02, number=3)
    a_row(task="t", run=40, number=2)
    a_row(task="t", run=9999, number=1)
    samples = parsed(monitor, accept)["pgbus_run_seconds"].samples
    buckets = {float(one.labels["le"]): one.value for one in samples if one.name.endswith("_bucket")}
    below = [buckets[bound] for bound in (0.01, 0.025, 30, 60, 1800, float("inf"))]
    assert below == [0, 3, 3, 5, 5, 6]
    assert [one.value for one in samples if one.name.endswith("_count")] == [6]
    assert [one.value for one in samples if one.name.endswith("_sum")] == [10079.06]


@pytest.mark.django_db
def test_a_scrape_ends_as_open_metrics_must(monitor: Client) -> None:
    response = monitor.get(METRICS, headers={"Accept": OPEN})
    assert response.content.endswith(b"# EOF\n")


@pytest.mark.django_db
def test_a_project_may_have_an_address_of_its_own() -> None:
    rows.a_message(queue="mail")
    registry = CollectorRegistry(auto_describe=True)
    registry.register(PgbusCollector())
    assert registry.get_sample_value("pgbus_queue_depth", {"queue": "mail"}) == 1
    assert b'pgbus_queue_depth{queue="mail"} 1.0' in generate_latest(registry)
    with pytest.raises(ValueError, match="[Dd]uplicated"):
        registry.register(PgbusCollector())


def test_registering_asks_no_database() -> None:
    """Outside of a test with a database any question is an error."""
    CollectorRegistry(auto_describe=True).register(PgbusCollector())


@pytest.mark.django_db
def test_a_request_leaves_nothing_behind() -> None:
    from prometheus_client import REGISTRY

    exposition("")
    exposition("")
    assert not [name for name in REGISTRY._names_to_collectors if name.startswith("pgbus")]


@pytest.mark.django_db
def test_without_the_extra_it_says_what_to_install(monitor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "django_pgbus.observability.prometheus")
    response = monitor.get(METRICS)
    assert response.status_code == 501
    assert response.content == b"prometheus-client is not installed. Install django-pgbus[prometheus].\n"


@pytest.mark.django_db
def test_a_token_asks_for_no_session(monitor: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert monitor.get(METRICS).status_code == 200
    asked = " ".join(query["sql"] for query in queries.captured_queries)
    assert "auth_user" not in asked
    assert "django_session" not in asked
