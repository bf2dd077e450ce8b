"""The webhook family: ``base`` is the interface, and there is one file a sender, or a scheme that several share."""

from .base import PushAdapter, PushOptions, Request
from .dockerhub import DockerHub
from .generic import OPEN, Generic
from .github import GitHub
from .slack import Slack
from .stripe import Stripe

#: The webhook adapters by the ``type`` of their configuration table.
SENDERS: dict[str, type[PushAdapter]] = {
    adapter.sender: adapter for adapter in (GitHub, Stripe, Slack, DockerHub, Generic)
}

__all__ = [
    "OPEN",
    "SENDERS",
    "DockerHub",
    "Generic",
    "GitHub",
    "PushAdapter",
    "PushOptions",
    "Request",
    "Slack",
    "Stripe",
]
