"""What a person types after an option of `runworker`, as a value, or a sentence that says what is wrong."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import Final

UNITS: Final = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def seconds(text: str) -> float:
    """Return a number of seconds from 0 on."""
    try:
        value = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number of seconds.") from None
    if not 0 <= value < math.inf:  # NaN is neither
        raise ArgumentTypeError(f"A number of seconds is finite and not negative; {text!r} is not.")
    return value


def some_seconds(text: str) -> float:
    """Return a number of seconds above 0."""
    if (value := seconds(text)) == 0:
        raise ArgumentTypeError("This takes a number of seconds above 0.")
    return value


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    try:
        value = int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no whole number.") from None
    if value < 1:
        raise ArgumentTypeError(f"This takes a whole number from 1 on, not {value}.")
    return value


def size(text: str) -> int:
    """Return a number of bytes: 512M, 1.5G, 300000K; a unit is 1024 of the one below."""
    bare = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = bare[-1:] if bare[-1:].isalpha() else ""
    try:
        value = float(bare.removesuffix(unit) if unit else bare)
    except ValueError:
        value = math.nan
    if unit not in UNITS or not 0 < value < math.inf:
        raise ArgumentTypeError(f"{text!r} is no amount of memory; write for example 512M or 2G.")
    return int(value * UNITS[unit])


def address(text: str) -> tuple[str, int]:
    """Return host and port: 8001 for every address, 127.0.0.1:8001 or [::1]:8001 for one."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise ArgumentTypeError(f"{text!r} is no port; write 8001, or 127.0.0.1:8001.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def name(text: str) -> str:
    """Return the name of a worker."""
    if not 0 < len(text) < 64 or not text.isprintable():
        raise ArgumentTypeError(f"The name of a worker has 1 to 63 printable characters, {text!r} has {len(text)}.")
    return text
