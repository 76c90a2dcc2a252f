"""
The log lines of pgbus: every signal of `signals.py`, turned into one line; arguments of tasks never appear.

Each record has an attribute `pgbus`, a dict of what the line is about: the signal, and the task, id, queue, attempt and
event, or whatever else it names. Formatters that write JSON find their fields there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from contextvars import ContextVar
from functools import wraps
from typing import Any, Final
from uuid import UUID

from django.dispatch import Signal

from django_pgbus import signals
from django_pgbus.tasks.failures import path_of

# What signals name and a field may tell: numbers, states and names of things. Not keys: people choose them.
FIELDS: Final = (
    *("age", "by", "claimed", "code", "committed", "count", "delay", "ending", "entries", "failed", "group", "handler"),
    *("handlers", "hard", "held", "high", "holder", "limit", "low", "module", "name", "part", "paused", "pid"),
    *("policy", "position", "positions", "queue", "reason", "reclaims", "restart", "seconds", "section", "stream"),
    *("succeeded", "task", "topic", "total", "worker"),
)
RENAMED: Final = {"event_id": "event", "id": "batch"}
OF_DELIVERY: Final = ("task", "id", "queue", "delivery", "attempts", "batch", "event", "topic")

_announced: ContextVar[tuple[str, dict[str, Any]]] = ContextVar("pgbus_announced", default=("", {}))


class _WithFields(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {"pgbus": _fields(*_announced.get())}}


logger = _WithFields(logging.getLogger("django_pgbus"), {})

MOST_TOPICS = 1000
_for_nobody: set[str] = set()  # topics of which it was said that no subscription matches


def _fields(signal: str, named: dict[str, Any]) -> dict[str, Any]:
    """Return what a signal is about, as plain values."""
    told = {name: named.get(name) for name in FIELDS} | {new: named.get(old) for old, new in RENAMED.items()}
    delivery, exception = named.get("delivery"), named.get("exception")
    if delivery is not None:
        told |= {name: getattr(delivery, name, None) for name in OF_DELIVERY}
        attempts = told.pop("attempts")
        told["attempt"] = _attempts_run(delivery, exception) if signal == "task_dead_lettered" else attempts
    if exception is not None:
        told["exception"] = path_of(exception) if isinstance(exception, BaseException) else exception
    return {"signal": signal} | {name: plain for name, value in told.items() if (plain := _plain(value)) is not None}


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value if isinstance(value, (str, int, float)) else None


def _attempts_run(delivery: Any, exception: BaseException | None) -> int:
    """Return how often a dead letter ran: one that was not run any more was counted by its claim."""
    attempts: int = delivery.attempts
    return attempts - (exception is None)


def _delivery(delivery: Any, attempts: int | None = None) -> str:
    about = "" if delivery.topic is None else f" on {delivery.topic} ({delivery.event})"
    attempt = delivery.attempts if attempts is None else attempts
    return f"{delivery.task} #{delivery.id}{about} (delivery {delivery.delivery}, attempt {attempt})"


def _kind(exception: BaseException) -> str:
    """Return the type of an exception; all of one that tells what is missing in the code, which holds no arguments."""
    name = type(exception).__name__
    return f"{name}: {exception}" if isinstance(exception, (ImportError, SyntaxError)) else name


def _attempt_failed(*, delivery: Any, exception: BaseException, delay: float, **kwargs: Any) -> None:
    logger.warning("%s failed: %s. Next attempt in %.1f s.", _delivery(delivery), _kind(exception), delay)


def _task_dead_lettered(*, delivery: Any, exception: BaseException | None, reason: str, **kwargs: Any) -> None:
    logger.error("%s is a dead letter: %s.", _delivery(delivery, _attempts_run(delivery, exception)), reason)


def _task_snoozed(*, delivery: Any, delay: float, **kwargs: Any) -> None:
    logger.info("%s snoozed for %.1f s.", _delivery(delivery), delay)


def _task_superseded(*, delivery: Any, **kwargs: Any) -> None:
    logger.warning("%s was superseded: its lease lapsed and its result is not stored.", _delivery(delivery))


def _task_timed_out(*, delivery: Any, hard: bool, **kwargs: Any) -> None:
    logger.warning("%s outlived its timeout%s.", _delivery(delivery), " and did not stop" if hard else "")


def _task_discarded(*, delivery: Any, **kwargs: Any) -> None:
    logger.info("%s was discarded.", _delivery(delivery))


def _backoff_broken(*, task: str, exception: BaseException, **kwargs: Any) -> None:
    logger.error("The backoff function of %s failed, the default is used.", task, exc_info=exception)


def _leases_released(*, count: int, **kwargs: Any) -> None:
    logger.warning("%d jobs of silent workers went back into the line.", count)


def _jobs_handed_back(*, count: int, **kwargs: Any) -> None:
    logger.info("%d jobs handed back.", count)


def _scrape_failed(*, section: str, exception: BaseException, **kwargs: Any) -> None:
    logger.warning("Metrics are left out (%s): %s.", section or "the whole scrape", _kind(exception))


def _database_lost(*, part: str, exception: BaseException, **kwargs: Any) -> None:
    reason = next(iter(str(exception).strip().splitlines()), type(exception).__name__)
    logger.warning("The %s lost the database (%s); trying again.", part, reason)


def _database_back(*, part: str, seconds: float, **kwargs: Any) -> None:
    logger.info("The database is back after %.1f s, for the %s too.", seconds, part)


def _listener_deaf(**kwargs: Any) -> None:
    logger.warning(
        "Notifications do not arrive (a transaction pooler?); polling only. Set PGBUS['LISTEN_DATABASE'] to a "
        "direct connection."
    )


def _listener_hears(**kwargs: Any) -> None:
    logger.info("Notifications arrive again.")


def _elected(*, worker: Any, **kwargs: Any) -> None:
    logger.info("Worker %s is the dispatcher now.", worker)


def _sweep_done(*, name: str, count: int, **kwargs: Any) -> None:
    logger.log(logging.INFO if count else logging.DEBUG, "Sweep %s: %d.", name, count)


def _sweep_failed(*, name: str, exception: BaseException, **kwargs: Any) -> None:
    logger.error("Sweep %s failed.", name, exc_info=exception)


def _wake_failed(*, exception: BaseException, **kwargs: Any) -> None:
    logger.error("Workers could not be woken; they find the jobs with their next poll.", exc_info=exception)


def _queue_paused(*, queue: str, by: str, **kwargs: Any) -> None:
    logger.info("Queue %s paused by %s.", queue, by or "code")


def _queue_resumed(*, queue: str, by: str, **kwargs: Any) -> None:
    logger.info("Queue %s resumed by %s.", queue, by or "code")


def _loop_failed(*, part: str, exception: BaseException, **kwargs: Any) -> None:
    logger.error("The %s failed and goes on.", part, exc_info=exception)


def _process_started(*, name: str, worker: Any, pid: int, **kwargs: Any) -> None:
    logger.info("Process %s started (pid %d, %s).", name, pid, worker)


def _process_not_started(*, name: str, exception: BaseException, restart: float, **kwargs: Any) -> None:
    logger.error("Process %s could not be started (%s); again in %.1f s.", name, exception, restart)


def _process_recycled(*, reason: str, **kwargs: Any) -> None:
    logger.info("This process is replaced: %s.", reason)


def _process_ended(
    *, name: str, pid: int, code: int, ending: str, held: int, restart: float | None, **kwargs: Any
) -> None:
    level = logging.WARNING if ending in {"died", "timed out"} else logging.INFO
    again = "" if restart is None else f" Again in {restart:.1f} s."
    logger.log(level, "Process %s (pid %d) %s, exit code %d, %d jobs held.%s", name, pid, ending, code, held, again)


def _repair_failed(*, worker: Any, count: int, exception: BaseException | None, **kwargs: Any) -> None:
    reason = str(exception or "there was no time left").strip()
    logger.error("%d jobs of %s wait for their leases to lapse: %s", count, worker, reason)


def _stop_demanded(*, level: Any, grace: float, **kwargs: Any) -> None:
    logger.info("Stopping (%s); running jobs have %.0f s.", level.name.lower(), grace)


def _worker_stalled(*, name: str, pid: int, seconds: float, running: Any, stacks: str, **kwargs: Any) -> None:
    logger.error("Process %s (pid %d) has been silent for %.0f s; jobs %s.\n%s", name, pid, seconds, running, stacks)


def _worker_resumed(*, name: str, pid: int, seconds: float, **kwargs: Any) -> None:
    logger.warning("Process %s (pid %d) is back after %.0f s.", name, pid, seconds)


def _migrations_awaited(*, missing: Any, database: str, **kwargs: Any) -> None:
    logger.warning("Waiting for migrations of %s: %s.", database, ", ".join(map(str, missing)))


def _job_not_unique(*, task: str, key: str, holder: Any, policy: str, **kwargs: Any) -> None:
    level = logging.WARNING if policy == "log" else logging.DEBUG
    by = f"job or batch {holder}" if holder else "another job"
    logger.log(level, "%s was dropped: %s holds the key %.200r.", task, by, key)


def _limit_reached(*, task: str, key: str, limit: int, **kwargs: Any) -> None:
    logger.debug("%s was dropped: the key %.200r has its %d jobs.", task, key, limit)


def _jobs_parked(*, count: int, **kwargs: Any) -> None:
    logger.debug("%d jobs were parked: their slot or key is taken.", count)


def _jobs_promoted(*, count: int, **kwargs: Any) -> None:
    logger.debug("%d parked jobs were promoted.", count)


def _holders_presumed_dead(*, count: int, **kwargs: Any) -> None:
    logger.warning("%d holders of slots were silent for too long: presumed dead, their slots are free.", count)


def _promotion_failed(*, key: str, exception: BaseException, **kwargs: Any) -> None:
    logger.error("The parked jobs of the key %.200r could not be promoted.", key, exc_info=exception)


def _key_taken_over(*, key: str, **kwargs: Any) -> None:
    logger.warning("The key %.200r was freed: the run that held it has lost its lease.", key)


def _batch_finished(*, id: int, total: int, failed: int, **kwargs: Any) -> None:
    logger.info("Batch %d is finished; members: %d, of which failed: %d.", id, total, failed)


def _batch_not_finished(*, id: int, exception: BaseException, **kwargs: Any) -> None:
    logger.error("Batch %d could not be finished; it is tried again.", id, exc_info=exception)


def _batch_repaired(*, id: int, count: int, **kwargs: Any) -> None:
    logger.error("Batch %d: members that are nowhere, and count as failed: %d. Were jobs deleted by hand?", id, count)


def _event_published(*, topic: str, event_id: Any, handlers: int, **kwargs: Any) -> None:
    logger.debug("Event %s on %s is for %d handlers.", event_id, topic, handlers)


def _event_unrouted(*, topic: str, event_id: Any, **kwargs: Any) -> None:
    # Once aloud for each topic: that nobody wants to know is no fault, unless the topic has one.
    level = logging.DEBUG
    if topic not in _for_nobody and len(_for_nobody) < MOST_TOPICS:
        _for_nobody.add(topic)
        level = logging.WARNING
    logger.log(level, "Event %s on %s is for nobody: no subscription matches.", event_id, topic)


def _event_processed(*, delivery: Any, seconds: float, **kwargs: Any) -> None:
    logger.debug("%s is done in %.3f s.", _delivery(delivery), seconds)


def _event_failed(
    *, delivery: Any, exception: BaseException, delay: float | None, traceback: str, **kwargs: Any
) -> None:
    if delay is None:  # As Django does it for the last failure of a task; what is sensitive is masked.
        logger.error("%s failed.\n%s", _delivery(delivery), traceback.rstrip())
    else:
        logger.warning("%s failed: %s. Next attempt in %.1f s.", _delivery(delivery), _kind(exception), delay)


def _event_skipped(*, delivery: Any, reason: str, age: float | None, **kwargs: Any) -> None:
    since = "" if age is None else f", claim of {age:.1f} s ago"
    logger.info("%s is skipped: %s%s.", _delivery(delivery), reason, since)


def _event_waits(*, delivery: Any, delay: float, **kwargs: Any) -> None:
    logger.info("%s waits for %.1f s: an earlier delivery may still run.", _delivery(delivery), delay)


def _claim_taken_over(*, delivery: Any, age: float, **kwargs: Any) -> None:
    logger.warning("%s takes over a claim of %.1f s ago, whose holder has fallen silent.", _delivery(delivery), age)


def _handlers_not_loaded(*, app: str, module: str, exception: BaseException, **kwargs: Any) -> None:
    logger.error("%s.%s cannot be imported; what it declares stays as it is.", app, module, exc_info=exception)


def _subscriptions_declared(*, count: int, **kwargs: Any) -> None:
    logger.log(logging.INFO if count else logging.DEBUG, "%d subscriptions declared.", count)


def _subscription_removed(*, handler: str, patterns: Any, by: str, **kwargs: Any) -> None:
    logger.info("%s does not get %s any more, removed by %s.", handler, ", ".join(patterns), by or "code")


def _stream_created(*, stream: str, **kwargs: Any) -> None:
    logger.info("The stream %s is new.", stream)


def _partitions_made(*, stream: str, count: int, **kwargs: Any) -> None:
    logger.info("%d partitions of %s made.", count, stream)


def _partitions_dropped(*, stream: str, count: int, **kwargs: Any) -> None:
    logger.info("%d partitions of %s dropped: past their retention.", count, stream)


def _group_created(*, stream: str, group: str, position: int, **kwargs: Any) -> None:
    logger.info("The group %s/%s is new; it begins after position %d.", stream, group, position)


def _groups_followed(*, groups: str, **kwargs: Any) -> None:
    logger.info("Follows %s.", groups)


def _groups_unknown(*, pattern: str, known: Any, **kwargs: Any) -> None:
    logger.warning("--streams %s names no group of this code; there is %s.", pattern, ", ".join(known) or "none at all")


def _group_paused(*, stream: str, group: str, paused: bool, by: str, **kwargs: Any) -> None:
    logger.info("The group %s/%s is %s by %s.", stream, group, "paused" if paused else "resumed", by or "code")


def _group_rewound(*, stream: str, group: str, position: int, positions: int, by: str, **kwargs: Any) -> None:
    logger.warning(
        "The group %s/%s is rewound to position %d by %s; %d positions come again.",
        *(stream, group, position, by or "code", positions),
    )


def _group_refused(*, stream: str, group: str, reason: str, **kwargs: Any) -> None:
    logger.error("The group %s/%s claims nothing: %s", stream, group, reason)


def _group_accepted(*, stream: str, group: str, **kwargs: Any) -> None:
    logger.info("The group %s/%s claims again.", stream, group)


def _cursor_repaired(*, stream: str, group: str, claimed: int, committed: int, **kwargs: Any) -> None:
    logger.warning(
        "The cursor of %s/%s has adopted the log as it is, at %d claimed and %d committed.",
        *(stream, group, claimed, committed),
    )


def _range_handled(*, stream: str, group: str, entries: int, failed: int, seconds: float, **kwargs: Any) -> None:
    logger.debug("%s/%s: %d entries in %.3f s, %d failed.", stream, group, entries, seconds, failed)


def _range_lost(*, stream: str, group: str, low: int, high: int, **kwargs: Any) -> None:
    logger.warning("%s/%s has lost the lease of %d to %d; nothing was committed here.", stream, group, low + 1, high)


def _range_reclaimed(*, stream: str, group: str, low: int, high: int, reclaims: int, **kwargs: Any) -> None:
    logger.warning(
        "%s/%s handles %d to %d again, for the %d. time: its worker has ended or fallen silent.",
        *(stream, group, low + 1, high, reclaims),
    )


def _range_taken_apart(*, stream: str, group: str, low: int, high: int, count: int, **kwargs: Any) -> None:
    logger.error(
        "%s/%s: %d to %d has ended its workers again and again; each of its %d entries is tried alone now.",
        *(stream, group, low + 1, high, count),
    )


def _entry_failed(*, stream: str, group: str, position: int, exception: str, delay: float, **kwargs: Any) -> None:
    logger.warning("%s/%s: entry %d failed with %s, again in %.1f s.", stream, group, position, exception, delay)


def _entry_dead_lettered(*, stream: str, group: str, position: int, exception: str, **kwargs: Any) -> None:
    logger.error("%s/%s: entry %d failed with %s and is a dead letter.", stream, group, position, exception)


def _entries_redriven(*, count: int, by: str, **kwargs: Any) -> None:
    logger.info("%d dead entries are tried again, by %s.", count, by or "code")


def _entries_discarded(*, count: int, by: str, **kwargs: Any) -> None:
    logger.info("%d failed entries were discarded by %s.", count, by or "code")


def _route_broken(*, handler: str, position: int, exception: BaseException, **kwargs: Any) -> None:
    logger.error("The route of %s failed for entry %d, which goes to @unrouted.", handler, position, exc_info=exception)


def _key_broken(*, handler: str, position: int, exception: BaseException, **kwargs: Any) -> None:
    logger.error("The key function of %s failed for entry %d.", handler, position, exc_info=exception)


LINES: dict[Signal, Callable[..., None]] = {
    signals.attempt_failed: _attempt_failed,
    signals.task_dead_lettered: _task_dead_lettered,
    signals.task_snoozed: _task_snoozed,
    signals.task_superseded: _task_superseded,
    signals.task_timed_out: _task_timed_out,
    signals.task_discarded: _task_discarded,
    signals.job_not_unique: _job_not_unique,
    signals.limit_reached: _limit_reached,
    signals.jobs_parked: _jobs_parked,
    signals.jobs_promoted: _jobs_promoted,
    signals.holders_presumed_dead: _holders_presumed_dead,
    signals.promotion_failed: _promotion_failed,
    signals.key_taken_over: _key_taken_over,
    signals.batch_finished: _batch_finished,
    signals.batch_not_finished: _batch_not_finished,
    signals.batch_repaired: _batch_repaired,
    signals.event_published: _event_published,
    signals.event_unrouted: _event_unrouted,
    signals.event_processed: _event_processed,
    signals.event_failed: _event_failed,
    signals.event_skipped: _event_skipped,
    signals.event_waits: _event_waits,
    signals.claim_taken_over: _claim_taken_over,
    signals.handlers_not_loaded: _handlers_not_loaded,
    signals.subscriptions_declared: _subscriptions_declared,
    signals.subscription_removed: _subscription_removed,
    signals.stream_created: _stream_created,
    signals.partitions_made: _partitions_made,
    signals.partitions_dropped: _partitions_dropped,
    signals.group_created: _group_created,
    signals.groups_followed: _groups_followed,
    signals.groups_unknown: _groups_unknown,
    signals.group_paused: _group_paused,
    signals.group_rewound: _group_rewound,
    signals.group_refused: _group_refused,
    signals.group_accepted: _group_accepted,
    signals.cursor_repaired: _cursor_repaired,
    signals.range_handled: _range_handled,
    signals.range_lost: _range_lost,
    signals.range_reclaimed: _range_reclaimed,
    signals.range_taken_apart: _range_taken_apart,
    signals.entry_failed: _entry_failed,
    signals.entry_dead_lettered: _entry_dead_lettered,
    signals.entries_redriven: _entries_redriven,
    signals.entries_discarded: _entries_discarded,
    signals.route_broken: _route_broken,
    signals.key_broken: _key_broken,
    signals.backoff_broken: _backoff_broken,
    signals.leases_released: _leases_released,
    signals.jobs_handed_back: _jobs_handed_back,
    signals.scrape_failed: _scrape_failed,
    signals.database_lost: _database_lost,
    signals.database_back: _database_back,
    signals.listener_deaf: _listener_deaf,
    signals.listener_hears: _listener_hears,
    signals.elected: _elected,
    signals.sweep_done: _sweep_done,
    signals.sweep_failed: _sweep_failed,
    signals.wake_failed: _wake_failed,
    signals.queue_paused: _queue_paused,
    signals.queue_resumed: _queue_resumed,
    signals.loop_failed: _loop_failed,
    signals.process_started: _process_started,
    signals.process_not_started: _process_not_started,
    signals.process_recycled: _process_recycled,
    signals.process_ended: _process_ended,
    signals.repair_failed: _repair_failed,
    signals.stop_demanded: _stop_demanded,
    signals.worker_stalled: _worker_stalled,
    signals.worker_resumed: _worker_resumed,
    signals.migrations_awaited: _migrations_awaited,
}


def _writer(name: str, line: Callable[..., None]) -> Callable[..., None]:
    """Return the receiver that writes a line, with what it is about at hand for its fields."""

    @wraps(line)
    def write(**named: Any) -> None:
        token = _announced.set((name, named))
        try:
            line(**named)
        finally:
            _announced.reset(token)

    return write


for _name, _signal in list(vars(signals).items()):
    if (_line := LINES.get(_signal) if isinstance(_signal, Signal) else None) is not None:
        _signal.connect(_writer(_name, _line), weak=False, dispatch_uid=f"pgbus.log.{_line.__name__}")
