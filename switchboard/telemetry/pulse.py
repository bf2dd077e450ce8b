"""The pulse of a worker process: a small file a second that says what each of its consumers last did.

``switchboard health`` reads them (``health``). Times are monotonic seconds, which all processes of a host share.
Nothing here imports more than the standard library: who asks for health does so every few seconds.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import ConfigError
from ..process_name import is_beside, is_gone, process_name

logger = logging.getLogger(__name__)

#: Seconds between two writes.
INTERVAL = 1.0

#: Seconds that the end of a worker waits for this thread, which a directory that gives no answer can hold for ever.
STOP_PATIENCE = 1.0

#: Seconds after which a file that nobody has written is removed, whoever's it was.
FORGOTTEN = 86_400

_numbers = itertools.count(1)


@dataclass(slots=True)
class Beat:
    """What one consumer says of itself: its own thread sets it, field by field, and the pulse's thread reads it."""

    #: Its queue's name: ``adapter.deploys``, ``todo.deploys``.
    queue: str
    #: When its thread last came round.
    looped_at: float
    #: When what it reads from, a source or the ledger, last answered it; None: not yet.
    answered_at: float | None = None
    #: When it last had a good reason not to ask, and which: ``busy``, or ``disabled, or read by another process``.
    excused_at: float | None = None
    excuse: str = ""
    #: Since when the oldest of its batches is being stored; None: there is none.
    storing_since: float | None = None

    def looped(self) -> None:
        """Its thread has come round."""
        self.looped_at = time.monotonic()

    def answered(self) -> None:
        """What it reads from has answered."""
        self.answered_at = time.monotonic()

    def excused(self, excuse: str) -> None:
        """It does not ask now, and is right not to."""
        self.excuse, self.excused_at = excuse, time.monotonic()


@dataclass(frozen=True, slots=True)
class Report:
    """One worker process, as it last said."""

    #: Its ``process_name``.
    process: str
    #: When it said so.
    at: float
    #: When the ledger last answered anything of it; None: not yet.
    ledger_at: float | None = None
    consumers: list[Beat] = field(default_factory=list)
    #: Whether it has been told to stop, and reads nothing more.
    stopping: bool = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self.process.split("/")[2])


def state_directory() -> Path:
    """Where the files are: ``SWITCHBOARD_STATE_DIR``, or a directory of this user's under the temporary one."""
    named = os.environ.get("SWITCHBOARD_STATE_DIR", "").strip()
    return Path(named) if named else Path(tempfile.gettempdir()) / f"switchboard-{os.geteuid()}"


def make_state_directory() -> Path:
    """The same, made where it is missing, for its owner alone.

    Raises ``ConfigError`` where it cannot be used: another user's directory could be made to say anything.
    """
    directory = state_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.lstat()
    except OSError as error:
        raise ConfigError(f"SWITCHBOARD_STATE_DIR: cannot make {directory}: {error.strerror}") from error
    if status.st_uid != os.geteuid():
        raise ConfigError(f"SWITCHBOARD_STATE_DIR: {directory} belongs to another user; name a directory of your own")
    return directory


def read_reports() -> list[Report]:
    """What the worker processes of this host and process namespace last said, those that have ended left out.

    The files of those that have ended are removed. Raises ``ConfigError`` where the directory is another user's.
    """
    directory = state_directory()
    if not directory.exists():
        return []
    reports = []
    for path in sorted(make_state_directory().glob("*.json")):
        report = _read(path)
        if report is not None and not _removed(path, report):
            reports.append(report)
    return reports


def _read(path: Path) -> Report | None:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Report(**(said | {"consumers": [Beat(**beat) for beat in said["consumers"]]}))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError):
        # Another version's, in the middle of an upgrade: its own command can read it.
        return None


def _removed(path: Path, report: Report) -> bool:
    """Whether this says nothing about this host: it is removed where its process is known to have ended."""
    if not is_beside(report.process):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > FORGOTTEN:
                path.unlink()
        return True
    if not is_gone(report.process):
        return False
    for left in (path, path.with_suffix(".new")):
        with suppress(OSError):
            left.unlink()
    return True


class Pulse:
    """One a serving broker: a thread that writes, from ``start`` to ``stop``, what ``ledger_at`` and ``beats`` say."""

    def __init__(self, ledger_at: Callable[[], float | None], beats: Callable[[], Iterable[Beat]]) -> None:
        self._ledger_at = ledger_at
        self._beats = beats
        self._stopped = threading.Event()
        self._stopping = False
        self._failed = False
        self._path: Path | None = None
        self._thread = threading.Thread(target=self._run, name="switchboard-pulse", daemon=True)

    def start(self) -> None:
        """Begins to write. A directory that cannot be used is logged: a worker works without being asked for health."""
        try:
            directory = make_state_directory()
            read_reports()
        except (ConfigError, OSError) as error:
            logger.error("%s; `switchboard health` cannot see this worker", error)
            return
        self._path = directory / f"{os.getpid()}-{process_name().rpartition('/')[2]}-{next(_numbers)}.json"
        # The first is written an interval from now: by then there are consumers to speak of.
        self._thread.start()

    def stopping(self) -> None:
        """From the next write on it says that this worker is stopping."""
        self._stopping = True

    def stop(self) -> None:
        """Ends the thread, which removes the file; or leaves it where the directory gives no answer."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_PATIENCE)

    def _run(self) -> None:
        while not self._stopped.wait(INTERVAL):
            self._write()
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink()

    def _write(self) -> None:
        if self._path is None:
            return
        report = Report(process_name(), time.monotonic(), self._ledger_at(), list(self._beats()), self._stopping)
        new = self._path.with_suffix(".new")
        try:
            new.write_text(json.dumps(asdict(report)), encoding="utf-8")
            # In one step: who reads meanwhile sees the one before.
            new.replace(self._path)
        except OSError as error:
            if not self._failed:
                logger.error("cannot write %s: %s; `switchboard health` cannot see this worker", new, error.strerror)
            self._failed = True
        else:
            self._failed = False
