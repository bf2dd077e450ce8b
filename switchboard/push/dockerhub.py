"""Docker Hub signs nothing: it is known by a token, which its address has to carry.

https://docs.docker.com/docker-hub/repos/manage/webhooks/
"""

from __future__ import annotations

from typing import Literal

from pydantic import SecretStr

from ..model import Delivery
from .base import PushAdapter, Request, TokenOptions
from .token import check_token


class DockerHubOptions(TokenOptions):
    """Options of a ``dockerhub`` adapter."""

    provider: str = "dockerhub"


class DockerHub(PushAdapter):
    """Docker Hub's webhooks: ``DockerHub("images", token=…, queue="images")``.

    A delivery has no id: equal bodies are one todo while that is live.
    """

    sender = "dockerhub"
    options_class = DockerHubOptions
    _options: DockerHubOptions

    @property
    def trust_mode(self) -> Literal["token"]:
        return "token"

    @property
    def secrets(self) -> tuple[SecretStr, ...]:
        return self._options.token

    def verify(self, request: Request) -> Delivery:
        return self._delivery(request, None, check_token(request, self.secrets))
