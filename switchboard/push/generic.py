"""Any other sender: by a token, by a signature as Standard Webhooks has it, or, if it has to be, by nothing at all."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from ..adapter import Size
from ..errors import MessageInvalid, SignatureInvalid
from ..model import Delivery
from .base import MOST_HELD, PushAdapter, Request, Secrets, TimedOptions, TokenOptions
from .standard_webhooks import check_signature, secret_bytes
from .token import check_token

#: What is said of an adapter that is open, wherever it is shown.
OPEN = "OPEN: nobody was verified"


class GenericOptions(TokenOptions, TimedOptions):
    """Options of a ``generic`` adapter."""

    #: Less than the others': nobody knows its documents, and one in memory is some sixty times as large as its body.
    max_body: Size = Field(default=1024**2, ge=1, le=MOST_HELD)
    #: How its sender is known. ``open``: by nothing, so that anybody who finds the address can make todos.
    trust: Literal["token", "signed", "open"] = "token"

    @field_validator("secret")
    @classmethod
    def _base64(cls, secrets: Secrets) -> Secrets:
        for secret in secrets:
            if value := secret.get_secret_value():
                try:
                    secret_bytes(value)
                except ValueError:
                    # The decoder's own message is not needed, and its cause could be shown with the value.
                    raise ValueError("expected base64, after whsec_ or without it (Standard Webhooks)") from None
        return secrets

    @model_validator(mode="after")
    def _nothing_unused(self) -> Self:
        for key, trust in (("secret", "signed"), ("token", "token"), ("tolerance", "signed")):
            if key in self.model_fields_set and self.trust != trust:
                raise ValueError(f'{key} is for trust = "{trust}", and this adapter has trust = "{self.trust}"')
        return self


class Generic(PushAdapter):
    """Webhooks of any other sender: ``Generic("builds", token=…, queue="builds")``.

    A delivery's id is its ``Webhook-Id`` or ``X-Delivery-Id``; without one, equal bodies are one todo while that is
    live.
    """

    sender = "generic"
    options_class = GenericOptions
    _options: GenericOptions

    @property
    def trust_mode(self) -> Literal["token", "signed", "open"]:
        return self._options.trust

    @property
    def secrets(self) -> tuple[SecretStr, ...]:
        return self._options.secret or self._options.token

    @property
    def off(self) -> str:
        return "" if self.trust_mode == "open" else super().off

    def verify(self, request: Request) -> Delivery:
        if self.trust_mode == "signed":
            message_id, detail = check_signature(request, self.secrets, self._options.tolerance)
            return self._delivery(request, message_id, detail)
        detail = OPEN if self.trust_mode == "open" else check_token(request, self.secrets)
        try:
            native_id = request.id_header("webhook-id") or request.id_header("x-delivery-id")
        except SignatureInvalid as error:
            # Whoever has the token is told what is wrong: nothing is signed here.
            raise MessageInvalid(str(error)) from None
        return self._delivery(request, native_id, detail)
