"""
Serving over HTTP, beside a Django application.

    from django.core.asgi import get_asgi_application
    from django_pgbus.observability.mcp.asgi import with_mcp

    application = with_mcp(get_asgi_application(), path="/pgbus/mcp")

Off until `PGBUS["MCP_TOKEN"]` is set; then each request has to bring it as `Authorization: Bearer ...`. It must be made for
a host of `ALLOWED_HOSTS`, and a browser's must come from this very site (or CSRF_TRUSTED_ORIGINS): a page elsewhere cannot
reach the server through a name that it has pointed here. There are no sessions, each request is answered by itself, so any
number of processes may serve, and no lifespan of the ASGI server is needed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, MutableMapping
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.core.handlers.asgi import ASGIRequest

from django_pgbus.conf import get_settings
from django_pgbus.observability.access import bearer, is_token
from django_pgbus.observability.mcp.extra import require

require()  # before what needs it is imported

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: E402

from django_pgbus.observability.mcp.server import build  # noqa: E402

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# It says of every request that it has started; whoever wants to read that can still ask for it.
logging.getLogger("mcp.server.streamable_http_manager").setLevel(logging.WARNING)

CHALLENGE: Final = 'Bearer realm="pgbus"'
Refusal = tuple[int, str, dict[str, str]]


def with_mcp(application: Application, path: str = "/pgbus/mcp") -> Application:
    """Return an application that serves MCP at `path`, and all else as the given one does."""
    at = "/" + path.strip("/")

    async def both(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _path(scope).rstrip("/") == at:
            await mcp_application(scope, receive, send)
        else:
            await application(scope, receive, send)

    return both


async def mcp_application(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer one request, wherever it was routed from."""
    if refusal := _refusal(scope):
        await _answer(send, *refusal)
        return
    manager = StreamableHTTPSessionManager(app=build(), stateless=True, json_response=True)
    async with manager.run():
        await manager.handle_request(scope, receive, send)


def _refusal(scope: Scope) -> Refusal | None:
    """Return status, text and headers for a request that is not let in."""
    token = get_settings().MCP_TOKEN
    if token is None:
        return 404, "Not found", {}
    request = ASGIRequest(scope, BytesIO())
    try:
        host = request.get_host()
    except SuspiciousOperation:
        return 400, "This host is not among ALLOWED_HOSTS.", {}
    origin = request.headers.get("Origin")
    if origin is not None and origin != f"{request.scheme}://{host}" and origin not in settings.CSRF_TRUSTED_ORIGINS:
        return 403, "Another site asks.", {}
    given = bearer(request)
    if given is None:
        return 401, "A bearer token is needed.", {"WWW-Authenticate": CHALLENGE}
    if not is_token(given, token):
        return 401, "This is not the token.", {"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'}
    if request.method != "POST":  # a GET would open a stream on which nothing is ever sent
        return 405, "Ask with POST.", {"Allow": "POST"}
    return None


def _path(scope: Scope) -> str:
    """Return the path below the script's prefix."""
    path, root = str(scope.get("path", "")), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root and path.startswith(root) else path


async def _answer(send: Send, status: int, text: str, headers: dict[str, str]) -> None:
    body = text.encode()
    named = {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body)), **headers}
    pairs = [(name.lower().encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
