"""What every webhook adapter is to the rest: bytes and headers in, a verified delivery out.

Nothing here does I/O or reads a clock: a request carries the time it came at.
"""

from __future__ import annotations

import hmac
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

from ..adapter import Adapter, AdapterOptions, Duration, Size
from ..errors import MessageInvalid, SignatureInvalid, SignatureMismatch
from ..model import Delivery
from ..normalize.storable import NotJson, NumberText, read_json
from ..redact import MASK

#: How far a signed time may be from now, either way: what Stripe, Slack and Standard Webhooks advise.
TOLERANCE = timedelta(seconds=300)

#: Characters of a secret or a token, at least: fewer can be guessed, and stand in headers that have nothing to do with
#: them.
MIN_SECRET = 16

#: Bytes of ``max_body``, at most: `switchboard serve` holds no more of all bodies together, so that a longer one could
#: never be taken.
MOST_HELD = 256 * 1024**2

_ID = re.compile(r"[\x21-\x7e]{1,200}")
_UNIX_SECONDS = re.compile(rb"[0-9]{1,12}")


def _one_or_several(value: object) -> object:
    return (value,) if isinstance(value, (str, SecretStr)) else value


def _long_enough(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if any(0 < len(secret) < MIN_SECRET for secret in secrets):
        raise ValueError(f"expected at least {MIN_SECRET} characters: a shorter one can be guessed")
    return secrets


#: One secret or several at once, for rotation. An empty one is not set; its place in the order still counts.
Secrets = Annotated[tuple[SecretStr, ...], BeforeValidator(_one_or_several), AfterValidator(_long_enough)]


class PushOptions(AdapterOptions):
    """The options every webhook adapter has; a sender's own class adds how it is verified."""

    #: A longer body is refused while it is read, 413. The default is what GitHub sends at most.
    max_body: Size = Field(default=25 * 1024**2, ge=1, le=MOST_HELD)


class SignedOptions(PushOptions):
    """Options of a sender that signs what it sends."""

    #: What it signs with, or several of them.
    secret: Secrets = Field(default=(), exclude=True, repr=False)


class TimedOptions(SignedOptions):
    """Options of a sender that signs the time as well."""

    #: How far that time may be from now, in the past and in the future.
    tolerance: Duration = Field(default=TOLERANCE, gt=timedelta(0))


class TokenOptions(PushOptions):
    """Options of a sender that shows a token."""

    #: What it shows, or several of them.
    token: Secrets = Field(default=(), exclude=True, repr=False)


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A request as it came: nothing decoded, nothing parsed. Header names are in lower case."""

    body: bytes
    headers: Sequence[tuple[bytes, bytes]]
    query: bytes
    source_ip: str | None
    #: Unix seconds.
    received_at: float

    def header(self, name: str) -> bytes:
        """The header's value; ``SignatureInvalid`` where it is missing, repeated or not ASCII."""
        value = self.header_or_none(name)
        if value is None:
            raise SignatureInvalid(f"{name} is missing")
        return value

    def header_or_none(self, name: str) -> bytes | None:
        """The header's value, None where there is none; ``SignatureInvalid`` where it is repeated or not ASCII."""
        wanted = name.encode()
        found = [value for header, value in self.headers if header == wanted]
        if len(found) > 1:
            raise SignatureInvalid(f"{name} is there {len(found)} times")
        if found and not found[0].isascii():
            raise SignatureInvalid(f"{name} is not ASCII")
        return found[0] if found else None

    def id_header(self, name: str) -> str | None:
        """The header's value as a delivery's id, None where there is none; ``SignatureInvalid`` for what is no id."""
        value = self.header_or_none(name)
        if value is None:
            return None
        if not _ID.fullmatch(value.decode("ascii")):
            raise SignatureInvalid(f"{name} is no id: expected 1 to 200 printable characters")
        return value.decode("ascii")

    def time_header(self, name: str, tolerance: timedelta) -> bytes:
        """The header's value, which says when it was signed; ``SignatureInvalid`` where that is not about now."""
        value = self.header(name)
        self.check_time(value, tolerance)
        return value

    def check_time(self, signed_at: bytes, tolerance: timedelta) -> None:
        """``SignatureInvalid`` where these Unix seconds are further from now than ``tolerance``, either way."""
        if not _UNIX_SECONDS.fullmatch(signed_at):
            raise SignatureInvalid("its time is no number of seconds")
        away = int(signed_at) - self.received_at
        if abs(away) > tolerance.total_seconds():
            raise SignatureInvalid(f"its time is {abs(away):.0f} s {'ahead' if away > 0 else 'ago'}")

    def __repr__(self) -> str:
        return f"<Request: {len(self.body)} bytes from {self.source_ip}>"


class PushAdapter(Adapter):
    """One webhook address: who may send to it, and how that is told.

    ``verify`` may be called by any thread, at the same time.
    """

    #: The ``type`` of its configuration table.
    sender: ClassVar[str]
    options_class: ClassVar[type[PushOptions]]
    family = "webhook"
    #: Of ``options_class``, as each sender's class says for itself.
    _options: PushOptions

    def __init__(self, name: str, **options: Any) -> None:
        self._options = self.options_class(**options)
        super().__init__(name)

    @property
    def options(self) -> PushOptions:
        return self._options

    @property
    @abstractmethod
    def secrets(self) -> tuple[SecretStr, ...]:
        """What its sender is known by: secrets or tokens."""

    @property
    def off(self) -> str:
        """Why it takes nothing: it has nothing to know its sender by. Empty where it works."""
        if any(secret.get_secret_value() for secret in self.secrets):
            return ""
        return f"its {'secret' if self.trust_mode == 'signed' else 'token'} is not set"

    @property
    def namespace(self) -> str:
        return f"{self.sender}:{self.name}"

    @property
    def broker(self) -> str:
        return self.sender

    @abstractmethod
    def verify(self, request: Request) -> Delivery:
        """The delivery that the request brings, once it is known to be its sender's.

        Raises ``SignatureInvalid`` for every other, and says why without showing what was sent.
        """

    def check_head(self, request: Request) -> None:
        """``SignatureInvalid`` where no body could make the request its sender's: by its headers and query alone.

        A token decides there; of a signature it is that it is there, once, and its time. ``request`` has no body yet.
        """
        try:
            self.verify(replace(request, body=b""))
        except SignatureMismatch:
            # The one thing that a body can mend, where it is signed.
            if self.trust_mode != "signed":
                raise

    def answer(self, delivery: Delivery) -> str | None:
        """What its sender wants to hear instead of a todo being made; None where it is a todo."""
        return None

    def describe(self) -> dict[str, Any]:
        """Its configuration as JSON values, without secrets."""
        return {"type": self.sender, "off": self.off} | self.options.model_dump(mode="json")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}: {self.trust_mode}>"

    def _delivery(
        self, request: Request, native_id: str | None, verify_detail: str, *, vouched_id: bool = False
    ) -> Delivery:
        headers = self._headers(request.headers)
        return Delivery(
            request.body,
            native_id,
            verify_detail,
            headers,
            headers.get("content-type", ""),
            request.source_ip,
            vouched_id=vouched_id,
        )

    def _headers(self, headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
        """The headers as text, those that are repeated joined, without any that holds what its sender is known by.

        Else exactly as they came, which is how a queue's are: the store redacts what it keeps of both.
        """
        known = [value.encode() for secret in self.secrets if (value := secret.get_secret_value())]
        found: dict[str, str] = {}
        for name_bytes, value_bytes in headers:
            name = _text(name_bytes)
            value = MASK if any(secret in value_bytes for secret in known) else _text(value_bytes)
            found[name] = f"{found[name]}, {value}" if name in found else value
        return found


class SignedAdapter(PushAdapter):
    """The webhook address of a sender that signs what it sends."""

    _options: SignedOptions

    @property
    def trust_mode(self) -> Literal["signed"]:
        return "signed"

    @property
    def secrets(self) -> tuple[SecretStr, ...]:
        return self._options.secret


def _text(value: bytes) -> str:
    """A header as text: UTF-8, or what it is in Latin-1, as HTTP says of any other."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def matching(secrets: Sequence[SecretStr], given: Sequence[bytes], expected: Callable[[bytes], bytes]) -> str:
    """Which secret makes one of the ``given``, as ``secret 1 of 2``; ``expected`` is what a secret makes.

    Every one is compared with every other, in constant time. Raises ``SignatureMismatch`` where none does.
    """
    found = 0
    for position, secret in enumerate(secrets, start=1):
        value = secret.get_secret_value().encode()
        if not value:
            continue
        wanted = expected(value)
        for candidate in given:
            if hmac.compare_digest(candidate, wanted):
                found = position
    if not found:
        raise SignatureMismatch("it does not match")
    return f"{found} of {len(secrets)}"


def id_in_body(body: bytes, field: str) -> str | None:
    """The text in that field of a JSON object, as a delivery's id; None where there is none."""
    value = field_of(body, field)
    if not isinstance(value, str) or isinstance(value, NumberText):
        return None
    return value if _ID.fullmatch(value) else None


def field_of(body: bytes, field: str) -> object:
    """That field of a JSON object; None where the body is something else."""
    try:
        document = read_json(body.decode("utf-8"))
    except (UnicodeDecodeError, NotJson, MessageInvalid):
        return None
    return document.get(field) if isinstance(document, dict) else None
