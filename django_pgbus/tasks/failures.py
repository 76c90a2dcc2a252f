"""A failure as it is stored: the path of its exception, and a traceback that people can read."""

from __future__ import annotations

import traceback
from typing import Final

TRACEBACK_BYTES: Final = 16 * 1024


def path_of(error: BaseException) -> str:
    """Return the path of the exception's class."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"


def readable(error: BaseException, *ours: str) -> str:
    """Return the traceback without its first frames in these modules, storable, and its end if it is long."""
    try:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_globals.get("__name__") in ours:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
    except BaseException as worse:  # An exception may fail while it is described.
        text = f"{type(error).__name__} (its description failed with {type(worse).__name__})"
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) > TRACEBACK_BYTES:
        text = "... (cut)\n" + text[-TRACEBACK_BYTES:]
    return text
