"""
What a task is given and what it returns, as JSON text.

What is written here reads back as what was given, on every PostgreSQL and with or without orjson; the rest is refused
before any SQL, naming the argument: an error inside PostgreSQL would end the caller's transaction. Tuples become lists
and other mappings and sequences their plain kin, as Django's own backends do it; bytes are refused, since JSON would
make them text.

The fast path writes, reads back and compares, all in C. Only what does not compare equal is walked in Python
(`plain.py`), either to be made plain or to find what is wrong with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from django_pgbus.conf import get_settings
from django_pgbus.exceptions import InvalidPayload
from django_pgbus.tasks.plain import MAX_DEPTH, deeper_than, made_plain

orjson: Any = import_module("orjson") if find_spec("orjson") else None
_STRICT = orjson and (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode

# What may be wrong with a value while it is written; which of them it is, the walk finds out.
_REFUSED = (TypeError, ValueError, OverflowError, RecursionError)


class Payload(NamedTuple):
    """Arguments as text, and as the worker will see them."""

    text: str
    args: list[Any]
    kwargs: dict[str, Any]


def encode(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the arguments as JSON text, or raise InvalidPayload naming the one that cannot be stored."""
    return prepare(args, kwargs).text


def prepare(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Payload:
    """Return the arguments as text and as read back, or raise InvalidPayload naming the one that cannot be stored."""
    document = {"args": list(args), "kwargs": kwargs}
    raw, seen = _fast(document) or _walked({name: made_plain(part, name) for name, part in document.items()})
    if len(raw) > get_settings().MAX_PAYLOAD_BYTES:
        raise _too_large("The arguments take", raw, seen)
    return Payload(raw.decode(), seen["args"], seen["kwargs"])


def decode(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Return the stored arguments, or raise InvalidPayload saying why they cannot be read."""
    document = decode_value(text)
    if isinstance(document, dict):  # Matching a pattern takes three times as long.
        args, kwargs = document.get("args"), document.get("kwargs")
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise InvalidPayload('The stored arguments have not the shape {"args": [...], "kwargs": {...}}.')


def decode_value(text: str) -> Any:
    """Return what is stored, or raise InvalidPayload saying why it cannot be read."""
    try:
        return _read(text)
    except _REFUSED as error:
        # `from None`: a JSONDecodeError carries the whole document, secrets included.
        raise InvalidPayload(f"The stored arguments cannot be read: {error}.") from None


def encode_result(value: Any) -> str:
    """Return what a task returned as JSON text, or raise InvalidPayload naming the part that cannot be stored."""
    if value is None:  # as most tasks do
        return "null"
    return encode_value(value, "result", "The return value takes")


def encode_value(value: Any, name: str, takes: str) -> str:
    """
    Return a value as JSON text, or raise InvalidPayload naming the part that cannot be stored.

    `name` is what the value is called in that error, `takes` how a sentence about its size begins.
    """
    raw, _ = _fast(value) or _walked(made_plain(value, name))
    if len(raw) > get_settings().MAX_PAYLOAD_BYTES:
        raise _too_large(takes, raw, {}, name)
    return raw.decode()


def decode_result(text: str | None) -> Any:
    """Return what the task had returned, or None if nothing readable is stored."""
    if text is None:
        return None
    try:
        return _read(text)
    except _REFUSED:
        return None


def _fast(value: Any) -> tuple[bytes, Any] | None:
    """Return the text and the value as read back, or None if it needs a walk."""
    try:
        raw, seen = _through_orjson(value) or _through_json(value)
        # With a backslash before it, the NUL is a false alarm; the walk knows.
        if seen == value and b"\\u0000" not in raw:
            brackets = raw.count(b"[") + raw.count(b"{")
            if brackets <= MAX_DEPTH or not deeper_than(MAX_DEPTH, value):
                return raw, seen
    except _REFUSED:
        pass
    return None


def _walked(plain: Any) -> tuple[bytes, Any]:
    return _through_orjson(plain) or _through_json(plain)


def _through_orjson(value: Any) -> tuple[bytes, Any] | None:
    if orjson is None:
        return None
    try:
        raw = orjson.dumps(value, option=_STRICT)
    except TypeError:  # integers beyond 64 bit, keys of a subclass of str, and whatever JSON cannot hold
        return None
    return raw, orjson.loads(raw)


def _through_json(value: Any) -> tuple[bytes, Any]:
    text = _encode(value)
    return text.encode(), _decode(text)[0]


def _read(text: str) -> Any:
    if orjson is not None:
        try:
            value = orjson.loads(text)
            # orjson reads large integers as floats, silently. What writes back the same was read rightly.
            if orjson.dumps(value) == text.encode():
                return value
        except (TypeError, ValueError):
            pass
    return json.loads(text)


def _too_large(what: str, raw: bytes, document: dict[str, Any], name: str = "") -> InvalidPayload:
    sizes = {f"args[{index}]": _size(part) for index, part in enumerate(document.get("args", ()))}
    sizes |= {f"kwargs[{name!r}]": _size(part) for name, part in document.get("kwargs", {}).items()}
    path = max(sizes, key=lambda name: sizes[name], default=name)
    return InvalidPayload(
        f"{what} {len(raw):,} bytes as JSON{f', most of it {path} ({sizes[path]:,})' if sizes else ''}; "
        f"PGBUS['MAX_PAYLOAD_BYTES'] allows {get_settings().MAX_PAYLOAD_BYTES:,}. Store the data and pass its key.",
        path=path,
    )


def _size(part: Any) -> int:
    return len(_encode(part).encode())
