"""A statement about one log: its text names `pgbus_stream_0`, which stands for the log it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from django_pgbus.postgres import Statement

ANY_LOG: Final = "pgbus_stream_0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatement:
    """SQL text about a log, and the tables whose rows it locks, in the order it locks them; see `Statement`."""

    sql: str
    locks: tuple[str, ...] = ()

    def of(self, stream: int) -> Statement:
        """Return the statement for the log of this stream."""
        return _statement(self, stream)

    def of_each(self, streams: Sequence[int]) -> Statement:
        """Return one statement for the logs of all these streams, with the rows of each behind those of the one before."""
        parts = [_statement(self, stream).sql for stream in streams]
        return Statement(sql="\nUNION ALL\n".join(parts), locks=self.locks)


def log_table(stream: int) -> str:
    """Return the name of the table of a stream; its sequence, trigger and partitions begin with it."""
    return f"pgbus_stream_{stream:d}"


@cache
def _statement(about: LogStatement, stream: int) -> Statement:
    return Statement(sql=about.sql.replace(ANY_LOG, log_table(stream)), locks=about.locks)
