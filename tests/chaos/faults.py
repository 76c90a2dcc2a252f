"""
What happens to the workers, the server and the way between them.

Each fault is noted with the processes it concerns, and the database's clock before and after it. One that lasts is begun,
and ended when its time is over, while others go on.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db import connection

from django_pgbus.tasks import lifecycle
from tests.chaos.fleet import LEASE, PROCESSES, SKEW, Fleet, Member
from tests.chaos.producers import QUEUES
from tests.processes.harness import JOBS, alive, execute, terminate, until
from tests.processes.server import Server
from tests.storm.patience import patiently

LONGER: Final = LEASE + 2.5  # than a lease
PATIENCE: Final = 60.0  # seconds until a worker that was asked to end has
WAY: Final = ("drop", "refuse", "delay", "stall", "stall_and_reset", "cut")  # what happens on the way to the server
NOTE: Final = "INSERT INTO chaos_faults (name, pids, after, before, detail) VALUES (%s, %s, %s, clock_timestamp(), %s)"


class Lasting(NamedTuple):
    """A fault that goes on: until when, how it ends, and what is noted then."""

    due: float
    end: Callable[[], None]
    name: str
    pids: list[int]
    after: datetime
    detail: str


class Faults:
    """All that may happen, drawn from a shuffled deck: each once before any comes again."""

    def __init__(self, fleet: Fleet, server: Server, seed: int, names: Iterable[str] | None = None) -> None:
        self.random = random.Random(f"{seed}/faults")
        self.fleet, self.server = fleet, server
        self.names = [name for name in FAULTS if names is None or name in set(names)]
        if fleet.library is None and "skew" in self.names:
            self.names.remove("skew")
        self.happened: Counter[str] = Counter(dict.fromkeys(self.names, 0))
        self.decks = 0  # that are through
        self.lasting: list[Lasting] = []
        self._deck: list[str] = []

    def strike(self) -> None:
        """Let the next of the deck happen."""
        if not self.names:
            return
        if not self._deck:
            self._deck = self.random.sample(self.names, len(self.names))
        name = self._deck.pop()
        if name in WAY and any(lasting.name in WAY for lasting in self.lasting):
            self._deck.insert(0, name)  # one at a time
            return
        self.happened[name] += 1
        after = now()
        done = FAULTS[name](self)
        pids, detail = done[0], str(done[1]) if len(done) > 1 else ""
        if len(done) > 2:
            seconds, end = done[2], done[3]
            self.lasting.append(Lasting(time.monotonic() + seconds, end, name, pids, after, detail))
        else:
            patiently(NOTE, name, pids, after, detail)
        self.decks += not self._deck

    def end(self, *, all_of_them: bool = False) -> None:
        """End what has lasted long enough."""
        for lasting in self.lasting[:]:
            if all_of_them or time.monotonic() >= lasting.due:
                self.lasting.remove(lasting)
                lasting.end()
                patiently(NOTE, lasting.name, lasting.pids, lasting.after, lasting.detail)

    def revive(self) -> list[str]:
        """Start workers that ended by themselves, which they should not, and return which they were."""
        found = []
        for member in self.fleet.members:
            if (code := member.worker.process.poll()) is not None:
                found.append(f"{member.name} ended with {code}: {member.worker.log[-300:]!r}")
                self.fleet.start(member)
        return found

    # --- processes --------------------------------------------------------------------------------------

    def _kill(self, pids: list[int]) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in pids))
        for pid in pids:
            patiently("INSERT INTO storm_kills (pid) VALUES (%s)", pid)

    def kill_child(self) -> Any:
        children = self.fleet.children()
        pids = [self.random.choice(children)] if children else []
        self._kill(pids)
        return (pids,)

    def kill_worker(self) -> Any:
        member = self.random.choice(self.fleet.members)
        pids = member.pids()
        os.kill(member.worker.pid, signal.SIGKILL)  # first, so that nobody starts children meanwhile
        member.worker.process.wait()
        self._kill(pids)
        self.fleet.start(member)
        return pids, member.name

    def _stop(self, pids: list[int], detail: str) -> Any:
        _signal(pids, signal.SIGSTOP)
        return pids, detail, LONGER, lambda: _signal(pids, signal.SIGCONT)

    def stop_child(self) -> Any:
        children = self.fleet.children()
        return self._stop([self.random.choice(children)] if children else [], "")

    def stop_worker(self) -> Any:
        member = self.random.choice(self.fleet.members)
        return self._stop(member.pids(), member.name)

    def _replace(self, member: Member) -> list[int]:
        """Stop it as a deploy does, and start it as it is meant to be now."""
        pids = member.pids()
        _signal(pids, signal.SIGCONT)  # one that is stopped hears nothing
        member.worker.send(signal.SIGTERM)
        deadline = time.monotonic() + PATIENCE
        while member.worker.process.poll() is None:
            assert time.monotonic() < deadline, f"{member.name} does not end."
            self.end()  # what it waits for may be such a fault
            time.sleep(0.05)
        self.fleet.start(member)
        return pids

    def skew(self) -> Any:
        """Let a worker come back with another clock: behind, ahead, behind, ..."""
        member = self.fleet.members[-1]
        member.skew = -SKEW if member.skew > 0 else SKEW
        return self._replace(member), f"{member.name} {member.skew:+d} s"

    def deploy(self) -> Any:
        """Replace one worker after the other by another version; the next deploy replaces it by the one that knows all."""
        version = "both"
        if all(member.version == "both" for member in self.fleet.members):
            version = self.random.choice(("before", "after"))
        pids = []
        for member in self.fleet.members:
            member.version = version
            pids += self._replace(member)
        return pids, version

    def calm(self) -> None:
        """Let everything be as it should be: the last version, nobody stopped, the way free."""
        self.end(all_of_them=True)
        for member in self.fleet.members:
            if member.version != "both":
                member.version = "both"
                after = now()
                pids = self._replace(member)
                patiently(NOTE, "deploy", pids, after, "both, in the end")
        self.revive()
        for member in self.fleet.members:
            until(lambda member=member: len(member.worker.children()) == PROCESSES, 60)

    # --- the server -------------------------------------------------------------------------------------

    def restart(self) -> Any:
        self.server.stop("immediate")
        time.sleep(self.random.uniform(0, 2))
        self.server.start()
        return (self.fleet.children(),)

    def _terminate(self, like: str) -> Any:
        return self.fleet.children(), f"{terminate(like)} sessions"

    def end_job_sessions(self) -> Any:
        return self._terminate(JOBS)

    def end_pgbus_sessions(self) -> Any:
        return self._terminate("pgbus %")

    def end_listen_session(self) -> Any:
        return self._terminate("pgbus listen")

    def slow_wal(self) -> Any:
        """Let each commit wait for a tenth of a second before it is flushed."""
        self._configure(commit_delay="100000", commit_siblings="0")
        return self.fleet.children(), "", 5.0, lambda: self._configure(commit_delay="0", commit_siblings="5")

    @staticmethod
    def _configure(**options: str) -> None:
        for name, text in options.items():
            patiently(f"ALTER SYSTEM SET {name} = {text}")
        patiently("SELECT pg_reload_conf()")

    # --- the way ----------------------------------------------------------------------------------------

    def drop(self) -> Any:
        return self.fleet.proxied(), f"{self.fleet.proxy.drop()} connections"

    def refuse(self) -> Any:
        self.fleet.proxy.refuse()
        return self.fleet.proxied(), "", self.random.uniform(1, 3), self.fleet.proxy.admit

    def delay(self) -> Any:
        self.fleet.proxy.delay = self.random.uniform(0.05, 0.25)

        def end() -> None:
            self.fleet.proxy.delay = 0.0

        return self.fleet.proxied(), f"{self.fleet.proxy.delay:.2f} s", 5.0, end

    def stall(self) -> Any:
        """Be silent for longer than a lease, then let flow what was held back."""
        self.fleet.proxy.stall()
        return self.fleet.proxied(), "", LONGER, self.fleet.proxy.flow

    def stall_and_reset(self) -> Any:
        """Be silent for longer than a lease, then reset."""
        self.fleet.proxy.stall()

        def end() -> None:
            self.fleet.proxy.drop()
            self.fleet.proxy.flow()

        return self.fleet.proxied(), "", LONGER, end

    def cut(self) -> Any:
        """Reset each connection in the middle of a reply."""
        self.fleet.proxy.cut()
        return self.fleet.proxied(), "", 1.0, self.fleet.proxy.mend

    # --- an operator ------------------------------------------------------------------------------------

    def pause(self) -> Any:
        queue = self.random.choice(QUEUES)
        lifecycle.pause_queue(queue)
        return [], queue, 3.0, lambda: _patiently_resume(queue)


FAULTS: Final[dict[str, Callable[[Faults], Any]]] = {
    fault.__name__: fault
    for fault in (
        Faults.kill_child,
        Faults.kill_worker,
        Faults.stop_child,
        Faults.stop_worker,
        Faults.skew,
        Faults.deploy,
        Faults.restart,
        Faults.end_job_sessions,
        Faults.end_pgbus_sessions,
        Faults.end_listen_session,
        Faults.slow_wal,
        Faults.drop,
        Faults.refuse,
        Faults.delay,
        Faults.stall,
        Faults.stall_and_reset,
        Faults.cut,
        Faults.pause,
    )
}


def now() -> datetime:
    ((moment,),) = patiently("SELECT clock_timestamp()")
    return moment  # type: ignore[no-any-return]


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _patiently_resume(queue: str) -> None:
    for _ in range(100):
        with contextlib.suppress(Exception):
            lifecycle.resume_queue(queue)
            return
        connection.close()
        time.sleep(0.1)
    execute("SELECT 1")
    lifecycle.resume_queue(queue)
