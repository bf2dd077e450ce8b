"""PostgreSQL and Valkey in a process of their own, which ends them when the demo has gone or when it is told to.

The servers live as long as the process that started them, and ``--keep`` lets them outlive the demo: so another
process starts them, and its pid is the one thing needed to end them and to remove all they made.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from ..embedded import EmbeddedFailed, EmbeddedUnavailable, PostgresServer, ValkeyServer
from .failure import DemoFailed
from .signals import undisturbed

#: The line that tells the keeper to stay when its input ends.
_STAY = "stay\n"

#: Seconds for an orderly end of both servers: each may take thirty.
_PATIENCE_SECONDS = 70


class Servers:
    """Both servers, in ``folder``; ended when the block ends, except after ``keep()``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keeper: subprocess.Popen[str] | None = None
        self._kept = False
        self.database_url = ""
        self.redis_url = ""
        #: The process to end with SIGTERM, and the servers' own.
        self.keeper_pid = self.postgres_pid = self.valkey_pid = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None and not self._kept:
            self._end(self._keeper)

    def start(self) -> None:
        """Returns when both answer; ``DemoFailed`` with their own words where they do not."""
        with undisturbed(), (self._folder / "servers.log").open("ab") as log:
            keeper = self._keeper = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", __spec__.name, str(self._folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,  # the terminal's Ctrl-C is for the demo, which ends them in order
            )
        assert keeper.stdout is not None  # noqa: S101 - it was asked for
        with keeper.stdout as output:
            answer = json.loads(output.readline() or "{}")
        if "database_url" not in answer:
            raise DemoFailed(answer.get("error") or f"the servers did not start: {self._last_words()}")
        self.database_url, self.redis_url = answer["database_url"], answer["redis_url"]
        self.postgres_pid, self.valkey_pid = answer["pids"]
        self.keeper_pid = keeper.pid

    def keep(self) -> None:
        """Lets both run on after this process; SIGTERM to ``keeper_pid`` then ends them and removes the folder."""
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.write(_STAY)
            self._keeper.stdin.close()
            self._kept = True

    def _last_words(self) -> str:
        lines = (self._folder / "servers.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "they said nothing"

    def _end(self, keeper: subprocess.Popen[str]) -> None:
        if keeper.stdin is not None:
            with suppress(OSError):
                keeper.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(_PATIENCE_SECONDS)
            return
        for pid in (keeper.pid, self.postgres_pid, self.valkey_pid):
            if pid:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        keeper.wait()


def _main(folder: Path) -> None:
    signal.signal(signal.SIGTERM, _exit)
    try:
        with PostgresServer(folder / "postgres") as postgres, ValkeyServer(folder / "valkey") as valkey:
            urls = {"database_url": postgres.tcp_url, "redis_url": valkey.url}
            print(json.dumps({**urls, "pids": [postgres.pid, valkey.pid]}), flush=True)  # noqa: T201 - our answer
            # An end of input without a word: the demo has gone, however it went.
            if sys.stdin.readline() != _STAY:
                return
            try:
                signal.pause()
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except (EmbeddedUnavailable, EmbeddedFailed) as error:
        print(json.dumps({"error": str(error)}), flush=True)  # noqa: T201 - our answer


def _exit(_number: int, _frame: FrameType | None) -> NoReturn:
    # A second one would break into the orderly end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
