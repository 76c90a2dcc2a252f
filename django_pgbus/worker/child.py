"""A worker process, seen from both sides: the supervisor's handle on it, and how it begins and ends."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Container
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import django
from django.apps import apps
from django.utils.module_loading import import_string

from django_pgbus.worker.board import Board
from django_pgbus.worker.console import log_to_stderr
from django_pgbus.worker.ledger import Ledger
from django_pgbus.worker.other_database import use_database
from django_pgbus.worker.plan import ProcessPlan
from django_pgbus.worker.reports import ReportReader, Reports
from django_pgbus.worker.shutdown import Level

MAIN: Final = "django_pgbus.worker.process.main"
TELL_STACKS: Final = signal.SIGUSR2
ASK_FOR_STACKS: Final = b"?"
LAST_BREATH: Final = 10.0  # seconds that atexit hooks and forgotten threads get
MOST_STACKS: Final = 1 << 16

# Never fork: locks and connections of the supervisor's threads would come along.
_spawn = multiprocessing.get_context("spawn")


class Child:
    """The supervisor's handle on one incarnation of a worker process."""

    def __init__(self, main: str, plan: ProcessPlan, supervisor: uuid.UUID, name: str) -> None:
        """Start it; raises OSError where the system has no process left."""
        self.id = uuid.uuid4()
        self.name = name
        self.ledger = Ledger()
        self.asked = Level.RUN
        self.killed = False
        self.began = time.monotonic()
        self.heard = self.began  # when the last state arrived
        self.stacks = bytearray()
        self.sentinel_spoke = False
        reader, writer = _spawn.Pipe(duplex=False)
        stacks, stacks_of_child = _spawn.Pipe(duplex=True)
        self._stacks = stacks
        os.set_blocking(stacks.fileno(), False)
        self.reader = ReportReader(reader)
        self._board = Board.shared(_spawn, [capsule.threads for capsule in plan.capsules])
        # Not a daemon: the code of tasks may start processes of its own.
        self.process = _spawn.Process(
            target=run,
            args=(main, plan, self.id, supervisor, writer, stacks_of_child, name, self._board),
            name=name,
            daemon=False,
        )
        try:
            self.process.start()
            self.pid = self.process.pid or 0
        except BaseException:
            self.reader.close()
            stacks.close()
            raise
        finally:
            # Only the child holds these ends now: its death closes them.
            writer.close()
            stacks_of_child.close()

    def watched(self, *, reports: bool) -> list[int]:
        """Return the descriptors that become readable when it ends or, with `reports`, speaks."""
        watched = [] if self.sentinel_spoke else [self.process.sentinel]
        if not self._stacks.closed:
            watched.append(self._stacks.fileno())
        if reports and not self.reader.ended:
            watched.append(self.reader.fileno())
        return watched

    def hear(self, ready: Container[int]) -> bool:
        """Enter what it has reported, if it is among the `ready`; return whether there was anything."""
        if self.process.sentinel in ready:
            self.sentinel_spoke = True  # Closed for good, and it may be closed by a child that lives.
        if not self._stacks.closed and self._stacks.fileno() in ready:
            self._hear_stacks()
        if self.reader.fileno() not in ready:
            return False
        states = self.ledger.states
        for message in self.reader.read():
            self.ledger.enter(message)
        if self.ledger.states != states:
            self.heard = time.monotonic()
        return True

    def ask(self, level: Level) -> None:
        """Ask it to drain, to stop now, or end it; each once."""
        if level <= self.asked:
            return
        self.asked = level
        self.killed |= level == Level.KILL
        number = {Level.DRAIN: signal.SIGTERM, Level.NOW: signal.SIGQUIT, Level.KILL: signal.SIGKILL}[level]
        self._signal(number)

    def ask_for_stacks(self) -> None:
        """Let it write down where each of its threads stands; it answers if a thread of its own can run."""
        self.stacks.clear()
        with contextlib.suppress(OSError):
            os.write(self._stacks.fileno(), ASK_FOR_STACKS)

    def demand_stacks(self) -> None:
        """
        Let it write down where its threads stand though none can run: a C call keeps the GIL.

        Not of one that is suspended: it would do so when it goes on, while its threads run, and may end by that.
        """
        if not self.is_suspended:
            self._signal(TELL_STACKS)

    @property
    def is_suspended(self) -> bool:
        """Return whether it was stopped by a signal or a debugger; False where the system does not tell (no /proc)."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in {"T", "t"}

    def ended(self) -> int | None:
        """Return its exit code, or None while it lives."""
        return self.process.exitcode

    def bury(self) -> None:
        """Enter what it had still sent, and free what belongs to it."""
        for message in self.reader.read_to_the_end():
            self.ledger.enter(message)
        self.ledger.ran = self._board.running()
        self.reader.close()
        self._stacks.close()
        self.process.join()
        self.process.close()

    def _signal(self, number: int) -> None:
        # The id is its own until we have collected its exit code, so this hits nobody else.
        if self.process.exitcode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _hear_stacks(self) -> None:
        try:
            chunk = os.read(self._stacks.fileno(), MOST_STACKS)
        except BlockingIOError:
            return
        except ConnectionResetError:  # It has ended without having read that it was asked.
            chunk = b""
        if not chunk:
            self._stacks.close()
        elif len(self.stacks) < MOST_STACKS:
            self.stacks += chunk


def run(
    main: str,
    plan: ProcessPlan,
    worker: uuid.UUID,
    supervisor: uuid.UUID,
    reports: Connection,
    stacks: Connection,
    name: str,
    board: Board,
) -> None:
    """Begin, do the work, end: what runs in the child."""
    # A group of its own: Ctrl-C in a terminal reaches the supervisor alone, and what jobs started is left to drain.
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    for ours in (reports, stacks):
        os.set_inheritable(ours.fileno(), False)
    faulthandler.enable()
    faulthandler.register(TELL_STACKS, file=stacks, all_threads=True)
    threading.Thread(target=_tell_stacks, args=[stacks], name="stacks", daemon=True).start()
    pipe = Reports(reports, board)
    pipe.send(("state", {"state": "starting"}))
    if not apps.ready:
        django.setup()
    use_database(plan.database)
    if plan.log_level is not None:
        log_to_stderr(plan.log_level)
    code = import_string(main)(plan, worker, supervisor, pipe, name)
    pipe.send(("leaving", code))
    leave(code)


def _tell_stacks(stacks: Connection) -> None:
    """Answer each time the supervisor asks; holding the GIL, so that no thread moves on while its frames are read."""
    with contextlib.suppress(OSError):
        while os.read(stacks.fileno(), 1):
            faulthandler.dump_traceback(file=stacks.fileno(), all_threads=True)


def leave(code: int) -> None:
    """End this process with `code`: in order, or after a while without."""
    timer = threading.Timer(LAST_BREATH, os._exit, [code])
    timer.daemon = True
    timer.start()
    sys.exit(code)
