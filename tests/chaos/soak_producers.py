"""
The process that sends: threads that take one action after the other, each at its instant, however long the last one took.

    python -m tests.chaos.soak_producers FILE RATE SECONDS SEED

Writes one record for each action into FILE once its transaction has ended. Its settings are those of `soaked/`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import django

django.setup()

from django.db import close_old_connections, connections, transaction  # noqa: E402

from django_pgbus import Batch, JobNotUnique, enqueue_many, publish  # noqa: E402
from tests.chaos.soak_workload import KINDS, MEMBERS, Outcome, Schedule, Sent  # noqa: E402
from tests.chaos.soaked import tasks  # noqa: E402
from tests.chaos.soaked.handlers import LEDGER  # noqa: E402
from tests.chaos.soaked.tables import ARTICLES, sell  # noqa: E402

THREADS: Final = 8
KEYS: Final = 200
LONGEST_DELAY: Final = float(os.environ["SOAK_LONGEST_DELAY"])


class Undone(Exception):
    """The transaction is rolled back."""


def main(path: str, rate: float, seconds: float, seed: int) -> None:
    """Send until the time is over."""
    schedule = Schedule(rate=rate, seconds=seconds, seed=seed)
    begin = time.time() + 0.5
    with Path(path).open("ab", buffering=0) as file:
        threads = [threading.Thread(target=_produce, args=(schedule, begin, file)) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _produce(schedule: Any, begin: float, file: Any) -> None:
    while (action := schedule.take()) is not None:
        due = begin + action.due
        time.sleep(max(0.0, due - time.time()))
        outcome, committed, run_after = _send(KINDS[action.kind].name, action.number, action.chance)
        file.write(Sent(action.number, action.kind, outcome, due, committed, run_after).packed())
        close_old_connections()  # as at the end of a request
    connections.close_all()


def _send(name: str, number: int, chance: Any) -> tuple[Outcome, float, float]:
    """
    Send in a transaction, as a view does under ATOMIC_REQUESTS.

    Returns the outcome, when it was committed, and when it is to run (0: at once).
    """
    committed = run_after = 0.0

    def note() -> None:
        nonlocal committed
        committed = time.time()

    try:
        with transaction.atomic():
            transaction.on_commit(note)  # the first: what pgbus does after the commit comes later
            sell(chance.randint(1, ARTICLES))
            run_after = SENDERS[name](number, chance)
    except JobNotUnique:
        return Outcome.REFUSED, 0.0, 0.0
    except Undone:
        return Outcome.UNDONE, 0.0, 0.0
    except Exception as error:
        print(f"{name} {number}: {error!r}", file=sys.stderr, flush=True)
        return Outcome.BROKEN, 0.0, 0.0
    return Outcome.SENT, committed, run_after


# --- what is sent -----------------------------------------------------------------------------------


def _plain(number: int, chance: Any) -> float:
    tasks.plain.enqueue(number, chance.uniform(0.001, 0.01))
    return 0.0


def _async(number: int, chance: Any) -> float:
    tasks.aplain.enqueue(number, chance.uniform(0.001, 0.05))
    return 0.0


def _transactional(number: int, chance: Any) -> float:
    tasks.transactional.enqueue(number, chance.randint(1, ARTICLES))
    return 0.0


def _delayed(number: int, chance: Any) -> float:
    due, moment = _later(chance.uniform(1.0, LONGEST_DELAY))
    tasks.plain.using(run_after=moment).enqueue(number, chance.uniform(0.001, 0.01))
    return due


def _unique(number: int, chance: Any) -> float:
    tasks.unique.enqueue(number, f"order {chance.randrange(KEYS)}", chance.uniform(0.001, 0.01))
    return 0.0


def _unique_delayed(number: int, chance: Any) -> float:
    due, moment = _later(2.0)
    tasks.unique.using(run_after=moment).enqueue(number, f"index {chance.randrange(KEYS)}", 0.002)
    return due


def _limited(number: int, chance: Any) -> float:
    tasks.limited.enqueue(number, f"customer {chance.randrange(KEYS)}", chance.uniform(0.005, 0.03))
    return 0.0


def _limited_unique(number: int, chance: Any) -> float:
    tasks.limited_unique.enqueue(number, f"invoice {chance.randrange(KEYS)}", chance.uniform(0.005, 0.03))
    return 0.0


def _fails_once(number: int, chance: Any) -> float:
    tasks.fails_once.enqueue(number, 0.002)
    return 0.0


def _dead_letter(number: int, chance: Any) -> float:
    tasks.never_succeeds.enqueue(number, 0.002)
    return 0.0


def _undone(number: int, chance: Any) -> float:
    _plain(number, chance)
    raise Undone


def _event(number: int, chance: Any) -> float:
    assert publish("orders.placed", {"number": number}) == 3
    return 0.0


def _entry(number: int, chance: Any) -> float:
    LEDGER.append({"number": number, "account": chance.randrange(KEYS), "amount": chance.randrange(10_000)})
    return 0.0


def _batch(number: int, chance: Any) -> float:
    with Batch("Orders of the hour", properties={"number": number}, on_success=tasks.batch_ended):
        enqueue_many(tasks.member, [((one, 0.002), {}) for one in range(number, number + MEMBERS)])
    return 0.0


def _later(seconds: float) -> tuple[float, datetime]:
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    return moment.timestamp(), moment


SENDERS: Final[dict[str, Callable[[int, Any], float]]] = {
    "plain": _plain,
    "async": _async,
    "transactional": _transactional,
    "delayed": _delayed,
    "unique": _unique,
    "unique, delayed": _unique_delayed,
    "limited": _limited,
    "limited and unique": _limited_unique,
    "fails once": _fails_once,
    "dead letter": _dead_letter,
    "undone": _undone,
    "event": _event,
    "stream entry": _entry,
    "batch": _batch,
}

if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
