"""What kills its worker, or breaks the store for itself alone, ends as a dead letter soon; what is good never does."""

import secrets
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from line import Line, restart, said
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer

# A team's own provider. Each death is noted before it happens, so that it can be counted from outside.
_DEADLY_PROVIDER = """
import os, signal
from switchboard.normalize.generic import normalize_generic

def shape(delivery):
    if b"deadly" in delivery.body:
        with open("deaths", "a") as deaths:
            deaths.write(delivery.native_id + "\\n")
        os.kill(os.getpid(), signal.SIGKILL)
    return normalize_generic(delivery)
"""

_REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'no % here', NEW.title; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON todos FOR EACH ROW WHEN (NEW.title = 'refused') EXECUTE FUNCTION refuse();
"""

_CONSTRAIN = "ALTER TABLE todos ADD CONSTRAINT agreeable CHECK (title <> 'refused')"


@dataclass
class PoisonLine(Line):
    """A line on which some messages are known to be bad; `published` has the good ones."""

    max_deliveries: int = 5

    def worker(self, **how: Any) -> Worker:
        worker = super().worker(**how)
        with (self.folder / "switchboard.toml").open("a") as config:
            config.write(f"max_deliveries = {self.max_deliveries}\n")
        return worker

    def publish_bad(self, title: str) -> str:
        """The idempotency key of a message of that title."""
        with self.source() as source:
            return f"redis:{self.name}:{source.xadd(self.name, {'title': title}).decode()}"

    def deaths(self) -> int:
        noted = self.folder / "deaths"
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def dead_letters(self) -> list[tuple[Any, ...]]:
        return self.rows("SELECT idempotency_key, reason FROM dead_letters ORDER BY idempotency_key")

    def good_are_stored(self) -> bool:
        todos = [key for (key,) in self.rows("SELECT idempotency_key FROM todos WHERE queue = %s", self.name)]
        assert len(todos) == len(set(todos))
        return set(todos) == set(self.published)

    def settled(self, bad: list[str]) -> bool:
        done = self.good_are_stored() and len(self.dead_letters()) >= len(bad)
        return done and not self.group()["pending"] and not self.group()["lag"]


@pytest.mark.parametrize(("bad", "max_deliveries"), [(1, 5), (2, 4)])
def test_what_kills_its_worker_every_time_ends_as_a_dead_letter_and_its_neighbours_are_stored(
    bad: int, max_deliveries: int, tmp_path: Path, database_url: str, redis_url: str
) -> None:
    (tmp_path / "deadly.py").write_text(_DEADLY_PROVIDER)
    line = PoisonLine(
        tmp_path, database_url, redis_url, options={"provider": "deadly:shape"}, max_deliveries=max_deliveries
    )
    # All in one batch.
    line.publish(10)
    deadly = [line.publish_bad("deadly")]
    line.publish(10)
    deadly += [line.publish_bad("deadly") for _ in range(bad - 1)]
    line.publish(10)
    with line.worker(threads=1) as worker:
        worker.wait_ready()
        until_settled(line, worker, deadly)
    most = 2 + (max_deliveries - 2) * bad
    assert line.deaths() <= most
    assert line.dead_letters() == [(key, "poison") for key in sorted(deadly)]
    [detail] = {detail for (detail,) in line.rows("SELECT detail FROM dead_letters")}
    assert "killed its worker" in detail
    assert {tries for (tries,) in line.rows("SELECT deliveries FROM dead_letters")} == {max_deliveries}


def until_settled(line: PoisonLine, worker: Worker, bad: list[str]) -> None:
    """Restarts the worker whenever it dies, as a supervisor does."""
    deadline = time.monotonic() + 150
    while not line.settled(bad):
        assert time.monotonic() < deadline, f"{line.deaths()} deaths, {line.state()}\n{worker.output}"
        if not worker.pids:
            restart(worker)
            worker.wait_ready()
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("rule", "why"), [(_REFUSE, "no refused here"), (_CONSTRAIN, "agreeable")], ids=["trigger", "check"]
)
def test_what_the_ledger_refuses_ends_as_a_dead_letter_and_its_neighbours_are_stored_at_once(
    rule: str, why: str, tmp_path: Path, database_url: str, redis_url: str
) -> None:
    line = PoisonLine(tmp_path, database_url, redis_url, max_deliveries=4)
    with line.running() as worker:
        line.rows(rule)
        line.publish(30)
        refused = [line.publish_bad("refused")]
        line.publish(30)
        refused.append(line.publish_bad("refused"))
        # At once: its first try alone comes no earlier than its neighbours.
        eventually(line.good_are_stored, within=20, every=0.02, what="the neighbours are stored")
        eventually(lambda: line.settled(refused), within=25, what="the refused are dead letters")
        assert line.dead_letters() == [(key, "poison") for key in sorted(refused)]
        assert {tries for (tries,) in line.rows("SELECT deliveries FROM dead_letters")} == {4}
        said(worker, "the ledger refuses")
        assert "Traceback" not in worker.output, worker.output
        # In the ledger's own words: else nobody knows what to mend before the replay.
        for (detail,) in line.rows("SELECT detail FROM dead_letters"):
            assert why in detail


def test_a_producers_key_of_any_length_is_a_key(tmp_path: Path, database_url: str, redis_url: str) -> None:
    """An index of PostgreSQL's holds 2,704 bytes: it refused a longer key, and its dead letter as well, for ever."""
    line = PoisonLine(tmp_path, database_url, redis_url, options={"key": "key"}, max_deliveries=3)
    long = secrets.token_hex(3_000)
    with line.running() as worker:
        with line.source() as source:
            for title in ("one", "one", "another"):
                source.xadd(line.name, {"key": long, "title": title})
            source.xadd(line.name, {"key": long + "0", "title": "one"})
        eventually(line.dead_letters, what="another body under the key is a dead letter")
        eventually(lambda: not line.group()["pending"] and not line.group()["lag"], what="all are acknowledged")
        assert "Traceback" not in worker.output, worker.output
    keys = [f"redis:line:key:sha256:{sha256(key.encode()).hexdigest()}" for key in (long, long + "0")]
    assert sorted(line.rows("SELECT idempotency_key FROM todos")) == sorted((key,) for key in keys)
    assert line.dead_letters() == [(keys[0], "id_conflict")]


def test_an_outage_of_postgresql_with_restarts_inside_it_spends_no_budget(
    tmp_path: Path, own_postgres: PostgresServer, redis_url: str
) -> None:
    # The smallest budget beyond the batch: one try counted too often makes dead letters.
    line = PoisonLine(tmp_path, own_postgres.url, redis_url, max_deliveries=3)
    line.publish(60)
    with line.running() as worker:
        line.settle(worker)
        worker.kill_all()
        for _ in range(3):
            # Each time the whole batch is in the store as PostgreSQL dies, and its worker is killed in the outage.
            with line.locked():
                line.publish(20)
                worker.start()
                worker.wait_ready()
                line.wait_blocked()
                own_postgres.kill()
            said(worker, "unavailable")
            worker.kill_one()
            restart(worker)
            # A start in an outage ends at once, and a supervisor tries again.
            assert worker.parent.wait(30) != 0
            assert "db: connect" in worker.output
            assert most_tries(line) <= 2
            own_postgres.start()
        worker.start()
        worker.wait_ready()
        line.settle(worker)


def most_tries(line: Line) -> int:
    return max((int(entry["times_delivered"]) for entry in line.pending()), default=0)
