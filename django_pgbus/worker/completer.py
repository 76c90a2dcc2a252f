"""Writing what runs came to: collected for a few milliseconds, written together."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Final, TypeVar

from django_pgbus import signals
from django_pgbus.insights.recording import Verdict
from django_pgbus.postgres import is_connection_loss
from django_pgbus.postgres.own_connection import PIN_PLANS
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Delivery
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.executor import HandBack, Outcome, Superseded
from django_pgbus.tasks.outcomes import GaveUp, PutOff, Success
from django_pgbus.worker.connected import ConnectedLoop
from django_pgbus.worker.counting import Counter
from django_pgbus.worker.reporting import Reporter

COLLECT: Final = 0.003  # seconds
FULL: Final = 100  # outcomes that are not kept waiting
BATCH: Final = 500

O = TypeVar("O", Success, PutOff, GaveUp)  # noqa: E741
Otherwise = MutableMapping[Delivery, Verdict | None]  # what an outcome came to, where it is not what it says


class Completer(ConnectedLoop):
    """Settles outcomes in batches; one that cannot be written never fails its neighbours."""

    part = "completer"

    def __init__(self, held: Held, reporter: Reporter, settled: Callable[[], None], beat: float = 10.0) -> None:
        super().__init__()
        self._outcomes: deque[Outcome] = deque()
        self._held = held
        self._reporter = reporter
        self._settled = settled
        self._first = 0.0
        self._counter = Counter(beat)
        self.done = 0
        self.failed = 0
        self.superseded = 0

    def put(self, outcome: Outcome) -> None:
        """Take an outcome, from any thread."""
        self._outcomes.append(outcome)
        waiting = len(self._outcomes)
        if waiting == 1:
            self._first = time.monotonic()
            self.wake()
        elif waiting == FULL:
            self.wake()

    def __len__(self) -> int:
        return len(self._outcomes)

    def connected(self) -> None:
        """Pin the plans."""
        PIN_PLANS.hold()

    def work(self) -> float:
        """Settle what has been collected, and write what has been counted when it is time."""
        waiting = len(self._outcomes)
        if not waiting:
            return self._counter.write_if_due()
        collect = self._first + COLLECT - time.monotonic()
        if waiting < FULL and collect > 0 and not self.stopping:
            return collect
        self._busy = True  # Before the first is taken out: `flush` must not see neither.
        batch = [self._outcomes.popleft() for _ in range(min(waiting, BATCH))]
        try:
            self._settle(batch)
        except Exception as error:
            if is_connection_loss(error):
                self._outcomes.extendleft(reversed(batch))  # Settling again is harmless: the delivery is named.
            else:
                self._held.drop(outcome.delivery for outcome in batch)  # Let their leases lapse.
            raise
        finally:
            self._busy = False
        self._first = time.monotonic()
        wait = self._counter.write_if_due()
        return 0.0 if self._outcomes else wait

    def flush(self, until: float) -> bool:
        """
        Wait until everything is written, at most until the monotonic time `until`; return whether it is.

        What was counted is to be written too, but not waited for where it cannot be.
        """
        self._counter.hurries = True
        while (self._outcomes or self._busy or self._writes_counts) and time.monotonic() < until:
            self.wake()
            time.sleep(0.005)
        return not self._outcomes and not self._busy

    @property
    def _writes_counts(self) -> bool:
        return self._counter.hurries and self._counter.owes and self._connection is not None

    _busy = False

    def _settle(self, batch: Sequence[Outcome]) -> None:
        otherwise: dict[Delivery, Verdict | None] = {}
        of: defaultdict[type, list[Any]] = defaultdict(list)
        for outcome in batch:
            of[type(outcome)].append(outcome)
        self._write(Success, of[Success], lifecycle.succeed, otherwise)
        self._write(PutOff, of[PutOff], lifecycle.put_off, otherwise)
        self._write(GaveUp, of[GaveUp], lifecycle.give_up, otherwise)
        self._hand_back([outcome.delivery for outcome in of[HandBack]], otherwise)
        for outcome in of[Superseded]:
            self._say_superseded(outcome.delivery)
        self._counter.count(batch, otherwise)  # Only now: up to here a lost connection lets all of it be settled again.
        deliveries = [outcome.delivery for outcome in batch]
        self._reporter.ended(self._held.drop(deliveries))
        self.done += len(batch)
        self.failed += len(of[PutOff]) + len(of[GaveUp])
        self._settled()

    def _write(
        self,
        kind: type[O],
        mine: Sequence[O],
        settle: Callable[[Sequence[O], float], Any],
        otherwise: Otherwise,
    ) -> None:
        if not mine:
            return
        try:
            written = settle(mine, time.monotonic())
        except Exception as error:
            if is_connection_loss(error):
                raise
            written = self._one_by_one(mine, settle, otherwise)
        missing = [outcome for outcome in mine if outcome.delivery.id not in written]
        if missing:
            # A COMMIT whose reply was lost has been written already; anything else was superseded.
            before = lifecycle.settled_before([outcome.delivery for outcome in missing])
            for outcome in missing:
                if outcome.delivery.id not in before:
                    otherwise[outcome.delivery] = Verdict.SUPERSEDED
                    self._say_superseded(outcome.delivery)
        if isinstance(written, dict):
            for outcome in mine:
                if written.get(outcome.delivery.id):
                    if kind is GaveUp:
                        otherwise[outcome.delivery] = Verdict.FAILED  # There is no dead letter.
                    signals.task_discarded.send_robust(sender=type(self), delivery=outcome.delivery)

    def _hand_back(self, deliveries: Sequence[Delivery], otherwise: Otherwise) -> None:
        returned: Sequence[int] = ()
        try:
            returned = lifecycle.hand_back([(delivery.id, delivery.delivery) for delivery in deliveries])
        except Exception as error:
            if is_connection_loss(error):
                raise
            signals.loop_failed.send_robust(sender=type(self), part=self.part, exception=error)
        otherwise.update((delivery, None) for delivery in deliveries if delivery.id not in returned)

    def _one_by_one(
        self, outcomes: Sequence[O], settle: Callable[[Sequence[O], float], Any], otherwise: Otherwise
    ) -> dict[int, bool]:
        written: dict[int, bool] = {}
        for outcome in outcomes:
            try:
                one = settle([outcome], time.monotonic())
            except Exception as error:
                if is_connection_loss(error):
                    raise
                # Its lease lapses and it is run again: better than to stop everything behind it.
                signals.loop_failed.send_robust(sender=type(self), part=self.part, exception=error)
                written[outcome.delivery.id] = False
                otherwise[outcome.delivery] = None
            else:
                written.update(one if isinstance(one, dict) else dict.fromkeys(one, False))
        return written

    def _say_superseded(self, delivery: Delivery) -> None:
        self.superseded += 1
        signals.task_superseded.send_robust(sender=type(self), delivery=delivery)
