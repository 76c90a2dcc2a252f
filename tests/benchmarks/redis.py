"""
A Redis for the peers that keep their jobs there, beside the PostgreSQL of the benchmark; Debian's `redis-server`.

As durable as Redis is run for queues: an append-only file that is synced once a second. What was written in the last
second may be lost with the machine, which PostgreSQL's commits are not. It listens on a socket in its own folder, as the
PostgreSQL of the benchmark does, so no port is taken.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SETTINGS: Final = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
PATIENCE: Final = 10.0  # seconds until it answers


@dataclass(frozen=True, slots=True)
class Keys:
    """What is in Redis, in the shape of a database of the server."""

    socket: str
    name: str = "redis"

    @property
    def url(self) -> str:
        """Return how Celery connects to it."""
        return f"redis+socket://{self.socket}"

    def value(self, question: str) -> int:
        """Return the sum of the numbers that these commands, parted by semicolons, answer."""
        with self.asking(question) as value:
            return value()

    @contextlib.contextmanager
    def asking(self, question: str) -> Iterator[Callable[[], int]]:
        """Open a connection for a block, and return a function that asks for one number through it."""
        with _connected(self.socket) as ask:
            yield lambda: sum(int(ask(command)) for command in question.split("; "))

    def settle(self) -> None:
        """Nothing lies behind that would cost later."""

    def told(self, name: str) -> str:
        """Return one line of INFO."""
        with _connected(self.socket) as ask:
            found = re.search(rf"^{name}:(.*?)\r?$", ask("INFO everything"), re.MULTILINE)
        assert found is not None, name
        return found[1]


class Redis:
    """The server, which starts when it is first asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()
        self.version = ""

    @contextlib.contextmanager
    def fresh(self) -> Iterator[Keys]:
        """Return it, emptied, for the length of a block."""
        if self._process is None:
            self._start()
        keys = Keys(str(self._folder / "socket"))
        with _connected(keys.socket) as ask:
            ask("FLUSHALL")
        yield keys

    def describe(self) -> dict[str, Any]:
        """Return the settings that the figures depend on, nothing where it was not used."""
        return {"redis": {"server_version": self.version, **SETTINGS}} if self.version else {}

    def close(self) -> None:
        """End it and remove what it wrote."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self) -> None:
        # A folder with a short name: the path of a socket has 107 bytes at most.
        self._folder = Path(tempfile.mkdtemp(prefix="pgbus-redis-", dir=os.environ.get("BENCH_FOLDER")))
        where = {"port": "0", "unixsocket": str(self._folder / "socket"), "dir": str(self._folder)}
        options = [text for name, value in (where | SETTINGS).items() for text in (f"--{name}", value)]
        # So that it ends with a benchmark that is killed.
        tied = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
        self._process = subprocess.Popen([*tied, "redis-server", *options], stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE
        while not (self._folder / "socket").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)
        self.version = Keys(where["unixsocket"]).told("redis_version")


@contextlib.contextmanager
def _connected(path: str) -> Iterator[Callable[[str], str]]:
    """Yield a function that sends one command and returns its answer: a number, a status, or a text."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        with connection.makefile("rwb") as stream:

            def ask(command: str) -> str:
                stream.write(command.encode() + b"\r\n")
                stream.flush()
                kind, answer = (line := stream.readline())[:1], line[1:].strip().decode()
                if kind == b"-" or not line:
                    raise RuntimeError(f"Redis to {command}: {answer or 'nothing'}")
                return stream.read(int(answer) + 2).decode() if kind == b"$" else answer

            yield ask
