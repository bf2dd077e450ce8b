"""Signals that whoever runs the suite has ignored."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def inherited_by_none() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and in the background of a script SIGINT: what is started here takes both."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGHUP, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
