"""What cannot be run fails as an attempt with a readable reason, ends as a dead letter, and holds up nobody."""

from __future__ import annotations

import pytest

from tests.processes import tasks
from tests.processes.harness import count, database_time, dead, execute, is_dead, runs, until, when

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True, available_apps=["django_pgbus"])]

NOTE = "tests.processes.tasks.note"
GOOD = '{"args": [], "kwargs": {}}'
INSERT = """
    INSERT INTO pgbus_messages (queue, task, payload, backend, attempts, delivery)
    VALUES ('default', %s, %s::json, %s, %s, %s)
    RETURNING id
"""

# what, task, payload, backend, what its error says
POISON = [
    ("args are a number", NOTE, '{"args": 1}', "default", "have not the shape"),
    ("args are an object", NOTE, '{"args": {}, "kwargs": {}}', "default", "have not the shape"),
    ("kwargs are a list", NOTE, '{"args": [], "kwargs": []}', "default", "have not the shape"),
    ("a list", NOTE, "[]", "default", "have not the shape"),
    ("null", NOTE, "null", "default", "have not the shape"),
    ("a string", NOTE, '"x"', "default", "have not the shape"),
    ("too many arguments", NOTE, '{"args": [1, 2, 3], "kwargs": {}}', "default", "TypeError"),
    ("unknown argument", NOTE, '{"args": [], "kwargs": {"nobody": 1}}', "default", "nobody"),
    ("deeper than anybody can read", NOTE, "[" * 5000 + "]" * 5000, "default", ""),
    ("NUL", NOTE, '{"args": ["\\u0000"], "kwargs": {}}', "default", "NUL"),
    ("no such module", "nowhere.tasks.run", GOOD, "default", "nowhere"),
    ("no such task", "tests.processes.tasks.deleted", GOOD, "default", "has no 'deleted'"),
    ("not a task", "os.getcwd", GOOD, "default", "not a task"),
    ("a module", "tests.processes", GOOD, "default", "not a task"),
    ("no path", "", GOOD, "default", "not the path of a task"),
    ("a module that raises", "tests.processes.broken_module.run", GOOD, "default", "This module is broken."),
    ("a module that exits", "tests.processes.exiting_module.run", GOOD, "default", "SystemExit"),
    ("code", "__import__('os')._exit(1)", GOOD, "default", "not the path of a task"),
]


@pytest.mark.proves("poison-becomes-a-dead-letter")
def test_poison_dead_letters_with_its_reason_and_the_next_job_runs_at_once(runworker):
    worker = runworker("--threads=1", pgbus={"MAX_ATTEMPTS": 2, "BACKOFF_BASE": 0.2})
    children = worker.ready()
    ids = {}
    for what, task, payload, backend, _ in POISON:
        ((ids[what],),) = execute(INSERT, task, payload, backend, 0, 0)
    sent = database_time()
    tasks.note.enqueue("after")
    until(lambda: runs("after"))
    print(f"behind {len(POISON)} poisoned jobs the next one ran after {when('after', 'ran') - sent:.3f} s")
    for what, *_, says in POISON:
        until(lambda: is_dead(ids[what]))  # noqa: B023
        letter = dead(ids[what])
        assert (letter["attempts"], letter["reason"], len(letter["errors"])) == (2, "exhausted", 2), what
        for error in letter["errors"]:
            assert says in error["exception"] + error["traceback"], what
            assert error["traceback"].strip(), what
    assert worker.children() == children
    assert count("pgbus_messages") == count("pgbus_delayed") == 0
    assert worker.stop() == 0


def test_rows_that_no_code_of_ours_would_write_stop_nobody(runworker):
    worker = runworker("--threads=1", pgbus={"MAX_ATTEMPTS": 2})
    children = worker.ready()
    ((exhausted,),) = execute(INSERT, NOTE, GOOD, "default", 2, 7)
    ((beyond,),) = execute(INSERT, NOTE, GOOD, "default", 2**31 - 10, 7)
    execute(INSERT, NOTE, '{"args": ["negative"], "kwargs": {}}', "default", -3, 7)
    execute(INSERT, NOTE, '{"args": ["foreign"], "kwargs": {}}', "no such backend", 0, 0)
    tasks.note.enqueue("after")
    until(lambda: runs("after") and runs("negative"))
    until(lambda: is_dead(exhausted) and is_dead(beyond))
    assert runs("note") == 0, "No attempt was left: not run once more."
    assert dead(exhausted)["attempts"] == 2
    until(lambda: count("pgbus_messages") == 0)
    print("a row of an unknown backend ran" if runs("foreign") else "a row of an unknown backend failed")
    assert worker.children() == children
    assert "goes on" not in worker.log, worker.log
    assert worker.stop() == 0
