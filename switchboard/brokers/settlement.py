"""What a source is still to be told: kept until it has heard it."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from ..model import Batch, Delivery
from ..pull import PullAdapter


class Settlement:
    """Acknowledgements, parkings and corrected counts of one adapter; any thread may add and settle.

    Nothing is lost while it waits here: what is stored is safe, and a redelivery of it dedups.
    """

    def __init__(self, adapter: PullAdapter) -> None:
        self._adapter = adapter
        self._lock = threading.Lock()
        self._acknowledge: list[Delivery] = []
        self._park: list[Delivery] = []
        self._miscounted: list[Delivery] = []

    def __len__(self) -> int:
        with self._lock:
            return len(self._acknowledge) + len(self._park) + len(self._miscounted)

    def stored(self, batch: Batch) -> None:
        """The batch is committed: all of it is to be acknowledged that is neither refused nor waits for its todo."""
        apart = {id(delivery) for delivery, _ in batch.refused} | {id(delivery) for delivery in batch.parked}
        with self._lock:
            self._acknowledge += [delivery for delivery in batch.deliveries if id(delivery) not in apart]
            self._park += batch.parked

    def miscounted(self, deliveries: Iterable[Delivery]) -> None:
        """Their last try was an outage's: the source is to have the count from before."""
        with self._lock:
            self._miscounted += deliveries

    def settle(self) -> bool:
        """Tells the source all of it; False where there was nothing to tell.

        Raises ``AckFailed`` or ``BrokerUnavailable`` where it does not answer: what it has not heard stays here.
        """
        with self._lock:
            acknowledge, self._acknowledge = self._acknowledge, []
            park, self._park = self._park, []
            miscounted, self._miscounted = self._miscounted, []
        if not acknowledge and not park and not miscounted:
            return False
        try:
            if acknowledge:
                self._adapter.acknowledge(acknowledge)
                acknowledge = []
            if park:
                self._adapter.park(park)
                park = []
            while miscounted:
                self._adapter.count_tries(miscounted[:1], miscounted[0].tries)
                del miscounted[0]
        finally:
            with self._lock:
                self._acknowledge += acknowledge
                self._park += park
                self._miscounted += miscounted
        return True
