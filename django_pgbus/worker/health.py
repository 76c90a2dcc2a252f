"""
Liveness and readiness of a worker over HTTP, for whoever restarts or routes by them.

    GET /live     200 while the supervisor does its work; 503: restart it
    GET /ready    200 while every process works; 503 with the reasons: starting, stalled, database away, stopping

Off until `PGBUS["HEALTH_PORT"]` or `--health-port` is set. It then listens on every address, since probes come from
outside of the container; an answer names processes, states and counts, never a task, an argument or a key. Write
`--health-port 127.0.0.1:8001` to keep it on this machine.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final, Protocol

from django_pgbus.worker.shutdown import Level

EVERYWHERE: Final = ""
TURN_TAKES: Final = 30.0  # seconds without a turn after which the supervisor hangs
CLIENT_TAKES: Final = 5.0


class _Slot(Protocol):
    name: str
    failures: int

    @property
    def child(self) -> Any: ...

    @property
    def watchdog(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Reasons against being live and ready (none: it is), and the processes."""

    not_live: list[str]
    not_ready: list[str]
    processes: list[dict[str, Any]]

    @classmethod
    def of(cls, slots: Iterable[_Slot], *, level: Level, turned: float, lost: int) -> Status:
        """Return the status of a supervisor that made its last turn at `turned` (monotonic)."""
        now = time.monotonic()
        not_live = [f"no turn for {now - turned:.0f} s"] if now - turned > TURN_TAKES else []
        processes = [_process(slot, now) for slot in slots]
        reasons = [f"{process['name']}: {reason}" for process in processes if (reason := process["reason"])]
        if level > Level.RUN:
            reasons.append("stopping")
        if lost:
            reasons.append(f"{lost} jobs of ended processes wait for the database")
        return cls(not_live=not_live, not_ready=not_live + reasons, processes=processes)


def _process(slot: _Slot, now: float) -> dict[str, Any]:
    child, watchdog = slot.child, slot.watchdog
    if child is None:
        reason = f"ended {slot.failures} times in a row, starts again" if slot.failures else "not running"
        return {"name": slot.name, "pid": None, "state": "down", "reason": reason}
    told = child.ledger.state
    state = child.ledger.phase
    if watchdog is not None and watchdog.stalled:
        reason = f"no beat for {now - child.heard:.0f} s"
    elif told.get("database") is False:
        reason = "database away"
    else:
        reason = "" if state == "running" else state
    return {
        "name": slot.name,
        "pid": child.pid,
        "state": state,
        "reason": reason,
        "running": told.get("running", 0),
        "done": child.ledger.done,
        "listening": told.get("listening"),
        "beat_age": round(now - child.heard, 1),
    }


class HealthServer:
    """Answers probes in threads of its own."""

    def __init__(self, address: tuple[str, int], look: Callable[[], Status]) -> None:
        """Bind; raises OSError where the port is taken."""
        self._server = _Server(address, _handler(look))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="pgbus-health", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """End, and free the port."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of this host."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a client that went away."""


def _handler(look: Callable[[], Status]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = CLIENT_TAKES
        server_version = "pgbus"
        sys_version = ""

        def do_GET(self) -> None:
            status = look()
            path = self.path.partition("?")[0].rstrip("/")
            reasons = {"/live": status.not_live, "/ready": status.not_ready}.get(path)
            if reasons is None:
                self._answer(HTTPStatus.NOT_FOUND, {"known": ["/live", "/ready"]})
                return
            body = {"ok": not reasons, "reasons": reasons, "processes": status.processes}
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK, body)

        do_HEAD = do_GET  # noqa: N815  (the name is the standard library's)

        def _answer(self, code: HTTPStatus, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a probe comes every few seconds."""

    return Handler
