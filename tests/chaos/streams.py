"""A stream in the chaos: the producers and the four groups of the storm, of which one is transactional, and their books."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Final

from django_pgbus import Stream
from django_pgbus.streams.log_statement import log_table
from tests.chaos.causes import KILLS, LOSSES, SILENCES, STOPS, Causes
from tests.processes.harness import execute
from tests.processes.server import Server
from tests.storm import stream_books
from tests.storm.patience import patiently
from tests.storm.producers import Producer, model_of
from tests.storm.stream_tables import CREATE, PARTITION, STREAM

# Groups write by the session of their job: whoever loses it has failed, and tries again.
REPEATS: Final = KILLS | STOPS | SILENCES | LOSSES
RAN: Final = re.compile(r"Ran\(position=(?P<position>\d+), .*? at (?P<at>\S+ \S+?)[,)]")
# The checks of the storm, as they are called here.
CALLED: Final = {
    "missing": "stream-gaps",
    "handled_after_commit": "stream-doubles",
    "never_committed": "stream-undone",
    "unexplained": "stream-repeats",
    "out_of_order": "stream-order",
    "together": "stream-together",
    "wrong_totals": "stream-effects",
    "wrong_messages": "stream-routed",
    "wrong_dead": "stream-dead",
    "wrong_cursors": "stream-cursors",
    "broken_producers": "stream-producers",
}


class Streams:
    """The stream, who appends to it, and what was seen of it."""

    def __init__(self, server: Server, seed: int, number: int, pace: Callable[[], float]) -> None:
        execute(CREATE)
        Stream(STREAM, partition_size=PARTITION).ensure()
        self.log = log_table(Stream(STREAM).id())
        self.found = stream_books.Found()
        model = model_of(self.log)
        self.producers = [
            Producer(100 + nth, seed, server, self.log, model, lambda: 6 * pace()) for nth in range(number)
        ]

    def open(self) -> int:
        """Return how much is to be done still."""
        return int(patiently(stream_books.OPEN_ENTRIES.format(log=self.log))[0][0])

    def end_prepared(self) -> None:
        """End what a producer could not, because the server went down."""
        for (name,) in execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
            execute(f"ROLLBACK PREPARED '{name}'")

    def check(self, causes: Causes, restarts: int) -> dict[str, list[str]]:
        """Return what is wrong by check."""
        self.found.restarts = restarts
        for pid, after, before in causes.kills(REPEATS):
            execute("INSERT INTO stream_storm_kills VALUES (%s, %s, %s)", pid, after, before)
        stream_books.Books(self.log, self.found).read(self.producers)
        if self.found.missing:
            self.found.missing[1:1] = self.found.evidence
        wrong = {called: getattr(self.found, name) for name, called in CALLED.items()}
        return {check: [self._explained(line, causes) for line in lines] for check, lines in wrong.items()}

    def _explained(self, line: str, causes: Causes) -> str:
        """Return the line, and of the runs that it names what else was seen of their entry and of their processes."""
        if not (ran := RAN.search(line)):
            return line
        at = datetime.fromisoformat(ran["at"])
        pids = dict.fromkeys(int(pid) for pid in re.findall(r"\bpid=(\d+)", line))
        happened = "; ".join(causes.told(pid, at, at) for pid in pids)
        group = line.partition(":")[0]
        return f"{line} -- {happened} -- {stream_books.story(group, int(ran['position']))}"

    def workload(self) -> dict[str, int]:
        """Return how many entries were appended, and handled by each group."""
        found = self.found
        return {
            "tried": found.tried,
            "sent": found.committed,
            "runs": sum(found.runs.values()),
            "repeated": sum(found.repeated.values()),
            "alone": found.alone,
            "dead": found.dead,
            **{f"by {group}": number for group, number in found.handled.items()},
        }
