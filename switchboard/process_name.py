"""A name for this process that tells whether it still runs.

A consumer is named for host, process namespace, pid and start time, so that what a killed worker left can be taken
over by the next on its host at once, and a pid that is used again is not mistaken for it.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path

_UNKNOWN = "-"

#: A process that has ended and whose parent has not yet collected it.
_ENDED = "ended"


def process_name() -> str:
    """This process: ``host/namespace/pid/start``."""
    return _name(os.getpid())


@lru_cache(maxsize=1)
def _name(pid: int) -> str:
    return f"{socket.gethostname()}/{_namespace()}/{pid}/{_started(pid)}"


def is_beside(name: str) -> bool:
    """Whether that process runs, or ran, where this one can look for it: on this host and in this process namespace."""
    parts = name.split("/")
    return len(parts) == 4 and parts[2].isdecimal() and parts[:2] == [socket.gethostname(), _namespace()]


def is_gone(name: str) -> bool:
    """Whether that process is known to have ended: false for what may run on another host or in a container."""
    if not is_beside(name):
        return False
    _, _, pid, started = name.split("/")
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    now_started = _started(int(pid))
    return now_started == _ENDED or (_UNKNOWN not in (started, now_started) and started != now_started)


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
    except OSError:
        return _UNKNOWN


def _started(pid: int) -> str:
    try:
        # The command's name may hold spaces and brackets: count from behind it (proc(5), field 22).
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return _ENDED if stat[0] == "Z" else stat[19]
    except (OSError, IndexError):
        return _UNKNOWN
