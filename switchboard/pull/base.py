"""What every pull transport is to the rest: receive, acknowledge, keep, give back (SPEC-0002, Adapter Interface)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ..adapter import Adapter, AdapterOptions, Duration, Size
from ..finding import Finding
from ..model import Delivery


class PullOptions(AdapterOptions):
    """The options every pull adapter has; a transport's own class adds what it needs."""

    #: Whether its transport can leave a message un-acknowledged until its todo has ended.
    can_complete: ClassVar[bool] = False

    #: Messages read, stored and acknowledged together, at most.
    batch: int = Field(default=500, ge=1, le=10_000, strict=True)
    #: Bytes of bodies in one batch, at most; one larger message is a batch of its own.
    batch_bytes: Size = Field(default=16 * 1024**2, ge=1)
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


@dataclass(frozen=True, slots=True)
class Freed:
    """What dead workers had at a source: deliveries that anyone may take at once now, and consumers forgotten."""

    deliveries: int = 0
    consumers: int = 0


class PullAdapter(Adapter):
    """One line into the ledger: a source, how to read from it and how to acknowledge to it.

    ``receive`` and ``left_behind`` are called by one thread, the other methods by any, at the same time. Every method
    raises ``BrokerUnavailable`` where the source gives no answer; nothing else of the client's comes out.
    """

    #: The ``type`` of its configuration table.
    transport: ClassVar[str]
    options_class: ClassVar[type[PullOptions]]
    #: Whether only one consumer among all processes may run.
    exclusive: ClassVar[bool] = False
    family = "queue"

    @property
    @abstractmethod
    def options(self) -> PullOptions:
        """Its options, validated."""

    @property
    def trust_mode(self) -> Literal["queue"]:
        """A queue's trust is its connection's (SPEC-0002)."""
        return "queue"

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
    def reader_identity(self) -> str:
        """In whose name it reads: of two adapters with the same source and name, each gets a part of the messages."""
        return ""

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

    def free_dead(self) -> Freed:
        """Lets anyone take at once what dead workers hold un-acknowledged, and forgets those that hold nothing.

        For the reaper: consumers do the same for themselves, where one runs. A transport that holds nothing for a
        consumer has nothing to free.
        """
        return Freed()

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
