"""
The settings of pgbus: one dict `PGBUS`, every key with default, unit and check in one place.

Durations are numbers of seconds or timedeltas; they are kept as seconds.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

ANY_QUEUE = "*"
EVENT_QUEUE = "@"  # what the name of a queue of events begins with
ANY_EVENT_QUEUE = EVENT_QUEUE + ANY_QUEUE
EVERYTHING = f"{ANY_QUEUE}, {ANY_EVENT_QUEUE}"


def _setting(default: Any, text: str, *, unit: str = "", kind: str = "text", low: float | None = None) -> Any:
    return field(default=default, metadata={"text": text, "unit": unit, "kind": kind, "low": low})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every key of `PGBUS`, with its default."""

    DATABASE: str | None = _setting(
        None, "Alias of the pgbus tables; None is the alias the routers give for writes to our models."
    )
    VISIBILITY_TIMEOUT: float = _setting(
        30.0, "Lease of a delivery: how long a silent worker keeps a job.", unit="s", kind="duration", low=1
    )
    BEAT_INTERVAL: float | None = _setting(
        None,
        "Period of the heartbeat; None is a third of the lease, more is refused.",
        unit="s",
        kind="duration?",
        low=0.1,
    )
    POLL_INTERVAL: float = _setting(
        1.0, "Longest wait before a worker looks without having been woken.", unit="s", kind="duration", low=0.05
    )
    MAX_ATTEMPTS: int = _setting(5, "Runs of a task before it becomes a dead letter.", kind="count", low=1)
    BACKOFF_BASE: float = _setting(
        5.0, "Wait after the first failure; doubles with each.", unit="s", kind="duration", low=0
    )
    BACKOFF_CAP: float = _setting(300.0, "Longest wait between two attempts.", unit="s", kind="duration", low=0)
    BACKOFF_JITTER: float = _setting(0.15, "Share by which a wait is varied at random.", kind="share", low=0)
    ARCHIVE_RETENTION: float = _setting(
        7 * 86400.0, "How long finished tasks and their results are kept.", unit="s", kind="duration", low=0
    )
    DEAD_LETTER_RETENTION: float = _setting(
        90 * 86400.0, "How long dead letters are kept.", unit="s", kind="duration", low=0
    )
    IDEMPOTENCY_TTL: float = _setting(
        7 * 86400.0, "How long a completed claim of an event is remembered.", unit="s", kind="duration", low=0
    )
    MAX_PAYLOAD_BYTES: int = _setting(
        1 << 20, "Largest encoded arguments of one task.", unit="bytes", kind="count", low=1
    )
    LISTEN_DATABASE: str | None = _setting(
        None, "Alias for LISTEN and the worker's own connections, where a pooler sits between."
    )
    QUEUES: str = _setting(EVERYTHING, "Queues of a worker that is not told otherwise; `@*` are the events.")
    STREAMS: str = _setting(
        ANY_QUEUE,
        "Groups of streams that a worker follows unless it is told otherwise: `ledger/totals`, `ledger`, `*`.",
    )
    THREADS: int = _setting(10, "Threads of a worker process that is not told otherwise.", kind="count", low=1)
    PROCESSES: int = _setting(1, "Worker processes of one `runworker`.", kind="count", low=1)
    SHUTDOWN_GRACE: float = _setting(
        30.0, "How long running jobs may finish after SIGTERM.", unit="s", kind="duration", low=0
    )
    HEALTH_PORT: int | None = _setting(None, "Port of the worker's health endpoint; None is off.", kind="count?", low=0)
    METRICS_TOKEN: str | None = _setting(None, "Bearer token of the metrics page; None is staff only.")
    MCP_TOKEN: str | None = _setting(None, "Bearer token of the MCP server over HTTP; None is off.")
    MCP_PAYLOADS: bool = _setting(
        False,
        "Whether the MCP server tells arguments, results, tracebacks and data to those who ask with `include_payload`. "
        "What a task declares as sensitive stays masked.",
        kind="flag",
    )

    @property
    def beat_interval(self) -> float:
        """Return the period of the heartbeat in seconds."""
        return self.VISIBILITY_TIMEOUT / 3 if self.BEAT_INTERVAL is None else self.BEAT_INTERVAL


def problems(declared: Any) -> Iterator[tuple[str, str]]:
    """Yield (what is wrong, what to write instead) for each fault of a `PGBUS` dict."""
    if not isinstance(declared, dict):
        yield f"PGBUS is a {type(declared).__name__}.", "Write PGBUS = {...}: a dict of settings."
        return
    known = {f.name: f for f in fields(Settings)}
    for name, value in declared.items():
        if name not in known:
            near = difflib.get_close_matches(str(name).upper(), known, n=1)
            yield (
                f"PGBUS has no setting {name!r}.",
                f"Did you mean {near[0]!r}?" if near else f"Known are: {', '.join(sorted(known))}.",
            )
            continue
        try:
            _read(known[name], value)
        except (TypeError, ValueError) as error:
            yield f"PGBUS[{name!r}] {error}", known[name].metadata["text"]
    try:
        read = _load(declared)
    except (TypeError, ValueError):
        return
    if read.beat_interval > read.VISIBILITY_TIMEOUT / 3 + 1e-9:
        yield (
            f"PGBUS['BEAT_INTERVAL'] ({read.beat_interval:g} s) is more than a third of VISIBILITY_TIMEOUT "
            f"({read.VISIBILITY_TIMEOUT:g} s): one late beat would let a running job run twice.",
            "Leave BEAT_INTERVAL out, or set it to a third of VISIBILITY_TIMEOUT or less.",
        )


def get_settings() -> Settings:
    """
    Return the settings in force.

    Wrong values raise ValueError or TypeError with the sentence the system check prints.
    """
    return _cached()


@cache
def _cached() -> Settings:
    return _load(getattr(django_settings, "PGBUS", {}) or {})


def _load(declared: dict[str, Any]) -> Settings:
    known = {f.name: f for f in fields(Settings)}
    return Settings(**{name: _read(known[name], value) for name, value in declared.items() if name in known})


def _read(setting: Any, value: Any) -> Any:
    kind, low = setting.metadata["kind"], setting.metadata["low"]
    if value is None and (kind.endswith("?") or setting.default is None):
        return None
    kind = kind.rstrip("?")
    if kind == "text":
        if not isinstance(value, str) or not value:
            raise TypeError(f"must be a text, not {value!r}.")
        return value
    if kind == "flag":
        if not isinstance(value, bool):
            raise TypeError(f"must be True or False, not {value!r}.")
        return value
    if isinstance(value, timedelta) and kind == "duration":
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
        raise TypeError(f"must be a number{' of seconds or a timedelta' if kind == 'duration' else ''}, not {value!r}.")
    if kind == "count" and not isinstance(value, int):
        raise TypeError(f"must be a whole number, not {value!r}.")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"must be finite, not {value!r}.")
    if low is not None and value < low:
        raise ValueError(f"must be at least {low:g}, not {value!r}.")
    if kind == "share" and value > 1:
        raise ValueError(f"must be at most 1, not {value!r}.")
    return value if kind == "count" else float(value)


@cache
def database() -> str:
    """
    Return the alias that holds the pgbus tables, resolved once and used for everything.

    The write alias of our models, so that routers work (django-tasks-db is asked for this again and again).
    """
    if alias := get_settings().DATABASE:
        return alias
    from django.apps import apps
    from django.db import router

    try:
        model = apps.get_model("pgbus", "Message")
    except LookupError:
        raise ImproperlyConfigured(
            'The app of PgbusBackend is not installed: add "django_pgbus" to INSTALLED_APPS and run migrate.'
        ) from None
    return str(router.db_for_write(model))


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting in {"PGBUS", "DATABASE_ROUTERS", "DATABASES"}:
        _cached.cache_clear()
        database.cache_clear()


setting_changed.connect(_forget, dispatch_uid="pgbus.conf")
