"""What a probe is told."""

from __future__ import annotations

import http.client
import json
import socket
import time
from types import SimpleNamespace

import pytest

from django_pgbus.worker.health import TURN_TAKES, HealthServer, Status
from django_pgbus.worker.ledger import Ledger
from django_pgbus.worker.shutdown import Level

FINE = Status(not_live=[], not_ready=[], processes=[])


@pytest.fixture
def serve():
    servers = []

    def start(look):
        server = HealthServer(("127.0.0.1", 0), look)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.close()


def ask(server, path, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


def slot(state=None, *, stalled=False, failures=0, heard=0.0):
    child = None
    if state is not None:
        ledger = Ledger()
        if state:
            ledger.enter(("state", state))
        child = SimpleNamespace(ledger=ledger, pid=7, heard=time.monotonic() - heard)
    return SimpleNamespace(name="w", child=child, failures=failures, watchdog=SimpleNamespace(stalled=stalled))


def status(*slots, level=Level.RUN, turned=0.0, lost=0):
    return Status.of(slots, level=level, turned=time.monotonic() - turned, lost=lost)


def test_a_worker_that_works_is_live_and_ready(serve):
    server = serve(lambda: status(slot({"state": "running", "running": 3})))

    for path in ("/live", "/ready", "/ready/", "/live?verbose"):
        code, body, headers = ask(server, path)
        assert (code, json.loads(body)["ok"], json.loads(body)["reasons"]) == (200, True, [])
        assert headers["Content-Type"] == "application/json"
        assert "Python" not in headers["Server"]
    assert json.loads(body)["processes"][0]["running"] == 3


@pytest.mark.parametrize(
    ("against", "reason"),
    [
        (lambda: status(slot({})), "w: starting"),
        (lambda: status(slot({"state": "starting"})), "w: starting"),
        (lambda: status(slot({"state": "draining"})), "w: draining"),
        (lambda: status(slot({"state": "running", "database": False})), "w: database away"),
        (lambda: status(slot({"state": "running"}, stalled=True, heard=33)), "w: no beat for 33 s"),
        (lambda: status(slot(failures=3)), "w: ended 3 times in a row, starts again"),
        (lambda: status(slot()), "w: not running"),
        (lambda: status(slot({"state": "running"}), level=Level.DRAIN), "stopping"),
        (lambda: status(slot({"state": "running"}), lost=5), "5 jobs of ended processes wait for the database"),
    ],
)
def test_a_worker_that_is_not_ready_says_why_and_stays_live(serve, against, reason):
    server = serve(against)

    code, body, _ = ask(server, "/ready")
    assert (code, json.loads(body)["reasons"]) == (503, [reason])
    assert ask(server, "/live")[0] == 200


def test_a_supervisor_that_hangs_is_not_live(serve):
    server = serve(lambda: status(slot({"state": "running"}), turned=TURN_TAKES + 1))

    code, body, _ = ask(server, "/live")
    assert (code, json.loads(body)["reasons"]) == (503, ["no turn for 31 s"])
    assert ask(server, "/ready")[0] == 503


def test_other_paths_and_methods(serve):
    server = serve(lambda: FINE)

    assert ask(server, "/")[0] == 404
    assert ask(server, "/metrics")[0] == 404
    assert ask(server, "/live", "HEAD")[:2] == (200, b"")
    assert ask(server, "/live", "POST")[0] == 501


def test_a_client_that_says_nothing_holds_up_nobody(serve):
    server = serve(lambda: FINE)

    with socket.create_connection(("127.0.0.1", server.port)):
        assert ask(server, "/live")[0] == 200


def test_a_port_that_is_taken_is_an_error_at_once(serve):
    taken = serve(lambda: FINE).port

    with pytest.raises(OSError, match="in use"):
        HealthServer(("127.0.0.1", taken), lambda: FINE)


def test_a_port_is_free_again_after_the_end():
    server = HealthServer(("127.0.0.1", 0), lambda: FINE)
    server.close()
    HealthServer(("127.0.0.1", server.port), lambda: FINE).close()
