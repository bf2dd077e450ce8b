"""``redis-pubsub``: at most once. What is published while nobody listens is lost, and nothing is delivered again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

import redis
from pydantic import Field, field_validator
from redis.client import PubSub

from ..finding import Finding
from ..model import Delivery
from .base import Gap, Lag, Outgoing
from .redis_adapter import LONGEST_NAME, RedisAdapter, RedisOptions, refuse_all_but_bodies
from .redis_client import BLOCK_GRACE, COMMAND_TIMEOUT, connect
from .redis_inspection import PATIENCE, inspect_rights

#: Seconds between an answer and the next question whether the server is still there.
ASK_INTERVAL = 2.0


class RedisPubSubOptions(RedisOptions):
    """Options of a ``redis-pubsub`` adapter."""

    #: The channel that is subscribed to.
    channel: str = Field(min_length=1, max_length=LONGEST_NAME)
    #: Has to be true: it says that somebody knows that messages are lost.
    loss_tolerant: bool = Field(default=False, strict=True, validate_default=True)

    @field_validator("loss_tolerant")
    @classmethod
    def _has_to_be_said(cls, said: bool) -> bool:
        if not said:
            raise ValueError(
                "redis-pubsub loses messages whenever it is not connected; write loss_tolerant = true if that is "
                "acceptable, and use redis-stream or redis-list if it is not"
            )
        return said


class RedisPubSub(RedisAdapter):
    """Reads a Redis channel: ``RedisPubSub("ticks", url=…, channel="ticks", queue="ticks", loss_tolerant=True)``.

    At most once: there is nothing to acknowledge, so a crash, a restart, a lost connection or an overflow of the
    server's output buffer loses messages. Use it only where that is acceptable. One process subscribes, the others
    stand by; each time one subscribes, the gap before is recorded as an event, ``switchboard.gap``.
    """

    transport = "redis-pubsub"
    options_class = RedisPubSubOptions
    exclusive = True
    keeps = False

    def __init__(self, name: str, **options: Any) -> None:
        self._options = RedisPubSubOptions(**options)
        super().__init__(name, self._options.url)
        self._subscription: PubSub | None = None
        self._gaps: list[Gap] = []
        #: When it is asked next whether it is there, and since when an answer is due.
        self._ask_at = 0.0
        self._asked_at: float | None = None
        #: When the server was last heard; None before it was subscribed to.
        self._heard_at: float | None = None

    @property
    def options(self) -> RedisPubSubOptions:
        return self._options

    @property
    def namespace(self) -> str:
        return f"redis:{self._options.channel}"

    @property
    def place(self) -> str:
        return f"channel {self._options.channel}"

    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        deadline = time.monotonic() + timeout.total_seconds()
        bodies: list[bytes] = []
        size = 0
        with self.reading():
            identity = self.identity()
            subscription = self._subscribed(timeout)
            self._ask(subscription)
            while len(bodies) < limit and size < limit_bytes:
                # Once there is one, only what has arrived by now is taken along.
                wait = 0.0 if bodies else max(0.0, deadline - time.monotonic())
                try:
                    message = subscription.get_message(timeout=wait)
                except (redis.RedisError, OSError):
                    if not bodies:
                        raise
                    # What had arrived is not lost with the connection.
                    self.close()
                    break
                if message is not None:
                    self._asked_at, self._ask_at = None, time.monotonic() + ASK_INTERVAL
                    if message["type"] == "message":
                        bodies.append(message["data"])
                        size += len(message["data"])
                elif bodies or time.monotonic() >= deadline:
                    break
            self._miss_answer()
            self._heard_at = time.monotonic()
        return [Delivery(body, None, identity) for body in bodies]

    def _ask(self, subscription: PubSub) -> None:
        """Asks now and then whether the server is there: one that hangs is as quiet as one with nothing to say.

        To subscribe once more changes nothing, takes no right beyond the one it has, and is answered.
        """
        if self._asked_at is None and time.monotonic() >= self._ask_at:
            subscription.subscribe(self._options.channel)
            self._asked_at = time.monotonic()

    def _miss_answer(self) -> None:
        """Raises where all that has arrived is read, and the answer was not among it in time."""
        if self._asked_at is not None and time.monotonic() - self._asked_at > COMMAND_TIMEOUT.total_seconds():
            raise redis.TimeoutError(f"no answer within {COMMAND_TIMEOUT.total_seconds():.0f} s")

    def _subscribed(self, timeout: timedelta) -> PubSub:
        if self._subscription is None:
            self._reader = connect(self._url, timeout=timeout + BLOCK_GRACE)
            subscription: PubSub = self._reader.pubsub()  # type: ignore[no-untyped-call]
            subscription.subscribe(self._options.channel)
            since = None if self._heard_at is None else round(time.monotonic() - self._heard_at, 3)
            self._gaps.append(Gap(seconds=since))
            self._subscription = subscription
        return self._subscription

    def gaps(self) -> list[Gap]:
        gaps, self._gaps = self._gaps, []
        return gaps

    def close(self) -> None:
        subscription, self._subscription = self._subscription, None
        self._asked_at = None
        if subscription is not None:
            subscription.close()
        super().close()

    def left_behind(self, limit: int, limit_bytes: int) -> list[Delivery]:
        return []

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Nothing to tell: the server forgot the message as it sent it."""

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Nobody else has them."""

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """They are lost with this process: this transport has no way back."""

    def count_tries(self, deliveries: Sequence[Delivery], tries: int) -> None:
        """The count is this process's, as the messages are."""

    def inspect_source(self, client: redis.Redis, subject: str) -> Iterator[Finding]:
        channel = self._options.channel
        denied = []
        with closing(client.pubsub()) as subscription:  # type: ignore[no-untyped-call]
            subscription.subscribe(channel)
            try:
                subscription.get_message(timeout=PATIENCE.total_seconds())
            except redis.exceptions.NoPermissionError:
                denied.append("subscribe")
        yield from inspect_rights(client, self._url, subject, denied, [f"&{channel}"])

    def lag(self) -> Lag:
        return Lag(unread=None, pending=0)

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        refuse_all_but_bodies(messages, "channel")
        commands = [("PUBLISH", self._options.channel, message.body) for message in messages]
        return [f"{receivers} receivers" for receivers in self.in_one_step(commands)]
