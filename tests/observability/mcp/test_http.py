"""The server beside a Django application: with the SDK's client, under a real ASGI server, and without a token."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from django.core.asgi import get_asgi_application
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from django_pgbus.observability.mcp.asgi import with_mcp
from django_pgbus.observability.mcp.tools import TOOLS
from tests.admin import rows
from tests.admin.conftest import Places
from tests.docs.pages import blocks_of
from tests.line import COMMITTED
from tests.observability.mcp.test_tools import questions

pytestmark = COMMITTED

TOKEN = "of-the-tests-4711"
PATIENCE = 40
QUESTION = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pgbus_queues", "arguments": {}}}
ASKS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
KNOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def token(settings: Any) -> None:
    settings.PGBUS = {"MCP_TOKEN": TOKEN}
    settings.ALLOWED_HOSTS = ["shop.example", "127.0.0.1"]


@pytest.fixture(scope="module")
def application() -> Any:
    return with_mcp(get_asgi_application())


def post(application: Any, headers: dict[str, str], path: str = "/pgbus/mcp", host: str = "shop.example") -> Any:
    """Return the answer to one question over HTTP."""

    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.post(path, headers={**ASKS, **headers}, content=json.dumps(QUESTION))

    return anyio.run(ask)


# --- the SDK's client ----------------------------------------------------------------------------------


async def _talk(url: str, places: Places, mode: Any, **client: Any) -> dict[str, Any]:
    async with (
        httpx2.AsyncClient(headers=KNOWN, **client) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as asked,
    ):
        assert [tool.name for tool in (await asked.list_tools()).tools] == list(TOOLS)
        return {name: await asked.call_tool(name, given) for name, given in questions(places).items()}


def _answered(answers: dict[str, Any], places: Places) -> None:
    for name, answered in answers.items():
        if name != "pgbus_event":  # there is none
            assert not answered.is_error, (name, answered.content)
    assert answers["pgbus_why"].structured_content["id"] == places.parked.pk


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_client_lists_and_calls_every_tool(places: Places, application: Any, mode: Any) -> None:
    async def talk() -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            transport = httpx2.ASGITransport(application)
            return await _talk("http://shop.example/pgbus/mcp", places, mode, transport=transport)

    _answered(anyio.run(talk), places)


@pytest.fixture
def served(application: Any) -> Iterator[str]:
    """A real ASGI server, in a thread of its own."""
    config = uvicorn.Config(application, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    started = threading.Event()
    real: Callable[..., Awaitable[None]] = server.startup

    async def startup(*args: Any, **kwargs: Any) -> None:
        await real(*args, **kwargs)
        started.set()

    server.startup = startup  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    assert started.wait(PATIENCE)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_real_server_serves_it_beside_django(places: Places, served: str) -> None:
    async def talk() -> dict[str, Any]:
        with anyio.fail_after(PATIENCE):
            async with httpx2.AsyncClient() as http:
                page = await http.get(f"{served}/nowhere/")
                assert (page.status_code, page.headers["X-Frame-Options"]) == (404, "DENY")  # Django's middleware
            return await _talk(f"{served}/pgbus/mcp", places, "auto")

    _answered(anyio.run(talk), places)


# --- who is let in -------------------------------------------------------------------------------------


def test_it_is_off_until_a_token_is_set(application: Any, settings: Any) -> None:
    assert post(application, KNOWN).status_code == 200
    settings.PGBUS = {}
    for headers in ({}, KNOWN, {"Authorization": "Bearer None"}, {"Authorization": "Bearer "}):
        assert post(application, headers).status_code == 404


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        TOKEN,
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        "Bearer n\u00f6",
        f"Bearer {TOKEN} {TOKEN}",
    ],
)
def test_without_the_token_nobody_is_let_in(application: Any, header: str | None) -> None:
    rows.a_message(queue="hidden")
    given = {} if header is None else {"Authorization": header.encode("latin-1")}
    answered = post(application, given)  # type: ignore[arg-type]
    assert answered.status_code == 401
    assert answered.headers["WWW-Authenticate"].startswith('Bearer realm="pgbus"')
    assert ('error="invalid_token"' in answered.headers["WWW-Authenticate"]) is bool(
        header and re.match(r"Bearer(?: |$)", header)
    )
    assert "hidden" not in answered.text
    assert TOKEN not in answered.text


def test_with_the_token_the_answer_is_one_json_document(application: Any) -> None:
    rows.a_message(queue="reports")
    answered = post(application, {"Authorization": f"bearer {TOKEN}"})
    assert answered.status_code == 200
    assert answered.headers["Content-Type"] == "application/json"
    (queue,) = answered.json()["result"]["structuredContent"]["queues"]
    assert queue["name"] == "reports"


def test_only_our_own_hosts_are_answered(application: Any) -> None:
    assert post(application, KNOWN, host="attacker.example").status_code == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://shop.example", 200),
        ("https://tools.example", 200),
        ("https://attacker.example", 403),
        ("https://shop.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_a_browser_asks_from_our_own_site_only(application: Any, settings: Any, origin: str, status: int) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://tools.example"]
    assert post(application, {**KNOWN, "Origin": origin}).status_code == status


def test_the_token_is_compared_in_constant_time(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_pgbus.observability import access

    compared = []
    monkeypatch.setattr(access.secrets, "compare_digest", lambda *both: compared.append(both) or False)
    assert post(application, KNOWN).status_code == 401
    assert compared == [(TOKEN.encode(), TOKEN.encode())]


# --- where it stands -----------------------------------------------------------------------------------


def test_all_else_is_djangos(application: Any) -> None:
    assert post(application, KNOWN, path="/pgbus/mcp/other").status_code == 404
    assert post(application, KNOWN, path="/pgbus/mcp/").status_code == 200
    assert post(with_mcp(get_asgi_application(), path="tools/"), KNOWN, path="/tools").status_code == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_questions_are_posted_and_no_stream_is_opened(application: Any, method: str) -> None:
    async def ask() -> httpx2.Response:
        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            with anyio.fail_after(PATIENCE):
                return await client.request(method, "/pgbus/mcp", headers={**KNOWN, "Accept": "text/event-stream"})

    answered = anyio.run(ask)
    assert (answered.status_code, answered.headers["Allow"]) == (405, "POST")


def test_what_is_too_large_is_refused(application: Any) -> None:
    async def ask() -> int:
        transport = httpx2.ASGITransport(application)
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.example") as client:
            body = b'{"x": "' + b"y" * (5 << 20) + b'"}'
            return (await client.post("/pgbus/mcp", headers={**ASKS, **KNOWN}, content=body)).status_code

    assert anyio.run(ask) == 413


def test_the_snippet_of_the_guide_serves(application: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = [
        block for block in blocks_of("guides/mcp.md") if block.language == "python" and "with_mcp" in block.text
    ]
    module = ModuleType("docs_mcp_asgi")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    exec(compile(block.text, "docs/guides/mcp.md", "exec"), module.__dict__)
    assert post(module.application, KNOWN).status_code == 200  # type: ignore[attr-defined]
