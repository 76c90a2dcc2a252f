"""The proxy disturbs what it says it disturbs, and nothing else."""

from __future__ import annotations

import socket
import threading

import pytest

from tests.chaos.proxy import Proxy

PATIENCE = 20.0  # seconds; never a proof


@pytest.fixture
def server(tmp_path):
    """Return the path of a socket behind which everything is said twice."""
    path = str(tmp_path / "s")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=[connection], daemon=True).start()

    def echo(connection: socket.socket) -> None:
        with connection:
            try:
                while piece := connection.recv(1000):
                    connection.sendall(piece * 2)
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield path
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(PATIENCE)


@pytest.fixture
def proxy(server):
    proxy = Proxy(server)
    yield proxy
    proxy.close()


@pytest.fixture
def connect(proxy):
    made = []

    def connect() -> socket.socket:
        made.append(socket.create_connection(("127.0.0.1", proxy.port), PATIENCE))
        return made[-1]

    yield connect
    for one in made:
        one.close()


def ask(connection: socket.socket, text: bytes = b"ab") -> bytes:
    connection.sendall(text)
    return connection.recv(1000)


def is_reset(connection: socket.socket) -> bool:
    try:
        return connection.recv(1000) == b""
    except ConnectionResetError:
        return True


def test_it_passes_on(proxy, connect):
    assert ask(connect()) == b"abab"
    assert proxy.passed == 1


def test_dropped_connections_are_reset_and_new_ones_pass(proxy, connect):
    before = connect()
    assert ask(before) == b"abab"
    assert proxy.drop() == 1
    assert is_reset(before)
    assert ask(connect()) == b"abab"


def test_nobody_is_let_in_while_it_refuses(proxy, connect):
    before = connect()
    assert ask(before) == b"abab"
    proxy.refuse()
    assert is_reset(before)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.admit()
    assert ask(connect()) == b"abab"


def test_a_stall_is_silent_and_loses_nothing(proxy, connect):
    before = connect()
    assert ask(before) == b"abab"
    proxy.stall()
    before.sendall(b"cd")
    before.settimeout(0.3)
    with pytest.raises(TimeoutError):
        before.recv(1000)
    proxy.flow()
    before.settimeout(PATIENCE)
    assert before.recv(1000) == b"cdcd"


def test_a_reply_is_cut_in_the_middle(proxy, connect):
    before = connect()
    assert ask(before) == b"abab"
    proxy.cut()
    before.sendall(b"cd")
    received = b""
    try:
        while piece := before.recv(1000):
            received += piece
    except ConnectionResetError:
        pass
    assert received in {b"cd", b""}  # what was on its way when the reset came may be lost
    proxy.mend()
    assert ask(connect()) == b"abab"
