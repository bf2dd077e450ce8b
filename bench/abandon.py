"""A worker that reads COUNT entries of a stream and is killed with all of them un-acknowledged."""

from __future__ import annotations

import os
import signal
import sys

import redis

from switchboard.process_name import process_name

from .messages import read


def main() -> None:
    client = redis.Redis.from_url(sys.argv[1])
    left = int(sys.argv[2])
    while left > 0:
        left -= len(read(client, process_name(), min(1000, left)))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
