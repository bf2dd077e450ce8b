"""`switchboard adapters list`: what waits, who reads, and when the source last answered, whoever is away."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis

from switchboard.embedded import ValkeyServer
from switchboard.ledger import Connection, Ledger, migrate, note_poll, upsert_adapter
from switchboard.process_name import process_name

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_URL}"
stream = "deploys"
queue = "work"

[adapters.jobs]
type = "redis-list"
url = "${JOBS_URL}"
list = "jobs"
queue = "work"
"""


@dataclass
class Listing:
    """The command on a migrated database whose adapters are registered."""

    folder: Path
    env: dict[str, str]

    def run(self, *options: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "switchboard.cli", "adapters", "list", *options],
            cwd=self.folder,
            env={**os.environ, **self.env},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def rows(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.run("--json"))}


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        with closing(ledger.connect()) as connection:
            connection.autocommit = True
            for name, kind in (("deploys", "redis-stream"), ("jobs", "redis-list")):
                with connection.transaction():
                    upsert_adapter(
                        connection,
                        name=name,
                        family="queue",
                        trust_mode="queue",
                        queue="work",
                        namespace=f"redis:{name}",
                        config={"type": kind},
                    )
            yield connection


@pytest.fixture
def listing(tmp_path: Path, database_url: str, redis_url: str, connection: Connection) -> Listing:
    (tmp_path / "switchboard.toml").write_text(CONFIG)
    env = {"DATABASE_URL": database_url, "DEPLOYS_URL": redis_url, "JOBS_URL": redis_url, "SWITCHBOARD_CONFIG": ""}
    return Listing(tmp_path, env)


def test_what_waits_is_asked_of_the_brokers(listing: Listing, redis_client: "redis.Redis") -> None:
    redis_client.xgroup_create("deploys", "switchboard", mkstream=True)
    for _ in range(5):
        redis_client.xadd("deploys", {"a": "b"})
    redis_client.xreadgroup("switchboard", "someone", {"deploys": ">"}, count=2)
    redis_client.lpush("jobs", "1", "2")
    rows = listing.rows()
    assert (rows["deploys"]["lag"], rows["deploys"]["pending"]) == (3, 2)
    assert (rows["jobs"]["lag"], rows["jobs"]["pending"]) == (2, 0)


def test_who_reads_and_what_went_wrong_last_is_in_the_ledger(listing: Listing, connection: Connection) -> None:
    now = datetime.now(UTC)
    ours, gone = process_name(), process_name().rsplit("/", 1)[0] + "/1"
    for process, error in ((ours, None), (gone, ("the source was away", timedelta(minutes=3)))):
        note_poll(connection, process=process, adapter="deploys", polled_ago=timedelta(seconds=1), error=error)
    # On another host, where nobody can look whether it runs: it has said nothing for a while.
    note_poll(connection, process="elsewhere/1/2/3", adapter="deploys", polled_ago=timedelta(hours=1))
    connection.execute("UPDATE consumers SET seen_at = now() - interval '1 hour' WHERE process LIKE 'elsewhere%'")
    rows = listing.rows()
    assert rows["deploys"]["consumers"] == 1
    polled = datetime.fromisoformat(rows["deploys"]["last_poll"])
    assert abs(polled - now) < timedelta(minutes=1)
    assert rows["deploys"]["last_error"] == "the source was away"
    assert (rows["jobs"]["consumers"], rows["jobs"]["last_poll"], rows["jobs"]["last_error"]) == (0, None, None)


def test_a_broker_that_is_frozen_or_away_and_a_file_that_cannot_be_read_are_a_question_mark(
    listing: Listing, redis_client: "redis.Redis", own_valkey: ValkeyServer
) -> None:
    redis_client.lpush("jobs", "1")
    listing.env["DEPLOYS_URL"] = own_valkey.url
    own_valkey.suspend()
    rows = listing.rows()
    assert (rows["deploys"]["lag"], rows["deploys"]["pending"]) == (None, None)
    assert rows["jobs"]["lag"] == 1
    listing.env["DEPLOYS_URL"] = "redis://127.0.0.1:1/0"
    header, deploys, jobs = listing.run().splitlines()
    columns = "name type queue enabled trust lag pending consumers last_poll last_error"
    assert header.split() == columns.split()
    assert deploys.split() == ["deploys", "redis-stream", "work", "yes", "queue", "?", "?", "0"]
    assert jobs.split() == ["jobs", "redis-list", "work", "yes", "queue", "1", "0", "0"]
    # One of them cannot be read: the other is asked all the same.
    listing.env["DEPLOYS_URL"] = ""
    rows = listing.rows()
    assert (rows["deploys"]["lag"], rows["jobs"]["lag"]) == (None, 1)
    (listing.folder / "switchboard.toml").write_text("not TOML")
    assert {row["lag"] for row in listing.rows().values()} == {None}
