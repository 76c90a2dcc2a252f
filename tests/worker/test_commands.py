"""The commands map options to a plan; they decide nothing."""

from __future__ import annotations

import logging
import signal
import socket
import subprocess
import sys
import time

import pytest
from django.conf import settings as project
from django.core.management import CommandError, call_command
from django.core.signals import setting_changed
from django.db import OperationalError, connections
from django.test import override_settings

from django_pgbus import conf, signals
from django_pgbus.worker import autoreload, readiness, run
from django_pgbus.worker.shutdown import Demands, Level
from tests.sessions import execute, until

RUN_WORKER = "django_pgbus.management.commands.runworker"


@pytest.fixture
def planned(monkeypatch):
    """Return what `runworker` with the given options would do."""
    plans = []
    monkeypatch.setattr(f"{RUN_WORKER}.work", lambda plan: plans.append(plan) or 0)
    monkeypatch.setattr(f"{RUN_WORKER}.log_to_stderr", lambda level: None)

    def call(*args, command="runworker", **options):
        call_command(command, *args, skip_checks=True, **options)
        return plans[-1]

    return call


@pytest.fixture
def other_alias():
    """Give the settings back to whoever comes next: `--database` changes them for good."""
    before = getattr(project, "PGBUS", None)
    yield
    if before is None:
        del project.PGBUS
    else:
        project.PGBUS = before
    setting_changed.send(other_alias, setting="PGBUS", value=before, enter=False)
    assert conf.database() == "default"


# --- runworker ----------------------------------------------------------------------------------------


def test_without_options_the_settings_decide(planned):
    with override_settings(PGBUS={"QUEUES": "a: 2", "PROCESSES": 3}):
        plan = planned()

    assert (plan.process.queues_text, plan.processes) == ("a: 2", 3)
    assert plan.process.database == "default"
    assert not plan.process.burst
    assert plan.name == socket.gethostname()[:63]


@pytest.mark.parametrize("command", ["runworker", "pgbus_worker"])
def test_every_option_reaches_the_plan(planned, command):
    plan = planned(
        "--queues=a,b_*:3;c",
        "--exclude-queues=b_x",
        "--threads=2",
        "--processes=4",
        "--burst",
        "--max-jobs=9",
        "--max-memory=512M",
        "--max-age=60",
        "--interval=0.5",
        "--grace=7",
        "--health-port=127.0.0.1:8001",
        "--worker-id=me",
        "-v2",
        command=command,
    )

    process = plan.process
    assert process.queues_text == "a,b_*,!b_x: 3; c,!b_x: 2"
    assert (plan.processes, plan.name, plan.health) == (4, "me", ("127.0.0.1", 8001))
    assert (process.burst, process.max_jobs, process.max_memory, process.max_age) == (True, 9, 512 << 20, 60.0)
    assert (process.poll, process.grace, process.log_level) == (0.5, 7.0, logging.DEBUG)


def test_options_have_the_names_people_know(planned):
    plan = planned(*["--queue-name", "a", "--batch", "--max-tasks", "5", "--name", "w"])

    assert (plan.process.queues_text, plan.process.burst, plan.process.max_jobs, plan.name) == ("a: 10", True, 5, "w")


@override_settings(DEBUG=True)
def test_reloading_is_off_unless_given(planned):
    assert not planned().process.reload
    assert not planned("--no-reload").process.reload
    assert planned("--reload").process.reload


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("--threads 0", "from 1 on"),
        ("--threads many", "no whole number"),
        ("--processes -1", "from 1 on"),
        ("--grace nan", "not negative"),
        ("--grace=-3", "not negative"),
        ("--interval 0", "above 0"),
        ("--interval inf", "finite"),
        ("--max-memory huge", "no amount of memory"),
        ("--max-age=-1", "not negative"),
        ("--health-port 99999", "no port"),
        ("--queues a*b", "a star in the middle"),
        ("--queues a:x", "a number of threads"),
        ("--reload --burst", "drop --burst or --reload"),
        ("--reload --processes 2", "drop --processes or --reload"),
        ("--database nowhere", "no database 'nowhere'"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(planned, args, sentence):
    with pytest.raises(CommandError, match=sentence):
        planned(*args.split())


def test_another_database_is_used_from_then_on(planned, other_alias):
    plan = planned("--database", "other")

    assert plan.process.database == conf.database() == "other"


@pytest.mark.parametrize(("code", "leaves"), [(0, False), (1, True)])
def test_the_exit_code_is_that_of_the_worker(monkeypatch, code, leaves):
    monkeypatch.setattr(f"{RUN_WORKER}.work", lambda plan: code)
    if leaves:
        with pytest.raises(SystemExit) as left:
            call_command("runworker", skip_checks=True)
        assert left.value.code == code
    else:
        call_command("runworker", skip_checks=True)


def test_lines_appear_on_a_terminal_unless_the_project_has_configured_them(capsys, monkeypatch):
    logger = logging.getLogger("django_pgbus")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "level", logging.NOTSET)
    monkeypatch.setattr(f"{RUN_WORKER}.work", lambda plan: logger.info("hello") or 0)

    call_command("runworker", skip_checks=True)
    call_command("runworker", skip_checks=True)

    assert capsys.readouterr().err.count("INFO hello") == 2


# --- what comes before the work -----------------------------------------------------------------------


def test_a_port_that_is_taken_is_said_before_anything_starts(planned):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        plan = planned("--health-port", f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(run.CannotStart, match="cannot listen on port"):
            run.work(plan)


def test_settings_that_no_child_could_read_are_refused(planned, monkeypatch):
    plan = planned()
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with pytest.raises(run.CannotStart, match="set DJANGO_SETTINGS_MODULE"):
        run.work(plan)


@pytest.fixture
def wishes():
    demands = Demands()
    yield demands
    demands.close()


class Said(list):
    def __call__(self, **said):
        self.append(said)


@pytest.fixture
def said():
    said = Said()
    signals.migrations_awaited.connect(said)
    signals.database_lost.connect(said)
    yield said
    signals.migrations_awaited.disconnect(said)
    signals.database_lost.disconnect(said)


def missing(monkeypatch, *answers):
    """Let the database lack migrations, one answer after the other, the last for good."""
    left = list(answers)

    def look():
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(readiness, "missing_migrations", look)
    monkeypatch.setattr(readiness, "LOOK_EVERY", 0.01)


def test_migrations_are_waited_for_and_said_once(monkeypatch, wishes, said):
    missing(monkeypatch, ["pgbus.0001_initial", "shop.0002_x"], ["shop.0002_x"], [])

    assert readiness.wait_for_migrations(wishes) == []
    assert [s["missing"] for s in said] == [["pgbus.0001_initial", "shop.0002_x"]]


def test_only_our_own_missing_migrations_are_a_reason_not_to_start(monkeypatch, wishes, said):
    missing(monkeypatch, ["pgbus.0001_initial", "shop.0002_x"])

    assert readiness.wait_for_migrations(wishes, seconds=0.05) == ["pgbus.0001_initial"]
    assert len(said) == 1


def test_a_database_that_is_not_there_yet_is_waited_for(monkeypatch, wishes, said):
    missing(monkeypatch, OperationalError("starting up"), OperationalError("starting up"), [])
    assert readiness.wait_for_migrations(wishes) == []
    assert [s["part"] for s in said] == ["supervisor"]

    missing(monkeypatch, OperationalError("no such host"))
    with pytest.raises(OperationalError, match="no such host"):
        readiness.wait_for_migrations(wishes, seconds=0.05)


def test_a_stop_is_obeyed_while_migrations_are_waited_for(monkeypatch, wishes, said):
    missing(monkeypatch, ["pgbus.0001_initial"])
    monkeypatch.setattr(readiness, "LOOK_EVERY", 60)
    signals.migrations_awaited.connect(stop := lambda **kwargs: wishes.ask(Level.DRAIN))
    began = time.monotonic()
    assert readiness.wait_for_migrations(wishes) == []
    assert time.monotonic() - began < 10
    del stop


@pytest.mark.django_db(transaction=True)
@pytest.mark.needs_session("it knows sessions by their names")
def test_the_test_database_has_all_migrations_and_no_connection_is_left_over():
    before = connections["default"]

    assert readiness.missing_migrations() == []
    assert connections["default"] is before
    # A backend is listed until it has ended, a moment after its client has left.
    until(lambda: execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbus start'") == [(0,)])


# --- autoreload ---------------------------------------------------------------------------------------


def test_a_reload_drains_the_worker_first(monkeypatch, planned):
    asked = []
    stopped = Demands()

    def stands_for_the_reloader(serve, *args):
        import threading

        threading.Thread(target=serve, args=args, daemon=True).start()
        while not asked:
            time.sleep(0.005)
        raise SystemExit(3)

    def worker(plan, id, supervisor, reports, name):
        asked.append((plan.reload, supervisor, reports))
        while not stopped.wait(10):
            pass
        asked.append("drained")

    monkeypatch.setattr(autoreload.autoreload, "run_with_reloader", stands_for_the_reloader)
    monkeypatch.setattr(autoreload, "import_string", lambda path: worker)
    monkeypatch.setattr(autoreload, "demands", lambda: stopped)
    with pytest.raises(SystemExit) as left:
        run.work(planned("--reload"))
    stopped.close()

    assert left.value.code == 3
    assert asked == [(True, None, None), "drained"]


# --- the whole, once ----------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_signal_is_obeyed_from_the_beginning():
    """Against the database of the settings: where it has no tables, the worker waits for them, and obeys."""
    process = subprocess.Popen(
        [sys.executable, "-m", "django", "runworker", "--health-port", "127.0.0.1:0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if "Waiting for migrations" in line or "started" in line:
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.stderr.close()
        process.wait(20)
