"""
Claiming for the capsules of this process, in one thread and on one connection.

Each round: read what was heard, move what is due, claim for whoever has room, look around once a second. A claim
that comes back empty ends the round, unless a producer has just spoken: transactions that follow it closely do not
wake again, so the consumer keeps looking for a moment.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from django_pgbus import signals
from django_pgbus.postgres.own_connection import PIN_PLANS
from django_pgbus.postgres.retrying import is_conflict, is_connection_loss
from django_pgbus.queues import heartbeat, sweeps, wake
from django_pgbus.queues.heartbeat import Held
from django_pgbus.queues.line import Line, Polled
from django_pgbus.queues.message import Delivery, Level
from django_pgbus.tasks import lifecycle
from django_pgbus.tasks.outcomes import PickedUp
from django_pgbus.worker.capsule import Capsule
from django_pgbus.worker.connected import ConnectedLoop
from django_pgbus.worker.plan import ProcessPlan
from django_pgbus.worker.reporting import Reporter

CLAIM_LIMIT: Final = 200  # rows of one claim
HUNT: Final = 0.055  # seconds of looking on after a wake-up: a producer that has just woken does not wake again
HUNT_PAUSE: Final = 0.002
LOOK_AGAIN: Final = 0.025  # seconds after something was due
ASK_AGAIN: Final = 0.25  # seconds between pick-ups of what another transaction holds
DECLARE_AGAIN: Final = 15.0  # seconds until subscriptions are written that could not be
NUDGE: Final = 0.005  # seconds between looks at buffers that may be stuck behind a long job
HEARD: Final = 120.0  # seconds a level counts that was only heard of; producers write it at least once a minute


class Consumer(ConnectedLoop):
    """Fills the capsules; `drain` empties them again."""

    part = "consumer"

    def __init__(
        self,
        *,
        plan: ProcessPlan,
        worker: UUID,
        held: Held,
        capsules: Sequence[Capsule],
        reporter: Reporter,
        to_be_stopped: Callable[[Delivery], None],
        declare: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__()
        self._plan = plan
        self._worker = worker
        self._held = held
        self._capsules = capsules
        self._reporter = reporter
        self._to_be_stopped = to_be_stopped
        self._declare = declare
        self._declare_at = 0.0  # infinite once it is done
        self._line = Line()
        self._levels: dict[Level, bool] = {}
        self._paused: set[str] = set()  # queues, as of the last poll
        self._heard: dict[Level, float] = {}  # levels that a note named, until their row is there for all
        self._notes: deque[Any] = deque()
        self._next_poll = 0.0
        self._next_due = float("inf")
        self._hunt_until = 0.0
        self._draining = False
        self._returning: list[Delivery] = []  # out of the buffers, not yet back in the line
        self._suspects_wait = False
        self._suspect: Delivery | None = None
        self._may_find = True  # a claim may find something: not known that there is nothing
        self._contested: list[tuple[Capsule, Delivery]] = []  # another transaction holds what they need
        self._next_ask = 0.0
        self.may_claim = True  # the heart is confirmed
        self.drained = False
        self._quiet = False  # the last poll began with nothing held and found nothing to claim and nothing due
        self._claims = False  # a claim is under way
        self._in_doubt_until = 0.0  # a claim had no answer: what it has taken is leased, and nobody here knows of it
        self._poll_fails = False

    @property
    def idle(self) -> bool:
        """Return whether the last poll found nothing, with nothing held, and no claim found anything since."""
        return self._quiet and not self._claims

    # --- from other threads ---------------------------------------------------------------------------

    def hear(self, notes: list[Any]) -> None:
        """Take notes of other processes; they are read between two claims, never during one."""
        self._notes.extend(notes)
        self.wake()

    def catch_up(self) -> None:
        """Look at everything once: notifications may have been missed."""
        self._notes.append(["look"])
        self.wake()

    def drain(self) -> None:
        """Stop claiming and hand the buffers back; `drained` says when."""
        self._draining = True
        self.wake()

    def roomier(self) -> None:
        """Claim again: there is room where there was none."""
        self._may_find = True
        self.wake()

    def due_in(self, seconds: float) -> None:
        """Take note that a message of ours will be due."""
        self._quiet = False
        self._notes.append(["due", None, seconds])
        if seconds < self._plan.poll * 2:
            self.wake()

    # --- the round ------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Pin the plans, beat before claiming, find all levels, and conclude nothing from before."""
        PIN_PLANS.hold()
        beat = heartbeat.renew(self._held, self._plan.lease)
        for delivery in (*beat.superseded, *beat.discarded):
            self._to_be_stopped(delivery)
        sweeps.find_levels()
        self._line.forget()
        self._next_poll = 0.0
        self._may_find = True

    def _say_what_is_handled_here(self) -> None:
        """Write the subscriptions of this code, once; what is in the way is tried again, and keeps nobody from working."""
        if time.monotonic() < self._declare_at:
            return
        self._declare_at = time.monotonic() + DECLARE_AGAIN
        try:
            self._declare()
        except Exception as error:
            if is_connection_loss(error):
                raise
            signals.loop_failed.send_robust(sender=type(self), part=self.part, exception=error)
        else:
            self._declare_at = float("inf")

    def work(self) -> float:
        """Do one round."""
        if self._draining:
            if not self.drained:
                self._hand_back([delivery for capsule in self._capsules for delivery in capsule.threads.take_back()])
                self._hand_back([delivery for _, delivery in self._contested])
                self._contested = []
                self.drained = True
            return 3600.0
        self._say_what_is_handled_here()
        if not self._capsules:  # It follows streams only.
            self._quiet = True
            return max(0.0, self._declare_at - time.monotonic())
        self._hand_back(())  # What a lost connection left in our hands.
        self._read_notes()
        if time.monotonic() >= self._next_due:
            self._move_due()
        for capsule in self._capsules:
            self._hand_back(capsule.stale())
        ask_again = self._ask_again()
        # Before a claim: it tells of pauses, those that began while the connection was lost among them. One that fails, as
        # where somebody has locked a table that claims do not need, lets the next claim go first.
        if not self._poll_fails:
            self._poll_if_due()
        if self.may_claim and (self._may_find or time.monotonic() < self._hunt_until) and self._claim():
            return 0.0
        if self._poll_fails and self._poll_if_due():
            return 0.0
        now = time.monotonic()
        if now < self._hunt_until:
            return HUNT_PAUSE
        wait = max(0.0, min(self._next_poll - now, self._next_due - now, ask_again))
        moving = [capsule.nudge() for capsule in self._capsules]
        return min(wait, NUDGE) if any(moving) else wait

    def _read_notes(self) -> None:
        while self._notes:
            match self._notes.popleft():
                case ["ready", str(queue), int(priority), bool(suspect), int(position)]:
                    level = Level(queue, priority, suspect)
                    self._heard[level] = time.monotonic() + HEARD
                    if level not in self._levels and any(c.declared.serves(queue) for c in self._capsules):
                        self._learn({**self._levels, level: queue in self._paused})
                    if level in self._levels:
                        self._line.lower(level, position)
                        self._suspects_wait |= suspect
                        self._hunt_until = time.monotonic() + HUNT
                        self._may_find = True
                case ["due", queue, float() | int() as seconds]:
                    if queue is None or any(c.declared.serves(queue) for c in self._capsules):
                        self._next_due = min(self._next_due, time.monotonic() + seconds)
                case ["queue", str()] | ["look"]:
                    self._line.look_soon()
                    self._next_poll = 0.0

    def _claim(self) -> bool:
        """Claim for each capsule; return whether somebody should ask again at once."""
        full = suspects_wait = False
        self._may_find = False  # Before the rooms are read: one that grows meanwhile says so.
        for capsule in self._capsules:
            room = max(0, capsule.room() - self._contested_of(capsule))
            if room and self._suspects_wait and capsule.suspects and not self._suspect_runs():
                if capsule.threads.buffered:
                    suspects_wait = True
                    continue  # Not refilled until the buffer is empty: nobody starts beside a suspect unseen.
                claimed, deliveries = self._take(capsule, capsule.suspects, 1)
                if claimed:
                    suspects_wait = True  # There may be more.
                # One that is contested will run too: the next waits for it as if it did already.
                if deliveries or (
                    deliveries := [d for whose, d in self._contested[-1:] if claimed and d.level.suspect]
                ):
                    self._suspect = deliveries[0]
                    room -= 1
            else:
                suspects_wait |= bool(capsule.suspects)
            if room > 0 and (levels := capsule.levels()):
                limit = min(room, CLAIM_LIMIT)
                full |= self._take(capsule, levels, limit)[0] == limit and capsule.room() > self._contested_of(capsule)
        self._suspects_wait &= suspects_wait
        self._may_find |= full or self._suspects_wait
        return full

    def _contested_of(self, capsule: Capsule) -> int:
        """Return how many deliveries of this capsule wait for another transaction: there has to be room for them."""
        return sum(whose is capsule for whose, _ in self._contested)

    def _take(self, capsule: Capsule, levels: list[Level], limit: int) -> tuple[int, list[Delivery]]:
        """Return how many were claimed, and which of them run here."""
        self._claims = True
        try:
            deliveries = lifecycle.claim(self._line, levels, limit, self._worker, self._plan.lease)
        except BaseException:
            self._in_doubt_until = time.monotonic() + self._plan.lease
            raise
        claimed = len(deliveries)
        if deliveries:
            self._quiet = False
            for older in self._held.add(deliveries):
                self._to_be_stopped(older)
            self._reporter.claimed(deliveries)
            if any(delivery.constraints is not None for delivery in deliveries):
                deliveries = self._pick_up(capsule, deliveries)
            capsule.put(deliveries)
        self._claims = False
        return claimed, deliveries

    def _pick_up(self, capsule: Capsule, deliveries: list[Delivery]) -> list[Delivery]:
        """Take what the constrained ones need, and return those that may run, in their order."""
        try:
            picked = self._picked_up([delivery for delivery in deliveries if delivery.constraints is not None])
        except BaseException:  # a receiver of what was announced may even exit
            self._returning.extend(deliveries)  # None of them runs before it is known what it may.
            raise
        gone = picked.gone
        self._reporter.ended(self._held.drop(gone))
        self._contested += [(capsule, delivery) for delivery in picked.contested]
        away = {id(delivery) for delivery in (*gone, *picked.contested)}
        return [delivery for delivery in deliveries if id(delivery) not in away]

    def _picked_up(self, deliveries: list[Delivery]) -> PickedUp:
        """Pick up; one that makes it fail fails as an attempt without having run, and keeps nobody else from it."""
        try:
            return lifecycle.pick_up(deliveries)
        except Exception as error:
            if is_connection_loss(error) or is_conflict(error):
                raise
            if len(deliveries) == 1:
                deliveries[0].not_picked_up = error
                return PickedUp(taken=deliveries)
        picked = PickedUp()
        for delivery in deliveries:
            picked.add(self._picked_up([delivery]))
        return picked

    def _ask_again(self) -> float:
        """Pick up what was contested, now and then; return the seconds until the next time."""
        if not self._contested:
            return float("inf")
        wait = self._next_ask - time.monotonic()
        if wait > 0:
            return wait
        for capsule in self._capsules:
            # A suspect runs alone: not while others wait there to begin.
            mine = [
                delivery
                for whose, delivery in self._contested
                if whose is capsule and not (delivery.level.suspect and capsule.threads.buffered)
            ]
            if mine:
                # Of this capsule only: what becomes of these is no reason to lose the others.
                asked = set(map(id, mine))
                self._contested = [(whose, d) for whose, d in self._contested if id(d) not in asked]
                capsule.put(self._pick_up(capsule, mine))
        self._next_ask = time.monotonic() + ASK_AGAIN
        return ASK_AGAIN

    def _suspect_runs(self) -> bool:
        """Return whether a suspect runs here that has not yet lived through one lease."""
        suspect = self._suspect
        if suspect is None or suspect.ended or not self._held.has(suspect):
            return False
        return time.monotonic() - (suspect.started_at or time.monotonic()) < self._plan.lease

    def _queues(self) -> list[str]:
        """Return the queues whose delayed messages this process moves."""
        known = {level.queue for level in self._levels} | {n for c in self._capsules for n in c.declared.names}
        return sorted(q for q in known if any(c.declared.serves(q) for c in self._capsules))

    def _move_due(self) -> None:
        self._next_due = float("inf")
        moved = lifecycle.move_due(self._queues())
        self._may_find |= bool(moved)
        wake.announce({Level(queue, priority, suspect) for queue, priority, suspect, _ in moved})
        new = {Level(q, p, s) for q, p, s, _ in moved} - self._levels.keys()
        if new:
            self._learn({**self._levels, **{level: level.queue in self._paused for level in new}})
        if len(moved) > sum(capsule.room() for capsule in self._capsules):
            wake.wake_for(moved)  # More than there is room for here: others may help.
        self._next_poll = min(self._next_poll, time.monotonic() + LOOK_AGAIN)  # Tells when the next one is due.

    def _poll_if_due(self) -> bool:
        """Return whether it was due, and has told something."""
        if time.monotonic() < self._next_poll:
            return False
        try:
            self._poll()
        except Exception as error:
            self._poll_fails = not is_connection_loss(error)
            raise
        self._poll_fails = False
        return True

    def _poll(self) -> None:
        """Look around, and take note of whether there may be something to claim."""
        began = time.monotonic()
        nothing_held = not self._held  # Else a job that runs now may still enqueue another.
        levels = [level for level in self._levels if any(c.declared.serves(level.queue) for c in self._capsules)]
        polled = self._line.poll(levels, self._queues(), self._plan.lease)
        now = time.monotonic()
        self._next_poll = now + self._plan.poll
        self._paused = polled.paused
        levels_now = {**self._still_heard(polled, now), **polled.levels}
        if news := levels_now != self._levels:
            self._learn(levels_now)
            self._next_poll = now
            self._line.look_soon()
        self._next_due = now + min(polled.due_in.values(), default=float("inf"))
        if polled.lapsed and (released := lifecycle.release_lapsed(polled.lapsed, self._plan.lease)):
            signals.leases_released.send_robust(sender=type(self), count=len(released))
            self._suspects_wait = True
        self._suspects_wait |= any(level.suspect for level in polled.free)
        nothing = not news and self._nothing_in(polled) and self._next_due > now
        # What a claim without an answer has taken is seen when its lease has lapsed, and by a look only.
        self._quiet = nothing_held and nothing and polled.looked and began > self._in_doubt_until
        self._claims = False
        if self._plan.burst and nothing_held and nothing and not polled.looked:
            self._line.look_soon()
            self._next_poll = now
        self._may_find |= not nothing or not polled.looked

    def _still_heard(self, polled: Polled, now: float) -> dict[Level, bool]:
        """Return levels that a note named lately and whose row may have been deleted or is not written yet."""
        self._heard = {level: until for level, until in self._heard.items() if until > now}
        return {level: level.queue in polled.paused for level in self._heard if level in self._levels}

    def _nothing_in(self, polled: Polled) -> bool:
        return not any(not self._levels.get(level, True) for level in polled.free) and not polled.lapsed

    def _learn(self, levels: dict[Level, bool]) -> None:
        """Take over new levels or pauses; what is buffered of a paused queue goes back."""
        self._levels = levels
        paused = {level.queue for level, stopped in levels.items() if stopped}
        back = [delivery for _, delivery in self._contested if delivery.queue in paused]
        self._contested = [(capsule, d) for capsule, d in self._contested if d.queue not in paused]
        for capsule in self._capsules:
            capsule.look_at(levels)
            if paused and capsule.threads.buffered:
                taken = capsule.threads.take_back()
                back += [d for d in taken if d.queue in paused]
                capsule.threads.put(d for d in taken if d.queue not in paused)
        if back:
            self._hand_back(back)  # Last: it may fail, and is tried again.

    def _hand_back(self, deliveries: Iterable[Delivery]) -> None:
        """Put back into the line what came out of a buffer; what fails is tried again by the next round."""
        self._returning.extend(deliveries)
        if not self._returning:
            return
        returned = lifecycle.hand_back([(d.id, d.delivery) for d in self._returning])
        back, self._returning = self._returning, []
        self._reporter.ended(self._held.drop(back))
        signals.jobs_handed_back.send_robust(sender=type(self), count=len(returned))
