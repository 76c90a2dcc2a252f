"""
The walk over a value that is not plain JSON already: made plain, or refused with the path to the fault.

Slow, and only taken when something was noticed (`payload.py`). Messages name types and places, never values: they end
up in logs.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import pathlib
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, Final

from django_pgbus.exceptions import InvalidPayload, InvalidPayloadType

# Ruby's JSON stops here too. Far below what Python's recursion, PostgreSQL's parser or any reader can take.
MAX_DEPTH: Final = 100

_SURROGATE = re.compile("[\ud800-\udfff]")
_BYTES = (bytes, bytearray, memoryview)


class _Fault(Exception):
    def __init__(self, problem: str, remedy: str, *, error: type[InvalidPayload] = InvalidPayload) -> None:
        super().__init__(problem)
        self.problem, self.remedy, self.error = problem, remedy, error
        self.path: list[str] = []


def made_plain(value: Any, name: str) -> Any:
    """Return the value as lists, dicts, texts, numbers, booleans and None, or raise InvalidPayload with its path."""
    try:
        return _plain(value, [])
    except _Fault as fault:
        path = name + "".join(_shortened(fault.path[::-1]))
        raise fault.error(f"{path} {fault.problem}. {fault.remedy}", path=path) from None


def deeper_than(limit: int, value: Any) -> bool:
    """Return whether containers stand in one another more than `limit` deep, level by level; never for cyclic ones."""
    level = [value]
    for _ in range(limit + 1):
        level = [
            part
            for container in level
            for part in (container.values() if isinstance(container, dict) else container)
            if isinstance(part, (dict, list))
        ]
        if not level:
            return False
    return True


def _plain(value: Any, above: list[int]) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, "contains")
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Fault(f"is {float(value)!r}, which JSON cannot hold", "Pass None, or leave it out.")
        return float(value)
    if isinstance(value, Mapping) or (isinstance(value, Sequence) and not isinstance(value, _BYTES)):
        if id(value) in above:
            raise _Fault("contains itself", "Pass a value without cycles.")
        if len(above) >= MAX_DEPTH:
            raise _Fault(f"is more than {MAX_DEPTH} levels deep", "Flatten it, or store it and pass its key.")
        above.append(id(value))
        plain = _dict(value, above) if isinstance(value, Mapping) else _list(value, above)
        above.pop()
        return plain
    raise _Fault(f"is {_a(value)}, which JSON cannot hold", _instead_of(value), error=InvalidPayloadType)


def _list(value: Iterable[Any], above: list[int]) -> list[Any]:
    plain = []
    for index, part in enumerate(value):
        try:
            plain.append(_plain(part, above))
        except _Fault as fault:
            fault.path.append(f"[{index}]")
            raise
    return plain


def _dict(value: Mapping[Any, Any], above: list[int]) -> dict[str, Any]:
    plain = {}
    for key, part in value.items():
        if not isinstance(key, str):
            shown = f"the key {key!r}" if isinstance(key, (int, float, type(None))) else "a key"
            raise _Fault(
                f"has {shown} of type {type(key).__name__}; in JSON keys are texts",
                "Write str(key) yourself, and expect a text where it is read.",
                error=InvalidPayloadType,
            )
        name = _text(key, "has a key with")
        try:
            plain[name] = _plain(part, above)
        except _Fault as fault:
            fault.path.append(f"[{name if len(name) <= 60 else name[:57] + '...'!r}]")
            raise
    return plain


def _text(value: str, contains: str) -> str:
    if (at := value.find("\x00")) >= 0:
        raise _Fault(
            f"{contains} a NUL character (at {at}), which PostgreSQL cannot store",
            'Remove it: value.replace("\\x00", "").',
        )
    if found := _SURROGATE.search(value):
        raise _Fault(
            f"{contains} half of a surrogate pair (U+{ord(found[0]):04X} at {found.start()}), which is no valid text",
            'Replace it: value.encode("utf-8", "replace").decode().',
        )
    return str.__str__(value)


def _whole(value: int) -> int:
    try:
        int.__repr__(value)
    except ValueError:  # sys.set_int_max_str_digits: the worker could not read it either
        raise _Fault("is a whole number with too many digits for Python to write", "Pass hex(value).") from None
    return int(value)


def _shortened(path: list[str]) -> list[str]:
    return path if len(path) <= 10 else [*path[:8], "..."]


def _a(value: Any) -> str:
    name = type(value).__name__
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"


def _instead_of(value: Any) -> str:
    # Imported here, since a module with tasks may be imported before Django is set up.
    from django.db.models import Model, QuerySet
    from django.utils.functional import Promise

    match value:
        case Model():
            return "Pass its primary key (value.pk) and load it where it is used."
        case QuerySet():
            return 'Pass the keys: list(value.values_list("pk", flat=True)).'
        case Promise():
            return "Pass str(value), or translate it where it is shown."
        case datetime.datetime() | datetime.date() | datetime.time():
            return f"Pass value.isoformat() and read it with {type(value).__name__}.fromisoformat()."
        case datetime.timedelta():
            return "Pass value.total_seconds()."
        case decimal.Decimal() | uuid.UUID() | pathlib.PurePath():
            return f"Pass str(value) and read it with {type(value).__name__}()."
        case bytes() | bytearray() | memoryview():
            return "Pass value.decode() if it is text, else base64.b64encode(value).decode()."
        case enum.Enum():
            return "Pass value.value."
        case set() | frozenset():
            return "Pass list(value), or sorted(value)."
        case complex():
            return "Pass [value.real, value.imag]."
    if type(value).__module__.partition(".")[0] == "numpy":
        return "Pass value.tolist()."
    if is_dataclass(value):
        return "Pass dataclasses.asdict(value)."
    if isinstance(value, Iterable):
        return "Pass list(value)."
    return "Pass the texts, numbers, lists and dicts that it can be built from."
