"""
One system under test, in an interpreter of its own.

    python -m tests.benchmarks.driver MODULE ACTION [numbers]

`MODULE` has what `peers/__init__.py` describes; an action of its own is called by name. Prints what came of it as one
line of JSON. This file and what it imports need the standard library only.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any


def latency(module: Any, samples: int, shortest: float, longest: float, first: int = 0) -> dict[str, Any]:
    """Send numbered jobs, waiting between two a random time in seconds, and return when each was sent."""
    rows = []
    with module.sender() as send:
        for number in range(first, first + samples):
            if longest:
                time.sleep(random.uniform(shortest, longest))
            called = time.time()
            committed = send(number)
            returned = time.time()
            rows.append((number, called, committed or returned, returned))
    return {"rows": rows}


def main(name: str, action: str, *rest: str) -> None:
    module = importlib.import_module(name)
    if action == "work":
        module.work(*rest)
        return
    call: Callable[..., Any] = partial(latency, module) if action == "latency" else getattr(module, action)
    result = call(*(float(text) if "." in text else int(text) for text in rest))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
