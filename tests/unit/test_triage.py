"""Poison is found without punishing the innocent: in which company, and when, a message is tried."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switchboard.brokers.triage import FIRST_DELAY, LONGEST_DELAY, Triage, retry_delay
from switchboard.model import Batch, Delivery, Route

ROUTE = Route(adapter="a", queue="q", key_prefix="redis:s")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def delivery(name: str, tries: int = 1, size: int = 1) -> Delivery:
    return Delivery(b"x" * size, name, "test", tries=tries, handle=name)


def deliveries(count: int, tries: int = 1) -> list[Delivery]:
    return [delivery(f"m{number:03}", tries) for number in range(count)]


def triage(
    clock: Clock | None = None, *, batch: int = 500, batch_bytes: int = 10**9, max_deliveries: int = 5
) -> Triage:
    return Triage(ROUTE, batch=batch, batch_bytes=batch_bytes, max_deliveries=max_deliveries, clock=clock or Clock())


def names(batch: Batch | None) -> list[str]:
    assert batch is not None
    return [each.handle for each in batch.deliveries]


def out(waiting: Triage, *, suspects: bool = True) -> list[Batch]:
    """All that may be offered now."""
    found = []
    while batch := waiting.next(suspects=suspects):
        found.append(batch)
    return found


# In company


def test_what_was_read_just_now_is_tried_in_the_batch_it_was_read_with() -> None:
    waiting = triage()
    waiting.read(deliveries(7))
    batch = waiting.next()
    assert names(batch) == [f"m{number:03}" for number in range(7)]
    assert batch is not None
    assert (batch.company, batch.alone) == ("fresh", False)
    assert waiting.next() is None
    assert len(waiting) == 0


def test_batches_keep_to_both_bounds_and_one_larger_message_is_a_batch_of_its_own() -> None:
    waiting = triage(batch=3, batch_bytes=10)
    sizes = [4, 4, 4, 1, 1, 1, 99, 1]
    waiting.read([delivery(str(number), size=size) for number, size in enumerate(sizes)])
    assert [names(batch) for batch in out(waiting)] == [["0", "1"], ["2", "3", "4"], ["5"], ["6"], ["7"]]


def test_what_was_tried_once_and_left_is_tried_once_more_together() -> None:
    waiting = triage()
    waiting.left_behind(deliveries(5, tries=1))
    (batch,) = out(waiting)
    assert (len(batch.deliveries), batch.company) == (5, "again")


def test_what_was_tried_twice_and_left_is_tried_alone() -> None:
    waiting = triage()
    waiting.left_behind(deliveries(5, tries=2))
    batches = out(waiting)
    assert [(len(batch.deliveries), batch.alone) for batch in batches] == [(1, True)] * 5


def test_of_those_alone_the_least_tried_goes_first() -> None:
    clock = Clock()
    waiting = triage(clock)
    waiting.left_behind([delivery("four", 4), delivery("two", 2), delivery("three", 3), delivery("two too", 2)])
    clock.now += LONGEST_DELAY
    assert [names(batch) for batch in out(waiting)] == [["two"], ["two too"], ["three"], ["four"]]


def test_a_try_alone_waits_longer_after_each() -> None:
    delays = [retry_delay(tries) for tries in range(1, 20)]
    assert delays[:2] == [0.0, 0.0]
    assert delays[2:6] == [FIRST_DELAY * factor for factor in (1, 2, 4, 8)]
    assert max(delays) == delays[-1] == LONGEST_DELAY
    for tries in (3, 4):
        clock = Clock()
        waiting = triage(clock)
        waiting.left_behind([delivery("late", tries), delivery("now", 2)])
        assert names(waiting.next()) == ["now"]
        clock.now += retry_delay(tries) - 0.01
        assert waiting.next() is None
        clock.now += 0.02
        assert names(waiting.next()) == ["late"]


@pytest.mark.parametrize("max_deliveries", [2, 3, 5, 9])
def test_at_max_deliveries_a_message_is_a_dead_letter_untried(max_deliveries: int) -> None:
    waiting = triage(max_deliveries=max_deliveries)
    waiting.left_behind([delivery("spent", max_deliveries), delivery("beyond", max_deliveries + 3)])
    assert [(names(batch), batch.company, batch.alone) for batch in out(waiting)] == [
        (["spent"], "poison", False),
        (["beyond"], "poison", False),
    ]


def test_what_was_tried_twice_is_not_tried_in_company_because_it_was_read_again() -> None:
    # A list has no pending entries: what a stopped worker gives back is read again, with the tries it has.
    waiting = triage()
    waiting.read([delivery("innocent"), delivery("suspect", 3), delivery("innocent too")])
    companies = {name: len(batch.deliveries) for batch in _all(waiting) for name in names(batch)}
    assert companies["suspect"] == 1, "it can take its neighbours down again"


def test_what_was_tried_as_often_as_it_may_is_not_tried_again_because_it_was_read_again() -> None:
    waiting = triage()
    waiting.read([delivery("spent", 5)])
    assert [batch.company for batch in _all(waiting)] == ["poison"]


def _all(waiting: Triage) -> list[Batch]:
    """Everything that waits, by how it will be offered."""
    return [*waiting._together, *waiting._alone]


# Turns


def test_those_alone_and_those_together_take_turns() -> None:
    waiting = triage(batch=1)
    waiting.read([delivery("fresh 1"), delivery("fresh 2")])
    waiting.left_behind([delivery("alone 1", 2), delivery("alone 2", 2)])
    turns = [batch.alone for batch in out(waiting)]
    assert turns in ([True, False, True, False], [False, True, False, True])


def test_a_suspect_that_has_to_wait_holds_nothing_else_up() -> None:
    waiting = triage()
    waiting.left_behind([delivery("late", 4)])
    waiting.read([delivery("fresh")])
    assert names(waiting.next()) == ["fresh"]
    assert waiting.next() is None


def test_without_suspects_only_what_was_read_just_now_is_offered() -> None:
    waiting = triage()
    waiting.left_behind([delivery("again", 1), delivery("alone", 2), delivery("poison", 9)])
    waiting.read([delivery("fresh")])
    assert [names(batch) for batch in out(waiting, suspects=False)] == [["fresh"]]
    assert sorted(name for batch in out(waiting) for name in names(batch)) == ["again", "alone", "poison"]


def test_what_was_put_back_untried_comes_next_of_its_kind_and_as_it_was() -> None:
    waiting = triage()
    waiting.read(deliveries(3))
    waiting.read([delivery("later")])
    first = waiting.next()
    assert first is not None
    waiting.put_back(first)
    again = waiting.next()
    assert again is not None
    assert (names(again), again.company) == (names(first), "fresh")
    assert [each.tries for each in again.deliveries] == [1, 1, 1]
    # Alone: it keeps its turn, too.
    waiting.left_behind([delivery("alone", 2)])
    batches = [waiting.next(), waiting.next()]
    (alone,) = (batch for batch in batches if batch is not None and batch.alone)
    waiting.read([delivery("fresh")])
    waiting.put_back(alone)
    assert names(waiting.next()) == ["alone"]


# Failures of its own


def test_a_batch_that_failed_by_itself_is_tried_once_more_together_and_then_one_by_one() -> None:
    clock = Clock()
    waiting = triage(clock)
    waiting.read(deliveries(4))
    (batch,) = out(waiting)
    waiting.failed(batch)
    assert waiting.next() is None, "it is spaced"
    clock.now += FIRST_DELAY
    (batch,) = out(waiting)
    assert (batch.company, len(batch.deliveries)) == ("again", 4)
    waiting.failed(batch)
    clock.now += FIRST_DELAY
    assert [(batch.company, batch.deliveries[0].tries) for batch in out(waiting)] == [("alone", 2)] * 4


def test_one_that_fails_alone_counts_each_try_and_ends_at_max_deliveries() -> None:
    clock = Clock()
    waiting = triage(clock)
    waiting.left_behind([delivery("bad", 2)])
    tried = []
    while (batch := waiting.next()) and batch.company != "poison":
        tried.append(batch.deliveries[0].tries + 1)
        waiting.failed(batch)
        clock.now += LONGEST_DELAY
    assert tried == [3, 4, 5]
    assert batch is not None
    assert [(each.handle, each.tries) for each in batch.deliveries] == [("bad", 5)]


def test_what_the_ledger_refused_in_a_batch_is_tried_alone_and_that_try_did_not_count() -> None:
    waiting = triage()
    waiting.refused([delivery("refused")])
    (batch,) = out(waiting)
    assert (batch.alone, batch.deliveries[0].tries) == (True, 1)


def test_what_the_ledger_refuses_every_time_is_a_dead_letter_after_max_deliveries() -> None:
    clock = Clock()
    waiting = triage(clock)
    waiting.refused([delivery("refused")])
    tries = 0
    while (batch := waiting.next()) and batch.company != "poison":
        tries += 1
        waiting.failed(batch)
        clock.now += LONGEST_DELAY
    assert batch is not None
    assert batch.deliveries[0].tries == 5
    assert tries == 4, "the batch was the first"


def test_what_cannot_be_buried_waits_longer_each_time_and_burying_is_no_try() -> None:
    clock = Clock()
    waiting = triage(clock, max_deliveries=1)
    waiting.left_behind([replace(delivery("spent", 1), last_error="why it is one")])
    (batch,) = out(waiting)
    waits = []
    for _ in range(8):
        failed_at = clock.now
        waiting.failed(batch, "no dead letters today")
        while (again := waiting.next()) is None:
            clock.now += FIRST_DELAY / 2
        waits.append(clock.now - failed_at)
        # An outage in between begins it no anew.
        waiting.put_back(again)
        (again,) = out(waiting)
        waiting.interrupted(again)
        (batch,) = out(waiting)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert batch.company == "poison"
    assert [(each.tries, each.last_error) for each in batch.deliveries] == [(1, "why it is one")]


# Outages


def test_what_an_outage_interrupted_comes_back_halved_and_is_not_counted() -> None:
    waiting = triage()
    waiting.read(deliveries(5))
    (batch,) = out(waiting)
    waiting.interrupted(batch)
    halves = out(waiting)
    assert sorted(len(half.deliveries) for half in halves) == [2, 3]
    assert {half.company for half in halves} == {"fresh"}
    assert {each.tries for half in halves for each in half.deliveries} == {1}
    assert sorted(name for half in halves for name in names(half)) == names(batch)


def test_interrupted_again_and_again_a_batch_comes_down_to_single_messages_that_are_alone() -> None:
    waiting = triage()
    waiting.read(deliveries(9))
    outages = 0
    while batch := waiting.next():
        if batch.alone:
            break
        outages += 1
        waiting.interrupted(batch)
        assert outages < 20
    assert batch is not None
    assert batch.alone
    assert len(batch.deliveries) == 1
    assert len(waiting) + 1 == 9
    assert {each.tries for each in [*waiting.deliveries(), *batch.deliveries]} == {1}


@settings(max_examples=200)
@given(count=st.integers(1, 60), victim=st.integers(0, 59), size=st.integers(1, 60))
def test_who_brings_the_ledger_down_is_found_and_nobody_else_is_counted(count: int, victim: int, size: int) -> None:
    # Given one message that ends PostgreSQL whenever it is tried
    clock = Clock()
    waiting = triage(clock, batch=size)
    sent = deliveries(count)
    deadly = sent[victim % count].handle
    waiting.read(sent)
    stored: list[str] = []
    buried: list[str] = []
    outages = 0
    while len(waiting):
        batch = waiting.next()
        if batch is None:
            clock.now += 1
            continue
        if batch.company == "poison":
            buried += names(batch)
        elif deadly not in names(batch):
            stored += names(batch)
        elif batch.alone:
            # The ledger answered before it and after it, so it was its own doing.
            waiting.failed(batch)
        else:
            waiting.interrupted(batch)
            outages += 1
        assert outages <= 8, "halving takes the logarithm"
    assert buried == [deadly]
    assert sorted(stored) == sorted(each.handle for each in sent if each.handle != deadly)


def test_an_interrupted_dead_letter_stays_one() -> None:
    waiting = triage()
    waiting.left_behind([delivery("spent", 5)])
    (batch,) = out(waiting)
    waiting.interrupted(batch)
    (again,) = out(waiting)
    assert (names(again), again.company) == (["spent"], "poison")


@given(
    st.lists(st.tuples(st.sampled_from(["read", "left", "refused"]), st.integers(1, 6)), max_size=30),
    st.randoms(use_true_random=False),
)
def test_whatever_happens_every_message_that_went_in_is_still_there_once(
    arrivals: list[tuple[str, int]], chance: random.Random
) -> None:
    clock = Clock()
    waiting = triage(clock, batch=4)
    inside: set[str] = set()
    taken: list[Batch] = []
    for number, (how, tries) in enumerate(arrivals):
        new = [delivery(f"{number}-{each}", tries) for each in range(chance.randint(1, 6))]
        inside |= {each.handle for each in new}
        {"read": waiting.read, "left": waiting.left_behind, "refused": waiting.refused}[how](new)
        clock.now += chance.random()
        if batch := waiting.next(suspects=chance.random() < 0.8):
            taken.append(batch)
        if taken and chance.random() < 0.7:
            back = taken.pop(chance.randrange(len(taken)))
            chance.choice([waiting.put_back, waiting.failed, waiting.interrupted])(back)
        held = [name for batch in taken for name in names(batch)]
        there = [each.handle for each in waiting.deliveries()]
        assert sorted(held + there) == sorted(inside)
        assert len(waiting) == len(there)
    waiting.clear()
    assert len(waiting) == 0
    assert waiting.next() is None


# A worker and its source, simulated


@dataclass
class Source:
    """What is pending at the broker, with its counts, and what became of all of it."""

    pending: dict[str, int] = field(default_factory=dict)
    stored: list[str] = field(default_factory=list)
    buried: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


@dataclass
class Process:
    """One life of a worker: it takes over what was left, reads, tries, and can die while it tries."""

    source: Source
    clock: Clock
    batch: int
    max_deliveries: int

    def __post_init__(self) -> None:
        self.waiting = triage(self.clock, batch=self.batch, max_deliveries=self.max_deliveries)
        self.waiting.left_behind([delivery(name, tries) for name, tries in self.source.pending.items()])

    def next(self) -> Batch | None:
        """The next that goes into the store; its try is counted as a worker counts it. None when all is done."""
        while True:
            if not len(self.waiting) and self.source.unread:
                new, self.source.unread = self.source.unread[: self.batch], self.source.unread[self.batch :]
                self.source.pending |= dict.fromkeys(new, 1)
                self.waiting.read([delivery(name) for name in new])
            if not len(self.waiting):
                return None
            batch = self.waiting.next()
            if batch is None:
                self.clock.now += 1
                continue
            if batch.company in ("again", "alone"):
                for each in batch.deliveries:
                    self.source.pending[each.handle] = batch.deliveries[0].tries + 1
            return batch

    def done(self, batch: Batch) -> None:
        (self.source.buried if batch.company == "poison" else self.source.stored).extend(names(batch))
        for name in names(batch):
            del self.source.pending[name]


def live_and_die(source: Source, deadly: set[str], *, batch: int, max_deliveries: int) -> int:
    """Lives of a worker until nothing is left; how many of them ended in a death."""
    clock = Clock()
    deaths = 0
    while True:
        process = Process(source, clock, batch, max_deliveries)
        while (tried := process.next()) is not None:
            if tried.company != "poison" and deadly & set(names(tried)):
                break
            process.done(tried)
        else:
            return deaths
        deaths += 1
        assert deaths < 1000


@settings(max_examples=300, deadline=None)
@given(
    count=st.integers(1, 120),
    which=st.sets(st.integers(0, 119), min_size=1, max_size=6),
    max_deliveries=st.integers(3, 8),
)
def test_k_messages_that_kill_their_worker_cost_so_many_deaths_and_no_more(
    count: int, which: set[int], max_deliveries: int
) -> None:
    sent = [each.handle for each in deliveries(count)]
    deadly = {sent[number % count] for number in which}
    source = Source(unread=list(sent))
    deaths = live_and_die(source, deadly, batch=500, max_deliveries=max_deliveries)
    assert set(source.buried) == deadly
    assert sorted(source.stored) == sorted(set(sent) - deadly), "their neighbours are stored, once each"
    assert deaths <= 2 + (max_deliveries - 2) * len(deadly)


def test_with_the_fewest_deliveries_that_can_be_set_a_deadly_messages_neighbours_are_stored_too() -> None:
    sent = [each.handle for each in deliveries(10)]
    source = Source(unread=list(sent))
    live_and_die(source, {sent[3]}, batch=500, max_deliveries=3)
    assert source.buried == [sent[3]]
    assert len(source.stored) == 9


@pytest.mark.parametrize("count", [100, 150, 500])
def test_forty_kills_in_a_row_dead_letter_no_good_message(count: int) -> None:
    # Given good messages, and a worker that is killed in the first try of each of its lives
    sent = [each.handle for each in deliveries(count)]
    source = Source(unread=list(sent))
    clock = Clock()
    for _ in range(40):
        tried = Process(source, clock, 500, 5).next()
        assert tried is not None
        assert tried.company != "poison"
    assert max(source.pending.values()) < 5
    process = Process(source, clock, 500, 5)
    while (tried := process.next()) is not None:
        process.done(tried)
    assert source.buried == []
    assert sorted(source.stored) == sorted(sent)


def test_forty_kills_at_random_times_dead_letter_no_good_message() -> None:
    for seed in range(200):
        # Given a source that always has more, tries of 20 ms, and a kill after some seconds of each life
        chance = random.Random(seed)
        sent = [each.handle for each in deliveries(999)]
        source = Source(unread=list(sent))
        clock = Clock()
        batch = chance.choice([10, 50, 500])
        for _ in range(40):
            process = Process(source, clock, batch, 5)
            killed_at = clock.now + chance.uniform(0, 2)
            while (tried := process.next()) is not None and clock.now + 0.02 < killed_at:
                clock.now += 0.02
                process.done(tried)
            clock.now = max(clock.now, killed_at)
            assert max(source.pending.values(), default=1) < 5, seed
        process = Process(source, clock, batch, 5)
        while (tried := process.next()) is not None:
            process.done(tried)
        assert source.buried == [], seed
        assert sorted(source.stored) == sorted(sent)


def test_forty_kills_in_a_row_among_workers_side_by_side_dead_letter_no_good_message() -> None:
    for seed in range(50):
        _side_by_side(random.Random(seed), seed)


def _side_by_side(chance: random.Random, seed: int) -> None:
    # Given workers with two batches in flight each; one is killed, and another takes over what it had
    sent = [each.handle for each in deliveries(600)]
    counts: dict[str, int] = {}
    unread = list(sent)
    clock = Clock()
    workers = chance.randint(2, 4)
    rooms = [triage(clock, batch=100) for _ in range(workers)]
    in_store: list[list[Batch]] = [[] for _ in rooms]
    stored: list[str] = []

    def begin(who: int) -> None:
        if len(in_store[who]) == 2 or (in_store[who] and in_store[who][0].alone):
            return
        if not len(rooms[who]) and unread:
            new = [unread.pop(0) for _ in range(min(100, len(unread)))]
            counts.update(dict.fromkeys(new, 1))
            rooms[who].read([delivery(name) for name in new])
        batch = rooms[who].next()
        if batch is None:
            return
        if batch.alone and in_store[who]:
            rooms[who].put_back(batch)
            return
        assert batch.company != "poison", seed
        if batch.company != "fresh":
            counts.update(dict.fromkeys(names(batch), batch.deliveries[0].tries + 1))
        in_store[who].append(batch)

    kills = 0
    while len(stored) < len(sent):
        clock.now += 0.1
        who = chance.randrange(workers)
        begin(who)
        if in_store[who] and kills < 40:
            kills += 1
            held = [*rooms[who].deliveries(), *(each for batch in in_store[who] for each in batch.deliveries)]
            rooms[who], in_store[who] = triage(clock, batch=100), []
            rooms[chance.randrange(workers)].left_behind([replace(each, tries=counts[each.handle]) for each in held])
        elif in_store[who]:
            stored += names(in_store[who].pop(0))
    assert sorted(stored) == sorted(sent)
    assert max(counts.values()) < 5, seed


def test_kills_during_deadly_messages_still_find_them_and_only_them() -> None:
    # Given two that kill, among good ones, and a worker that is killed for no reason every other time
    for seed in range(50):
        chance = random.Random(seed)
        sent = [each.handle for each in deliveries(150)]
        deadly = set(chance.sample(sent, 2))
        source = Source(unread=list(sent))
        clock = Clock()
        lives = 0
        while source.unread or source.pending:
            lives += 1
            assert lives < 200, seed
            process = Process(source, clock, 500, 5)
            while (tried := process.next()) is not None:
                if tried.company != "poison" and deadly & set(names(tried)):
                    break
                if lives < 40 and chance.random() < 0.05:
                    break
                process.done(tried)
        assert deadly <= set(source.buried)
        assert good(source.buried, deadly) == [], seed


def good(buried: Iterable[str], deadly: set[str]) -> Sequence[str]:
    return [name for name in buried if name not in deadly]
