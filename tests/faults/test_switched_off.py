"""An adapter that is disabled reads nothing; the operator's word is honoured within two seconds, without a restart."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from line import Line, remains
from waiting import eventually

from switchboard.ledger import Ledger, migrate

WITHIN = timedelta(seconds=2)


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url)


def test_an_adapter_that_is_disabled_before_the_start_reads_nothing(line: Line, database_url: str) -> None:
    ledger = Ledger(database_url)
    migrate(ledger)
    ledger.close()
    disabled = "INSERT INTO adapters (name, family, trust_mode, enabled) VALUES ('line', 'queue', 'queue', false)"
    line.rows(disabled)
    line.publish(20)
    with line.running() as worker:
        remains(lambda: not line.group().get("entries-read"), seconds=4, what="a disabled adapter has read")
        assert line.stored() == 0
        line.rows("UPDATE adapters SET enabled = true")
        line.settle(worker)


def test_disabling_and_enabling_are_honoured_within_two_seconds_while_it_runs(line: Line) -> None:
    with line.running() as worker:
        line.publish(20)
        line.settle(worker)
        pids = worker.pids

        [(off,)] = line.rows("UPDATE adapters SET enabled = false RETURNING clock_timestamp()")
        publish_for(line, seconds=4)
        late = line.rows("SELECT received_at FROM events WHERE received_at > %s", off + WITHIN)
        assert late == []
        assert line.stored() < len(line.published)
        assert not line.group()["pending"]

        [(on,)] = line.rows("UPDATE adapters SET enabled = true RETURNING clock_timestamp()")
        line.settle(worker)
        first = line.value("SELECT min(received_at) FROM events WHERE received_at > %s", on)
        assert first - on < WITHIN
        assert worker.pids == pids


def test_one_adapter_is_disabled_and_its_neighbour_reads_on(line: Line) -> None:
    worker = line.worker()
    config = line.folder / "switchboard.toml"
    neighbour = config.read_text().replace("adapters.line", "adapters.other").replace('"line"', '"other"')
    config.write_text(config.read_text() + neighbour)
    with worker:
        worker.wait_ready()
        line.rows("UPDATE adapters SET enabled = false WHERE name = 'line'")
        eventually(lambda: line.value("SELECT clock_timestamp() - updated_at > '2s' FROM adapters WHERE name = 'line'"))
        line.publish(20)
        other = Line(line.folder, line.database_url, line.source_url, name="other")
        other.publish(20)
        other.settle(worker)
        assert line.stored() == 0


def publish_for(line: Line, *, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        line.publish(1)
        time.sleep(0.1)
