"""A message on its way through the worker, as both of our consumers offer it."""

from __future__ import annotations

from dramatiq.broker import MessageProxy


class Offer(MessageProxy):
    """Notes why its actor failed, so that its consumer can tell when the worker gives it back."""

    failure: BaseException | None = None

    def stuff_exception(self, exception: BaseException) -> None:
        self.failure = exception
        super().stuff_exception(exception)
