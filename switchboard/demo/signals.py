"""Ctrl-C, SIGTERM and a closed terminal end the demo through its clean-up, whole."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_Handler = Callable[[int, FrameType | None], object]


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """The first signal raises ``SystemExit`` with a shell's status for it (130 for Ctrl-C); later ones do nothing."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        # What is to be cleaned up has limits of its own; a second Ctrl-C would only leave processes behind.
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    with _handled_by(end):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Holds signals back for a moment: a process that was started and not yet noted would be left behind.

    Handlers, unlike a blocked signal, are not handed on to the program that is started.
    """
    came: list[int] = []
    with _handled_by(lambda number, _frame: came.append(number)):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _handled_by(handler: _Handler) -> Iterator[None]:
    # One that is ignored already stays so: nohup means it.
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    before = {each: known for each, known in before.items() if known is not signal.SIG_IGN}
    for each in before:
        signal.signal(each, handler)
    try:
        yield
    finally:
        for each, known in before.items():
            signal.signal(each, known)
