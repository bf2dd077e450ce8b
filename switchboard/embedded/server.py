"""A server program that is our child: started, ended, killed, suspended, and never left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .errors import EmbeddedFailed
from .folders import temporary_folder

if TYPE_CHECKING:
    from psutil import Process  # it comes with the wheels, so it is imported where they are used

#: Seconds a server has to answer after its start, and to end after being asked to.
PATIENCE_SECONDS = 30


#: Below the range that the kernel gives to outgoing connections: a port it has given away cannot be bound again after a
#: restart, and a client that retries a port in it may connect to itself.
PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A TCP port of 127.0.0.1, of ``PORTS``, that nothing listens on now."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Server(ABC):
    """A server program that is our child: started, ended, killed and suspended."""

    _name: str
    _stop_signal: signal.Signals

    def __init__(self, folder: Path, settings: Mapping[str, str], user: dict[str, Any]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._settings = dict(settings)
        self._user = user
        self._log = folder / "server.log"
        self._room = temporary_folder(user)
        self._has_run = False
        self._processes: list[subprocess.Popen[bytes]] = []
        weakref.finalize(self, clean_up, self._room, self._processes, os.getpid())

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
            kill(process)
        self._processes.clear()

    def suspend(self) -> None:
        """SIGSTOP to the server and all its children: connections stay open and nothing answers."""
        suspend(self.pid)

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
                env=environment(),
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


def environment() -> dict[str, str]:
    # Nothing else of ours: a server has no use for our credentials, nor for a PGDATA that we have.
    return {"LC_ALL": "C", "PATH": os.environ.get("PATH", os.defpath)}


def suspend(pid: int) -> list[Process]:
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


def kill(server: subprocess.Popen[bytes]) -> None:
    import psutil

    if server.poll() is not None:
        return
    family = suspend(server.pid)
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    server.wait()
    # Until its children have gone PostgreSQL refuses to start again on the same data.
    for process in family:
        with suppress(psutil.NoSuchProcess):
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.005)


def clean_up(folder: Path, processes: list[subprocess.Popen[bytes]], owner: int) -> None:
    # A forked child inherits our finalizers, but not our servers.
    if os.getpid() == owner:
        for process in processes:
            kill(process)
        shutil.rmtree(folder, ignore_errors=True)
