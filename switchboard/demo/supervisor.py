"""The ``dramatiq`` command as systemd, Compose or Kubernetes would run it: started again whenever it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from .failure import DemoFailed
from .signals import undisturbed

#: Worker processes, and threads in each.
PROCESSES, THREADS = 2, 4

#: Seconds that ``dramatiq`` gets to end by itself, after one of its processes has died or after SIGTERM.
EXIT_PATIENCE_SECONDS = 15

#: How often it may end though nobody killed anything.
MAX_SURPRISES = 3

_READY = re.compile(r"\[PID (\d+)\].*Worker process is ready for action\.")


class Supervisor:
    """Runs ``dramatiq switchboard.actors`` in ``folder``; nothing of it is left when the block ends.

    ``poll()`` is to be called often: it does what a supervisor does by itself.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._parent: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._killed_at: float | None = None
        self.log = folder / "worker.log"
        #: The processes of this start that have said that they are ready.
        self.ready: list[int] = []
        self.kills = 0
        self.starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def all_ready(self) -> bool:
        """Whether every worker process is there to work."""
        return len(self.ready) == PROCESSES and self._killed_at is None

    def start(self) -> None:
        """Starts the command, which has ended or was never started; all its output goes to ``log``."""
        size = ["--processes", str(PROCESSES), "--threads", str(THREADS)]
        with undisturbed(), self.log.open("ab") as log:
            self._log_start = log.tell()
            self._parent = subprocess.Popen(  # noqa: S603 - dramatiq's own module
                [sys.executable, "-m", "dramatiq", "switchboard.actors", *size],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a group of its own, to end it whole
            )
        self.ready = []
        self._killed_at = None
        self.starts += 1

    def poll(self) -> int | None:
        """Starts the command again where it has ended, and returns its exit status then.

        ``DemoFailed`` where that cannot help: it ended before it was ready, or too often.
        """
        if self._parent is None:
            return None
        status = self._parent.poll()
        if len(self.ready) < PROCESSES:
            self.ready = [int(pid) for pid in _READY.findall(self._output())]
        if status is None:
            if self._killed_at is not None and time.monotonic() - self._killed_at > EXIT_PATIENCE_SECONDS:
                self._kill_group(self._parent)
            return None
        self._kill_group(self._parent)
        self._parent = None
        if not self.ready:
            raise DemoFailed(f"the worker ended with status {status} before it was ready{self._last_words()}")
        if self.starts > self.kills + MAX_SURPRISES:
            raise DemoFailed(f"the worker ended by itself {MAX_SURPRISES + 1} times{self._last_words()}")
        self.start()
        return status

    def kill(self, pid: int) -> bool:
        """SIGKILL to one of the ``ready`` processes; False where it has gone already.

        Only to one that is ready: killed in its first moments, it can leave ``dramatiq`` deaf to SIGTERM.
        """
        if self._parent is None or pid not in self.ready:
            return False
        try:
            if os.getpgid(pid) != self._parent.pid:
                return False
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.kills += 1
        self._killed_at = time.monotonic()
        return True

    def stop(self) -> None:
        """SIGTERM, and SIGKILL to the whole group when that was not heard in time."""
        if self._parent is None:
            return
        self._parent.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._parent.wait(EXIT_PATIENCE_SECONDS)
        self._kill_group(self._parent)
        self._parent = None

    def _kill_group(self, parent: subprocess.Popen[bytes]) -> None:
        # Also when the parent has ended: a worker process that hangs would hold on to its deliveries.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()

    def _output(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _last_words(self) -> str:
        lines = self._output().strip().splitlines()[-5:]
        return "".join(f"\n  {line}" for line in lines)
