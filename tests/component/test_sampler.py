"""What one process samples, in the file that the exposition reads."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector
from waiting import eventually

from switchboard.brokers.sampler import Sampler
from switchboard.ledger import Ledger, migrate


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def sampler(ledger: Ledger, tmp_path: Path) -> Iterator[Sampler]:
    """Of a process without adapters, with a handler of the queue `work`."""
    sampler = Sampler(tmp_path, ledger, [], ["work"])
    yield sampler
    sampler.stop()


def exposed(folder: Path) -> Mapping[tuple[str, ...], float]:
    """As Dramatiq's exposition reads the folder: by name and, in their order, the values of the labels."""
    collector = MultiProcessCollector(CollectorRegistry(), str(folder))  # type: ignore[no-untyped-call]
    families = collector.collect()  # type: ignore[no-untyped-call]
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in families
        for sample in family.samples
    }


def queues(folder: Path) -> set[str]:
    return {key[1] for key in exposed(folder) if key[0] == "switchboard_todos"}


def test_a_count_that_takes_too_long_is_not_told_as_an_outage_of_the_ledger(
    sampler: Sampler, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with psycopg.connect(database_url) as blocker:
        blocker.execute("LOCK TABLE dead_letters IN ACCESS EXCLUSIVE MODE")
        sampler.start()
        eventually(lambda: "the number of dead letters is unavailable" in caplog.text, within=60, what="it is told")
    # Of ledger_unavailable Sentry is told once, whoever notices it: a real one would be hidden.
    assert {getattr(record, "reason", None) for record in caplog.records} == {"metrics_too_slow"}


def test_a_queue_that_is_gone_from_the_ledger_goes_and_one_with_a_handler_here_stays(
    sampler: Sampler, database_url: str, tmp_path: Path
) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("INSERT INTO todos (queue, title) VALUES ('passing', 't')")
        sampler.start()
        eventually(lambda: queues(tmp_path) == {"work", "passing"}, within=60, what="both are exposed")
        connection.execute("UPDATE todos SET state = 'done', completed_at = now()")
        done = ("switchboard_todos", "passing", "done")
        eventually(lambda: exposed(tmp_path)[done] == 1, within=60, what="it is done, and was never away")
        connection.execute("DELETE FROM todos")
        eventually(lambda: queues(tmp_path) == {"work"}, within=60, what="it is gone")
    assert exposed(tmp_path)["switchboard_todos", "work", "pending"] == 0


def test_it_says_when_what_it_exposes_was_asked(sampler: Sampler, tmp_path: Path) -> None:
    name = ("switchboard_sampled_timestamp_seconds",)
    began = time.time()
    sampler.start()
    first = eventually(lambda: exposed(tmp_path).get(name, 0.0), within=60, what="it is exposed")
    assert began <= first <= time.time()
    eventually(lambda: exposed(tmp_path)[name] > first, within=60, what="it goes on")
