"""Gauges of which a process exposes all it knows, and nothing it knew: a file that is written whole each time.

A ``prometheus_client.Gauge`` cannot do that: in multiprocess mode none of its samples can be removed, so that a queue
that is gone, or what a process knew that no longer samples, would stay for ever. The file lies beside the client's own
and has their format.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, unquote

from ..process_name import is_gone, process_name
from .metrics import GAUGES

_OURS = "switchboard@"


class Sample(NamedTuple):
    """One of ``metrics.GAUGES`` under labels, and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics_directory() -> Path | None:
    """Where this process's metrics are: the directory of ``prometheus_client``'s multiprocess mode, which Dramatiq's
    Prometheus middleware sets; None where nobody serves them.
    """
    directory = os.environ.get("PROMETHEUS_MULTIPROC_DIR", "")
    return Path(directory) if directory and importlib.util.find_spec("prometheus_client") is not None else None


class GaugeFile:
    """This process's file in ``directory``.

    ``mode`` says what becomes of samples that several processes have: the last written counts, or their sum.
    """

    def __init__(self, directory: Path, mode: Literal["livemostrecent", "livesum"]) -> None:
        # gauge_<mode>_<identifier>.db, as prometheus_client.multiprocess takes names apart. That of a process alone is
        # the client's own.
        self._path = directory / f"gauge_{mode}_{_OURS}{quote(process_name(), safe='')}.db"

    def write(self, samples: Iterable[Sample]) -> None:
        """Exposes these, and no others; ``OSError`` where the directory cannot be written."""
        from prometheus_client.mmap_dict import MmapedDict, mmap_key

        new = self._path.with_suffix(".new")
        new.unlink(missing_ok=True)
        values = MmapedDict(str(new))  # type: ignore[no-untyped-call]
        try:
            now = time.time()
            for name, labels, value in samples:
                text, names = GAUGES[name]
                key = mmap_key(name, name, list(names), [labels[each] for each in names], text)
                values.write_value(key, value, now)  # type: ignore[no-untyped-call]
        finally:
            values.close()  # type: ignore[no-untyped-call]
        # In one step: who is scraped meanwhile reads the one before.
        new.replace(self._path)

    def remove(self) -> None:
        """Exposes nothing."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def remove_left_behind(directory: Path) -> None:
    """Removes the files of processes that are known to have ended: a killed one cannot do so."""
    for path in directory.glob(f"gauge_*_{_OURS}*"):
        if is_gone(unquote(path.stem.partition(_OURS)[2])):
            path.unlink(missing_ok=True)
