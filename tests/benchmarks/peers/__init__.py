"""
Peers: other queues, each in a module with these functions; `driver.py` runs them in their own venv.

    install()           make the tables; return a version
    send_many(count)    store no-op jobs as fast as the peer can, return the seconds it took
    sender()            a context manager that returns a function which stores one numbered job
    work()              work until SIGTERM
    BULK                False where `send_many` sends one by one, for want of a call

A job calls `counters.hit()`, a numbered one `counters.stamp(number)`; both carry `payload.ARGUMENTS`. Each peer runs
with the settings that were fastest on the machine of reference (`systems.PEERS`), in its fastest kind of job: async
where it has coroutines. `BENCH_DSN` is the database (or the Redis), `BENCH_CONCURRENCY` the peer's own knob.
"""

from __future__ import annotations

import logging
import os
from typing import Final

DSN: Final = os.environ.get("BENCH_DSN", "")
CONCURRENCY: Final = int(os.environ.get("BENCH_CONCURRENCY", "0")) or 100
CHUNK: Final = 1000

logging.disable(logging.INFO)  # A line for each job would be what is measured.


def chunks(count: int) -> list[int]:
    """Return sizes that add up to `count`."""
    return [min(CHUNK, count - start) for start in range(0, count, CHUNK)]
