"""
What happens to the workers, the server and the way between them.

Each fault is noted with the processes it concerns, and the database's clock before and after it. One that lasts is begun,
and ended when its time is over, while others go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from django.db import connection

from django_pgbus.tasks import lifecycle
from tests.chaos.deck import NOTE, Deck, now
from tests.chaos.fleet import LEASE, PROCESSES, SKEW, Fleet, Member
from tests.chaos.producers import QUEUES
from tests.processes.harness import JOBS, alive, execute, terminate, until
from tests.processes.server import Server
from tests.storm.patience import patiently

LONGER: Final = LEASE + 2.5  # than a lease
PATIENCE: Final = 120.0  # seconds until a worker that was asked to end has, on a machine that others use
UNREACHABLE: Final = "The database cannot be reached"


class Faults(Deck):
    """All that may happen."""

    def __init__(self, fleet: Fleet, server: Server, seed: int, names: Iterable[str] | None = None) -> None:
        wanted = FAULTS.keys() if names is None else set(names)
        if fleet.library is None:
            wanted -= {"skew"}
        super().__init__(seed, {name: getattr(self, name) for name in FAULTS if name in wanted})
        self.fleet, self.server = fleet, server
        self.wrong: list[str] = []  # workers that ended by themselves, or did not when they were asked to
        self.revived = 0

    def revive(self) -> None:
        """Start workers that ended by themselves: they may if the database was away when they were started."""
        for member in self.fleet.members:
            if (code := member.worker.process.poll()) is not None:
                self.revived += 1
                if UNREACHABLE not in member.worker.log:
                    self.wrong.append(f"{member.name} ended with {code}: {member.worker.log[-300:]!r}")
                self.fleet.start(member)

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

    def kill_supervisor(self) -> Any:
        """Kill -9 of a supervisor alone: its processes see that, stop as if asked to, and leave nothing."""
        member = self.random.choice(self.fleet.members)
        pids = member.pids()
        os.kill(member.worker.pid, signal.SIGKILL)
        member.worker.process.wait()
        self.fleet.start(member)

        def end() -> None:
            deadline = time.monotonic() + PATIENCE
            while left := [pid for pid in pids if alive(pid)]:
                if time.monotonic() > deadline:
                    self.wrong.append(
                        f"processes {left} of {member.name} outlived their supervisor by {PATIENCE:.0f} s"
                    )
                    self._kill(left)
                self.end()  # what they wait for may be such a fault
                time.sleep(0.05)

        return pids, member.name, LONGER, end

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
            self.end()  # what it waits for may be such a fault
            if time.monotonic() > deadline:
                self.wrong.append(f"{member.name} did not end within {PATIENCE:.0f} s")
                self._kill(pids)
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

    def _proxied_after(self, end: Callable[[], None]) -> Callable[[], list[int]]:
        """Return what ends a fault and tells who is there then: a process that was born meanwhile has met it, too."""

        def over() -> list[int]:
            end()
            return self.fleet.proxied()

        return over

    def refuse(self) -> Any:
        self.fleet.proxy.refuse()
        return self.fleet.proxied(), "", self.random.uniform(1, 3), self._proxied_after(self.fleet.proxy.admit)

    def delay(self) -> Any:
        self.fleet.proxy.delay = self.random.uniform(0.05, 0.25)

        def end() -> None:
            self.fleet.proxy.delay = 0.0

        return self.fleet.proxied(), f"{self.fleet.proxy.delay:.2f} s", 5.0, self._proxied_after(end)

    def stall(self) -> Any:
        """Be silent for longer than a lease, then let flow what was held back."""
        self.fleet.proxy.stall()
        return self.fleet.proxied(), "", LONGER, self._proxied_after(self.fleet.proxy.flow)

    def stall_and_reset(self) -> Any:
        """Be silent for longer than a lease, then reset."""
        self.fleet.proxy.stall()

        def end() -> None:
            self.fleet.proxy.drop()
            self.fleet.proxy.flow()

        return self.fleet.proxied(), "", LONGER, self._proxied_after(end)

    def cut(self) -> Any:
        """Reset each connection in the middle of a reply."""
        self.fleet.proxy.cut()
        return self.fleet.proxied(), "", 1.0, self._proxied_after(self.fleet.proxy.mend)

    # --- an operator ------------------------------------------------------------------------------------

    def pause(self) -> Any:
        queue = self.random.choice(QUEUES)
        lifecycle.pause_queue(queue)
        return [], queue, 5.0, lambda: _patiently_resume(queue)


FAULTS: Final[dict[str, Callable[[Faults], Any]]] = {
    fault.__name__: fault
    for fault in (
        Faults.kill_child,
        Faults.kill_worker,
        Faults.kill_supervisor,
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
