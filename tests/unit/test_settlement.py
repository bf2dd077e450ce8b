"""What a source has not heard yet is kept until it has, and told once."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchboard.brokers.settlement import Settlement
from switchboard.errors import AckFailed, BrokerUnavailable
from switchboard.model import Batch, Delivery, Route
from switchboard.pull import Lag, Outgoing, PullAdapter, PullOptions

ROUTE = Route(adapter="a", queue="q", key_prefix="redis:s")


class Memory(PullAdapter):
    """A source in this process, which notes what it is told, and is away for as many calls as it is told to be."""

    transport = "memory"
    options_class = PullOptions
    namespace = "memory"
    broker = "memory"

    def __init__(self) -> None:
        super().__init__("memory")
        self.told: list[tuple[str, str]] = []
        self.away = 0
        self.answers_after = threading.Event()
        self.answers_after.set()
        self._lock = threading.Lock()

    @property
    def options(self) -> PullOptions:
        return PullOptions(queue="q")

    def _tell(self, what: str, deliveries: Sequence[Delivery]) -> None:
        self.answers_after.wait(10)
        with self._lock:
            if self.away:
                self.away -= 1
                raise (AckFailed if what == "acknowledge" else BrokerUnavailable)(f"{what}: away")
            self.told += [(what, delivery.handle) for delivery in deliveries]

    def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("acknowledge", deliveries)

    def park(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("park", deliveries)

    def count_tries(self, deliveries: Sequence[Delivery], tries: int) -> None:
        self._tell(f"count {tries}", deliveries)

    def receive(self, limit: int, limit_bytes: int, timeout: timedelta) -> list[Delivery]:
        return []

    def left_behind(self, limit: int, limit_bytes: int) -> list[Delivery]:
        return []

    def keep(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("keep", deliveries)

    def give_back(self, deliveries: Sequence[Delivery]) -> None:
        self._tell("give back", deliveries)

    def identity(self) -> str:
        return "memory"

    def lag(self) -> Lag:
        return Lag(None, 0)

    def send(self, messages: Sequence[Outgoing]) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing to close."""


def delivery(name: str, tries: int = 1) -> Delivery:
    return Delivery(b"same body", None, "test", tries=tries, handle=name)


def batch(*names: str) -> Batch:
    return Batch(ROUTE, [delivery(name) for name in names], stored=True)


def test_what_is_stored_is_acknowledged_once() -> None:
    source = Memory()
    settlement = Settlement(source)
    settlement.stored(batch("a", "b"))
    assert len(settlement) == 2
    assert settlement.settle() is True
    assert source.told == [("acknowledge", "a"), ("acknowledge", "b")]
    assert len(settlement) == 0
    assert settlement.settle() is False
    assert len(source.told) == 2


def test_what_was_refused_is_not_acknowledged_and_what_waits_for_its_todo_is_parked() -> None:
    source = Memory()
    settlement = Settlement(source)
    whole = batch("stored", "refused", "parked", "stored too")
    whole.refused, whole.parked = [(whole.deliveries[1], "why")], [whole.deliveries[2]]
    settlement.stored(whole)
    settlement.settle()
    assert sorted(source.told) == [("acknowledge", "stored"), ("acknowledge", "stored too"), ("park", "parked")]


def test_of_equal_deliveries_only_the_refused_one_is_kept_back() -> None:
    source = Memory()
    settlement = Settlement(source)
    whole = Batch(ROUTE, [delivery("same"), delivery("same"), delivery("same")], stored=True)
    whole.refused = [(whole.deliveries[0], "why")]
    settlement.stored(whole)
    settlement.settle()
    assert source.told == [("acknowledge", "same")] * 2


def test_a_try_that_an_outage_ended_gets_its_old_count_back() -> None:
    source = Memory()
    settlement = Settlement(source)
    settlement.miscounted([delivery("a", 1), delivery("b", 3)])
    assert settlement.settle()
    assert source.told == [("count 1", "a"), ("count 3", "b")]


@pytest.mark.parametrize("failures", [1, 2, 5])
def test_what_a_source_that_is_away_has_not_heard_is_told_when_it_is_back(failures: int) -> None:
    source = Memory()
    settlement = Settlement(source)
    whole = batch("a", "b", "c")
    whole.parked = [whole.deliveries[2]]
    settlement.stored(whole)
    settlement.miscounted([delivery("d", 2)])
    source.away = failures
    for _ in range(failures):
        with pytest.raises((AckFailed, BrokerUnavailable)):
            settlement.settle()
    assert len(settlement) == 4
    assert source.told == []
    assert settlement.settle() is True
    assert sorted(source.told) == [("acknowledge", "a"), ("acknowledge", "b"), ("count 2", "d"), ("park", "c")]


def test_what_is_added_while_the_source_is_asked_is_told_the_next_time() -> None:
    source = Memory()
    settlement = Settlement(source)
    settlement.stored(batch("first"))
    source.answers_after.clear()
    source.away = 1
    with ThreadPoolExecutor(1) as thread:
        telling = thread.submit(settlement.settle)
        settlement.stored(batch("second"))
        source.answers_after.set()
        assert isinstance(telling.exception(10), AckFailed)
    assert settlement.settle()
    assert sorted(source.told) == [("acknowledge", "first"), ("acknowledge", "second")]


def test_a_mistake_of_the_source_loses_nothing_either() -> None:
    class Broken(Memory):
        broken = True

        def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
            if self.broken:
                raise RuntimeError("a mistake")
            super().acknowledge(deliveries)

    source = Broken()
    settlement = Settlement(source)
    settlement.stored(batch("a"))
    with pytest.raises(RuntimeError):
        settlement.settle()
    source.broken = False
    settlement.settle()
    assert source.told == [("acknowledge", "a")]


@given(st.lists(st.sampled_from(["stored", "parked", "miscounted", "settle", "away"]), max_size=40))
def test_whatever_fails_in_whatever_order_each_thing_is_told_once_in_the_end(steps: list[str]) -> None:
    source = Memory()
    settlement = Settlement(source)
    expected: list[tuple[str, str]] = []
    for number, step in enumerate(steps):
        name = str(number)
        if step == "stored":
            settlement.stored(batch(name))
            expected.append(("acknowledge", name))
        elif step == "parked":
            whole = batch(name)
            whole.parked = list(whole.deliveries)
            settlement.stored(whole)
            expected.append(("park", name))
        elif step == "miscounted":
            settlement.miscounted([delivery(name, 2)])
            expected.append(("count 2", name))
        elif step == "away":
            source.away += 1
        else:
            try:
                settlement.settle()
            except (AckFailed, BrokerUnavailable):
                assert len(settlement) > 0
        assert len(settlement) == len(expected) - len(source.told)
    source.away = 0
    settlement.settle()
    assert sorted(source.told) == sorted(expected)
    assert len(settlement) == 0


def test_from_many_threads_at_once_each_thing_is_told_once() -> None:
    source = Memory()
    settlement = Settlement(source)
    source.away = 20

    def work(who: int) -> None:
        for number in range(50):
            settlement.stored(batch(f"{who}-{number}"))
            try:
                settlement.settle()
            except (AckFailed, BrokerUnavailable):
                continue

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    settlement.settle()
    assert sorted(source.told) == sorted(("acknowledge", f"{who}-{number}") for who in range(4) for number in range(50))
