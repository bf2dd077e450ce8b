"""The nouns: what the rooms hand to each other."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NewType

#: A JSON document as text, already checked: it is handed to PostgreSQL as it is, so that numbers keep their value.
JsonText = NewType("JsonText", str)

#: Any value ``json`` can write.
type_json = object


class RawJson(str):
    """A JSON document as text, already checked: what is in it keeps the form it was written in."""

    __slots__ = ()


Family = Literal["queue", "webhook"]
TrustMode = Literal["queue", "signed", "token", "open"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message as its transport handed it over: bytes and what was said about them, nothing decoded.

    ``native_id`` is the id the source itself gave, or None where the transport has none; ``verify_detail``
    names who vouched for it (``redis acl: deploy-bot``).
    """

    # In no repr: it reaches logs and error reports.
    body: bytes = field(repr=False)
    native_id: str | None
    verify_detail: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    content_type: str = ""
    source_ip: str | None = None
    #: Set where the transport already knows that the body is not what its adapter is told to expect.
    invalid: str | None = None
    #: Tries that the source has counted: reading it was the first.
    tries: int = 1
    #: What its transport acknowledges it by.
    handle: str = ""
    #: Whether its sender vouches for the id: it stands in what was signed, and its sender is known to try again with
    #: other bytes, so that another body under it is the same delivery once more (Stripe's).
    vouched_id: bool = False
    #: Why its last try in this process failed, as far as that is known.
    last_error: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Route:
    """Where an adapter's deliveries go, and under which names.

    ``key_prefix`` starts the idempotency key of each (``redis:deploys``); the ledger decides it when the
    adapter registers, so that two adapters never share keys in one queue.
    """

    adapter: str
    queue: str
    key_prefix: str
    provider: str = "generic"
    family: Family = "queue"
    trust_mode: TrustMode = "queue"
    max_body: int = 32 * 1024 * 1024
    #: The source's address without credentials, for people and logs.
    broker: str = ""
    #: Its system and place, as traces name them: ``redis:deploys``.
    namespace: str = ""

    @property
    def verified(self) -> bool:
        """Whether each delivery was itself verified: a queue's trust is its connection (SPEC-0002)."""
        return self.trust_mode in ("signed", "token")


@dataclass(frozen=True, slots=True)
class Shape:
    """What a body means: the columns of a todo that come from it.

    ``payload`` is any value ``json`` can write; None stands for "the body itself, which is JSON".
    """

    title: str = field(repr=False)
    kind: str = ""
    event_type: str = ""
    payload: JsonText | None = field(default=None, repr=False)

    @classmethod
    def of(cls, payload: type_json, *, title: str, kind: str = "", event_type: str = "") -> Shape:
        """A shape whose payload is written as JSON here; ``ValueError`` or ``TypeError`` for what JSON cannot say."""
        text = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return cls(title=title, kind=kind, event_type=event_type, payload=JsonText(text))


#: In which company a batch is tried. ``fresh``: read just now, which counted its try. ``again``: once more together.
#: ``alone``: one delivery, with no other ingest in the process. ``poison``: not tried, but dead-lettered.
Company = Literal["fresh", "again", "alone", "poison"]


@dataclass(slots=True, eq=False)
class Batch:
    """Deliveries that are stored in one transaction and acknowledged together.

    It is the argument of an ingest message, so its ``repr`` is short and shows no body (an argument reaches
    logs and error reports as text). ``stored`` is its receipt: set after the commit, and the only thing an
    acknowledgement looks at.
    """

    route: Route
    deliveries: Sequence[Delivery]
    company: Company = "fresh"
    #: Monotonic second before which it is not offered.
    not_before: float = 0.0
    #: Monotonic second at which its deliveries were read, or taken up again.
    read_at: float = field(default_factory=time.monotonic)
    #: How often the ledger refused to take it as dead letters.
    not_buried: int = 0
    #: Set once the ledger has answered and the try is counted: what fails from here on may be the batch's own fault.
    begun: bool = False
    #: The monotonic second of that.
    begun_at: float = 0.0
    #: Set after the commit.
    stored: bool = False
    #: Set after the commit: those of it that are acknowledged only when their todo has ended.
    parked: Sequence[Delivery] = ()
    #: Set after the commit: those of it that the ledger refused for what they are, and that are not stored, with why.
    refused: Sequence[tuple[Delivery, str]] = ()

    @property
    def alone(self) -> bool:
        """Whether nothing else may be ingested beside it."""
        return self.company == "alone"

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        return sum(len(delivery.body) for delivery in self.deliveries)

    def __repr__(self) -> str:
        return f"<Batch {self.route.adapter}: {len(self.deliveries)} deliveries, {self.size} bytes, {self.company}>"


DeadLetterReason = Literal["invalid", "poison", "id_conflict", "too_large"]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A delivery that cannot become a todo, kept with its exact bytes and why."""

    delivery: Delivery
    key: str
    reason: DeadLetterReason
    detail: str = field(repr=False)
    deliveries: int = 1
    #: What of ``detail`` may be logged and sent, where not all: an error that is not ours can quote the body.
    loggable: str | None = None

    @property
    def said(self) -> str:
        """Why, without anything of the body."""
        return self.detail if self.loggable is None else self.loggable


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a batch: counts, and the deliveries behind those that are not plain todos."""

    new: int = 0
    duplicates: int = 0
    #: Dead letters written, without those that were there already.
    dead_letters: Sequence[DeadLetter] = ()
    #: Dead letters of it, with those that were there already.
    letters: Sequence[DeadLetter] = ()
    #: Not stored: the ledger refuses each for what it is, with why.
    refused: Sequence[tuple[Delivery, str]] = ()
    #: Not stored, and counted as duplicates: another body than that of their id, which their sender vouches for.
    differing: Sequence[Delivery] = ()

    @property
    def dead(self) -> int:
        """How many of it are dead letters."""
        return len(self.letters)


@dataclass(frozen=True, slots=True)
class Event:
    """A delivery as the ledger keeps it, with its exact bytes in ``payload``."""

    id: int
    source: str
    family: str
    event_type: str
    external_id: str | None
    trust_mode: str
    verified: bool
    verify_detail: str
    content_type: str
    headers: dict[str, str] = field(repr=False)
    payload: bytes = field(repr=False)
    payload_size: int
    source_ip: str | None
    received_at: datetime


TodoState = Literal["pending", "claimed", "done", "failed"]


@dataclass(slots=True)
class TodoRow:
    """A durable unit of work, as its row is.

    Not frozen, as are the other nouns: a frozen one costs four times as much to make, and a worker makes thousands a
    second.
    """

    id: int
    queue: str
    source: str
    kind: str
    title: str = field(repr=False)
    payload: type_json = field(repr=False)
    event_id: int | None
    idempotency_key: str | None
    assignee: str | None
    state: TodoState
    owner: str | None
    lease_expires_at: datetime | None
    attempt: int
    max_attempts: int
    result: type_json = field(repr=False)
    last_error: str | None = field(repr=False)
    created_at: datetime
    updated_at: datetime
    claimed_at: datetime | None
    completed_at: datetime | None
