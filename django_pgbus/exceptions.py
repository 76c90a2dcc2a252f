"""
What can go wrong, for callers and inside a run.

    PgbusError
    ├── InvalidPayload        the arguments cannot be stored; raised before any SQL (also a ValueError)
    │   └── InvalidPayloadType    ... because JSON has no such type (also a TypeError)
    ├── InvalidQueue          a queue name that cannot be used (also a ValueError)
    ├── InvalidKey            what a key function returned cannot be a key (also a ValueError)
    ├── InvalidTopic          a topic or a pattern that cannot be used (also a ValueError)
    ├── InvalidHandler        a handler that cannot be subscribed as it is declared (also a TypeError)
    ├── InvalidStream         a stream that cannot be used as it is declared (also a ValueError)
    ├── StreamDoesNotExist    a stream that was not made yet, or is gone (also a LookupError)
    ├── ConsumeRefused        a stream cannot be consumed on this connection
    ├── JobNotUnique          another job holds the key of this one
    ├── ConcurrencyLimitExceeded  as many jobs of this key as allowed are there already
    ├── BatchError            a batch cannot be used like this
    │   ├── BatchFinished         ... because it has ended
    │   └── BatchDoesNotExist     ... because it is not there, or not any more
    ├── WorkerLost            recorded for a run whose process ended or fell silent
    ├── TaskTimeout           raised in a run that outlived its `timeout`
    └── TaskSuperseded        raised in a run whose delivery is no longer the newest
    Snooze                    raised by a task to be run again later; no failure
"""

from __future__ import annotations

from datetime import timedelta


class PgbusError(Exception):
    """Base of the errors of pgbus; never raised itself."""


class InvalidPayload(PgbusError, ValueError):
    """
    The arguments of a task cannot be stored.

    `path` says where it stands, as in `kwargs['order']['lines'][3]`. The message never holds a value.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class InvalidPayloadType(InvalidPayload, TypeError):
    """The arguments of a task hold something that JSON has no type for."""


class InvalidQueue(PgbusError, ValueError):
    """The name of a queue cannot be used."""


class InvalidKey(PgbusError, ValueError):
    """The key of a task cannot be computed or stored."""


class InvalidTopic(PgbusError, ValueError):
    """The topic of an event, or a pattern of topics, cannot be used."""


class InvalidHandler(PgbusError, TypeError):
    """A handler cannot be subscribed as it is declared."""


class InvalidStream(PgbusError, ValueError):
    """The name or the options of a stream cannot be used."""


class StreamDoesNotExist(PgbusError, LookupError):
    """There is no such stream in the database: it was not made yet, or is gone."""


class ConsumeRefused(PgbusError):
    """A stream cannot be consumed on this connection: a standby, or inside a transaction."""


class JobNotUnique(PgbusError):
    """
    Another job holds the key of this one; nothing of the refused one remains.

    `key` is the key, `holder` the id of the job or batch that holds it.
    """

    def __init__(self, message: str, *, key: str = "", holder: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder


class ConcurrencyLimitExceeded(PgbusError):
    """
    As many jobs of this key as allowed hold a slot or wait for one; nothing of the refused one remains.

    `key` is the key, `limit` how many are allowed at once.
    """

    def __init__(self, message: str, *, key: str = "", limit: int = 0) -> None:
        super().__init__(message)
        self.key = key
        self.limit = limit


class BatchError(PgbusError):
    """A batch cannot be used like this."""


class BatchFinished(BatchError):
    """The batch has ended: nothing can be added to it."""


class BatchDoesNotExist(BatchError):
    """There is no batch of this id, or it ended so long ago that it is not kept any more."""


class WorkerLost(PgbusError):
    """The process that ran this attempt ended or fell silent before the task did."""


class TaskTimeout(PgbusError):
    """The task ran longer than its timeout."""


class TaskSuperseded(PgbusError):
    """This run lost its lease and another one took over; its result will not be stored."""


class Snooze(Exception):
    """Run the task again after `delay` (seconds or a timedelta); costs no attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e9:
            raise ValueError(f"Snooze takes a number of seconds from 0 or a timedelta, not {delay!r}.")
        super().__init__(f"Snoozed for {seconds:g} s.")
        self.seconds = float(seconds)
