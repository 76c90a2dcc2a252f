"""`manage.py pgbus_mcp`: a real process, asked over its stdin by the SDK's own client."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError
from io import StringIO
from pathlib import Path
from typing import Any

import anyio
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connection
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from django_pgbus.observability.mcp import asgi, extra
from django_pgbus.observability.mcp.tools import TOOLS
from tests.admin import rows
from tests.admin.conftest import Places
from tests.line import COMMITTED
from tests.observability.mcp.test_tools import questions
from tests.processes.harness import MANAGE, PATIENCE, ROOT, described

pytestmark = [COMMITTED, pytest.mark.processes]


def environment(**pgbus: Any) -> dict[str, str]:
    said = {"database": described(connection.settings_dict, {}), "pgbus": pgbus}
    kept = {name: text for name, text in os.environ.items() if name != "DATABASE_URL"}
    return kept | {
        "DJANGO_SETTINGS_MODULE": "tests.processes.settings",
        "PGBUS_TEST_WORKER": json.dumps(said),
        "PGBUS_EMBEDDED": "0",
        "PYTHONPATH": str(ROOT),
    }


def server(**pgbus: Any) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable, args=[str(MANAGE), "pgbus_mcp"], env=environment(**pgbus), cwd=str(ROOT)
    )


def run(talk: Any) -> Any:
    """Run it in a thread of its own: in this one Playwright may have a loop running."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(anyio.run, talk).result()


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_every_tool_is_listed_and_answers(places: Places, tmp_path: Path, mode: Any) -> None:
    rows.a_message(**rows.event(event_id="0192b3f4-0000-7000-8000-0123456789ab"))

    async def talk() -> dict[str, Any]:
        with (tmp_path / "stderr").open("w") as errors, anyio.fail_after(PATIENCE):
            async with Client(stdio_client(server(), errlog=errors), mode=mode) as client:
                listed = (await client.list_tools()).tools
                assert [tool.name for tool in listed] == list(TOOLS)
                assert all(tool.annotations and tool.annotations.read_only_hint for tool in listed)
                return {name: await client.call_tool(name, given) for name, given in questions(places).items()}

    answers = run(talk)
    for name, answered in answers.items():
        assert not answered.is_error, (name, answered.content)
        assert answered.structured_content
    assert answers["pgbus_why"].structured_content["id"] == places.parked.pk


def test_only_the_protocol_goes_to_stdout_whatever_is_printed(tmp_path: Path) -> None:
    job = rows.a_message(task="tests.observability.mcp.noisy.loud", payload=rows.payload("hunter2"))
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {
            "jsonrpc": "2.0",
            "id": 2,
            "method": "tools/call",
            "params": {"name": "pgbus_job", "arguments": {"id": job.pk}},
        },
    ]
    with subprocess.Popen(
        [sys.executable, str(MANAGE), "pgbus_mcp"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(json.dumps(line) + "\n" for line in lines))
        process.stdin.flush()
        answered = [json.loads(process.stdout.readline()) for _ in range(2)]
        rest, errors = process.communicate(timeout=PATIENCE)  # closes stdin, and it ends
        assert process.returncode == 0, errors
    assert [answer["id"] for answer in answered] == [1, 2]
    assert answered[1]["result"]["structuredContent"]["code"] == "task; can be imported here"
    assert rest == ""
    for noise in ("noise of Python", "noise of C", "noise of a child"):
        assert noise in errors


def test_what_is_no_question_ends_nothing() -> None:
    lines = [
        "no json",
        "[]",
        '{"jsonrpc": "2.0"}',
        '{"jsonrpc":"2.0","id":9,"method":"ping","params":{"x":"\\ud800"}}',
        "",
    ]
    good = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    with subprocess.Popen(
        [sys.executable, str(MANAGE), "pgbus_mcp"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n".join([*lines, json.dumps(good)]) + "\n")
        process.stdin.flush()
        while (answered := json.loads(process.stdout.readline())).get("id") != 1:
            assert "error" in answered
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
    assert answered["result"]["serverInfo"]["name"] == "django-pgbus"


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for found in (None, "1.27.0"):

        def version(name: str, found: str | None = found) -> str:
            if found is None:
                raise PackageNotFoundError(name)
            return found

        monkeypatch.setattr(extra, "version", version)
        with pytest.raises(CommandError, match=r'version 2; .* Run: pip install "django-pgbus\[mcp\]"'):
            call_command("pgbus_mcp", stdout=StringIO())
        with pytest.raises(ImproperlyConfigured, match="not installed" if found is None else "mcp 1.27.0 is installed"):
            importlib.reload(asgi)


def test_nothing_else_of_pgbus_imports_it() -> None:
    code = """
import django, sys
django.setup()
from django.core.management import load_command_class
import django_pgbus.admin, django_pgbus.checks, django_pgbus.worker.run, django_pgbus.observability
load_command_class("django_pgbus", "pgbus_mcp")
print([name for name in sys.modules if name.partition(".")[0] in {"mcp", "pydantic", "starlette", "anyio"}])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "tests", "version": "1"},
}
