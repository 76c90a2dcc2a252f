"""Kills, stops, suspensions and restarts in a random order, under load: nothing is lost, one effect each."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from datetime import timedelta

import pytest
from django.db import Error, connections

from django_pgbus import enqueue_many
from django_pgbus.tasks import lifecycle
from tests.processes import tasks
from tests.processes.harness import JOBS, RunWorker, count, execute, terminate, until, value

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SEED = int(os.environ.get("PGBUS_TEST_SEED", "1"))
LENGTH = float(os.environ.get("PGBUS_TEST_CHAOS", "12"))  # seconds
LEASE = 4.0


class Chaos:
    """Two workers of two processes, and what may happen to them."""

    def __init__(self, start, server) -> None:
        self.random = random.Random(SEED)
        self.start = lambda: start(
            "--processes=2",
            "--threads=4",
            "--grace=1",
            "--interval=0.5",
            pgbus={"VISIBILITY_TIMEOUT": LEASE, "MAX_ATTEMPTS": 100, "BACKOFF_BASE": 0.2},
        )
        self.server = server
        self.workers: list[RunWorker] = [self.start(), self.start()]
        self.suspended: list[tuple[float, int]] = []
        self.ids: set[int] = set()
        self.happened: list[str] = []

    def enqueue(self) -> None:
        """Put a few jobs of every kind; which of them arrived is not known if the database goes away meanwhile."""
        n = self.random.randrange(1, 6)
        r = self.random.random
        with contextlib.suppress(Error):
            for task, arguments in (
                (tasks.naps, [(("nap", r() * 0.06), {}) for _ in range(2 * n)]),
                (tasks.has_one_effect, [((r() * 0.06,), {}) for _ in range(2 * n)]),
                (tasks.areads, [(("aread",), {}) for _ in range(n)]),
                (tasks.naps.using(priority=7), [(("nap", r()), {})]),
                (tasks.has_one_effect.using(run_after=timedelta(seconds=r())), [((r() * 0.06,), {})]),
                (tasks.note.using(queue_name=f"queue{n}"), [(("other",), {})]),
            ):
                self.ids |= {int(job.id) for job in enqueue_many(task, arguments)}

    def strike(self) -> None:
        """Let something happen."""
        what = self.random.choices(
            [
                self.kill_child,
                self.stop_worker,
                self.kill_worker,
                self.end_sessions,
                self.suspend,
                self.pause,
                self.restart,
            ],
            [6, 2, 2, 4, 2, 1, 1],
        )[0]
        self.happened.append(what.__name__)
        with contextlib.suppress(Error):
            what()
        for until_then, pid in self.suspended[:]:
            if time.monotonic() > until_then:
                self.wake(pid)
                self.suspended.remove((until_then, pid))

    def children(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.children()]

    def kill_child(self) -> None:
        if children := self.children():
            os.kill(self.random.choice(children), signal.SIGKILL)

    def stop_worker(self) -> None:
        worker = self.workers.pop(0)
        worker.send(signal.SIGTERM)
        self.workers.append(self.start())

    def kill_worker(self) -> None:
        worker = self.workers.pop(0)
        worker.children()
        worker.send(signal.SIGKILL)
        self.workers.append(self.start())

    def end_sessions(self) -> None:
        terminate(self.random.choice([None, "pgbus %", JOBS, "pgbus completer", "pgbus consumer", "pgbus heart"]))

    def suspend(self) -> None:
        if children := self.children():
            pid = self.random.choice(children)
            os.kill(pid, signal.SIGSTOP)
            self.suspended.append((time.monotonic() + self.random.choice([0.5, LEASE + 1]), pid))

    def wake(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def pause(self) -> None:
        lifecycle.pause_queue("default")
        lifecycle.resume_queue("default")

    def restart(self) -> None:
        self.server.stop(self.random.choice(["immediate", "fast"]))
        time.sleep(self.random.random() * 2)
        self.server.start()

    def calm(self) -> None:
        """Let what is suspended go on, and make sure that somebody works."""
        for _, pid in self.suspended:
            self.wake(pid)
        connections["default"].close()


@pytest.mark.proves("every-job-ends")
def test_nothing_is_lost_and_every_effect_is_there_once(server, runworker_there):
    chaos = Chaos(runworker_there, server)
    chaos.enqueue()
    end = time.monotonic() + LENGTH
    while time.monotonic() < end:
        pause = time.monotonic() + 0.2 + chaos.random.random() * 0.5
        while time.monotonic() < pause:
            chaos.enqueue()
            time.sleep(0.05)
        chaos.strike()
    chaos.calm()
    print(f"seed {SEED}: {', '.join(chaos.happened)}")

    began = time.monotonic()
    until(lambda: count("pgbus_messages") == count("pgbus_delayed") == 0, 80)
    archived = {id for (id,) in execute("SELECT id FROM pgbus_archive")}
    print(
        f"{len(archived)} jobs; done {time.monotonic() - began:.1f} s after the end of it; "
        f"attempts {dict(execute('SELECT attempts, count(*) FROM pgbus_archive GROUP BY 1 ORDER BY 1'))}"
    )
    assert count("pgbus_dead_letters") == 0
    assert chaos.ids <= archived
    transactional = value("SELECT count(*) FROM pgbus_archive WHERE task = 'tests.processes.tasks.has_one_effect'")
    effects = execute("SELECT name, count(*) FROM process_test_runs WHERE event = 'effect' GROUP BY name")
    assert [name for name, number in effects if number != 1] == []
    assert len(effects) == transactional
    for worker in chaos.workers:
        assert worker.stop() == 0
