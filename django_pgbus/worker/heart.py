"""The heartbeat: renews what this process holds and says that it lives, on a connection of its own."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

import django_pgbus
from django_pgbus import signals
from django_pgbus.postgres import is_connection_loss
from django_pgbus.postgres.own_connection import IMPATIENT, PIN_PLANS
from django_pgbus.queues import heartbeat
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.message import Delivery
from django_pgbus.worker import sql
from django_pgbus.worker.connected import ConnectedLoop
from django_pgbus.worker.plan import ProcessPlan

OFFICE = "dispatcher"


class Heart(ConnectedLoop):
    """
    One statement for all leases, one for its own row.

    Deliveries that were not confirmed for one lease, by the monotonic clock counted from before a beat was sent,
    are treated as superseded: whoever cannot reach the database cannot know.
    """

    part = "heart"

    def __init__(
        self,
        *,
        plan: ProcessPlan,
        worker: UUID,
        supervisor: UUID | None,
        name: str,
        held: Held,
        status: Callable[[], dict[str, Any]],
        superseded: Callable[[Delivery], None],
        discarded: Callable[[Delivery], None],
        beaten: Callable[[bool], None],
        elected: Callable[[], None] = lambda: None,
        renew_more: Callable[[], None] = lambda: None,
        give_up_more: Callable[[], None] = lambda: None,
        streams: str = "",
    ) -> None:
        # What is not confirmed in time is given up by this thread, which must not wait for a host that does not answer.
        super().__init__(connect_timeout=3, tcp_user_timeout=int(plan.beat * 500))
        self._plan = plan
        self._worker = worker
        self._supervisor = supervisor
        self._name = name
        self._held = held
        self._status = status
        self._superseded = superseded
        self._discarded = discarded
        self._beaten = beaten
        self._elected = elected
        self._renew_more = renew_more
        self._give_up_more = give_up_more
        self._streams = streams
        self.is_dispatcher = False
        self.alive = False

    def connected(self) -> None:
        """Let no statement take longer than half a beat; what cannot be renewed in that time is tried again."""
        PIN_PLANS.hold()
        IMPATIENT.hold(milliseconds=str(int(self._plan.beat * 500)))

    def work(self) -> float:
        """Beat once."""
        began = time.monotonic()
        beat = heartbeat.renew(self._held, self._plan.lease)
        for delivery in beat.superseded:
            self._lose(delivery)
        for delivery in beat.discarded:
            self._discarded(delivery)
        self._renew_more()
        was_dispatcher = self.is_dispatcher
        self._say_so()
        self._give_up_unconfirmed()
        self.alive = True
        self._beaten(True)
        if self.is_dispatcher and not was_dispatcher:  # Only now: it sweeps while this heart is alive.
            self._elected()
        return began + self._plan.beat - time.monotonic()

    def on_error(self, error: BaseException) -> float:
        """Lose what has been silent for a lease, and try again soon."""
        self.alive = False
        self._give_up_unconfirmed()
        self._beaten(False)
        return min(super().on_error(error), self._plan.beat / 4)

    def leave(self) -> None:
        """Take this process off the list of workers; called in the thread of the heart."""
        if self._connection is None:
            return
        try:
            self._resign()
        except Exception as error:
            if not is_connection_loss(error):
                raise
            self.disconnect()  # It was lost since the last beat.
            self.connect()
            self._resign()

    def _resign(self) -> None:
        sql.LEAVE.count(worker=self._worker)
        if self.is_dispatcher:
            sql.RESIGN.count(worker=self._worker)

    def run(self) -> None:
        """Beat until `stop`, then leave the list."""
        try:
            super(ConnectedLoop, self).run()
            try:
                self.leave()
            except Exception as error:
                if not is_connection_loss(error):  # Without the database its silence tells.
                    signals.loop_failed.send_robust(sender=type(self), part=self.part, exception=error)
        finally:
            self.disconnect()

    def _say_so(self) -> None:
        row = sql.BEAT.row(
            id=self._worker,
            supervisor=self._supervisor,
            name=self._name,
            host=socket.gethostname()[:255],
            pid=os.getpid(),
            version=django_pgbus.__version__,
            queues=self._plan.queues_text,
            streams=self._streams,
            capacity=self._plan.threads,
            lease=f"{self._plan.lease} seconds",
            **self._status(),
        )
        was = self.is_dispatcher
        if row.dispatcher in (None, self._worker):
            term = f"{self._plan.lease} seconds"
            self.is_dispatcher = bool(sql.RUN_FOR_OFFICE.rows(office=OFFICE, worker=self._worker, term=term))
        else:
            self.is_dispatcher = False
        if self.is_dispatcher and not was:
            signals.elected.send_robust(sender=type(self), worker=self._worker)

    def _give_up_unconfirmed(self) -> None:
        silent_since = time.monotonic() - self._plan.lease
        for delivery in self._held.all():
            if delivery.confirmed_at < silent_since and not delivery.superseded:
                delivery.superseded = True
                self._lose(delivery)
        self._give_up_more()

    def _lose(self, delivery: Delivery) -> None:
        self._superseded(delivery)
