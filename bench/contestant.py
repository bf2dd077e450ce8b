"""What each contestant for todos can do, and the command line through which the benchmark asks for it.

Each runs in a process of its own, so that nobody's event loop, broker or import is another's.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Protocol


class Contestant(Protocol):
    """Someone's queue. All of it is done as that project's own documentation advises."""

    def prepare(self) -> None:
        """Makes its tables."""

    def create(self) -> None:
        """Makes one todo, durable when this returns."""

    def create_many(self, count: int) -> None:
        """Makes them by its fastest documented way."""

    def left(self) -> int:
        """How many have not ended well."""

    def work(self) -> None:
        """Works the queue until SIGTERM."""


def main() -> None:
    """``MODULE prepare|left|work``, ``MODULE many|single|idle COUNT``; the answer is JSON on standard output."""
    module, command, *arguments = sys.argv[1:]
    contestant: Contestant = importlib.import_module(f"bench.{module}").Contestant()
    count = int(arguments[0]) if arguments else 0
    answer: object = None
    if command == "prepare":
        contestant.prepare()
    elif command == "left":
        answer = contestant.left()
    elif command == "work":
        contestant.work()
    elif command == "many":
        began = time.monotonic()
        contestant.create_many(count)
        answer = time.monotonic() - began
    elif command == "single":
        contestant.create()
        began = time.monotonic()
        for _ in range(count):
            contestant.create()
        answer = time.monotonic() - began
    elif command == "idle":
        answer = _one_at_a_time(contestant, count)
    print(json.dumps(answer))


def _one_at_a_time(contestant: Contestant, count: int) -> list[int]:
    """The monotonic nanoseconds just before each was made."""
    began = []
    for number in range(count):
        began.append(time.monotonic_ns())
        contestant.create()
        # Not in step with anybody's timer.
        time.sleep(0.03 + 0.001 * (number % 17))
    return began


if __name__ == "__main__":
    main()
