"""The embedded server: shared by all who ask, gone after the last of them, however they left."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from django_pgbus import embedded
from django_pgbus.embedded import EmbeddedPostgres, EmbeddedPostgresError
from tests.settings import place_for_a_run

ROOT = Path(__file__).parents[1]
USER = """
import sys
from django_pgbus.embedded import EmbeddedPostgres
EmbeddedPostgres(sys.argv[1], keep=sys.argv[2] == "keep").start(fsync="off")
print("up", flush=True)
sys.stdin.read()
"""

Users = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder to be made; its parent is open to root's deputy, as a project's usually is."""
    parent = Path(tempfile.mkdtemp(prefix="pgbus-embedded-", dir=place_for_a_run()))
    parent.chmod(0o755)
    yield parent / "pg"
    wait_until_stopped(parent / "pg")
    shutil.rmtree(parent)


@pytest.fixture
def start_user() -> Iterator[Users]:
    """Start processes that use the server until their stdin closes."""
    started: list[subprocess.Popen[str]] = []

    def start(folder: Path, *, keep: bool = True, wait: bool = True) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", USER, str(folder), "keep" if keep else "delete"]
        user = subprocess.Popen(
            command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        started.append(user)
        if wait:
            await_user(user)
        return user

    yield start
    for user in started:
        leave(user)


def await_user(user: subprocess.Popen[str]) -> None:
    assert user.stdout is not None
    assert user.stderr is not None
    assert user.stdout.readline() == "up\n", user.stderr.read()


def leave(user: subprocess.Popen[str]) -> None:
    user.communicate()


def kill(user: subprocess.Popen[str], number: signal.Signals) -> None:
    user.send_signal(number)
    user.communicate()


def postmaster(folder: Path) -> int:
    """Return the process id of the server that answers."""
    server = EmbeddedPostgres(folder)
    with psycopg.connect(**server.dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    return int((server.cluster / "postmaster.pid").read_text().splitlines()[0])


def is_up(server: EmbeddedPostgres) -> bool:
    return (server.cluster / "postmaster.pid").exists() or has_keeper(server)


def has_keeper(server: EmbeddedPostgres) -> bool:
    try:
        with (server.folder / "keeper").open() as keeper:
            fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def wait_until_stopped(folder: Path) -> None:
    server = EmbeddedPostgres(folder)
    deadline = time.monotonic() + 20
    while is_up(server):
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.02)


def test_an_empty_folder_becomes_a_server_without_a_port(folder, start_user):
    start_user(folder)
    server = EmbeddedPostgres(folder)
    with psycopg.connect(server.url()) as connection:
        assert connection.execute("show listen_addresses").fetchone() == ("",)
        assert connection.execute("show fsync").fetchone() == ("off",)
    assert server.cluster.stat().st_mode & 0o777 == 0o700
    assert server.cluster.stat().st_uid != 0


def test_a_second_user_joins_and_the_last_one_stops_the_server(folder, start_user):
    first = start_user(folder)
    pid = postmaster(folder)
    second = start_user(folder)
    assert postmaster(folder) == pid
    leave(first)
    time.sleep(0.3)  # long enough for a keeper that counts wrongly
    assert postmaster(folder) == pid
    leave(second)
    wait_until_stopped(folder)


def test_three_at_once_share_one_server(folder, start_user):
    users = [start_user(folder, wait=False) for _ in range(3)]
    for user in users:
        await_user(user)
    postmaster(folder)
    for user in users:
        leave(user)
    wait_until_stopped(folder)


def test_data_outlives_the_server(folder, start_user):
    leave_behind = start_user(folder)
    with psycopg.connect(**EmbeddedPostgres(folder).dsn) as connection:
        connection.execute("create table kept ()")
    leave(leave_behind)
    wait_until_stopped(folder)
    start_user(folder)
    with psycopg.connect(**EmbeddedPostgres(folder).dsn) as connection:
        connection.execute("select from kept")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_user_has_left_too(folder, start_user, number):
    killed, other = start_user(folder), start_user(folder)
    kill(killed, number)
    postmaster(folder)
    kill(other, number)
    wait_until_stopped(folder)


def test_a_throwaway_folder_is_deleted_with_its_server(folder, start_user):
    leave(start_user(folder, keep=False))
    wait_until_stopped(folder)
    deadline = time.monotonic() + 5
    while folder.exists():
        assert time.monotonic() < deadline, list(folder.iterdir())
        time.sleep(0.02)


def test_a_start_while_the_last_one_leaves_finds_or_makes_a_server(folder, start_user):
    user = start_user(folder)
    for _ in range(5):
        leave(user)
        user = start_user(folder)
        postmaster(folder)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="finds the keeper in /proc")
def test_a_lost_keeper_is_replaced_by_the_next_start(folder, start_user):
    user = start_user(folder)
    os.kill(keeper_of(folder), signal.SIGKILL)
    pid = postmaster(folder)
    leave(start_user(folder))
    assert postmaster(folder) == pid
    leave(user)
    wait_until_stopped(folder)


def keeper_of(folder: Path) -> int:
    wanted = {embedded.__file__.encode(), str(folder).encode()}
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:  # a program that has just been started has no command line for a moment
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted <= set((process / "cmdline").read_bytes().split(b"\0")):
                    return int(process.name)
    raise AssertionError("there is no keeper")


def test_a_stopped_server_comes_back(folder, start_user):
    start_user(folder)
    pid = postmaster(folder)
    EmbeddedPostgres(folder).stop("immediate")
    start_user(folder)
    assert postmaster(folder) != pid


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="knows a foreign process by /proc")
def test_a_pid_file_whose_number_is_now_another_programs_is_ignored(folder, start_user):
    leave(start_user(folder))
    wait_until_stopped(folder)
    (folder / "cluster" / "postmaster.pid").write_text(f"{os.getpid()}\n{folder / 'cluster'}\n")
    start_user(folder)
    assert postmaster(folder) != os.getpid()


def test_half_a_cluster_is_made_anew(folder, start_user):
    (folder / "cluster.new").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "cluster.new" / "PG_VERSION").write_text("18\n")
    start_user(folder)
    postmaster(folder)


def test_data_of_another_version_says_so(folder):
    (folder / "cluster").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "cluster" / "PG_VERSION").write_text("9\n")
    with pytest.raises(
        EmbeddedPostgresError, match=r"made by PostgreSQL 9, but .* are PostgreSQL \d\d\. Set PGBUS_PG_BIN"
    ):
        EmbeddedPostgres(folder).start()


def test_data_of_another_user_say_so(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(EmbeddedPostgresError, match="you are user 54321: it was made by a run as another user"):
        EmbeddedPostgres(folder).start()


def test_a_long_path_moves_the_socket(folder, start_user):
    deep = folder / ("x" * 90)
    folder.mkdir()
    folder.chmod(0o755)
    user = start_user(deep)
    server = EmbeddedPostgres(deep)
    assert server.socket_folder.parent == Path("/tmp")
    assert server.socket_folder.stat().st_mode & 0o777 == 0o700
    postmaster(deep)
    leave(user)
    wait_until_stopped(deep)
    assert not server.socket_folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a deputy")
def test_root_leaves_closed_folders_closed(folder, start_user):
    folder.mkdir(mode=0o700)
    user = start_user(folder / "project" / ".pgdata", keep=False)
    moved = EmbeddedPostgres(folder / "project" / ".pgdata").folder
    assert not moved.is_relative_to(folder)
    postmaster(folder / "project" / ".pgdata")
    assert folder.stat().st_mode & 0o777 == 0o700
    leave(user)
    wait_until_stopped(moved)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a deputy")
def test_root_works_as_the_owner_of_the_folder(folder, start_user):
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    start_user(folder)
    assert {place.stat().st_uid for place in folder.iterdir()} == {65534}


def test_a_wrong_folder_of_programs_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PGBUS_PG_BIN", str(tmp_path))
    with pytest.raises(EmbeddedPostgresError, match="where there is no initdb"):
        EmbeddedPostgres(tmp_path / "pg")
