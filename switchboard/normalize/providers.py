"""Which function shapes an adapter's deliveries."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from ..errors import ConfigError, MessageInvalid
from ..model import Delivery, Shape
from .dockerhub import normalize_dockerhub
from .generic import normalize_generic
from .github import normalize_github
from .slack import normalize_slack
from .storable import NotJson, read_json
from .stripe import normalize_stripe

#: What shapes a delivery: it raises ``MessageInvalid`` (or anything else) for a body it cannot shape, and does no
#: I/O, as it runs inside the transaction that stores the batch.
Normalizer = Callable[[Delivery], Shape]

_PROVIDERS: dict[str, Normalizer] = {
    "generic": normalize_generic,
    "github": normalize_github,
    "stripe": normalize_stripe,
    "slack": normalize_slack,
    "dockerhub": normalize_dockerhub,
}


def resolve_provider(provider: str) -> Normalizer:
    """The normalizer of that name, or a team's own as ``module:function``.

    Raises ``ConfigError`` that names what was not found and the nearest provider there is.
    """
    if ":" not in provider:
        try:
            return _PROVIDERS[provider]
        except KeyError:
            nearest = difflib.get_close_matches(provider, _PROVIDERS, n=1)
            hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
            raise ConfigError(
                f"provider: unknown provider {provider!r}{hint} "
                f"(expected one of {', '.join(_PROVIDERS)}, or your own as module:function)"
            ) from None
    module_name, _, function_name = provider.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise ConfigError(f"provider: cannot import {provider!r}: {error}") from error
    if not callable(function):
        raise ConfigError(f"provider: {provider!r} is not a function of one delivery")
    return _checked(provider, function)


def _checked(provider: str, function: Callable[[Delivery], object]) -> Normalizer:
    """A team's own function may return anything: what is no shape of a todo is its message's fault alone."""

    def normalize(delivery: Delivery) -> Shape:
        shape = function(delivery)
        if not isinstance(shape, Shape):
            raise MessageInvalid(f"{provider} returned {type(shape).__name__}, expected Shape")
        for name in ("title", "kind", "event_type"):
            if not isinstance(getattr(shape, name), str):
                raise MessageInvalid(f"{provider} returned a Shape whose {name} is no text")
        text = delivery.body.decode("utf-8") if shape.payload is None else shape.payload
        try:
            read_json(text)
        except (NotJson, AttributeError) as error:
            raise MessageInvalid(f"{provider} returned a Shape whose payload is not JSON: {error}") from error
        return shape

    return normalize
