"""What a task declares as sensitive is read by nobody: not in a result's repr, not in a log line, not in an error."""

from __future__ import annotations

import json
import sys
import traceback

import pytest

from django_pgbus.models import Message
from django_pgbus.tasks.compat import task_backends, task_finished
from django_pgbus.tasks.masking import MASK, loggable, masked, scrubbed
from django_pgbus.testing import run_enqueued
from tests import jobs
from tests.tasks.examples import add, import_order, login


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "shown"),
    [
        (add, [1], {"b": 2}, ([1], {"b": 2})),
        (import_order, [1, "secret"], {}, ([1, MASK], {})),
        (import_order, [1], {"token": "secret"}, ([1], {"token": MASK})),
        (import_order, [], {"order_id": 1, "token": None}, ([], {"order_id": 1, "token": MASK})),
        # The context is not among the arguments; *codes are not sensitive, **extras are.
        (login, ["ann", "secret", 1, 2], {}, (["ann", MASK, 1, 2], {})),
        (login, ["ann"], {"token": "s", "pin": 1}, (["ann"], {"token": MASK, "pin": MASK})),
        (login, ["ann"], {"token": "s", "remember": True}, (["ann"], {"token": MASK, "remember": True})),
        # What does not fit the function is masked by what fits.
        (import_order, [1, "secret", "too many"], {"unknown": 1}, ([1, MASK, "too many"], {"unknown": 1})),
        (import_order, [], {}, ([], {})),
    ],
)
def test_sensitive_arguments_are_masked_by_position_and_by_name(task, args, kwargs, shown):
    assert masked(task, args, kwargs) == shown


def test_the_arguments_themselves_stay():
    args = [1, "secret"]
    masked(import_order, args, {})
    assert args == [1, "secret"]


@pytest.mark.django_db
def test_a_task_whose_code_is_gone_shows_no_argument():
    stored = Message.objects.create(
        queue="q", task="nowhere.gone", payload='{"args": ["s3cret"], "kwargs": {"a": "s3cret"}}'
    )
    result = task_backends["default"].get_result(str(stored.id))
    assert masked(result.task, result.args, result.kwargs) == ([MASK], {"a": MASK})
    assert "s3cret" not in repr(result)
    assert "nowhere.gone" in repr(result)


@pytest.mark.django_db
def test_a_result_s_repr_tells_what_is_not_sensitive():
    enqueued = import_order.enqueue(42, token="hunter2")
    for result in (enqueued, import_order.get_result(enqueued.id)):
        for text in (repr(result), str(result), f"{result}", repr([result])):
            assert "hunter2" not in text
            assert "42" in text
            assert "import_order" in text
            assert result.id in text


def test_errors_lose_the_values_of_sensitive_arguments():
    secret = {"card": "4111-1111", "lines": ["it's\nlong", 12345, None, True, "ab"]}
    text = f"ValueError: refused {secret!r} of ann; 4111-1111; {secret['lines'][0]!r}; ab"
    shown = scrubbed(text, login, ["ann"], {"token": secret})
    for gone in ("4111", "12345", "long"):
        assert gone not in shown
    assert "ann" in shown
    assert shown.endswith("ab")  # too short to be told from any other text
    assert scrubbed(text, add, ["ann", "4111-1111"], {}) == text


@pytest.mark.parametrize(
    "written", [str, str.strip, repr, json.dumps, lambda text: json.dumps(text, ensure_ascii=False)]
)
def test_errors_lose_them_however_they_are_written(written):
    secret = "'ключ\" of\nann\n"
    shown = scrubbed(f"refused {written(secret)}.", login, ["ann"], {"token": secret})
    assert MASK in shown
    for gone in ("ключ", "\\u043a", "of", "ann"):
        assert gone not in shown


def test_what_others_log_has_lost_one_that_ends_in_a_line_break():
    stand_in = loggable(SystemExit("-----key-----\n"), login, ["ann"], {"token": "-----key-----\n"})
    assert str(stand_in) == f"SystemExit: {MASK}"


def in_flight(task, args):
    """Return what a log line prints while the error of a run is handled."""
    try:
        try:
            raise ValueError(f"refused: {args[-1]!r}")
        except ValueError as error:
            raise loggable(error, task, args, {})  # noqa: B904
    except Exception:
        return traceback.format_exc()


def test_what_others_log_has_lost_them_too():
    shown = in_flight(import_order, [1, "hunter2"])
    assert "hunter2" not in shown
    assert "ValueError: refused: '********'" in shown
    assert "hunter2" in in_flight(add, [1, "hunter2"])


@pytest.mark.django_db
def test_the_frames_of_what_is_logged_hold_nothing_sensitive():
    """Error trackers send the local variables of a traceback that is logged, as their repr tells them."""
    variables: list[str] = []

    def look(**kwargs):
        frame = sys.exc_info()[2]
        while frame is not None:
            variables.extend(map(repr, frame.tb_frame.f_locals.values()))
            frame = frame.tb_next

    jobs.login.enqueue("ann", token="s3cr3t-token")
    task_finished.connect(look)
    try:
        run_enqueued(raise_failures=False)
    finally:
        task_finished.disconnect(look)
    assert any("bad token ********" in text for text in variables)
    assert any("Delivery(" in text for text in variables)
    assert "s3cr3t-token" not in "".join(variables)
