"""
Following the streams of this process, in one thread and on one connection.

Each round: write what became of ranges, claim for whoever has room, look around. A look is one statement for all groups,
which only reads. The next range is claimed while the last one is handled, and a claim frees the range before: so a busy
group costs one statement a range.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from django.db import transaction

from django_pgbus import signals
from django_pgbus.conf import database
from django_pgbus.postgres import is_connection_loss
from django_pgbus.postgres.own_connection import PIN_PLANS, SessionSettings
from django_pgbus.streams import exceptions, groups, handling, keys, leases, logs, routing, sql
from django_pgbus.streams.consumers import Consumer
from django_pgbus.streams.fence import check_session
from django_pgbus.streams.leases import TAKEN_APART_AFTER, Failure, Range
from django_pgbus.tasks.watch import Watch
from django_pgbus.worker.connected import ConnectedLoop
from django_pgbus.worker.lane import Ended, Job, Lane
from django_pgbus.worker.loop import FIRST_BACKOFF, backoff
from django_pgbus.worker.plan import ProcessPlan

HUNT: Final = 0.055  # seconds of looking on after a wake-up: a producer that has just woken does not wake again
HUNT_PAUSE: Final = 0.004
BLOCKED: Final = (0.005, 0.25)  # seconds between looks at a hole: a twentieth of how long it is there, within these
# A process that follows streams and nothing else stays within one and a half statements a second.
RARER: Final = 1.25  # intervals between two looks that nothing has asked for
ALONE: Final = 20  # entries on their own, claimed at once
CHECK: Final = 60.0  # seconds between looks at whether the logs are as they should be
DECLARE_AGAIN: Final = 15.0
LONGEST_REST: Final = 15.0  # seconds that a group is left alone whose statements fail
ROLL: Final = 1.0  # seconds between two writes of how far a group is done

# What is lost by a crash of the server are claims and commits of ranges: those are handled again, as after any crash.
RELAXED = SessionSettings(sql="SELECT set_config('synchronous_commit', 'off', false)")


class Follower(ConnectedLoop):
    """Fills the lanes; `drain` empties them again."""

    part = "follower"

    def __init__(
        self,
        *,
        plan: ProcessPlan,
        worker: uuid.UUID,
        consumers: Sequence[Consumer],
        watch: Watch,
        armed: Callable[[], None],
        told: Callable[[], None],
        lost: Callable[[], None],
    ) -> None:
        super().__init__()
        self._plan = plan
        self._worker = worker
        self._lanes = [Lane(consumer, watch, armed, self.wake) for consumer in consumers]
        self._told = told
        self._lost = lost
        self._system = ""
        self._notes: deque[int] = deque()
        self._next_look = 0.0
        self._next_check = 0.0
        self._next_roll = float("inf")
        self._declare_at = 0.0
        self._draining = False
        self.drained = self.idle = not consumers
        self.failed = 0  # entries that failed
        self.may_claim = True

    # --- from other threads ---------------------------------------------------------------------------

    def hear(self, streams: list[int]) -> None:
        """Take note that something was appended to these streams."""
        self._notes.extend(streams)
        self.wake()

    def catch_up(self) -> None:
        """Look at everything once: notifications may have been missed."""
        self._next_look = 0.0
        self.wake()

    def drain(self) -> None:
        """Stop claiming, and let handlers end after the entry or batch they are at; `drained` says when."""
        self._draining = True
        for lane in self._lanes:
            lane.stop()
        self.wake()

    @property
    def names(self) -> str:
        """Return the groups it follows, as people write them."""
        return ", ".join(sorted(lane.consumer.name for lane in self._lanes))

    @property
    def busy(self) -> int:
        """Return how many handlers run."""
        return sum(lane.busy for lane in self._lanes)

    def renew(self) -> None:
        """Renew what this process holds, and have stopped what it has lost; in the thread of the beat."""
        held = [what for lane in self._lanes for what in lane.held()]
        if not held:
            return
        sent = time.monotonic()
        ranges = [what.token for what in held if isinstance(what, Range)]
        alone = {what.id: what.token for what in held if not isinstance(what, Range)}
        gone = leases.renew(ranges, alone, self._plan.lease)
        for what in held:
            if what.token in gone:
                what.superseded = True
            else:
                what.confirmed_at = sent
        if gone:
            self._lost()

    def give_up_unconfirmed(self) -> None:
        """Count as lost what no beat has renewed for a lease."""
        silent_since = time.monotonic() - self._plan.lease
        overdue = [what for lane in self._lanes for what in lane.held() if what.confirmed_at < silent_since]
        for what in overdue:
            what.superseded = True
        if overdue:
            self._lost()

    # --- the round ------------------------------------------------------------------------------------

    def connected(self) -> None:
        """Pin the plans, and conclude nothing from before: observations hold on the server they were made on."""
        self._system = check_session()
        PIN_PLANS.hold()
        RELAXED.hold()
        for lane in self._lanes:
            lane.fence.forget()
            lane.hungry = True
            lane.rests_until = 0.0
        if self._declare_at < float("inf"):  # It was lost while they were looked for.
            self._declare_at = 0.0
        # One that was killed may have ended ranges, and not written that they are done with.
        self._next_look = self._next_check = self._next_roll = 0.0

    def run(self) -> None:
        """Follow until `stop`, then let the threads of the lanes end when they have nothing to do."""
        try:
            super().run()
        finally:
            for lane in self._lanes:
                lane.end()

    def step(self) -> float:
        """Do nothing, and connect to nothing, where there is no group to follow."""
        return super().step() if self._lanes else 3600.0

    def work(self) -> float:
        """Do one round."""
        self._find_groups()
        for lane in self._lanes:
            self._apart(lane, self._settle)
        if self._draining:
            return self._finish()
        self._read_notes()
        self._check_logs()
        looked_in_vain = time.monotonic() >= self._next_look and not self._look()
        claimed = False
        for lane in self._lanes:
            claimed |= self._apart(lane, self._go_on)
        if looked_in_vain and not claimed:
            self.idle = not any(lane.busy or lane.done for lane in self._lanes)
        self._roll_forward()
        if claimed:
            self._next_look = min(self._next_look, time.monotonic() + HUNT_PAUSE)
            return 0.0
        return self._pause()

    def _apart(self, lane: Lane, step: Callable[[Lane], bool]) -> bool:
        """Do a step for one group; where it fails, this group rests for a while, and the others go on."""
        if time.monotonic() < lane.rests_until:
            return False
        try:
            done = step(lane)
        except Exception as error:
            if is_connection_loss(error) or self.is_cut_off:
                raise
            lane.failures += 1
            lane.rests_until = time.monotonic() + backoff(lane.failures, first=FIRST_BACKOFF, longest=LONGEST_REST)
            signals.loop_failed.send_robust(
                sender=type(self), part=f"{self.part} of {lane.consumer.name}", exception=error
            )
            return False
        return done

    def _settle(self, lane: Lane) -> bool:
        self._find_lost_claim(lane)
        while lane.ended:
            self._write(lane, lane.ended[0])
            lane.ended.popleft()
            self._told()
        return False

    def _go_on(self, lane: Lane) -> bool:
        if lane.failures:  # A claim may be what fails.
            self._free(lane)
        claims = self.may_claim and lane.group is not None and not lane.refused and not lane.paused
        claimed = claims and self._claim(lane)
        if lane.done and not (claims and lane.hungry and lane.room):
            self._free(lane)
        lane.failures = 0
        return claimed

    def _pause(self) -> float:
        """Return how long there is nothing to do."""
        now = time.monotonic()
        waits = [self._next_look - now, self._next_roll - now]
        for lane in self._lanes:
            if now < lane.rests_until:
                waits.append(lane.rests_until - now)
                continue
            if lane.room and now < lane.hunt_until:
                waits.append(HUNT_PAUSE)
            if lane.blocked_since is not None and lane.room:
                shortest, longest = BLOCKED
                waits.append(min(longest, max(shortest, (now - lane.blocked_since) / 20)))
            if lane.room and lane.group is not None:
                waits.append(lane.due_at - now)
        wait = max(0.0, min(waits))
        # The next round looks, whatever it was that it waited for.
        self._next_look = min(self._next_look, now + wait)
        return wait

    def _find_groups(self) -> None:
        """Write the groups of this code once, and find where their numbers stand; what is in the way is tried again."""
        if time.monotonic() < self._declare_at:
            return
        self._declare_at = time.monotonic() + DECLARE_AGAIN
        for lane in self._lanes:
            try:
                groups.declare([lane.consumer])
            except Exception as error:
                if is_connection_loss(error):
                    raise
                signals.loop_failed.send_robust(sender=type(self), part=self.part, exception=error)
        found = groups.stored([(lane.consumer.stream, lane.consumer.group) for lane in self._lanes])
        for lane in self._lanes:
            lane.group = found.get((lane.consumer.stream, lane.consumer.group))
        if all(lane.group is not None for lane in self._lanes):
            self._declare_at = float("inf")

    def _check_logs(self) -> None:
        """Refuse groups whose log is not what the proof rests on."""
        if time.monotonic() < self._next_check:
            return
        self._next_check = time.monotonic() + CHECK
        for lane in self._lanes:
            if lane.group is not None:
                faults = logs.faults(lane.group.stream).get(lane.consumer.stream, [])
                if faults or lane.refused in lane.log_faults:
                    lane.log_faults = faults
                    self._refuse(lane, faults[0] if faults else None)

    def _refuse(self, lane: Lane, reason: str | None) -> None:
        """Let a group claim nothing, for a reason that is announced once; or let it claim again."""
        named = {"stream": lane.consumer.stream, "group": lane.consumer.group}
        if reason is not None and reason != lane.refused:
            signals.group_refused.send_robust(sender=type(self), reason=reason, **named)
        elif reason is None and lane.refused is not None:
            signals.group_accepted.send_robust(sender=type(self), **named)
        lane.refused = reason

    def _read_notes(self) -> None:
        while self._notes:
            stream = self._notes.popleft()
            for lane in self._lanes:
                if lane.group is not None and lane.group.stream == stream and not (lane.paused or lane.refused):
                    lane.hunt_until = time.monotonic() + HUNT
                    self._next_look = 0.0

    # --- looking --------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Look at all groups, and return whether there may be something to claim."""
        lanes = {lane.group.id: lane for lane in self._lanes if lane.group is not None}
        now = time.monotonic()
        self._next_look = now + self._plan.poll * RARER
        rows = groups.probe(list(lanes), self._system)
        for row in rows:
            lane = lanes[row.id]
            if lane.group is not None and lane.group.stream == row.stream_id:
                del lanes[row.id]
                self._apart(lane, partial(self._note, row=row, now=now))
        for lane in lanes.values():  # Its row is gone: what there will be is another log.
            lane.group, self._declare_at = None, 0.0
            lane.hungry = False
            lane.fence.forget()
        return any(
            lane.hungry or lane.lapsed or lane.busy or (lane.due_at <= now and not lane.waits_for_keys)
            for lane in self._lanes
        )

    def _note(self, lane: Lane, row: Any, now: float) -> bool:
        if lane.epoch != row.epoch:  # made anew, or repaired
            lane.epoch = row.epoch
            lane.fence.forget()
        lane.paused = row.paused
        lane.hungry = lane.lapsed = False
        lane.due_at = now + min((d for d in (row.due_in, row.lapses_in) if d is not None), default=float("inf"))
        if (reason := groups.why_refused(lane.consumer.name, row)) or lane.refused not in lane.log_faults:
            self._refuse(lane, reason)
        if lane.refused or lane.paused:
            lane.blocked_since = None
            lane.due_at = float("inf")
            if lane.refused:
                lane.fence.forget()
            return False
        fence = lane.fence
        fence.head = max(fence.head, row.head)
        fence.settled = max(fence.settled, row.settled_head)
        fence.prove(row.xmin, (row.pending_head, row.pending_xid))
        lane.claimed = row.claimed
        lane.lapsed = row.lapsed
        if row.head <= row.claimed:
            lane.blocked_since = None
        elif self._may_pass(lane) or fence.wants_more or self._next_is_there(lane):
            lane.hungry = True
        elif lane.blocked_since is None:
            lane.blocked_since = now
        return lane.hungry

    @staticmethod
    def _may_pass(lane: Lane) -> bool:
        """Return whether the next claim can pass a hole, if there is one."""
        assert lane.group is not None
        if lane.fence.settled <= lane.claimed:
            return False
        return leases.may_pass(lane.group, lane.fence) or lane.fence.passable > lane.claimed

    def _next_is_there(self, lane: Lane) -> bool:
        assert lane.group is not None
        return bool(sql.NEXT_IS_THERE.of(lane.group.stream).tuples(position=lane.claimed + 1)[0][0])

    # --- claiming -------------------------------------------------------------------------------------

    def _claim(self, lane: Lane) -> bool:
        """Claim what a lane has room for, and return whether anything was found."""
        found = False
        if lane.consumer.route_to is not None:
            return self._route_what_was_claimed(lane) or self._route(lane)
        if lane.room and lane.due_at <= time.monotonic() and not (lane.hungry and lane.was_alone):
            lane.was_alone = self._claim_alone(lane)  # In turn with ranges, however many fail again and again.
            found |= lane.was_alone
        if lane.room and lane.lapsed:
            lane.lapsed = False
            found |= self._reclaim(lane)
        if lane.room and lane.hungry:
            lane.was_alone = False
            found |= self._claim_range(lane)
        return found

    def _claim_range(self, lane: Lane) -> bool:
        assert lane.group is not None
        done = lane.done[0] if lane.done and lane.consumer.key is None else None
        in_doubt = done is not None and done.in_doubt
        if done is not None:
            done.in_doubt = True
        if lane.at_hole:
            self._may_pass(lane)
        lane.asked = token = groups.new_token()
        sent = time.monotonic()
        known: dict[int, str | None] = {}
        if lane.consumer.key is None:
            claim = self._ask(lane, token, done)
        else:
            with transaction.atomic(using=database()):
                claim = self._ask(lane, token, None, is_first=True)
                if claim.range is not None:
                    known = handling.keys_of(lane.consumer, claim.range.rows)
                    keys.hold(lane.group, claim.range.lease, (key for key in known.values() if key is not None))
        lane.asked = None
        if done is not None:
            lane.done.popleft()
            self._is_done(lane, done, ended=claim.freed or in_doubt)
        if claim.elsewhere:
            lane.hungry, self._next_look = False, 0.0
            return False
        assert claim.claimed is not None
        moved = claim.claimed > lane.claimed
        lane.claimed = claim.claimed
        # As long as it gets on: the next one may find more. A hole is looked at anew.
        lane.hungry = moved and lane.fence.head > lane.claimed
        lane.at_hole = lane.hungry and (claim.range is None or len(claim.range.rows) < lane.consumer.limit)
        if moved:
            lane.blocked_since = None
        else:
            self._next_look = 0.0
        if claim.range is not None:
            claim.range.confirmed_at = sent
            claim.range.lasts = self._plan.lease
            lane.put(Job(claim.range, known))
            self.idle = False
        return moved

    def _ask(self, lane: Lane, token: uuid.UUID, done: Range | None, *, is_first: bool = False) -> leases.Claim:
        assert lane.group is not None
        return leases.claim(
            lane.group,
            lane.fence,
            lane.claimed,
            system=self._system,
            limit=lane.consumer.limit,
            worker=self._worker,
            lease=self._plan.lease,
            token=token,
            done=None if done is None else done.token,
            is_first=is_first,
        )

    def _find_lost_claim(self, lane: Lane) -> None:
        """Look for the range of a claim whose answer was lost with the connection."""
        if lane.asked is None or lane.group is None:
            return
        found = leases.find(lane.group, lane.asked)
        lane.asked = None
        if found is not None:
            self._put(lane, found, time.monotonic() - self._plan.lease / 2)

    def _reclaim(self, lane: Lane) -> bool:
        """Take over a range of a worker that has fallen silent."""
        assert lane.group is not None
        lane.asked = token = groups.new_token()
        sent = time.monotonic()
        found = leases.reclaim(lane.group, worker=self._worker, lease=self._plan.lease, token=token)
        lane.asked = None
        if found is None:
            return False
        if found.reclaims > 0:
            signals.range_reclaimed.send_robust(sender=type(self), **self._named(lane, found), reclaims=found.reclaims)
        lane.lapsed = True  # There may be more.
        self._put(lane, found, sent)
        return True

    def _put(self, lane: Lane, found: Range, confirmed_at: float) -> None:
        """Hand on a range that was claimed before, or take it apart if it ends every process that has it."""
        found.confirmed_at = confirmed_at
        found.lasts = self._plan.lease
        known = handling.keys_of(lane.consumer, found.rows) if lane.consumer.key is not None else {}
        if found.reclaims >= TAKEN_APART_AFTER:
            held = {position: key for position, key in known.items() if key is not None}
            count = leases.take_apart(found, held, "")
            signals.range_taken_apart.send_robust(sender=type(self), **self._named(lane, found), count=count)
            lane.due_at = 0.0
        else:
            lane.put(Job(found, known))
        self.idle = False

    def _claim_alone(self, lane: Lane) -> bool:
        assert lane.group is not None
        sent = time.monotonic()
        lane.due_at = sent + self._plan.poll
        found = exceptions.claim(lane.group, limit=ALONE, token=uuid.uuid4(), lease=self._plan.lease)
        for alone in found:
            alone.confirmed_at = sent
            lane.put(Job(alone))
        lane.waits_for_keys = not found
        if found:
            self.idle = False
            self._next_look = 0.0
        return bool(found)

    def _route_what_was_claimed(self, lane: Lane) -> bool:
        """Route what the group had claimed before its code said to route: ranges that were left, entries on their own."""
        now = time.monotonic()
        is_due = lane.due_at <= now
        if not (lane.lapsed or is_due):
            return False
        assert lane.group is not None
        lane.lapsed = False
        found = routing.route_claimed(lane.consumer, lane.group, worker=self._worker, lease=self._plan.lease)
        if is_due:
            lane.due_at, lane.waits_for_keys = now + self._plan.poll, not found
        if found:
            self._next_look, self._next_roll = 0.0, min(self._next_roll, now + ROLL)
        return found

    def _route(self, lane: Lane) -> bool:
        """Route what is there into queues; return whether there may be more."""
        if not lane.hungry:
            return False
        assert lane.group is not None
        moved = routing.route(lane.consumer, lane.group, lane.fence, lane.claimed, system=self._system)
        lane.hungry = False
        if moved is None:
            self._next_look = 0.0
            return False
        lane.claimed, more = moved
        return more

    # --- what became of it ----------------------------------------------------------------------------

    def _write(self, lane: Lane, ended: Ended) -> None:
        what, handled = ended.job.what, ended.handled
        if not isinstance(what, Range):
            lane.drop(what)
            self.failed += handled in {"put off", "dead"}
            self._next_look = 0.0
            self._next_roll = min(self._next_roll, time.monotonic() + ROLL)
            return
        if not isinstance(handled, handling.Handled):  # Its thread broke: nothing is known, so it lapses.
            lane.drop(what)
            return
        if handled.unknown:
            # Without an answer to the commit: the lease is there still, or it was committed.
            # It counts as claimed again: a handler may be what ends the connection each time.
            lane.drop(what)
            if (found := leases.begin_again(what.group, what.token)) is not None:
                self._put(lane, found, what.confirmed_at)
            return
        in_doubt, what.in_doubt = what.in_doubt, True
        if handled.ended or handled.lost:
            self._is_done(lane, what, ended=not handled.lost)
        elif handled.upto < what.high:
            self._is_done(lane, what, ended=leases.hand_back(what.token, handled.upto, handled.failures) or in_doubt)
        elif handled.failures or lane.consumer.key is not None:
            self._is_done(lane, what, ended=leases.commit(what.token, handled.failures) or in_doubt)
        else:
            what.in_doubt = False
            lane.done.append(what)
            while len(lane.done) > 1:
                self._free(lane)
        self._say_failures(lane, handled.failures)
        signals.range_handled.send_robust(
            sender=type(self),
            stream=lane.consumer.stream,
            group=lane.consumer.group,
            entries=handled.entries,
            failed=len(handled.failures),
            seconds=ended.seconds,
        )

    def _say_failures(self, lane: Lane, failures: Sequence[Failure]) -> None:
        named = {"sender": type(self), "stream": lane.consumer.stream, "group": lane.consumer.group}
        for failure in failures:
            if failure.dead is not None:
                signals.entry_dead_lettered.send_robust(position=failure.position, exception=failure.exception, **named)
            elif failure.attempts:
                signals.entry_failed.send_robust(
                    position=failure.position, exception=failure.exception, delay=failure.delay, **named
                )
        self.failed += sum(failure.attempts for failure in failures)
        if failures:
            lane.due_at = 0.0

    def _free(self, lane: Lane) -> bool:
        """End ranges that are handled, without a claim to do it with."""
        while lane.done:
            what = lane.done[0]
            in_doubt, what.in_doubt = what.in_doubt, True
            ended = leases.commit(what.token)
            lane.done.popleft()
            self._is_done(lane, what, ended=ended or in_doubt)
        return False

    def _is_done(self, lane: Lane, what: Range, *, ended: bool) -> None:
        lane.drop(what)
        if not ended:
            signals.range_lost.send_robust(sender=type(self), **self._named(lane, what))
        self._next_roll = min(self._next_roll, time.monotonic() + ROLL)

    @staticmethod
    def _named(lane: Lane, what: Range) -> dict[str, Any]:
        return {"stream": lane.consumer.stream, "group": lane.consumer.group, "low": what.low, "high": what.high}

    def _roll_forward(self) -> None:
        """Write how far the groups are done, now and then while something is."""
        if time.monotonic() >= self._next_roll:
            self._next_roll = float("inf")
            groups.roll_forward([lane.group.id for lane in self._lanes if lane.group is not None])

    def _finish(self) -> float:
        """Write what is still done, until no handler runs."""
        for lane in self._lanes:
            self._apart(lane, self._free)
        if not self.busy and not self.drained:
            self._next_roll = 0.0
            self._roll_forward()
            self.drained = True
            self._told()
        return 0.1 if any(lane.ended for lane in self._lanes) else 3600.0
