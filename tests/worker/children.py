"""What the children of the tests do: each a `main` for the supervisor. The first queue's name is their argument."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path

from django_pgbus.worker.orphan import watch_supervisor
from django_pgbus.worker.plan import ProcessPlan
from django_pgbus.worker.reports import Reports
from django_pgbus.worker.shutdown import Demands, Level

RUNNING = ("state", {"state": "running"})
ONE_OF_TWO_RUNS = [("claimed", [(1, 3, False), (2, 1, True)]), ("started", [1])]


def argument(plan: ProcessPlan) -> str:
    return plan.capsules[0].queues[0]


def _begin(reports: Reports, *messages: tuple) -> Demands:
    demands = Demands()
    demands.install(supervised=True)
    for message in (*messages, RUNNING):
        reports.send(message)
    return demands


def _until(demands: Demands, level: Level) -> None:
    while demands.wait(60) < level:
        pass


def idle(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Drain when asked."""
    _until(_begin(reports), Level.DRAIN)
    return 0


def busy(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Hold two jobs until told to stop at once, then leave with one of them still running."""
    _until(_begin(reports, *ONE_OF_TWO_RUNS), Level.NOW)
    reports.send(("leaving", 64))
    os._exit(64)


def busy_for_its_grace(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Hold two jobs for the whole grace, then leave with one of them still running."""
    _until(_begin(reports, *ONE_OF_TWO_RUNS), Level.DRAIN)
    time.sleep(plan.grace)
    reports.send(("leaving", 64))
    os._exit(64)


def deaf(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Hold two jobs and obey nothing."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    for message in (*ONE_OF_TWO_RUNS, RUNNING):
        reports.send(message)
    Path(argument(plan)).touch()
    while True:
        time.sleep(60)


def ends_with(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Hold two jobs and end by os._exit, as a job might."""
    _begin(reports, *ONE_OF_TWO_RUNS)
    os._exit(int(argument(plan)))


def returns(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Do a job and leave in order."""
    _begin(reports, ("claimed", [(1, 1, False)]), ("started", [1]), ("ended", [1]))
    return int(argument(plan))


def declares(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Write down whether to declare, do it if so, and leave in order to be replaced."""
    _note(plan)
    _begin(reports, *([("declared", True)] if plan.declares else []))
    return 66


def dies_once(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Write down whether to declare, and die before it is done, but for the second time."""
    if _note(plan) == 1:
        os._exit(3)
    _begin(reports, *([("declared", True)] if plan.declares else []))
    return 66


def _note(plan: ProcessPlan) -> int:
    """Append whether to declare to the file that is the argument; return how many lines it has."""
    with Path(argument(plan)).open("a+") as file:
        file.write(f"{plan.declares}\n")
        file.seek(0)
        return len(file.readlines())


def times_out(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Leave because of a hard timeout."""
    _begin(reports, *ONE_OF_TWO_RUNS, ("timed_out", (1, 2, 7.5)))
    os._exit(65)


def cannot_start(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    os._exit(3)


def segfaults(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    _begin(reports, *ONE_OF_TWO_RUNS)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0


def leaves_a_process(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Start something that outlives this process and keeps its descriptors open, then die."""
    helper = subprocess.Popen(["sleep", "60"], close_fds=False)
    Path(argument(plan)).write_text(str(helper.pid))
    _begin(reports, *ONE_OF_TWO_RUNS)
    os._exit(9)


def keeps_the_gil(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Stop every thread of this process by a C call, then go on."""
    demands = _begin(reports, ("claimed", [(7, 1, False)]), ("started", [7]))

    def a_job_that_calls_c() -> None:
        ctypes.PyDLL(None).usleep(4_000_000)

    thread = threading.Thread(target=a_job_that_calls_c)
    thread.start()
    thread.join()
    reports.send(("ended", [7]))
    reports.send(RUNNING)
    _until(demands, Level.DRAIN)
    return 0


def silent(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Run Python in many threads, frame in and frame out, and report nothing of it."""
    demands = _begin(reports, ("claimed", [(7, 1, False)]), ("started", [7]))

    def a_job_in_python(depth: int = 0) -> None:
        while depth < 40 and demands.level < Level.DRAIN:
            a_job_in_python(depth + 1)
            if depth:
                return

    for _ in range(4):
        threading.Thread(target=a_job_in_python).start()
    _until(demands, Level.DRAIN)
    reports.send(("ended", [7]))
    return 0


def stays_after_its_supervisor(
    plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str
) -> int:
    """Write down that the supervisor has gone, and that it was noticed."""
    demands = _begin(reports)
    watch_supervisor(lambda: demands.ask(Level.DRAIN))
    place = Path(argument(plan))
    place.with_suffix(".pid").write_text(str(os.getpid()))
    _until(demands, Level.DRAIN)
    reports.send(RUNNING)  # Nobody reads it, which must not matter.
    place.write_text("drained")
    return 0


def talks_much(plan: ProcessPlan, worker: uuid.UUID, supervisor: uuid.UUID, reports: Reports, name: str) -> int:
    """Report 100,000 jobs of which the last is left, then die."""
    demands = _begin(reports)
    batch = 200
    for first in range(0, 100_000, batch):
        ids = list(range(first, first + batch))
        reports.send(("claimed", [(id, 1, False) for id in ids]))
        reports.send(("started", ids))
        reports.send(("ended", ids if first + batch < 100_000 else ids[:-1]))
    demands.close()
    os._exit(1)
