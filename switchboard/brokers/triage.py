"""What waits to be stored, and in which company: poison is found without punishing the innocent.

Counting deliveries alone dead-letters good messages when workers are killed often. So a message is tried first in the
batch it was read with, then once more in a batch, and from then on alone, where a death or a failure can only be its
own; at ``max_deliveries`` it becomes a dead letter, untried.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from ..model import Batch, Company, Delivery, Route

#: Tries from which a message is tried alone.
ALONE_FROM = 2

#: Seconds before a third try alone; each further one waits twice as long, up to the second.
FIRST_DELAY, LONGEST_DELAY = 1.0, 60.0


def retry_delay(tries: int) -> float:
    """Seconds to wait before the next try of what has been tried so often."""
    return min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (tries - ALONE_FROM - 1)) if tries > ALONE_FROM else 0.0


class Triage:
    """The waiting room of one adapter; its caller locks it. ``clock`` is in seconds and never goes back."""

    def __init__(
        self, route: Route, *, batch: int, batch_bytes: int, max_deliveries: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._route = route
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._max_deliveries = max_deliveries
        self._clock = clock
        self._together: deque[Batch] = deque()
        self._alone: list[Batch] = []
        self._alone_next = True

    def __len__(self) -> int:
        return sum(1 for _ in self.deliveries())

    def deliveries(self) -> Iterator[Delivery]:
        """Every delivery that waits."""
        for batch in (*self._together, *self._alone):
            yield from batch.deliveries

    def clear(self) -> None:
        """Forgets them all."""
        self._together.clear()
        self._alone.clear()

    # In

    def read(self, deliveries: Sequence[Delivery]) -> None:
        """Takes in what was read just now, which may have been tried before: given back, say, by another worker."""
        self._together.extend(self._batches([each for each in deliveries if each.tries <= 1], "fresh"))
        self.left_behind(each for each in deliveries if each.tries > 1)

    def put_back(self, batch: Batch) -> None:
        """Takes in a batch that was not tried: it comes again as it was, and next of its kind."""
        self._alone_next = batch.alone
        self._add(self._again(batch, batch.deliveries))

    def left_behind(self, deliveries: Iterable[Delivery], *, not_before: float = 0.0) -> None:
        """Takes in what somebody has tried as often as each says, and left."""
        once = []
        for delivery in deliveries:
            if delivery.tries >= self._max_deliveries:
                self._together.append(Batch(self._route, [delivery], "poison", not_before))
            elif delivery.tries >= ALONE_FROM:
                ready = max(not_before, self._clock() + retry_delay(delivery.tries))
                self._alone.append(Batch(self._route, [delivery], "alone", ready))
            else:
                once.append(delivery)
        self._together.extend(self._batches(once, "again", not_before))

    def refused(self, deliveries: Iterable[Delivery]) -> None:
        """Takes in what the ledger refused while it was in a batch: from now on each is tried alone."""
        self._alone.extend(Batch(self._route, [delivery], "alone") for delivery in deliveries)

    def failed(self, batch: Batch, why: str = "") -> None:
        """Takes in a batch whose try failed through its own fault: that try counts, and sets its next company."""
        if batch.company == "poison":
            # To bury it is no try, and what it died of is what somebody wants to read.
            ready = self._clock() + retry_delay(ALONE_FROM + 1 + batch.not_buried)
            again = self._again(batch, batch.deliveries)
            self._together.append(replace(again, not_before=ready, not_buried=batch.not_buried + 1))
            return
        counted = 0 if batch.company == "fresh" else 1
        tried = [replace(delivery, tries=delivery.tries + counted, last_error=why) for delivery in batch.deliveries]
        if len(tried) > 1:
            self.left_behind(tried, not_before=self._clock() + FIRST_DELAY)
        elif tried[0].tries >= self._max_deliveries:
            self.left_behind(tried)
        else:
            ready = self._clock() + retry_delay(tried[0].tries)
            self._alone.append(Batch(self._route, tried, "alone", ready))

    def interrupted(self, batch: Batch) -> None:
        """Takes in a batch that was in the store as an outage began: halved, so that who brings the ledger down is
        found too. Its try does not count.
        """
        deliveries = batch.deliveries
        if len(deliveries) == 1 and batch.company != "poison":
            self._alone.append(Batch(self._route, deliveries, "alone"))
            return
        middle = (len(deliveries) + 1) // 2
        for half in (deliveries[:middle], deliveries[middle:]):
            if half:
                self._add(self._again(batch, half))

    # Out

    def next(self, *, suspects: bool = True) -> Batch | None:
        """Takes out the batch to be offered now; without ``suspects`` only what was read just now.

        Those alone and those together take turns, the former by how often they were tried.
        """
        for alone in (self._alone_next, not self._alone_next):
            batch = self._next_alone() if alone and suspects else None if alone else self._next_together(suspects)
            if batch is not None:
                self._alone_next = not alone
                return batch
        return None

    def _next_alone(self) -> Batch | None:
        now = self._clock()
        due = [batch for batch in self._alone if batch.not_before <= now]
        if not due:
            return None
        batch = min(due, key=lambda batch: batch.deliveries[0].tries)
        self._alone.remove(batch)
        return batch

    def _next_together(self, suspects: bool) -> Batch | None:
        now = self._clock()
        for batch in self._together:
            if batch.not_before <= now and (suspects or batch.company == "fresh"):
                self._together.remove(batch)
                return batch
        return None

    def _add(self, batch: Batch) -> None:
        if batch.alone:
            self._alone.append(batch)
        else:
            self._together.appendleft(batch)

    def _again(self, batch: Batch, deliveries: Sequence[Delivery]) -> Batch:
        return Batch(
            self._route, deliveries, batch.company, batch.not_before, batch.read_at, not_buried=batch.not_buried
        )

    def _batches(self, deliveries: Sequence[Delivery], company: Company, not_before: float = 0.0) -> Iterator[Batch]:
        """As few batches as the bounds allow; one delivery larger than ``batch_bytes`` is a batch of its own."""
        chosen: list[Delivery] = []
        size = 0
        for delivery in deliveries:
            if chosen and (len(chosen) >= self._batch or size + len(delivery.body) > self._batch_bytes):
                yield Batch(self._route, chosen, company, not_before)
                chosen, size = [], 0
            chosen.append(delivery)
            size += len(delivery.body)
        if chosen:
            yield Batch(self._route, chosen, company, not_before)
