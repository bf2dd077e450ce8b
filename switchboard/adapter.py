"""What adapters of both families are to the rest: a name, a queue to feed, a shape for what they bring (ADR-0014)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from .model import Family, TrustMode

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
    """The options every adapter has; a family's and a type's own classes add what they need."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    #: The todo queue it feeds.
    queue: str = Field(min_length=1, max_length=200)
    #: What shapes its deliveries: a provider's name, or a team's own ``module:function``.
    provider: str = "generic"
    #: The longest body it takes.
    max_body: Size = Field(default=32 * 1024**2, ge=1)


class Adapter(ABC):
    """One line into the ledger, of either family."""

    #: The class of its options.
    options_class: ClassVar[type[AdapterOptions]]
    family: ClassVar[Family]

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
    def trust_mode(self) -> TrustMode:
        """Who vouches for its deliveries (ADR-0003)."""

    @property
    @abstractmethod
    def namespace(self) -> str:
        """What its idempotency keys begin with while no other adapter has the same (``redis:deploys``)."""

    @property
    @abstractmethod
    def broker(self) -> str:
        """Where its deliveries come from, without credentials, for people and logs."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Its configuration as JSON values, without secrets."""
