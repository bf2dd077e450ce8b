"""The `dramatiq` command as a real process, to watch, kill and end."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from waiting import eventually

READY = re.compile(r"\[PID (\d+)\].*Worker process is ready for action\.")


class Worker:
    """`env` is added to this process's own environment; `extra` goes to the command as it is."""

    def __init__(
        self,
        modules: Sequence[str] = ("switchboard.actors",),
        *,
        cwd: Path,
        env: Mapping[str, str],
        processes: int = 1,
        threads: int = 4,
        extra: Sequence[str] = (),
    ) -> None:
        size = ["-p", str(processes), "-t", str(threads)]
        self._command = [sys.executable, "-m", "dramatiq", *modules, *size, *extra]
        self._cwd = cwd
        self._env = {**os.environ, **env}
        self._processes = processes
        self._log: Path | None = None
        self._parent: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill_all()

    def start(self) -> None:
        """Can be called again when the last one has ended; `output` then starts anew."""
        assert self._parent is None or self._parent.poll() is not None, "it is running"
        descriptor, name = tempfile.mkstemp(prefix="worker-", suffix=".log", dir=self._cwd)
        self._log = Path(name)
        with open(descriptor, "wb") as log:
            self._parent = subprocess.Popen(
                self._command,
                cwd=self._cwd,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, *, within: float = 90) -> None:
        """Returns when every worker process has said that it is ready."""

        def ready() -> bool:
            # One that was ready, and has died of what waited for it, was ready.
            ended = self.parent.poll()
            said = len(READY.findall(self.output)) >= self._processes
            assert said or ended is None, f"the worker ended with status {ended}:\n{self.output}"
            return said

        try:
            eventually(ready, within=within, what="every worker process is ready")
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.output}") from None

    @property
    def parent(self) -> subprocess.Popen[bytes]:
        assert self._parent is not None, "it was not started"
        return self._parent

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log else ""

    @property
    def pids(self) -> list[int]:
        """The worker processes that have become ready and are running."""
        # By what they logged: multiprocessing's helpers are children too, and with forkserver the workers
        # are not told from them by their command line.
        running = {process.pid for process in self._group()}
        return [pid for pid in map(int, READY.findall(self.output)) if pid in running]

    def kill_one(self) -> int:
        """SIGKILL to one worker process; its pid, when it has gone. Dramatiq then ends the others."""
        pid = self.pids[0]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pid not in self.pids, what=f"worker process {pid} is gone")
        return pid

    def kill_all(self) -> None:
        """SIGKILL to the command and all its processes, at once; returns when they have gone."""
        if self._parent is None:
            return
        # The group's number is still ours: while the leader is not reaped, or any member lives.
        if self._parent.returncode is None or self._group():
            with suppress(ProcessLookupError):
                os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.wait()
        eventually(lambda: not self._group(), what="the worker's processes are gone")

    def terminate(self, *, within: float = 30) -> int:
        """SIGTERM to the command, as a supervisor sends it; its exit status."""
        self.parent.terminate()
        try:
            return self.parent.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended {within:g} s after SIGTERM:\n{self.output}") from None

    def _group(self) -> list[psutil.Process]:
        """The running processes of the command's own process group."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                ours = os.getpgid(process.pid) == self.parent.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found
