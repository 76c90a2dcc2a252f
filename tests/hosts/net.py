"""Hosts: network namespaces on a bridge, each with an address and a name of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


@dataclass(frozen=True, slots=True)
class Host:
    """One of them."""

    name: str
    address: str
    port: str  # of the bridge, where its cable is plugged in
    bridge: str

    @property
    def prefix(self) -> list[str]:
        """Return what a command begins with that is to run there; the process is the one that was started."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name]
        return ["ip", "netns", "exec", self.name, *inside]

    def cut_off(self) -> None:
        """Pull the cable out at the far end: nothing arrives any more, and nobody is told."""
        _ip("link", "set", self.port, "nomaster")

    def bring_back(self) -> None:
        """Plug it in again."""
        _ip("link", "set", self.port, "master", self.bridge)


@dataclass(frozen=True, slots=True)
class Network:
    """The bridge, on which the server listens, and the hosts."""

    address: str
    subnet: str
    hosts: tuple[Host, ...]


@contextlib.contextmanager
def network(number: int) -> Iterator[Network]:
    """Yield so many hosts; raises OSError where they cannot be had."""
    tag = f"pgb{os.getpid() % 100_000}"  # an interface's name has 15 characters
    net = f"10.213.{os.getpid() % 250}"
    hosts = [Host(f"{tag}h{n}", f"{net}.{10 + n}", f"{tag}v{n}", tag) for n in range(1, number + 1)]
    try:
        _ip("link", "add", "name", tag, "type", "bridge")
        _ip("addr", "add", f"{net}.1/24", "dev", tag)
        _ip("link", "set", tag, "up")
        for host in hosts:
            _ip("netns", "add", host.name)
            _ip("link", "add", host.port, "type", "veth", "peer", "name", "eth0", "netns", host.name)
            _ip("link", "set", host.port, "master", tag, "up")
            for words in (("addr", "add", f"{host.address}/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
                _ip("-n", host.name, *words)
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield Network(f"{net}.1", f"{net}.0/24", tuple(hosts))
    finally:
        for host in hosts:
            for words in (("link", "del", host.port), ("netns", "del", host.name)):
                with contextlib.suppress(OSError):
                    _ip(*words)
        with contextlib.suppress(OSError):
            _ip("link", "del", tag)


def why_not() -> str:
    """Return why there can be no hosts here, empty if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [program for program in ("ip", "unshare", "hostname") if shutil.which(program) is None]:
        return f"there is no {missing[0]} here"
    try:
        with network(1):
            return ""
    except OSError as error:
        return str(error)
