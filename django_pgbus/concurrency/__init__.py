"""
At most N at once per key, the rest parked.

A slot is a row: bound to a message from the moment it is let in until it is settled, through retries and backoff, with a
lease while the message runs. How many are held is how many rows there are; no counter can drift. A task that finds no
slot is parked whole in `pgbus_blocked_executions` and promoted, best priority and oldest first, when a slot is free.
Who enqueues waits for nobody: the row is parked in the caller's transaction and looked at after its commit, and
whoever held a semaphore's lock looks again after its own. The limit is tested at promotion under the semaphore's lock,
and again at pick-up: a delivery whose slot is gone is parked once more. So at no moment are more than N runs of a key
fenced in. Parked rows never age out; the ways out are promotion and a person's Discard.

`release(key)` and `discard_parked(key)` are what a person may press. They move messages and free keys too, so they
stand with the other transitions in `tasks/lifecycle.py`; this is their front door.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_DOORS = {"release": "release", "discard_parked": "discard_parked"}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("django_pgbus.tasks.lifecycle"), _DOORS[name])
