"""What Dramatiq's Retries is told of our actors: the ledger, the source or the next tick is what tries again."""

from __future__ import annotations


def never(_retries: int, _exception: BaseException) -> bool:
    """For ``retry_when``: a team's global one outranks ``max_retries``, and a copy would be another message."""
    return False
