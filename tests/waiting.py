"""Waiting for a condition, never for a while."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, within: float = 30, every: float = 0.05, what: str = "") -> T:
    """The condition's first truthy value; an AssertionError that names it after `within` seconds."""
    deadline = time.monotonic() + within
    while True:
        # Read before the last look, so that a slow condition still gets one look after the deadline.
        late = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if late:
            name = what or getattr(condition, "__qualname__", repr(condition))
            raise AssertionError(f"not within {within:g} s: {name}; last value: {value!r}")
        time.sleep(every)
