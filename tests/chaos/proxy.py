"""
A proxy before PostgreSQL that drops, refuses, delays, stalls silently, and cuts in the middle of a reply.

It runs in a thread of its own, listens on a TCP port of this machine and leads to the socket of the server. What stalls is
not lost: it stays in the kernel's buffers, acknowledged, as with a host that froze; after it the bytes flow on, or the
connection is reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

CHUNK: Final = 65536
T = TypeVar("T")


class Proxy:
    """A way to the server that can be disturbed; `port` is where it listens."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream  # path of the socket
        self.port = 0
        self.passed = 0  # connections
        self.delay = 0.0  # seconds, for each piece
        self._cut = False
        self._server: asyncio.Server | None = None
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._do(self._listen())
        self._loop.call_soon_threadsafe(self._flows.set)

    # --- what can be done to it, from any thread --------------------------------------------------------

    def connections(self) -> int:
        return len(self._pairs)

    def drop(self) -> int:
        """Reset all connections, and return how many there were."""

        async def drop() -> int:
            pairs = list(self._pairs)
            for pair in pairs:
                _reset(*pair)
            return len(pairs)

        return self._do(drop())

    def refuse(self) -> None:
        """Reset all connections and let nobody in, until `admit`."""

        async def refuse() -> None:
            if self._server is not None:
                self._server.close()
                self._server = None

        self._do(refuse())
        self.drop()

    def admit(self) -> None:
        self._do(self._listen())

    def stall(self) -> None:
        """Pass nothing on, in either direction, until `flow`; who connects meanwhile is let in and hears nothing."""
        self._call(self._flows.clear)

    def flow(self) -> None:
        self._call(self._flows.set)

    def cut(self) -> None:
        """Pass on half of the next reply of each connection, then reset it; until `mend`."""
        self._cut = True

    def mend(self) -> None:
        self._cut = False

    def close(self) -> None:
        self.flow()
        self.refuse()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    # --- inside -----------------------------------------------------------------------------------------

    def _do(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    def _call(self, what: Callable[[], Any]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (what(), done.set()))
        done.wait(10)

    @staticmethod
    async def _end() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.passed += 1
        try:
            there, back = await asyncio.open_unix_connection(self.upstream)
        except OSError:  # The server is down: so are we.
            _reset(writer)
            return
        pair = (writer, back)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pass(reader, back, pair), self._pass(there, writer, pair, replies=True))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.discard(pair)
            _reset(*pair)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Any, *, replies: bool = False
    ) -> None:
        while True:
            await self._flows.wait()
            piece = await reader.read(CHUNK)
            await self._flows.wait()
            if self.delay:
                await asyncio.sleep(self.delay)
            if not piece:
                raise ConnectionResetError
            if self._cut and replies:
                writer.write(piece[: len(piece) // 2])
                await writer.drain()
                raise ConnectionResetError
            writer.write(piece)
            await writer.drain()


def _reset(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        with contextlib.suppress(Exception):
            if (one := writer.get_extra_info("socket")) is not None and one.family == socket.AF_INET:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
