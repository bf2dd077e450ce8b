"""Several processes and several hosts share one group: each message once, and a dead host's are taken over."""

from pathlib import Path

import pytest
from line import Line, other_hosts_can_be_simulated, remains
from waiting import eventually

needs_hosts = pytest.mark.skipif(
    not other_hosts_can_be_simulated(), reason="another host name needs root and `unshare --uts`"
)


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url, options={"batch": 50, "claim_idle": "5s"})


def consumers(line: Line) -> list[str]:
    with line.source() as source:
        return [consumer["name"].decode() for consumer in source.xinfo_consumers("line", "switchboard")]


def test_two_workers_of_two_processes_store_each_message_once(line: Line) -> None:
    with line.running(processes=2) as one, line.running(processes=2):
        eventually(lambda: line.group() and len(consumers(line)) == 4, what="all of them read")
        line.slow_down()
        line.publish(2_000)
        line.settle(one, within=40)
        assert len(consumers(line)) == 4
    # Nothing was even tried twice.
    assert line.attempts() == 2_000


@needs_hosts
def test_two_hosts_store_each_message_once(line: Line) -> None:
    with line.running(processes=2, host="north") as north, line.running(host="south"):
        eventually(lambda: line.group() and len(consumers(line)) == 3, what="all of them read")
        line.slow_down()
        line.publish(2_000)
        line.settle(north, within=40)
        hosts = [name.split("/")[0] for name in consumers(line)]
        assert sorted(hosts) == ["north", "north", "south"]
    assert line.attempts() == 2_000


@needs_hosts
def test_what_a_dead_host_left_is_claimed_after_claim_idle(line: Line) -> None:
    with line.running(host="north") as north, line.locked():
        line.publish(40)
        line.wait_blocked()
        left = len(line.pending())
        north.kill_all()
    assert len(line.pending()) == left > 0
    with line.running(host="south") as south:
        line.publish(10)
        line.settle(south, within=15)


@needs_hosts
def test_what_a_living_host_works_on_is_not_claimed_by_another(line: Line) -> None:
    with line.running(host="north"), line.locked():
        line.publish(40)
        line.wait_blocked()
        held = {entry["message_id"] for entry in line.pending()}
        with line.running(host="south"):
            line.publish(40)
            # Much longer than claim_idle: the other has looked many times.
            eventually(lambda: any(name.startswith("south") for name in consumers(line)), what="the other reads")
            remains(lambda: held_by(line, held) == {"north"}, seconds=10, what="another host has claimed them")
    assert {entry["times_delivered"] for entry in line.pending()} <= {1}
    with line.running(host="south") as south:
        line.settle(south)


def held_by(line: Line, entries: set[bytes]) -> set[str]:
    """The hosts that have these entries."""
    return {entry["consumer"].decode().split("/")[0] for entry in line.pending() if entry["message_id"] in entries}
