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
from typing import Any, Final

MANY: Final = 2000  # jobs of one call, so that what opens a connection counts little


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


def rates(module: Any, seconds: float) -> dict[str, Any]:
    """Send one by one, and many at once where there is a call for it, and return how many a second and in all."""
    with module.sender() as send:
        began, one = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            send(one)
            one += 1
    found: dict[str, Any] = {"single": one / took, "many": None, "sent": one + 1}
    if getattr(module, "BULK", True):
        many, spent = 0, 0.0
        while spent < seconds:
            spent += module.send_many(MANY)
            many += MANY
        found |= {"many": many / spent, "sent": found["sent"] + many}
    return found


def main(name: str, action: str, *rest: str) -> None:
    module = importlib.import_module(name)
    if action == "work":
        module.work(*rest)
        return
    ours: dict[str, Callable[..., Any]] = {"latency": latency, "peer_rates": rates}
    call: Callable[..., Any] = partial(ours[action], module) if action in ours else getattr(module, action)
    result = call(*(float(text) if "." in text else int(text) for text in rest))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
