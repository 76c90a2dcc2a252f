"""`pgbus_doctor`: the command, and its looks at the project, the workers and the work."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from io import StringIO

import pytest
from django.conf import settings as project
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings
from django.utils import timezone

import django_pgbus
from django_pgbus.events.models import Subscription
from django_pgbus.models import BlockedExecution
from django_pgbus.queues.models import Delayed, QueueState
from django_pgbus.worker import doctor, doctor_project, doctor_server, doctor_settings, doctor_work
from django_pgbus.worker.findings import Finding, Grade, as_document
from django_pgbus.worker.models import Worker
from tests.jobs import noop
from tests.worker.doctors import complaint, complaints, message, worker_row

pytestmark = pytest.mark.needs_session("the doctor has something to say about a pooler, and looks at sessions")

SUBJECTS = {"configuration", "routing", "clock", "snapshots", *doctor.LOOKS}


# --- the command --------------------------------------------------------------------------------------


def test_a_healthy_system_is_one_line_for_each_look(healthy, monkeypatch):
    monkeypatch.setattr(doctor_settings, "RULES", ())  # of a server that need not be durable
    message()
    out = StringIO()
    call_command("pgbus_doctor", stdout=out, no_color=True)

    lines = out.getvalue().splitlines()
    assert {line.split(":")[0] for line in lines} == {f"ok    {subject}" for subject in SUBJECTS}
    for text in (
        "database: PostgreSQL",
        "routing: all models are read and written on alias 'default'",
        "tables: ",
        "notifications: arrive on alias 'default'",
        f"workers: 1 alive, all of version {django_pgbus.__version__}",
        "queues: 1 living workers, 1 queues with work served",
        "tasks: all 1 that wait",
        "autovacuum: on",
        "may do what a worker does",
    ):
        assert text in out.getvalue()


def test_the_document_for_machines_keeps_its_shape(healthy):
    message(queue="mail")
    Worker.objects.all().delete()
    out = StringIO()
    with pytest.raises(SystemExit) as left:
        call_command("pgbus_doctor", "--json", stdout=out)

    assert left.value.code == 1
    found = json.loads(out.getvalue())
    assert found.keys() == {"format", "version", "grade", "findings"}
    assert (found["format"], found["version"], found["grade"]) == (1, django_pgbus.__version__, "fail")
    assert {tuple(one) for one in found["findings"]} == {("grade", "subject", "text", "remedy", "where")}
    (mail,) = [one for one in found["findings"] if one["where"] == "mail"]
    assert (mail["grade"], mail["subject"]) == ("fail", "queues")


def test_the_worst_grade_stands_for_the_whole():
    ok, warn, fail = (Finding(grade, "s", "t") for grade in Grade)
    assert [as_document(found)["grade"] for found in ([], [ok], [warn, ok], [ok, fail, warn])] == [
        "ok",
        "ok",
        "warn",
        "fail",
    ]


def test_a_warning_is_no_exit_code(healthy, monkeypatch):
    monkeypatch.setattr(doctor_settings, "RULES", ())
    QueueState.objects.create(queue="default", paused_at=timezone.now())
    message()
    out = StringIO()
    call_command("pgbus_doctor", stdout=out, no_color=True)
    assert "warn  queues: 'default' is paused, 1 jobs wait" in out.getvalue()


def test_what_cannot_be_looked_at_says_so_and_the_rest_is_looked_at(healthy, monkeypatch):
    def breaks():
        yield Finding(Grade.OK, "queues", "so far")
        raise ValueError("out of order\nand more")

    monkeypatch.setitem(doctor.LOOKS, "queues", breaks)

    found = list(doctor.examine())
    assert Finding(Grade.FAIL, "queues", "could not be looked at: out of order") in found
    assert Finding(Grade.OK, "queues", "so far") in found
    assert [one for one in found if one.subject == "transactions"]


def test_a_database_that_cannot_be_reached_is_one_line_and_the_exit_code():
    done = subprocess.run(
        [sys.executable, "-m", "django", "pgbus_doctor", "--no-color"],
        env={
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": "postgres://u@127.0.0.1:1/x",
            "PATH": "/usr/bin",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1, done.stderr
    assert "fail  database: alias 'default' cannot be reached" in done.stdout
    assert "Traceback" not in done.stderr


def test_force_belongs_to_a_repair():
    with pytest.raises(CommandError, match="--repair-cursor"):
        call_command("pgbus_doctor", "--force")


# --- the project --------------------------------------------------------------------------------------


class Split:
    """Sends delayed jobs elsewhere, and reads of batches."""

    def db_for_read(self, model, **hints):
        return "other" if model.__name__ in {"Delayed", "Batch"} else None

    def db_for_write(self, model, **hints):
        return "other" if model.__name__ == "Delayed" else None


def test_models_that_are_routed_apart_are_named():
    with override_settings(DATABASE_ROUTERS=["tests.worker.test_doctor.Split"]):
        found = list(doctor_project.routing())

    assert [(one.grade, one.where) for one in found] == [(Grade.FAIL, "Batch"), (Grade.FAIL, "Delayed")]
    assert found[0].text == "Batch are read on 'other' and written on 'default', the others on 'default'"
    assert found[1].text == "Delayed are read on 'other' and written on 'other', the others on 'default'"
    assert "PgbusRouter" in found[0].remedy


@pytest.mark.parametrize(("test", "complains"), [({}, True), ({"MIRROR": "default"}, False)])
def test_an_alias_for_notifications_must_mirror_ours_under_tests(monkeypatch, test, complains):
    monkeypatch.setitem(
        project.DATABASES, "direct", {**project.DATABASES["default"], "PORT": "1", "TEST": {"NAME": None, **test}}
    )
    try:
        with override_settings(PGBUS={"LISTEN_DATABASE": "direct"}):
            (found,) = doctor_project.routing()
    finally:
        del connections["direct"]

    assert (found.grade is Grade.WARN) == complains
    assert ("['TEST'] = {'MIRROR': 'default'}" in found.remedy) == complains


# --- workers and queues -------------------------------------------------------------------------------


def test_a_queue_with_work_and_no_living_worker_fails(healthy):
    Worker.objects.all().delete()
    message(queue="mail")
    message(queue="default")
    worker_row(queues="default: 1")
    gone = worker_row(queues="mail: 1")
    Worker.objects.filter(pk=gone.pk).update(beat_at=gone.started_at - timedelta(minutes=5))

    found = complaint("queues", "mail")
    assert (found.grade, found.text) == (Grade.FAIL, "'mail' has 1 jobs and no living worker")
    assert "--queues 'mail'" in found.remedy


def test_what_is_due_waits_for_a_worker_too(healthy):
    Worker.objects.all().delete()
    for queue, minutes in ("due", -1), ("later", 60):
        due = timezone.now() + timedelta(minutes=minutes)
        Delayed.objects.create(queue=queue, task=noop.module_path, payload="{}", due_at=due)

    assert [one.where for one in complaints()] == ["due"]


def test_a_queue_that_is_a_slip_of_the_pen_is_named_with_the_right_one(healthy):
    Worker.objects.all().delete()
    worker_row(queues="mail,shard1: 1")
    message(queue="mails")
    message(queue="shard2")

    assert (
        complaint("queues", "mails").text == "'mails' has 1 jobs and no living worker; 'mail', one letter away, has one"
    )
    assert complaint("queues", "shard2").text == "'shard2' has 1 jobs and no living worker"


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("mail", "mails", True),
        ("mails", "mail", True),
        ("mail", "nail", True),
        ("abcd", "acbd", True),
        ("mail", "mali", True),
        ("mail", "ail", True),
        ("mail", "mail", False),
        ("mail", "lima", False),
        ("mail", "ma", False),
        ("mail", "mixl", False),
        ("shard1", "shard2", False),
        ("shard1", "shard11", False),
        ("@events", "events", True),
    ],
)
def test_names_that_look_alike(one, other, alike):
    assert doctor_work.looks_like(one, other) is alike


def test_a_paused_queue_and_a_deaf_worker_are_named(healthy):
    message(queue="mail")
    worker_row(name="deaf one", listening=False)
    QueueState.objects.create(queue="mail", paused_at="2026-01-01T00:00Z", paused_by="ann")

    assert complaint("queues", "mail").text == "'mail' is paused by ann, 1 jobs wait"
    assert "hear no notifications" in complaint("workers", "deaf one").text


def test_workers_of_two_versions_are_named(healthy):
    worker_row(name="old", version="0.0.9")

    found = complaint("workers", "0.0.9")
    assert found.grade is Grade.WARN
    assert (
        found.text == f"run pgbus 0.0.9 (old), {django_pgbus.__version__} (w); this code has {django_pgbus.__version__}"
    )


def test_workers_of_another_version_than_this_code_are_named(healthy):
    Worker.objects.update(version="0.0.9")
    assert complaint("workers", "0.0.9").text == f"run pgbus 0.0.9 (w); this code has {django_pgbus.__version__}"


def test_workers_that_need_more_connections_than_there_are(healthy):
    worker_row(name="greedy", capacity=100_000)

    found = complaint("connections", "max_connections")
    assert found.text.startswith(f"2 living workers use up to {100_001 + 2 * doctor_server.BESIDE_ITS_THREADS}")


def test_connections_that_are_nearly_used_up(healthy, monkeypatch):
    monkeypatch.setattr(doctor_server, "NEARLY_FULL", 0.0)
    assert "are in use" in complaint("connections", "max_connections").text


# --- code ---------------------------------------------------------------------------------------------


def test_a_task_that_no_longer_exists_fails_with_how_many_wait(healthy):
    message(task="tests.jobs.gone")
    message(task="tests.jobs.gone")
    BlockedExecution.objects.create(queue="q", task="tests.jobs.gone", payload="{}", waits_for="key", key="k")
    Delayed.objects.create(queue="q", task="nowhere.at.all", payload="{}", due_at="2099-01-01T00:00Z")

    gone, nowhere = complaint("tasks", "tests.jobs.gone"), complaint("tasks", "nowhere.at.all")
    assert gone.text.startswith("tests.jobs.gone waits (3 jobs) and cannot be imported: ")
    assert nowhere.text.startswith("nowhere.at.all waits (1 jobs) and cannot be imported: ")
    assert gone.grade is nowhere.grade is Grade.FAIL


def test_code_that_exits_when_it_is_imported_ends_no_look(healthy):
    message(task="tests.admin.exits.on_import")
    Subscription.objects.create(handler="tests.admin.exits.handler", pattern="a", queue="@events", regex="^a$")

    assert complaint("tasks", "tests.admin.exits.on_import").grade is Grade.FAIL
    assert complaint("events", "tests.admin.exits.handler").grade is Grade.WARN


def test_many_paths_that_no_longer_exist_are_counted(healthy, monkeypatch):
    monkeypatch.setattr(doctor_work, "MOST_NAMED", 2)
    for number in range(5):
        message(task=f"tests.jobs.gone{number}")

    found = [one.text for one in complaints()]
    assert len(found) == 3
    assert found[-1] == "3 more paths wait and cannot be imported, 3 jobs"


def test_a_subscription_that_this_code_cannot_serve_is_named(healthy):
    Subscription.objects.create(handler="shop.handlers.gone", pattern="a", queue="@events", regex="^a$")

    found = complaint("events", "shop.handlers.gone")
    assert "shop.handlers.gone is subscribed, and this code does not have it" in found.text
    assert "--unbind shop.handlers.gone" in found.remedy
