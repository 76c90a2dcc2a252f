"""What a job carries: masked where somebody said so, and shown whatever its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_pgbus.admin import contents
from django_pgbus.models import Message
from django_pgbus.tasks.masking import MASK
from tests.admin import rows, tasks

pytestmark = pytest.mark.django_db

CHARGE = "tests.admin.tasks.charge"
SECRET = "tok_live_31337"


def page(client: Client, job: Any) -> str:
    response = client.get(reverse(f"admin:pgbus_{job._meta.model_name}_change", args=[job.pk]))
    assert response.status_code == 200
    return response.content.decode()


def raw(payload: str, **fields: Any) -> Message:
    """Return a job whose payload was written past us."""
    job = rows.a_message(**fields)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgbus_messages SET payload = %s::json WHERE id = %s", [payload, job.pk])
    return job


@pytest.mark.parametrize("make", [rows.a_message, rows.a_running, rows.a_delayed, rows.an_archived, rows.a_dead_letter])
def test_sensitive_arguments_are_masked_wherever_the_job_is(make: Any, admin_client: Client) -> None:
    error = rows.error(traceback=f"ValueError: bad token {SECRET!r}")
    for payload in (rows.payload(1043, SECRET), rows.payload(1043, token=SECRET)):
        job = make(task=CHARGE, payload=payload, errors=[error])
        text = page(admin_client, job)
        assert SECRET not in text
        assert MASK in text
        assert "1043" in text


@pytest.mark.parametrize("secret", ['a "quoted" key', "two\nlines\n", "back\\slash", 918273645])
def test_a_result_loses_what_json_writes_otherwise(secret: Any) -> None:
    """Also where the page cuts it: half of a secret is one too."""
    said = {"used": secret, "list": ["x" * 19_950, secret], f"of {secret}": 1}
    text = contents.result(json.dumps(said), rows.payload(1, token=secret), tasks.charge)
    for half in (str(secret)[:6], json.dumps(secret)[1:6]):
        assert half not in text


def test_a_result_that_quotes_a_sensitive_argument_is_scrubbed(admin_client: Client) -> None:
    job = rows.an_archived(task=CHARGE, payload=rows.payload(1, token=SECRET), result=json.dumps({"used": SECRET}))
    text = page(admin_client, job)
    assert "used" in text
    assert SECRET not in text


def test_lists_show_no_arguments(admin_client: Client) -> None:
    for make in (rows.a_message, rows.a_delayed, rows.an_archived, rows.a_dead_letter):
        job = make(task=CHARGE, payload=rows.payload(1, token=SECRET))
        text = admin_client.get(reverse(f"admin:pgbus_{job._meta.model_name}_changelist")).content.decode()
        assert SECRET not in text


@pytest.mark.parametrize("make", [rows.a_message, rows.a_running, rows.a_delayed, rows.an_archived, rows.a_dead_letter])
def test_a_task_that_left_the_code_keeps_its_path_and_hides_its_arguments(make: Any, admin_client: Client) -> None:
    job = make(task=rows.GONE, payload=rows.payload(SECRET))
    listed = admin_client.get(reverse(f"admin:pgbus_{job._meta.model_name}_changelist"))
    for text in (page(admin_client, job), listed.content.decode()):
        assert rows.GONE in text
        assert "cannot be imported here" in text
        assert SECRET not in text


@pytest.mark.parametrize(
    "path",
    ["", "x", "no.such.module", "tests.admin.tasks", "tests.admin.tasks.json", "a b.c", "tests.admin.exits.on_import"],
)
def test_nothing_that_a_path_leads_to_breaks_a_page(path: str, admin_client: Client) -> None:
    assert "cannot be imported here" in page(admin_client, rows.a_message(task=path))


@pytest.mark.parametrize(
    "payload",
    [
        "[1, 2]",
        "null",
        '{"args": 1, "kwargs": []}',
        '{"args": ["\\ud800"], "kwargs": {}}',
        '{"args": ["\\u0000"], "kwargs": {}}',
        '{"args": [1e400], "kwargs": {}}',
        '{"args": [' + "9" * 5000 + '], "kwargs": {}}',
        '{"args": [' + "[" * 3000 + "]" * 3000 + '], "kwargs": {}}',
        '{"args": ["' + "x" * 300_000 + '"], "kwargs": {}}',
    ],
    ids=["a list", "null", "other shapes", "surrogate", "NUL", "infinite", "long number", "deep", "large"],
)
def test_any_payload_can_be_looked_at(payload: str, admin_client: Client) -> None:
    text = page(admin_client, raw(payload))
    assert "Arguments" in text
    assert len(text) < 100_000
    with_secret = payload.replace('"args": [', f'"args": [1, "{SECRET}", ').replace("[1, 2]", f'["{SECRET}"]')
    assert SECRET not in page(admin_client, raw(with_secret, task=CHARGE))


@pytest.mark.parametrize(
    "errors",
    [
        None,
        [],
        {},
        "text",
        7,
        [7, None, "x"],
        [{}],
        [{"exception": 7, "traceback": ["x"], "attempt": "x", "failed_at": 9}],
    ],
)
def test_any_history_can_be_looked_at(errors: Any, admin_client: Client) -> None:
    job = rows.a_dead_letter(errors=errors)
    page(admin_client, job)
    assert admin_client.get(reverse("admin:pgbus_deadletter_changelist")).status_code == 200


def test_attempts_are_told_from_the_last_to_the_first() -> None:
    errors = [rows.error(attempt=number, traceback=f"ValueError: {number}") for number in (1, 2, 3)]
    found = contents.attempts(errors, rows.payload(1), tasks.import_order)
    assert [attempt.number for attempt in found] == [3, 2, 1]
    assert found[0].failed_at is not None


@pytest.mark.parametrize(
    ("exception", "traceback", "line"),
    [
        ("shop.rows.BrokenRow", rows.TRACEBACK, "BrokenRow: line 1043: placed_on '1997-02-30' is not a date"),
        ("builtins.ValueError", "Traceback\nValueError: first\nsecond\nthird", "ValueError: first"),
        ("builtins.KeyError", "Traceback\nKeyError", "KeyError"),
        ("django_pgbus.exceptions.WorkerLost", "The process ended.", "WorkerLost: The process ended."),
        ("builtins.ImportError", "", "ImportError"),
        ("", "", ""),
        (None, None, ""),
    ],
)
def test_the_line_that_says_what_went_wrong(exception: Any, traceback: Any, line: str) -> None:
    assert contents.last_line(exception, traceback) == line
