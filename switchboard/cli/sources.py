"""What waits at the sources: each is asked side by side with the others, and none is waited for long."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress

from ..config import load_each
from ..errors import ConfigError, SwitchboardError
from ..pull import Lag, PullAdapter

#: Seconds that a source may take to answer.
PATIENCE = 3.0


def readable_adapters() -> list[PullAdapter]:
    """The pull adapters of the configuration, without those that cannot be read."""
    try:
        return [adapter for adapter in load_each() if isinstance(adapter, PullAdapter)]
    except ConfigError:
        return []


def ask_lags(adapters: Sequence[PullAdapter]) -> dict[str, Lag]:
    """What waits at each source that answers in time, by the adapter's name."""
    answers: dict[str, Lag] = {}

    def ask(adapter: PullAdapter) -> None:
        # Who does not answer is shown as unknown: `switchboard doctor` says why.
        with suppress(SwitchboardError):
            answers[adapter.name] = adapter.lag()

    threads = [threading.Thread(target=ask, args=(adapter,), daemon=True) for adapter in adapters]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # A copy: who answers later must not change what is being shown.
    return dict(answers)
