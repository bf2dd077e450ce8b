"""What every pull transport is to the rest: receive, acknowledge, keep, give back (SPEC-0002, Adapter Interface)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from ..finding import Finding
from ..model import Delivery

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d)")
_SIZE = re.compile(r"(?P<number>\d{1,15}(?:\.\d{1,6})?)\s*(?P<unit>b|[kmg]i?b)?", re.IGNORECASE)
_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(value: object) -> object:
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    try:
        if match is not None:
            return timedelta(**{_UNITS[match["unit"]]: float(match["number"])})
    except OverflowError:
        pass
    raise ValueError('expected a duration with its unit, such as "500ms", "60s", "5m" or "2h"')


def _size(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError('expected a size such as "16MiB", "500kB" or a number of bytes')
    return int(float(match["number"]) * _BYTES[(match["unit"] or "b").lower()])


#: A number of bytes, written in configuration as "16MiB", "500kB" …
Size = Annotated[int, BeforeValidator(_size)]

#: A ``timedelta``, written in configuration as "60s", "5m" …
Duration = Annotated[timedelta, BeforeValidator(_duration)]


class AdapterOptions(BaseModel):
    """The options every pull adapter has; a transport's own class adds what it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    #: Whether its transport can leave a message un-acknowledged until its todo has ended.
    can_complete: ClassVar[bool] = False

    #: The todo queue it feeds.
    queue: str = Field(min_length=1, max_length=200)
    #: What shapes its deliveries: ``generic``, or a team's own ``module:function``.
    provider: str = "generic"
    #: Messages read, stored and acknowledged together, at most.
    batch: int = Field(default=500, ge=1, le=10_000, strict=True)
    #: Bytes of bodies in one batch, at most; one larger message is a batch of its own.
    batch_bytes: Size = Field(default=16 * 1024**2, ge=1)
    #: A larger body becomes a dead letter, ``too_large``, with its bytes.
    max_body: Size = Field(default=32 * 1024**2, ge=1)
    #: Tries after which a message that fails by itself, or kills its worker, becomes a dead letter, ``poison``: two in
    #: company, which blame nobody, and one alone at least.
    max_deliveries: int = Field(default=5, ge=3, le=1000, strict=True)
    #: When the source is told: after the commit. Streams can also wait for the todo.
    ack: Literal["store", "complete"] = "store"
    #: How long a delivery may sit un-acknowledged with another consumer before it is claimed.
    claim_idle: Duration = Field(default=timedelta(seconds=60), ge=timedelta(milliseconds=100))

    @field_validator("ack")
    @classmethod
    def _only_where_it_can(cls, ack: str) -> str:
        if ack == "complete" and not cls.can_complete:
            raise ValueError('expected "store": of these transports only streams can wait for the todo')
        return ack


@dataclass(frozen=True, slots=True)
class Lag:
    """What waits at the source: not yet read (None where the server does not say), and not yet acknowledged."""

    unread: int | None
    pending: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to be published: its bytes, its headers and a key of the producer's own."""

    body: bytes = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which a transport without redelivery was not listening: what was sent then is lost.

    ``seconds`` is None where this process has only begun, and cannot know since when nobody listened.
    """

    seconds: float | None


class PullAdapter(ABC):
    """One line into the ledger: a source, how to read from it and how to acknowledge to it.

    ``receive`` and ``left_behind`` are called by one thread, the other methods by any, at the same time. Every method
    raises ``BrokerUnavailable`` where the source gives no answer; nothing else of the client's comes out.
    """

    #: The ``type`` of its configuration table.
    transport: ClassVar[str]
    #: The class of its options.
    options_class: ClassVar[type[AdapterOptions]]
    #: Whether only one consumer among all processes may run.
    exclusive: ClassVar[bool] = False
    family: ClassVar[Literal["queue"]] = "queue"
    trust_mode: ClassVar[Literal["queue"]] = "queue"

    def __init__(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", name):
            raise ValueError(f"adapter name {name!r}: expected letters, digits, - and _, at most 100")
        self.name = name

    @property
    @abstractmethod
    def options(self) -> AdapterOptions:
        """Its options, validated."""

    @property
    @abstractmethod
    def namespace(self) -> str:
        """What its idempotency keys begin with while no other adapter has the same (``redis:deploys``)."""

    @property
    @abstractmethod
    def broker(self) -> str:
        """The source's address without credentials, for people and logs."""

    @abstractmethod
    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        """At most ``limit`` new deliveries, as soon as there is one; none when ``timeout`` has passed.

        It may return somewhat more than ``limit_bytes`` where messages are larger than those before.
        """

    @abstractmethod
    def left_behind(self, limit: int, limit_bytes: int) -> list[Delivery]:
        """Takes over what is un-acknowledged and nobody works on: its own that a lost reply left, and others'.

        Others' are those of a process that is known to have ended, and what lay still for ``claim_idle``. Each says
        how often it was tried; taking it over counts as no try.
        """

    @abstractmethod
    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """Tells the source that these are stored; what is already acknowledged, or gone, is no error.

        Raises ``AckFailed`` where the source gives no answer: the same call may succeed later.
        """

    @abstractmethod
    def keep(self, deliveries: Sequence[Delivery]) -> None:
        """Keeps these from being claimed by another consumer for ``claim_idle`` from now."""

    @abstractmethod
    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Lets any consumer have these at once; no attempt is counted."""

    @abstractmethod
    def count_tries(self, deliveries: Sequence[Delivery], tries: int) -> None:
        """Sets how often the source says that these were tried."""

    def sent_at(self, delivery: Delivery) -> float | None:
        """The Unix second at which the source took it in, by the source's clock; None where it does not say."""
        return None

    @abstractmethod
    def identity(self) -> str:
        """Who vouches for its messages: ``redis acl: deploy-bot``."""

    @property
    def carries_headers(self) -> bool:
        """Whether its messages have headers beside their bodies."""
        return False

    def park(self, deliveries: Sequence[Delivery]) -> None:
        """Sets these aside, stored and un-acknowledged, where nobody takes them over (``ack = "complete"``)."""
        raise NotImplementedError(f'{self.transport} knows ack = "store" alone')

    def gaps(self) -> list[Gap]:
        """The gaps since it was last asked; a transport that delivers again has none."""
        return []

    @abstractmethod
    def lag(self) -> Lag:
        """What waits at the source."""

    @abstractmethod
    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        """Puts these on the source, all or none, and returns their ids there; it tries once.

        Raises ``PublishRejected`` where trying again cannot help.
        """

    def inspect(self) -> Iterator[Finding]:
        """What ``switchboard doctor`` has to know of its server, its source and its rights there; changes nothing.

        It is patient for a few seconds, and raises ``BrokerUnavailable`` as the other methods do.
        """
        yield from ()

    @abstractmethod
    def close(self) -> None:
        """Closes its connections; the next call opens them again."""

    def describe(self) -> dict[str, Any]:
        """Its configuration as JSON values, without secrets."""
        return {"type": self.transport, "broker": self.broker} | self.options.model_dump(mode="json", exclude={"url"})

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.broker}>"
