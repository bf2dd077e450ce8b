"""The same no-op as a plain message of Dramatiq's Redis broker: what a team that runs Dramatiq has already."""

from __future__ import annotations

import os

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker

from .ticks import Ticker

QUEUE = "bench"

broker = RedisBroker(url=os.environ["BENCH_REDIS_URL"])  # type: ignore[no-untyped-call]
dramatiq.set_broker(broker)
ticker = Ticker()


@dramatiq.actor(queue_name=QUEUE)
def nothing(payload: dict[str, int]) -> None:
    ticker.tick()


class Contestant:
    """``bench.contestant.Contestant``, by Dramatiq alone."""

    def prepare(self) -> None:
        """A queue needs nothing."""

    def create(self) -> None:
        nothing.send({"n": 1})

    def create_many(self, count: int) -> None:
        # It has no way to send several at once.
        for number in range(count):
            nothing.send({"n": number})

    def left(self) -> int:
        # A message stays in the hash until it is acknowledged.
        with redis.Redis.from_url(os.environ["BENCH_REDIS_URL"]) as client:
            return int(client.hlen(f"dramatiq:{QUEUE}.msgs"))

    def work(self) -> None:
        raise NotImplementedError("dramatiq's own command runs this module")
