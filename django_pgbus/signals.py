"""
What pgbus announces.

Code sends a signal and does not log: `log.py` turns signals into log lines, metrics count them. A receiver that
raises is logged by Django and changes nothing. Sent by workers unless said; `delivery` is a
`queues.message.Delivery`.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from django import dispatch

RECEIVER: Final = "receiver of a signal"  # what `loop_failed` calls it


class Signal(dispatch.Signal):
    """A signal of Django that survives a receiver which exits too: whoever announces has other work to do."""

    def send_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Return what the receivers answered, nothing if one of them exited; those after that one were not asked."""
        try:
            return super().send_robust(sender, **named)
        except SystemExit as error:
            return self._exited(error)

    async def asend_robust(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """See send_robust()."""
        try:
            return await super().asend_robust(sender, **named)
        except SystemExit as error:
            return self._exited(error)

    def _exited(self, error: SystemExit) -> list[tuple[Any, Any]]:
        if self is loop_failed:  # Nobody is left to tell but the log, where Django writes what a receiver raises.
            logging.getLogger("django.dispatch").error("A receiver exits: %r", error, exc_info=error)
        else:
            loop_failed.send_robust(sender=None, part=RECEIVER, exception=error)
        return []


attempt_failed = Signal()  # delivery, exception, delay (seconds until the next attempt)
task_dead_lettered = Signal()  # delivery, exception or None, reason
task_snoozed = Signal()  # delivery, delay
task_superseded = Signal()  # delivery
task_timed_out = Signal()  # delivery, hard
task_discarded = Signal()  # delivery
job_not_unique = Signal()  # task (path), key, holder (id), policy: not enqueued, or dropped at pick-up (discard, log)
limit_reached = Signal()  # task (path), key, limit: dropped at enqueue (discard)
jobs_parked = Signal()  # count
jobs_promoted = Signal()  # count; sent by whoever promotes, a web process too
holders_presumed_dead = Signal()  # count: silent for longer than their duration, their slots are free
promotion_failed = Signal()  # key, exception: its parked jobs wait for the next sweep, others do not
key_taken_over = Signal()  # key: its holder had fallen silent and is fenced out
batch_finished = Signal()  # id, total, succeeded, failed; sent by whoever settled its last member, a web process too
batch_not_finished = Signal()  # id, exception: it waits for the next sweep, others do not
batch_repaired = Signal()  # id, count: members that are nowhere were counted as failed
scrape_failed = Signal()  # section (empty: the whole scrape), exception: it is left out; sent by who is scraped
event_published = Signal()  # topic, event_id, handlers (how many); sent by who publishes, before the commit
event_unrouted = Signal()  # topic, event_id: no handler matches; sent by who publishes, before the commit
event_processed = Signal()  # delivery, seconds; before it is stored, like Django's task_finished
event_failed = Signal()  # delivery, exception, delay (seconds until the next attempt, None: none), traceback (masked)
event_skipped = Signal()  # delivery, reason (owned, completed, cached), age of the claim in seconds or None
event_waits = Signal()  # delivery, delay: an earlier delivery of this only copy may still run; no attempt
claim_taken_over = Signal()  # delivery (of the new holder), age in seconds: the holder before it had fallen silent
handlers_not_loaded = Signal()  # app, module (handlers, streams), exception: it cannot be imported
subscriptions_declared = Signal()  # count; sent by workers at their start and after migrate
subscription_removed = Signal()  # handler, patterns, by; sent by whoever removes
stream_created = Signal()  # stream; sent by whoever makes it, before the commit
partitions_made = Signal()  # stream, count; sent by whoever needs them, before the commit
partitions_dropped = Signal()  # stream, count: past their retention
group_created = Signal()  # stream, group, position (it begins after it); sent by workers at their start
groups_followed = Signal()  # groups (a text); sent by worker processes at their start, if they follow any
groups_unknown = Signal()  # pattern, known (names): --streams names no group of this code; sent at their start too
group_paused = Signal()  # stream, group, paused (or resumed), by; sent by whoever does
group_rewound = Signal()  # stream, group, position, positions (how many are handled again), by; sent by whoever does
group_refused = Signal()  # stream, group, reason: it claims nothing until that is put right; said once
group_accepted = Signal()  # stream, group: it claims again
cursor_repaired = Signal()  # stream, group, claimed, committed; sent by whoever does
range_handled = Signal()  # stream, group, entries, failed, seconds
range_lost = Signal()  # stream, group, low, high: its lease is another worker's, or it was rewound; not committed
range_reclaimed = Signal()  # stream, group, low, high, reclaims: its worker had fallen silent
range_taken_apart = Signal()  # stream, group, low, high, count: it had ended its workers, each entry is tried alone
entry_failed = Signal()  # stream, group, position, exception (path), delay in seconds
entry_dead_lettered = Signal()  # stream, group, position, exception (path)
entries_redriven = Signal()  # count, by; sent by whoever does
entries_discarded = Signal()  # count, by; sent by whoever does
route_broken = Signal()  # handler (path), position, exception: the function of route_to failed; its queue is @unrouted
key_broken = Signal()  # handler (path), position, exception: the key function failed, the entry waits for nobody
backoff_broken = Signal()  # task (path), exception: the task's own backoff function failed
leases_released = Signal()  # count: messages of silent workers went back into the line
jobs_handed_back = Signal()  # count
database_lost = Signal()  # part (the first that found out), exception: said once per outage and process
database_back = Signal()  # part (the last that has it back), seconds
listener_deaf = Signal()  # no arguments: notifications do not arrive, plain polling
listener_hears = Signal()
elected = Signal()  # worker: this process is the dispatcher
sweep_done = Signal()  # name, count
sweep_failed = Signal()  # name, exception
wake_failed = Signal()  # exception: workers find the jobs with their next poll; sent by who enqueues
queue_paused = Signal()  # queue, by; sent by whoever pauses
queue_resumed = Signal()  # queue, by

# Sent by the supervisor; `name` is the child's, `worker` its uuid.
process_started = Signal()  # name, worker, pid
process_not_started = Signal()  # name, exception, restart (seconds): the system had no process left
process_recycled = Signal()  # reason; sent by the process itself
process_ended = Signal()  # name, worker, pid, code (negative: a signal), ending (text), held (jobs), restart or None
repair_failed = Signal()  # worker, count, exception: given up, the leases of these jobs will lapse
stop_demanded = Signal()  # level (a worker.shutdown.Level), grace (seconds)
worker_stalled = Signal()  # name, worker, pid, seconds, running (ids), stacks (text): no beat for a lease
worker_resumed = Signal()  # name, worker, pid, seconds
migrations_awaited = Signal()  # missing (names), database: said once, when `runworker` begins to wait
loop_failed = Signal()  # part, exception: something else than a lost database, sent by workers too
