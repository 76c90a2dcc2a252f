"""What a task is given reads back as it was written, or is refused before any SQL, naming the place and what to write."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import uuid
from collections import OrderedDict, UserDict, deque, namedtuple
from dataclasses import dataclass
from types import MappingProxyType

import pytest
from django.contrib.auth.models import User
from django.utils.datastructures import MultiValueDict
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from django_pgbus.exceptions import InvalidPayload, InvalidPayloadType
from django_pgbus.tasks import payload
from django_pgbus.tasks.payload import decode, decode_result, encode, encode_result

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=20)


@pytest.fixture(params=["orjson", "json"])
def writer(request, monkeypatch):
    """Both ways to write: with orjson and without."""
    if request.param == "json":
        monkeypatch.setattr(payload, "orjson", None)
    elif payload.orjson is None:
        pytest.skip("orjson is not installed")
    return request.param


def without_orjson(call, *args):
    """Return what `call` returns where orjson is not installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payload, "orjson", None)
        return call(*args)


# --- the round trip -----------------------------------------------------------------------------------


@given(st.lists(values, max_size=4), st.dictionaries(text, values, max_size=4))
def test_reads_back_what_was_written_whoever_writes_and_whoever_reads(args, kwargs):
    for written in (encode(args, kwargs), without_orjson(encode, args, kwargs)):
        for read in (decode(written), without_orjson(decode, written)):
            assert read == (args, kwargs)
            assert repr(read) == repr((args, kwargs))  # types too: 1.0 is not 1, and -0.0 not 0.0


@given(values)
def test_results_read_back_too(value):
    for written in (encode_result(value), without_orjson(encode_result, value)):
        for read in (decode_result(written), without_orjson(decode_result, written)):
            assert repr(read) == repr(value)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**400, -(10**4000)])
def test_whole_numbers_of_any_size_are_exact(writer, number):
    assert decode(encode([number, 0.5], {})) == ([number, 0.5], {})


@pytest.mark.parametrize("number", [1e22, -0.0, 5e-324, 1.7976931348623157e308, 0.1 + 0.2, 1e16])
def test_floats_are_exact(writer, number):
    ((read,), _) = decode(encode([number], {}))
    assert repr(read) == repr(number)


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Share(float):
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("given_", "read"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1, 2), [1, 2]),
        (range(3), [0, 1, 2]),
        (deque([1]), [1]),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict(a=(1,)), {"a": [1]}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (MultiValueDict({"a": ["1", "2"]}), {"a": "2"}),
        (Colour.RED, "red"),
        ({Colour.RED: 1}, {"red": 1}),
        (Level.HIGH, 3),
        (Share(0.5), 0.5),
        (mark_safe("<b>"), "<b>"),
        ("a literal \\u0000", "a literal \\u0000"),
        ("\U0001f600 \u2028", "\U0001f600 \u2028"),
        ([[0]] * 500, [[0]] * 500),
    ],
)
def test_kin_of_json_becomes_plain(writer, given_, read):
    args, _ = decode(encode([given_], {}))
    assert args == [read]
    assert type(args[0]) is type(read)
    assert encode([given_], {}) == encode([read], {})


def test_the_caller_s_values_are_not_kept():
    lines = [1]
    prepared = payload.prepare([lines], {"more": lines})
    lines.append(2)
    assert prepared.args == [[1]]
    assert prepared.kwargs == {"more": [1]}


# --- refusals -----------------------------------------------------------------------------------------


@dataclass
class Order:
    id: int


def refusal(args=(), kwargs=None) -> InvalidPayload:
    with pytest.raises(InvalidPayload) as caught:
        encode(args, kwargs or {})
    return caught.value


@pytest.mark.parametrize(
    ("value", "what", "instead"),
    [
        ({1, 2}, "is a set", "list(value)"),
        (frozenset(), "is a frozenset", "sorted(value)"),
        (datetime.datetime(2026, 1, 1), "is a datetime", "datetime.fromisoformat()"),
        (datetime.date(2026, 1, 1), "is a date", "date.fromisoformat()"),
        (datetime.time(1), "is a time", "value.isoformat()"),
        (datetime.timedelta(1), "is a timedelta", "total_seconds()"),
        (decimal.Decimal("1.10"), "is a Decimal", "str(value)"),
        (uuid.UUID(int=0), "is an UUID", "UUID()"),
        (pathlib.PurePosixPath("/"), "is a PurePosixPath", "str(value)"),
        (User(pk=1), "is an User", "value.pk"),
        (User.objects.none(), "is a QuerySet", "values_list"),
        (gettext_lazy("Save"), "is a __proxy__", "str(value)"),
        (b"text", "is a bytes", "value.decode()"),
        (bytearray(b"x"), "is a bytearray", "base64"),
        (memoryview(b"x"), "is a memoryview", "base64"),
        (enum.Enum("E", "A").A, "is an E", "value.value"),
        (Order(1), "is an Order", "dataclasses.asdict"),
        (1j, "is a complex", "value.real"),
        (iter([1]), "is a list_iterator", "list(value)"),
        (object(), "is an object", "texts, numbers, lists and dicts"),
        (print, "is a builtin_function_or_method", "texts, numbers, lists and dicts"),
    ],
)
def test_what_json_has_no_type_for_is_named_with_what_to_write(writer, value, what, instead):
    error = refusal([0], {"order": {"lines": [1, 2, 3, {"name": value}]}})
    assert error.path == "kwargs['order']['lines'][3]['name']"
    assert str(error).startswith(f"{error.path} {what}, which JSON cannot hold. ")
    assert instead in str(error)
    # Whoever expects what json.dumps and Django's own backends raise, catches it too.
    assert isinstance(error, InvalidPayloadType)
    assert isinstance(error, TypeError)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, Share("nan")])
def test_numbers_that_are_none_are_refused(writer, value):
    error = refusal([1, {"cents": [value]}])
    assert error.path == "args[1]['cents'][0]"
    assert not isinstance(error, TypeError)


@pytest.mark.parametrize("name", ["NUL", "half a pair"])
def test_texts_that_postgresql_cannot_store_are_refused(writer, name):
    character, told = {"NUL": ("\x00", "NUL character (at 2)"), "half a pair": ("\udc80", "U+DC80 at 2")}[name]
    error = refusal(["fine \\u0000", f"ab{character}c"])
    assert error.path == "args[1]"
    assert told in str(error)

    error = refusal([], {"names": {f"ab{character}c": 1}})
    assert error.path == "kwargs['names']"
    assert "has a key with" in str(error)

    str(error).encode()  # and the message itself can be logged anywhere


@pytest.mark.parametrize("key", [1, None, True, 1.5, (1, 2), Order])
def test_keys_that_are_no_texts_are_refused(writer, key):
    error = refusal([{"a": {key: 1}}])
    assert error.path == "args[0]['a']"
    assert f"of type {type(key).__name__}" in str(error)
    assert isinstance(error, TypeError)


def test_names_of_arguments_are_texts_too(writer):
    assert refusal([], {1: 1}).path == "kwargs"


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth - 1):
        value = [value]
    return value


def test_depth_is_bounded(writer):
    encode([nested(90)], {})
    for depth in (100, 120, 5_000, 100_000):
        error = refusal([1, nested(depth)])
        assert error.path == "args[1][0][0][0][0][0][0][0]..."
        assert "more than 100 levels deep" in str(error)
    # What is wide is not deep.
    assert decode(encode([[[[1], {}]] * 300], {}))[0] == [[[[1], {}]] * 300]


def test_cycles_are_refused(writer):
    order: dict = {"lines": []}
    order["lines"].append({"order": order})
    error = refusal([], {"order": order})
    assert str(error) == "kwargs['order']['lines'][0]['order'] contains itself. Pass a value without cycles."


def test_one_value_in_two_places_is_no_cycle(writer):
    shared = (1,)
    assert decode(encode([[shared, shared]], {}))[0] == [[[1], [1]]]


@pytest.mark.skipif(not sys.get_int_max_str_digits(), reason="no limit on the digits of a whole number")
def test_numbers_that_python_would_not_read_are_refused(writer):
    error = refusal([10**5000])
    assert error.path == "args[0]"
    assert "hex(value)" in str(error)


def test_size_is_bounded_and_the_largest_argument_named(writer, settings):
    settings.PGBUS = {"MAX_PAYLOAD_BYTES": 200}
    encode(["x" * 150], {})
    error = refusal([1, "y" * 10], {"csv": "ä" * 100, "name": "n"})
    assert error.path == "kwargs['csv']"
    assert "most of it kwargs['csv'] (202)" in str(error)
    assert "PGBUS['MAX_PAYLOAD_BYTES'] allows 200." in str(error)


def test_messages_hold_no_value(writer):
    secret = "hunter2"
    for value in ({secret}, secret + "\x00", [secret, secret.encode()], {secret: {1: secret}}, {(secret,): 1}):
        error = refusal([value])
        assert secret not in str(error).replace(f"[{secret!r}]", "")  # a key is a place


def test_long_keys_are_cut(writer):
    assert refusal([{"k" * 1000: object()}]).path == f"args[0]['{'k' * 57}...']"


# --- results ------------------------------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_is_named(writer, settings):
    with pytest.raises(InvalidPayloadType, match=r"^result\['when'\] is a datetime"):
        encode_result({"when": datetime.datetime(2026, 1, 1)})
    with pytest.raises(InvalidPayload, match=r"^result is nan"):
        encode_result(math.nan)
    settings.PGBUS = {"MAX_PAYLOAD_BYTES": 10}
    with pytest.raises(InvalidPayload, match=r"^The return value takes 22 bytes"):
        encode_result("x" * 20)


def test_a_result_that_looks_like_arguments_is_only_a_result(writer):
    assert decode_result(encode_result({"args": (1,), "result": 2})) == {"args": [1], "result": 2}


# --- reading ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stored",
    [
        "",
        "{",
        "null",
        "[]",
        "1",
        '{"args": []}',
        '{"args": {}, "kwargs": {}}',
        '{"args": [], "kwargs": []}',
        '{"args": [], "kwargs": null}',
        '{"args": [], "kwargs": {"secret": hunter2}}',
        "[" * 100_000,
    ],
)
def test_what_cannot_be_read_is_said_readably(writer, stored):
    with pytest.raises(InvalidPayload, match=r"^The stored arguments ") as caught:
        decode(stored)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_numbers_written_elsewhere_are_read_exactly(writer):
    stored = json.dumps({"args": [2**70, 1e22, 1.50], "kwargs": {}})
    assert decode(stored) == ([2**70, 1e22, 1.5], {})


def test_a_broken_result_reads_as_none(writer):
    assert decode_result("{") is None
    assert decode_result(None) is None
