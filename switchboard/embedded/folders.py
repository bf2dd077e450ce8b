"""Where a server's files may be: its user has to reach them, and a socket's path has to be short."""

from __future__ import annotations

import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .errors import EmbeddedFailed, EmbeddedUnavailable

#: A Unix socket's whole path must stay near 100 bytes; the names below this folder take some 40.
LONGEST_BASE = 60


def program(what: str, package: str, pattern: str) -> Path:
    # Found, not imported: the wheels' own modules create folders and warn while they are imported.
    spec = find_spec(package) if find_spec("psutil") else None
    for folder in spec.submodule_search_locations or [] if spec else []:
        for program in Path(folder).glob(pattern):
            return program
    raise EmbeddedUnavailable(what)


def open_to_all(folder: Path) -> bool:
    folder = folder.resolve()
    return all(path.stat().st_mode & 0o001 for path in [folder, *folder.parents])


def temporary_folder(user: dict[str, Any]) -> Path:
    """A fresh private folder of that user's, with a short path."""
    for base in map(Path, (tempfile.gettempdir(), "/tmp", "/var/tmp")):  # noqa: S108 - mkdtemp is safe
        if len(str(base)) <= LONGEST_BASE and (os.geteuid() != 0 or open_to_all(base)):
            folder = Path(tempfile.mkdtemp(prefix="switchboard-", dir=base))
            give(folder, user)
            return folder
    raise EmbeddedFailed("no temporary folder with a short path that every user may enter")


def give(path: Path, user: dict[str, Any]) -> None:
    if user:
        os.chown(path, user["user"], user["group"])
