"""What the Redis transports share: an address, two connections, an identity and how many entries to ask for."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import redis
from pydantic import Field

from ..errors import BrokerUnavailable, PublishRejected
from ..finding import Finding
from ..model import Delivery
from ..telemetry.metrics import count
from .base import Outgoing, PullAdapter, PullOptions
from .redis_client import (
    BLOCK_GRACE,
    COMMAND_TIMEOUT,
    RedisUrl,
    acl_identity,
    connect,
    execute,
    shown_url,
    to_publish_error,
    translated,
)
from .redis_inspection import impatient, inspect_server

logger = logging.getLogger(__name__)

#: Entries a read asks for where the server does not tell their size: a count has no byte bound (redis#11116).
CAUTIOUS_COUNT = 50

#: Messages of one dead worker that a run of the reaper frees at most.
FREED_AT_ONCE = 10_000

#: Characters of a source's name, at most: every key of its messages begins with it, and an index of PostgreSQL's holds
#: 2,704 bytes of queue and key together.
LONGEST_NAME = 250

#: A read that blocks for less than this would spin.
SHORTEST_BLOCK = timedelta(milliseconds=10)


class RedisOptions(PullOptions):
    """The options every Redis transport has."""

    #: The server's address.
    url: RedisUrl = Field(repr=False)


class RedisAdapter(PullAdapter):
    """A Redis transport: one connection for reads that block, others for commands that do not."""

    #: Commands whose replies are taken as they were sent.
    raw_commands: tuple[str, ...] = ()
    #: What tells how many entries the source has.
    length_command: str
    #: Whether messages are to survive on its server.
    keeps: bool = True

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name)
        self._url = url
        self._lock = threading.Lock()
        self._reader: redis.Redis | None = None
        self._longest_block = timedelta(0)
        self._commands: redis.Redis | None = None
        self._identity = ""
        self._count = 0

    @property
    def broker(self) -> str:
        return shown_url(self._url)

    @property
    @abstractmethod
    def place(self) -> str:
        """What on the server it reads, for errors: ``stream deploys``."""

    def identity(self) -> str:
        if not self._identity:
            with translated(f"identity on {self.broker}"):
                self._identity = acl_identity(self.client(), self._url)
        return self._identity

    def client(self) -> redis.Redis:
        """The connection for commands that do not block; any thread may use it.

        Keep it while a pipeline of it runs: the last reference to a client that was dropped closes its connections.
        """
        with self._lock:
            if self._commands is None:
                self._commands = connect(self._url, timeout=COMMAND_TIMEOUT, raw_commands=self.raw_commands)
            return self._commands

    def reader(self, block: timedelta) -> redis.Redis:
        """The connection for one thread's blocking reads: its socket's timeout is above the block."""
        if self._reader is None or block > self._longest_block:
            if self._reader is not None:
                self._reader.close()
            self._reader = connect(self._url, timeout=block + BLOCK_GRACE, raw_commands=self.raw_commands)
            self._longest_block = block
        return self._reader

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Translates what the client raises inside, and drops its connections then: a failover wants new ones."""
        try:
            with translated(f"receive from {self.broker} {self.place}"):
                yield
        except BrokerUnavailable:
            self.close()
            raise

    def affordable(self, limit: int, limit_bytes: int, key: str) -> int:
        """How many entries of ``key`` to ask for: ``limit``, or fewer where they are large."""
        if not self._count:
            self._count = self._estimate(limit_bytes, key)
        return max(1, min(limit, self._count))

    def _estimate(self, limit_bytes: int, key: str) -> int:
        try:
            size = execute(self.client(), "MEMORY USAGE", key)
            length = execute(self.client(), self.length_command, key)
        except redis.ResponseError:
            return CAUTIOUS_COUNT
        return limit_bytes * length // size if size and length else CAUTIOUS_COUNT

    def learn_size(self, deliveries: Sequence[Delivery], limit_bytes: int) -> None:
        """Adapts the next reads to the size of these."""
        if deliveries:
            average = max(1, sum(len(delivery.body) for delivery in deliveries) // len(deliveries))
            self._count = max(1, min(self._count * 4, limit_bytes // average))

    def in_one_step(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """Sends commands that write, all or none of them; raises ``PublishRejected`` or ``BrokerUnavailable``."""
        with translated(f"publish to {self.broker} {self.place}", to_publish_error):
            client = self.client()
            pipeline = client.pipeline(transaction=len(commands) > 1)
            for command in commands:
                execute(pipeline, *command)
            return pipeline.execute()

    def report_lost(self, entries: Sequence[str]) -> None:
        """Says, and counts, that these were taken away at the source before they were stored."""
        if not entries:
            return
        count("switchboard_lost_at_source", len(entries), adapter=self.name)
        logger.error(
            "adapter %s: %d pending entries were trimmed or deleted at the source before they were stored: %s",
            self.name,
            len(entries),
            ", ".join(entries[:10]),
            extra={"adapter": self.name, "broker": self.broker},
        )

    def inspect(self) -> Iterator[Finding]:
        subject = f"adapter {self.name}"
        with translated(f"inspect {self.broker}"), closing(impatient(self._url)) as client:
            yield from inspect_server(client, self._url, subject, keeps=self.keeps)
            yield from self.inspect_source(client, subject)

    @abstractmethod
    def inspect_source(self, client: redis.Redis, subject: str) -> Iterator[Finding]:
        """What there is to say of what it reads, and of its user's rights; raises what the client raises."""

    def close(self) -> None:
        with self._lock:
            reader, self._reader = self._reader, None
            commands, self._commands = self._commands, None
            self._identity = ""
        if reader is not None:
            reader.close()
        if commands is not None:
            # Not under a worker's thread that acknowledges right now: its connection ends with its last use.
            commands.connection_pool.disconnect(inuse_connections=False)


def refuse_all_but_bodies(messages: Sequence[Outgoing], what: str) -> None:
    """Raises ``PublishRejected`` for what a message without headers cannot carry."""
    for message in messages:
        if message.headers or message.idempotency_key is not None:
            raise PublishRejected(f"publish: a message of a {what} is its body: it has no headers and no key")
