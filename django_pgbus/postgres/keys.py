"""Keys that people choose, as the tables hold them."""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST: Final = 255  # bytes; an index takes a third of a page at most, and a longer key is no better
_UNUSABLE: Final = re.compile("[\x00\ud800-\udfff]")
_HASHED: Final = re.compile(r"sha256:[0-9a-f]{64}\Z")


def why_unusable(key: object) -> str | None:
    """Return what is wrong with a key, or None."""
    if not isinstance(key, str):
        return f"is a {type(key).__name__}, not a text"
    if not key:
        return "is empty"
    if _UNUSABLE.search(key):
        return "contains a NUL byte or half of a surrogate pair, which PostgreSQL cannot store"
    return None


class StoredKey(str):
    """A key as it was read from the tables: it is not hashed once more."""

    __slots__ = ()


def stored(key: str) -> str:
    """Return the key as the tables hold it: itself, or its hash if it is longer than 255 bytes."""
    if isinstance(key, StoredKey):
        return str(key)
    raw = key.encode()
    # Whoever chooses a key that looks like a hash must not meet the key that has it.
    if len(raw) <= LONGEST and not _HASHED.match(key):
        return key
    return f"sha256:{hashlib.sha256(raw).hexdigest()}"


def shown(key: str) -> str:
    """Return what to keep beside a stored key so that people can read it: nothing if it is the key itself."""
    return "" if stored(key) == key else key[:1000]
