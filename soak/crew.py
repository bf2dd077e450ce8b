"""`dramatiq switchboard.actors` as systemd or Compose would run it: started again whenever it ends."""

import os
import random
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from worker import READY, Worker

#: Seconds that the command has to end, once one of its processes was killed.
AFTER_A_KILL = 15

#: Seconds from SIGTERM to its end, whatever is away meanwhile.
AFTER_A_STOP = 40

#: Seconds from its start until all its processes say that they are ready, or it has ended.
AFTER_A_START = 60


@dataclass
class Record:
    """What happened to the workers."""

    starts: int = 0
    kills: int = 0
    stops: int = 0
    #: It ended before it was ready: a server was away.
    refused_starts: int = 0
    #: Nobody killed or stopped it.
    ended_by_itself: int = 0
    #: Not ended in time after SIGTERM, or not ready in time after a start.
    stuck: int = 0
    #: Ended after SIGTERM with another status than 0.
    bad_exits: int = 0
    slowest_stop_seconds: float = 0.0


class Crew(threading.Thread):
    """One parent process with its worker processes, and the thread that supervises it."""

    def __init__(self, number: int, folder: Path, env: Mapping[str, str], *, processes: int) -> None:
        super().__init__(name=f"crew {number}")
        self.record = Record()
        self.processes = processes
        self._worker = Worker(cwd=folder, env=env, processes=processes)
        self._lock = threading.Lock()
        self._ready = False
        self._killed_at: float | None = None
        self._stop_asked = False
        self._ending = threading.Event()

    def ready(self) -> bool:
        """Whether all its processes have said so, and none was hurt since."""
        return self._ready and self._killed_at is None and not self._stop_asked

    def kill_one(self, chance: random.Random) -> bool:
        """SIGKILL to one of its processes; only while all are ready (design, "Boot window")."""
        with self._lock:
            pids = self._worker.pids if self.ready() else []
            if not pids:
                return False
            with suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGKILL)
            self._killed_at = time.monotonic()
            self.record.kills += 1
            return True

    def stop_once(self) -> bool:
        """SIGTERM to the parent; it is started again when it has ended."""
        with self._lock:
            if self.ready():
                self._stop_asked = True
            return self._stop_asked

    def end(self) -> None:
        """SIGTERM for good."""
        self._ending.set()

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                self._serve_once()
                self._ending.wait(0.2)
        finally:
            self._worker.kill_all()

    def _serve_once(self) -> None:
        """From a start to the end of the last process."""
        with self._lock:
            self._killed_at, self._stop_asked, self._ready = None, False, False
            self._worker.start()
            self.record.starts += 1
        self._ready = self._wait_ready()
        while self._ready and self._worker.parent.poll() is None:
            if self._hurt_seconds() > AFTER_A_KILL:
                break
            if self._stop_asked or (self._ending.is_set() and not self._hurt_seconds()):
                self._terminate()
                break
            time.sleep(0.05)
        else:
            if self._ready and not self._hurt_seconds():
                self.record.ended_by_itself += 1
        with self._lock:
            self._ready = False
        self._worker.kill_all()

    def _hurt_seconds(self) -> float:
        return 0.0 if self._killed_at is None else time.monotonic() - self._killed_at

    def _wait_ready(self) -> bool:
        deadline = time.monotonic() + AFTER_A_START
        while time.monotonic() < deadline:
            if self._worker.parent.poll() is not None:
                self.record.refused_starts += 1
                return False
            if len(READY.findall(self._worker.output)) >= self.processes:
                return True
            time.sleep(0.1)
        self.record.stuck += 1
        return False

    def _terminate(self) -> None:
        began = time.monotonic()
        self.record.stops += 1
        try:
            status = self._worker.terminate(within=AFTER_A_STOP)
        except AssertionError:
            self.record.stuck += 1
            return
        took = time.monotonic() - began
        self.record.slowest_stop_seconds = max(self.record.slowest_stop_seconds, took)
        self.record.bad_exits += status != 0
