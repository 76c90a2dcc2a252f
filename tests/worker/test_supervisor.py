"""Real processes, killed in every way: what they held is set right, and they are replaced or not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from django.db import OperationalError

from django_pgbus import signals
from django_pgbus.worker import supervisor as supervisor_module
from django_pgbus.worker.ledger import Holding, TimedOut
from django_pgbus.worker.plan import Capsule, WorkerPlan
from django_pgbus.worker.shutdown import Demands, Level
from django_pgbus.worker.supervisor import Supervisor

from .test_plan import process_plan

HELD = [Holding(1, 3, True, False), Holding(2, 1, False, True)]


pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def _light_children(monkeypatch):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.worker.child_settings")


def eventually(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "It did not happen."
        time.sleep(0.005)
    return result


@dataclass
class Recorder:
    """Stands for the database; what was done to whose jobs."""

    calls: list[tuple] = field(default_factory=list)
    away: int = 0  # so many calls find no database
    broken: bool = False

    def _record(self, *call):
        if self.broken:
            raise ValueError("a bug")
        if self.away:
            self.away -= 1
            raise OperationalError("the database is away")
        self.calls.append(call)

    def reap(self, held):
        self._record("reap", list(held))

    def hand_back(self, held):
        self._record("hand_back", list(held))

    def fail_timed_out(self, held, timed_out, worker):
        self._record("fail_timed_out", held, timed_out)

    def release_ranges(self, worker, *, stopped):
        pass

    def look_in_its_place(self, worker): ...

    def hand_back_unreported(self, worker):
        pass

    def rest(self):
        pass


class Running:
    """A supervisor in a thread of the test."""

    def __init__(self, main, *, argument="x", processes=1, **given):
        self.ends, self.starts, self.stalls = [], [], []
        self.recorder = given.pop("recorder", Recorder())
        self.wishes = Demands()
        capsules = (Capsule(queues=(argument,), threads=1),)
        plan = process_plan(**{"capsules": capsules, "grace": 30.0, **given})
        self.supervisor = Supervisor(
            WorkerPlan(process=plan, name="w", processes=processes),
            wishes=self.wishes,
            repairer=self.recorder,
            main=f"tests.worker.children.{main}",
        )
        self.code = None
        self.thread = threading.Thread(target=self._run, name="supervisor")

    def _run(self):
        self.code = self.supervisor.run()

    def wait(self, seconds=20.0):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "The supervisor goes on."
        return self.code

    @property
    def children(self):
        return [slot.child for slot in self.supervisor.slots if slot.child is not None]

    def child(self, phase="running"):
        """Return the first child, once it works."""
        return eventually(lambda: next((c for c in self.children if c.ledger.phase == phase), None))

    def stop(self, level=Level.DRAIN):
        self.wishes.ask(level)
        return self.wait()


@contextmanager
def running(main, **given):
    run = Running(main, **given)
    hooks = {
        signals.process_started: lambda **said: run.starts.append(said),
        signals.process_ended: lambda **said: run.ends.append(said),
        signals.worker_stalled: lambda **said: run.stalls.append(said),
    }
    for hook, receiver in hooks.items():
        hook.connect(receiver)
    run.thread.start()
    try:
        yield run
    finally:
        run.wishes.ask(Level.KILL)
        run.thread.join(20)
        for hook, receiver in hooks.items():
            hook.disconnect(receiver)
        run.wishes.close()
    assert not run.thread.is_alive()


def test_a_stop_drains_every_process_and_starts_none():
    with running("idle", processes=2) as run:
        eventually(lambda: len([c for c in run.children if c.ledger.phase == "running"]) == 2)
        assert run.stop() == 0

    assert [
        (end["name"], end["code"], end["ending"], end["restart"]) for end in sorted(run.ends, key=lambda e: e["name"])
    ] == [
        ("w:0", 0, "done", None),
        ("w:1", 0, "done", None),
    ]
    assert len(run.starts) == 2
    assert run.recorder.calls == []


def test_what_was_left_after_the_grace_is_handed_back_once_the_process_is_gone():
    with running("busy_for_its_grace", grace=0.3) as run:
        pid = run.child().pid
        eventually(lambda: run.child().ledger.running == [1])
        assert run.stop() == 0

    assert not Path(f"/proc/{pid}").exists()
    assert run.recorder.calls == [("hand_back", HELD)]


def test_the_second_demand_stops_at_once():
    with running("busy", grace=600.0) as run:
        eventually(lambda: run.child().ledger.running == [1])
        run.wishes.ask(Level.DRAIN)
        eventually(lambda: run.supervisor.level == Level.DRAIN)
        assert run.stop(Level.NOW) == 0

    assert [end["ending"] for end in run.ends] == ["stopped"]
    assert run.recorder.calls == [("hand_back", HELD)]


def test_a_process_that_obeys_nothing_is_killed_but_not_before_its_grace_and_a_margin(monkeypatch, tmp_path):
    monkeypatch.setattr(supervisor_module, "MARGIN", 0.3)
    with running("deaf", argument=str(tmp_path / "deaf"), grace=0.7) as run:
        run.child()
        began = time.monotonic()
        assert run.stop() == 0
        took = time.monotonic() - began

    assert took >= 0.7 + 2 * 0.3
    assert [(end["code"], end["ending"]) for end in run.ends] == [(-signal.SIGKILL, "stopped")]
    assert run.recorder.calls == [("hand_back", HELD)]


def test_the_third_demand_kills(tmp_path):
    with running("deaf", argument=str(tmp_path / "deaf"), grace=600.0) as run:
        run.child()
        assert run.stop(Level.KILL) == 0

    assert run.recorder.calls == [("hand_back", HELD)]


@pytest.mark.parametrize("code", ["0", "1", "64", "65", "66", "70"])
def test_a_job_that_calls_exit_keeps_its_attempt_whatever_the_code(code):
    with running("ends_with", argument=code) as run:
        eventually(lambda: len(run.starts) >= 2)
        run.stop(Level.KILL)

    assert run.ends[0]["ending"] == "died"
    assert run.recorder.calls[0] == ("reap", HELD)


@pytest.mark.parametrize(("main", "kill"), [("busy", signal.SIGKILL), ("segfaults", None)])
def test_a_process_that_dies_is_reaped_at_once_and_replaced(main, kill):
    with running(main, grace=600.0) as run:
        if kill:
            eventually(lambda: run.child().ledger.running == [1])
            os.kill(run.child().pid, kill)
        eventually(lambda: len(run.starts) >= 2)
        assert run.recorder.calls[0] == ("reap", HELD)
        run.stop(Level.KILL)

    assert run.ends[0]["ending"] == "died"
    assert run.ends[0]["restart"] > 0
    assert run.starts[0]["worker"] != run.starts[1]["worker"]


def test_a_hard_timeout_fails_its_job_and_hands_the_others_back():
    with running("times_out") as run:
        eventually(lambda: len(run.starts) >= 2)
        run.stop(Level.KILL)

    assert run.recorder.calls[:2] == [
        ("fail_timed_out", HELD[0], TimedOut(1, 2, 7.5)),
        ("hand_back", HELD[1:]),
    ]


def test_a_recycled_process_is_replaced_without_delay():
    with running("returns", argument="66") as run:
        eventually(lambda: len(run.starts) >= 3)
        run.stop(Level.KILL)

    assert {end["restart"] for end in run.ends[:2]} == {0.0}
    assert run.recorder.calls == []


@pytest.mark.parametrize(
    ("main", "told"), [("declares", ["True", "False", "False"]), ("dies_once", ["True", "True", "False"])]
)
def test_a_replacement_declares_only_what_no_process_has_declared_yet(main, told, tmp_path):
    """It may be of an old version by now: what it would write is what newer workers have replaced."""
    path = tmp_path / "told"
    with running(main, argument=str(path)) as run:
        eventually(lambda: len(run.ends) >= 3)
        run.stop(Level.KILL)

    assert path.read_text().split()[:3] == told


def test_what_one_process_has_declared_no_other_declares_again(tmp_path):
    path = tmp_path / "told"
    with running("declares", argument=str(path), processes=2) as run:
        eventually(lambda: len(run.ends) >= 4)
        run.stop(Level.KILL)

    assert path.read_text().split().count("True") <= 2


def test_a_process_that_cannot_start_is_tried_again_ever_more_slowly():
    with running("cannot_start") as run:
        eventually(lambda: len(run.ends) >= 4)
        status = run.supervisor.status()
        assert run.stop() == 0

    waits = [end["restart"] for end in run.ends[:4]]
    assert all(least <= wait <= 2 * least for least, wait in zip([0.125, 0.25, 0.5, 1.0], waits, strict=True))
    assert "w: ended" in status.not_ready[0]


def test_demands_are_obeyed_while_a_restart_is_waited_for():
    with running("cannot_start") as run:
        eventually(lambda: len(run.ends) >= 3)
        began = time.monotonic()
        assert run.stop() == 0
    assert time.monotonic() - began < 1.0


def test_a_database_that_is_away_is_tried_again_until_it_is_back():
    recorder = Recorder(away=2)
    with running("busy", grace=600.0, recorder=recorder) as run:
        eventually(lambda: run.child().ledger.running == [1])
        os.kill(run.child().pid, signal.SIGKILL)
        eventually(lambda: len(run.starts) == 2)  # It is replaced all the same.
        eventually(lambda: recorder.calls)
        run.stop(Level.NOW)

    assert recorder.calls[0] == ("reap", HELD)


def test_a_stop_does_not_wait_for_a_database_that_does_not_come_back(monkeypatch):
    monkeypatch.setattr(supervisor_module, "REPAIR_TIME", 0.5)
    given_up = []

    def receiver(**said):
        given_up.append(said["count"])

    signals.repair_failed.connect(receiver)
    with running("busy_for_its_grace", grace=0.0, recorder=Recorder(away=10**6)) as run:
        eventually(lambda: run.child().ledger.running == [1])
        assert run.stop() == 1
    signals.repair_failed.disconnect(receiver)

    assert given_up == [2]


def test_a_repair_that_fails_for_another_reason_is_given_up_and_blocks_no_other(monkeypatch):
    monkeypatch.setattr("django_pgbus.worker.repairs.LONGEST_BACKOFF", 0.01)
    given_up = []

    def receiver(**said):
        given_up.append(said["count"])

    signals.repair_failed.connect(receiver)
    recorder = Recorder(broken=True)
    with running("busy", grace=600.0, recorder=recorder) as run:
        eventually(lambda: run.child().ledger.running == [1])
        os.kill(run.child().pid, signal.SIGKILL)
        eventually(lambda: given_up)
        recorder.broken = False
        eventually(lambda: len(run.starts) == 2 and run.child().ledger.running == [1])
        assert run.stop(Level.NOW) == 0
    signals.repair_failed.disconnect(receiver)

    assert given_up == [2]
    assert recorder.calls == [("hand_back", HELD)]


@pytest.mark.parametrize(("answer", "code"), [("0", 0), ("1", 1)])
def test_a_burst_ends_when_its_processes_do_and_says_whether_runs_failed(answer, code):
    with running("returns", argument=answer, burst=True, processes=2) as run:
        assert run.wait() == code
    assert len(run.starts) == 2


def test_a_burst_that_cannot_start_gives_up(monkeypatch):
    monkeypatch.setattr(supervisor_module, "BURST_STARTS", 2)
    with running("cannot_start", burst=True) as run:
        assert run.wait() == 1
    assert len(run.starts) == 2


def test_a_burst_goes_on_after_a_process_that_died():
    with running("ends_with", argument="9", burst=True) as run:
        eventually(lambda: len(run.starts) >= 2)
        run.stop(Level.KILL)
    assert run.code == 1
    assert run.recorder.calls[0] == ("reap", HELD)


def test_reports_of_many_jobs_are_followed_up_to_the_last():
    with running("talks_much") as run:
        eventually(lambda: run.ends)
        run.stop(Level.KILL)
    assert run.ends[0]["held"] == 1
    assert run.recorder.calls[0] == ("reap", [Holding(99_999, 1, True, False)])


def test_a_c_call_that_keeps_the_gil_is_named_with_what_ran():
    with running("keeps_the_gil", lease=1.0, beat=0.3) as run:
        eventually(lambda: run.stalls)
        status = run.supervisor.status()
        eventually(lambda: not run.supervisor.status().not_ready)
        assert run.stop() == 0

    (stall,) = run.stalls
    assert stall["running"] == [7]
    assert stall["seconds"] >= 1.0
    assert "a_job_that_calls_c" in stall["stacks"]
    assert "no beat" in status.not_ready[0]
    assert run.ends[0]["ending"] == "done"


def test_a_silent_process_is_named_with_what_runs_in_it_and_lives():
    """Its threads run while their stacks are told: by a thread that holds the GIL, not by a signal."""
    with running("silent", lease=1.0, beat=0.3) as run:
        child = run.child()
        demanded = []
        child.demand_stacks = lambda: demanded.append(True)
        eventually(lambda: run.stalls)
        assert child.ended() is None
        assert run.stop() == 0

    (stall,) = run.stalls
    assert "a_job_in_python" in stall["stacks"]
    assert stall["running"] == [7]
    assert demanded == []
    assert run.ends[0]["ending"] == "done"


def test_a_suspended_process_is_named_and_lives_on():
    """No signal waits for it that would read its threads' frames while they go on."""
    with running("silent", lease=1.0, beat=0.3) as run:
        child = run.child()
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: run.stalls)
        suspended = child.is_suspended
        pending = pending_signals(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        eventually(lambda: "a_job_in_python" in child.stacks.decode())
        assert child.ended() is None
        assert run.stop() == 0

    assert suspended
    assert signal.SIGUSR2 not in pending
    assert run.stalls[0]["stacks"] == ""
    assert run.ends[0]["ending"] == "done"


def test_a_process_that_ends_before_it_reads_that_it_was_asked_ends_alone():
    """What nobody has read makes its end a reset of the connection, and not an end of the file."""
    with running("idle") as run:
        child = run.child()
        os.kill(child.pid, signal.SIGSTOP)
        eventually(lambda: child.is_suspended)
        child.ask_for_stacks()
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: run.ends)
        eventually(lambda: run.child().pid != child.pid)
        assert run.stop() == 0

    assert run.ends[0]["ending"] == "died"


def pending_signals(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    found = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return {number for number in signal.valid_signals() if any(mask >> (number - 1) & 1 for mask in found)}


def script(tmp_path, main, argument, before="", then=""):
    """Start a supervisor in a process of its own, with its signals taken over."""
    code = f"""
    import sys
    import django
    django.setup()
    from django_pgbus import signals
    from django_pgbus.worker.plan import Capsule, WorkerPlan
    from django_pgbus.worker.shutdown import demands
    from django_pgbus.worker.supervisor import Supervisor
    from tests.worker.test_plan import process_plan
    from tests.worker.test_supervisor import Recorder

    def say(kind):
        def receiver(**said):
            print(kind, said.get("pid"), said.get("ending", said.get("level")), flush=True)
        return receiver

    receivers = [say("started"), say("ended"), say("stop")]
    signals.process_started.connect(receivers[0])
    signals.process_ended.connect(receivers[1])
    signals.stop_demanded.connect(receivers[2])
    if __name__ == "__main__":
        demands().install()
        recorder = Recorder()
        plan = process_plan(capsules=(Capsule(queues=({argument!r},), threads=1),), grace=600.0)
        supervisor = Supervisor(
            WorkerPlan(process=plan, name="w"),
            wishes=demands(), repairer=recorder, main="tests.worker.children.{main}",
        )
        code = supervisor.run()
        print("calls", *[call[0] for call in recorder.calls], flush=True)
        sys.exit(code)
    """
    path = tmp_path / "supervisor_script.py"
    path.write_text(textwrap.dedent(code))
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "DJANGO_SETTINGS_MODULE": "tests.worker.child_settings"}
    return subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=root,
        start_new_session=True,
    )


@contextmanager
def a_process(*args, **kwargs):
    process = script(*args, **kwargs)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.stdout.close()
        process.wait(20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
def test_signals_are_counted_first_drain_then_stop_then_kill(tmp_path, number):
    place = tmp_path / "deaf"
    with a_process(tmp_path, "deaf", str(place)) as process:
        assert process.stdout.readline().startswith("started")
        eventually(place.exists)
        for level in (1, 2, 3):
            process.send_signal(number)
            assert process.stdout.readline() == f"stop None {level}\n"
        assert process.stdout.readline().startswith("ended")
        process.stdout.readline()
        assert process.wait(20) == 0


def test_a_signal_to_the_whole_group_is_one_wish(tmp_path):
    """Ctrl-C, and systemd."""
    with a_process(tmp_path, "idle", "x") as process:
        pid = int(process.stdout.readline().split()[1])
        eventually(lambda: os.getpgid(pid) == pid)  # The child stands apart, and drains because it is told to.
        os.killpg(process.pid, signal.SIGINT)
        said = process.stdout.read().splitlines()
        # On a busy machine SIGTERM may reach the child before it has taken the signal over: then it "stopped".
        assert said in (["stop None 1", f"ended {pid} {how}", "calls"] for how in ("done", "stopped"))
        assert process.wait(20) == 0


def test_a_death_is_noticed_although_its_descriptors_live_on(tmp_path):
    place = tmp_path / "helper"
    with a_process(tmp_path, "leaves_a_process", str(place)) as process:
        pid = process.stdout.readline().split()[1]
        assert process.stdout.readline() == f"ended {pid} died\n"
        os.kill(int(place.read_text()), signal.SIGKILL)
        process.send_signal(signal.SIGKILL)


def test_a_child_drains_when_its_supervisor_is_killed(tmp_path):
    place = tmp_path / "orphan"
    with a_process(tmp_path, "stays_after_its_supervisor", str(place)) as process:
        eventually(place.with_suffix(".pid").exists)
        process.kill()
        eventually(place.exists)
        assert place.read_text() == "drained" or eventually(lambda: place.read_text() == "drained")
        pid = int(place.with_suffix(".pid").read_text())
        eventually(lambda: not Path(f"/proc/{pid}").exists())
