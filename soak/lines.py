"""The lines of the soak, and the producers that keep them busy."""

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import Literal

import redis

from switchboard.pull.redis_client import connect

#: What a message is: to become a todo; a body that cannot be shaped; a todo that the ledger refuses.
Fate = Literal["good", "invalid", "refused"]

#: Of so many messages one is bad, in either way.
ONE_BAD_IN = {"invalid": 400, "refused": 1_500}

#: Of the first messages of a line, these are bad, so that the shortest run has some.
FIRST_BAD: dict[int, Fate] = {20: "invalid", 40: "refused"}

#: Most messages sent in one round trip.
LARGEST_BURST = 60


@dataclass(frozen=True)
class LineSpec:
    """One adapter and its source, both called `name`."""

    name: str
    kind: Literal["redis-stream", "redis-list"]
    #: Options of the adapter, as TOML writes them.
    options: dict[str, str] = field(default_factory=dict)

    @property
    def keyed(self) -> bool:
        """Whether the producer's own id is the message's identity."""
        return "key" in self.options

    @property
    def deletes(self) -> bool:
        """Whether what is stored leaves the stream."""
        return "delete" in self.options

    @property
    def completes(self) -> bool:
        return "ack" in self.options

    def table(self) -> str:
        where = "list" if self.kind == "redis-list" else "stream"
        options = {
            "type": f'"{self.kind}"', "url": '"${SOAK_REDIS_URL}"', where: f'"{self.name}"', "queue": f'"{self.name}"',
        } | self.options  # fmt: skip
        return "\n".join([f"[adapters.{self.name}]", *(f"{key} = {value}" for key, value in options.items())])


#: A short `claim_idle` makes stalled workers lose their claims while they still work.
LINES = (
    LineSpec("orders", "redis-stream", {"body": '"body"', "key": '"id"', "batch": "100", "claim_idle": '"5s"'}),
    LineSpec("deploys", "redis-stream", {"body": '"body"', "batch": "200"}),
    LineSpec("parcels", "redis-stream", {"body": '"body"', "key": '"id"', "delete": "true", "claim_idle": '"5s"'}),
    LineSpec("held", "redis-stream", {"body": '"body"', "ack": '"complete"', "claim_idle": '"5s"'}),
    LineSpec("jobs", "redis-list", {"batch": "100", "claim_idle": '"5s"'}),
)


@dataclass(frozen=True)
class Message:
    """`id` is in the body, so that a todo can be told from all others whatever its key says."""

    id: str
    fate: Fate
    body: bytes

    @property
    def digest(self) -> str:
        return sha256(self.body).hexdigest()


class Producer(threading.Thread):
    """Publishes on one line until it is stopped; a burst whose answer was lost is sent again, whole.

    `sent` holds what the server has answered for; when the thread has ended that is all it ever tried."""

    def __init__(self, line: LineSpec, url: str, *, seed: int, per_second: float) -> None:
        super().__init__(name=f"producer of {line.name}")
        self.line = line
        self.sent: list[Message] = []
        #: Bursts that were sent again: some of them are on the source twice.
        self.repeated = 0
        self._client = connect(url, timeout=timedelta(seconds=3))
        self._chance = random.Random(f"{seed} {line.name}")
        self._per_second = per_second
        self._stop_now = threading.Event()
        self._number = 0

    def stop(self) -> None:
        """What is being sent is sent until it is answered for."""
        self._stop_now.set()

    def run(self) -> None:
        while not self._stop_now.is_set():
            burst = [self._message() for _ in range(self._chance.randint(1, LARGEST_BURST))]
            until = time.monotonic() + len(burst) / self._per_second
            while not self._publish(burst):
                self.repeated += 1
                time.sleep(0.2)
            self.sent += burst
            self._stop_now.wait(max(0.0, until - time.monotonic()))
        self._client.close()

    def _message(self) -> Message:
        self._number += 1
        fate = FIRST_BAD.get(self._number) or self._any_fate()
        # The random part makes the size differ, and with it where a reply is cut.
        told = {
            "id": f"{self.line.name}-{self._number}",
            "title": f"{'refused' if fate == 'refused' else 'order'} {self._number}",
            "note": "x" * self._chance.randint(0, 400),
        }
        text = json.dumps(told)
        if fate == "invalid":
            # A number that PostgreSQL cannot hold.
            text = f'{text[:-1]}, "amount": 1e999999999}}'
        return Message(told["id"], fate, text.encode())

    def _any_fate(self) -> Fate:
        if self._chance.randrange(ONE_BAD_IN["invalid"]) == 0:
            return "invalid"
        return "refused" if self._chance.randrange(ONE_BAD_IN["refused"]) == 0 else "good"

    def _publish(self, burst: Sequence[Message]) -> bool:
        """Whether the server has answered for all of it."""
        pipeline = self._client.pipeline(transaction=False)
        for message in burst:
            if self.line.kind == "redis-list":
                pipeline.lpush(self.line.name, message.body)
            else:
                pipeline.xadd(self.line.name, {"id": message.id, "body": message.body})
        try:
            pipeline.execute()
        except (redis.RedisError, OSError):
            return False
        return True
