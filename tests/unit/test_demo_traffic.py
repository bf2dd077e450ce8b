"""What the demo publishes is realistic, and the same for the same seed."""

import json
from statistics import median

from switchboard.demo.traffic import LARGEST, LINES, SMALLEST, messages


def test_the_same_seed_makes_the_same_messages() -> None:
    assert list(messages(300, seed=7)) == list(messages(300, seed=7))


def test_another_seed_makes_others() -> None:
    assert not {message.id for message in messages(300, seed=7)} & {message.id for message in messages(300, seed=8)}


def test_more_messages_begin_with_the_same_ones() -> None:
    assert list(messages(300, seed=7))[:100] == list(messages(100, seed=7))


def test_every_message_has_an_id_of_its_own() -> None:
    assert len({message.id for message in messages(5_000, seed=1)}) == 5_000


def test_a_body_is_a_json_object_that_says_who_and_what_it_is() -> None:
    for message in messages(2_000, seed=1):
        body = json.loads(message.body)
        assert body["id"] == message.id
        assert body["event"] == message.event
        assert body["summary"]


def test_both_lines_carry_their_own_events() -> None:
    events = {line: set[str]() for line in LINES}
    for message in messages(2_000, seed=1):
        events[message.line].add(message.event)
    assert events["deploys"] == {"deploy.started", "deploy.finished", "deploy.failed"}
    assert {"push", "pull_request.opened", "pull_request.closed"} <= events["repositories"]


def test_sizes_are_uneven_as_real_ones_are() -> None:
    sizes = [len(message.body) for message in messages(20_000, seed=1)]
    assert min(sizes) >= SMALLEST
    assert max(sizes) <= LARGEST
    assert 500 <= median(sizes) <= 2_000
    assert sum(size <= 2_000 for size in sizes) >= 0.8 * len(sizes)
    assert any(size >= 8_000 for size in sizes)


def test_bodies_are_not_all_ascii() -> None:
    assert any(not message.body.isascii() for message in messages(100, seed=1))
