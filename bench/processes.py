"""Worker processes: started, asked to stop, and what they use."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil

#: The folder in which this package is.
ROOT = Path(__file__).parents[1]

#: Seconds a worker has to end after SIGTERM.
_PATIENCE_SECONDS = 60

#: A worker that takes todos or messages with as many threads as Dramatiq gives it.
THREADS = 8


def dramatiq_worker(module: str, *, processes: int = 1, threads: int = THREADS) -> list[str]:
    """The command that runs a module's actors."""
    return [sys.executable, "-m", "dramatiq", module, "-p", str(processes), "-t", str(threads)]


def python_module(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [sys.executable, "-m", f"bench.{module}", *arguments]


@dataclass(frozen=True, slots=True)
class Crew:
    """The processes of one contestant."""

    processes: Sequence[subprocess.Popen[bytes]]
    log: Path

    def alive(self) -> bool:
        """Whether none of them has ended."""
        return all(process.poll() is None for process in self.processes)

    def said(self) -> str:
        """The last lines they wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def usage(self) -> Usage:
        """What they and their children have used."""
        return sum((Usage.of(process.pid) for process in self.processes), start=Usage())


@contextmanager
def running(
    commands: Sequence[Sequence[str]], *, folder: Path, environment: Mapping[str, str], name: str = "worker"
) -> Iterator[Crew]:
    """Runs the commands beside each other in ``folder``, and ends them with SIGTERM."""
    log = folder / f"{name}.log"
    paths = os.pathsep.join(filter(None, [str(ROOT), str(folder), os.environ.get("PYTHONPATH")]))
    with log.open("wb") as output, ExitStack() as ending:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=os.environ | environment | {"PYTHONPATH": paths},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            ending.callback(_end, process)
            processes.append(process)
        # All are asked before the first is waited for.
        ending.callback(_ask_to_end, processes)
        yield Crew(processes, log)


def _ask_to_end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.send_signal(signal.SIGTERM)


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(_PATIENCE_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds, bytes written to disk (0 where the system does not say) and resident bytes of a process's family."""

    cpu_seconds: float = 0.0
    written_bytes: int = 0
    resident_bytes: int = 0

    @classmethod
    def of(cls, pid: int) -> Self:
        """The process and all its children that run now; children that have ended count in their parent's CPU time."""
        total = cls()
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(pid)
            for process in [family, *family.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    spent = times.user + times.system + times.children_user + times.children_system
                    total += cls(spent, _written(process.pid), process.memory_info().rss)
        return total

    def __add__(self, other: Self) -> Self:
        return type(self)(
            self.cpu_seconds + other.cpu_seconds,
            self.written_bytes + other.written_bytes,
            self.resident_bytes + other.resident_bytes,
        )

    def __sub__(self, other: Self) -> Self:
        return type(self)(
            self.cpu_seconds - other.cpu_seconds,
            self.written_bytes - other.written_bytes,
            self.resident_bytes - other.resident_bytes,
        )


def _written(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes")), 0)
