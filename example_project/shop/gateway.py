"""
A payment gateway to practise on: local, idempotent by order number, and flaky.

Of a hundred answers two are failures, chosen by seeded chance for (order, how often it was asked), so a run can be
repeated. Half of the failures come *after* the charge, as a lost answer would: the caller has to ask again, and must
not pay twice.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Gateway:
    """The gateway and what it was asked; `with Gateway() as gateway` serves until the block ends."""

    def __init__(self, *, port: int = 0, failures: float = 0.02, seed: int = 1997, latency: float = 0.005) -> None:
        self.failures = failures
        self.seed = seed
        self.latency = latency
        self.asked: Counter[int] = Counter()
        self.charged: dict[int, int] = {}
        self.confirmed = 0
        self.failed = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", port), _handler_of(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Gateway:
        threading.Thread(target=self._server.serve_forever, name="gateway", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def charge(self, order: int, cents: int) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return status and answer to one question, and remember it."""
        time.sleep(self.latency)
        with self._lock:
            self.asked[order] += 1
            outcome = random.Random(f"{self.seed}/{order}/{self.asked[order]}").random()
            if outcome < self.failures / 2:
                self.failed += 1
                return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "try again"}
            if self.charged.setdefault(order, cents) != cents:
                return HTTPStatus.CONFLICT, {"error": f"order {order} was charged with another amount"}
            if outcome < self.failures:
                self.failed += 1
                return HTTPStatus.GATEWAY_TIMEOUT, {"error": "charged, but the answer got lost"}
            self.confirmed += 1
            return HTTPStatus.OK, {"reference": f"charge-{order}"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # every worker thread may call at once

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a caller that hung up: workers are killed here on purpose."""


def _handler_of(gateway: Gateway) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = gateway.charge(int(asked["order"]), int(asked["cents"]))
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Keep the terminal for the progress bar."""

    return Handler
