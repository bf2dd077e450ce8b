"""A suspect is ingested with nothing beside it, and whoever wishes that gets in."""

import threading
import time
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from waiting import eventually

from switchboard.brokers.gate import WISH_SECONDS, IngestGate

WHO = ["adapter.a", "adapter.b", "adapter.c"]


class Gate(RuleBasedStateMachine):
    """Whoever asks, in whatever order: what is inside is known from what was answered."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = IngestGate()
        self.inside: list[bool] = []
        self.wishes: dict[str, float] = {}

    @rule(who=st.sampled_from(WHO), alone=st.booleans())
    def ask(self, who: str, alone: bool) -> None:
        before = time.monotonic()
        let_in = self.gate.enter(who, alone=alone)
        if let_in:
            assert not self.inside or not (alone or any(self.inside)), "something is beside one alone"
            if alone:
                self.wishes.pop(who, None)
            else:
                assert all(until <= time.monotonic() for until in self.wishes.values()), "a wish was passed over"
            self.inside.append(alone)
        elif alone:
            assert self.inside, "nothing is inside, and it may not be alone"
            self.wishes[who] = before + WISH_SECONDS
        else:
            assert any(self.inside) or self.wishes, "nobody is alone or wishes to be, and it may not enter"

    @precondition(lambda self: bool(self.inside))
    @rule(which=st.integers(0, 9))
    def leave(self, which: int) -> None:
        self.inside.pop(which % len(self.inside))
        self.gate.leave()

    @invariant()
    def one_alone_is_by_itself(self) -> None:
        assert not any(self.inside) or len(self.inside) == 1


TestGate = Gate.TestCase
TestGate.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_any_number_may_be_inside_together() -> None:
    gate = IngestGate()
    assert all(gate.enter(who, alone=False) for who in WHO * 3)


def test_one_alone_keeps_everyone_out_until_it_leaves() -> None:
    gate = IngestGate()
    assert gate.enter("a", alone=True)
    assert not gate.enter("a", alone=False)
    assert not gate.enter("b", alone=False)
    assert not gate.enter("b", alone=True)
    gate.leave()
    assert gate.enter("b", alone=True)


def test_who_wishes_to_be_alone_gets_in_however_many_others_keep_asking() -> None:
    gate = IngestGate()
    inside = 4
    for _ in range(inside):
        assert gate.enter("busy", alone=False)
    for _ in range(inside):
        assert not gate.enter("suspect", alone=True)
        # Newcomers wait, those inside leave one by one.
        assert not gate.enter("busy", alone=False)
        gate.leave()
    assert not gate.enter("busy", alone=False)
    assert gate.enter("suspect", alone=True)
    gate.leave()
    assert gate.enter("busy", alone=False), "its wish went with it"


def test_a_wish_that_nobody_renews_keeps_nobody_out_for_long() -> None:
    gate = IngestGate()
    assert gate.enter("busy", alone=False)
    assert not gate.enter("gone", alone=True)
    began = time.monotonic()
    gate.leave()
    eventually(lambda: gate.enter("busy", alone=False), within=WISH_SECONDS + 1, every=0.01, what="it may enter")
    assert time.monotonic() - began <= WISH_SECONDS + 0.5


def test_of_two_that_wish_to_be_alone_each_gets_in() -> None:
    gate = IngestGate()
    assert gate.enter("busy", alone=False)
    assert not gate.enter("a", alone=True)
    assert not gate.enter("b", alone=True)
    gate.leave()
    assert gate.enter("a", alone=True)
    assert not gate.enter("b", alone=True)
    gate.leave()
    assert not gate.enter("a", alone=False), "b's wish stands"
    assert gate.enter("b", alone=True)


def test_between_threads_one_alone_has_nothing_beside_it_and_all_get_in() -> None:
    gate = IngestGate()
    lock = threading.Lock()
    inside: list[bool] = []
    seen: list[list[bool]] = []
    entered: Counter[str] = Counter()
    stop = threading.Event()

    def ask(who: str) -> None:
        # As the consumers do: who is refused asks for the same again, and then the other kind has its turn.
        alone = True
        while not stop.is_set():
            if not gate.enter(who, alone=alone):
                time.sleep(0.001)
                continue
            with lock:
                inside.append(alone)
                seen.append(list(inside))
                entered[f"{who} {alone}"] += 1
            time.sleep(0.0005)
            with lock:
                inside.remove(alone)
            gate.leave()
            alone = not alone

    threads = [threading.Thread(target=ask, args=(who,)) for who in WHO]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(entered) == 6 and min(entered.values()) >= 20, within=20, what="each got in often")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(len(now) == 1 for now in seen if any(now)), "something was beside one alone"
