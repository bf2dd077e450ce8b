"""What is counted: by real workers, and in a process alone."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import psycopg
import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually
from worker import Worker

from switchboard.embedded import free_port
from switchboard.model import DeadLetterReason
from switchboard.telemetry.metrics import KNOWN_VALUES

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_URL}"
stream = "deploys"
queue = "deploys"
body = "data"
max_body = 1000
claim_idle = "1s"
"""

#: A team's module with the middleware that serves metrics, as its users run it.
TEAM = """
import os
import dramatiq
from dramatiq.middleware.prometheus import Prometheus
import switchboard
broker = switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"])
broker.add_middleware(Prometheus())
dramatiq.set_broker(broker)
"""


@dataclass
class Line:
    folder: Path
    database_url: str
    redis_url: str
    client: Any
    env: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ("switchboard.actors",)

    @contextmanager
    def running(self, processes: int = 1) -> Iterator[Worker]:
        (self.folder / "switchboard.toml").write_text(CONFIG)
        (self.folder / "team.py").write_text(TEAM)
        env = {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.redis_url,
            "DEPLOYS_URL": self.redis_url,
            "SWITCHBOARD_CONFIG": "",
            "SENTRY_DSN": "",
            "PYTHONPATH": os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]),
        }
        with Worker(self.modules, cwd=self.folder, env=env | self.env, processes=processes) as worker:
            worker.wait_ready()
            yield worker

    def publish(self, *bodies: str) -> list[str]:
        return [self.client.xadd("deploys", {"data": body}).decode() for body in bodies]

    def count(self, table: str) -> int:
        with psycopg.connect(self.database_url) as connection:
            row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
        assert row
        return int(row[0])

    def settle(self, todos: int, letters: int) -> None:
        def done() -> bool:
            try:
                pending = self.client.xpending("deploys", "switchboard")["pending"]
            except redis.ResponseError:  # nobody has read yet
                return False
            return (self.count("todos"), self.count("dead_letters"), pending) == (todos, letters, 0)

        eventually(done, within=60, what="all is stored and acknowledged")


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Line:
    return Line(tmp_path, database_url, redis_url, redis_client)


def counts(port: int) -> dict[tuple[str, str, str], float]:
    """What has been counted: without what is exposed at 0."""
    return {key: value for key, value in scraped(port).items() if value}


def scraped(port: int) -> dict[tuple[str, str, str], float]:
    """Switchboard's samples: name, adapter, outcome or reason."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("switchboard_") and sample.name.endswith("_total"):
                labels = sample.labels
                what = labels.get("outcome") or labels.get("reason") or ""
                found[sample.name, labels["adapter"], what] = sample.value
    return found


@pytest.fixture
def port(line: Line, tmp_path: Path) -> int:
    """Where the line's worker serves its metrics."""
    port = free_port()
    (tmp_path / "prometheus").mkdir()
    line.modules = ("team", "switchboard.actors")
    line.env |= {
        "dramatiq_prom_port": str(port),
        "dramatiq_prom_host": "127.0.0.1",
        "dramatiq_prom_db": str(tmp_path / "prometheus"),
    }
    return port


@pytest.mark.parametrize("processes", [1, 2])
def test_what_a_worker_stored_is_counted_by_what_became_of_it(line: Line, port: int, processes: int) -> None:
    with line.running(processes):
        sent = line.publish('{"n": 1}', '{"n": 2}', "x" * 2000, '{"n": 3}', "y" * 2000)
        line.client.xadd("deploys", {"no": "body"})
        line.settle(todos=3, letters=3)
        expected = {
            ("switchboard_deliveries_total", "deploys", "new"): 3,
            ("switchboard_deliveries_total", "deploys", "dead_letter"): 3,
            ("switchboard_dead_letters_total", "deploys", "too_large"): 2,
            ("switchboard_dead_letters_total", "deploys", "invalid"): 1,
        }
        eventually(lambda: counts(port) == expected, within=30, what="the counters are right")

        # A redelivery, and with it a dead letter's: neither is new.
        line.client.xgroup_setid("deploys", "switchboard", "0")
        duplicates = ("switchboard_deliveries_total", "deploys", "duplicate")
        eventually(lambda: scraped(port).get(duplicates) == len(sent) + 1, within=30, what="duplicates are counted")
        assert {key: value for key, value in counts(port).items() if key != duplicates} == expected


def test_what_the_source_dropped_is_counted(line: Line, port: int) -> None:
    lost = ("switchboard_lost_at_source_total", "deploys", "")
    with line.running():
        line.publish("zero")
        line.settle(todos=1, letters=0)
        # What appears with its first count has not increased, to Prometheus.
        eventually(lambda: scraped(port).get(lost) == 0, within=30, what="none is lost yet, and that is said")
    sent = line.publish("one", "two", "three")
    line.client.xreadgroup("switchboard", "somebody", {"deploys": ">"})
    line.client.xdel("deploys", *sent[:2])
    with line.running():
        line.settle(todos=2, letters=0)
        eventually(lambda: scraped(port).get(lost) == 2, within=30, what="the lost ones are counted")


COUNTED = """
import sys
if sys.argv[1] == "blocked":
    sys.modules["prometheus_client"] = None
from switchboard.telemetry import metrics
from switchboard.ingest import report
from switchboard.model import DeadLetter, Delivery, Route, Stored
assert "prometheus_client" not in sys.modules or sys.modules["prometheus_client"] is None, "imported too early"
letter = DeadLetter(Delivery(b"", "1-0", "me"), "redis:s:1-0", "poison", "why")
for _ in range(2):
    report(Route("a", "q", "redis:s"), Stored(new=5, duplicates=2, dead_letters=[letter], letters=[letter]))
metrics.count("switchboard_lost_at_source", 3, adapter="a")
metrics.count("switchboard_lost_at_source", 0, adapter="b")
metrics.expose(adapter="c")
metrics.expose(queue="work")
if sys.argv[1] != "blocked":
    from prometheus_client import generate_latest
    print(generate_latest().decode())
"""


def counted(how: str) -> str:
    done = subprocess.run([sys.executable, "-c", COUNTED, how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_counters_are_in_prometheus_clients_own_registry() -> None:
    lines = counted("there").splitlines()
    for sample in (
        'switchboard_deliveries_total{adapter="a",outcome="new"} 10.0',
        'switchboard_deliveries_total{adapter="a",outcome="duplicate"} 4.0',
        'switchboard_deliveries_total{adapter="a",outcome="dead_letter"} 2.0',
        'switchboard_dead_letters_total{adapter="a",reason="poison"} 2.0',
        'switchboard_lost_at_source_total{adapter="a"} 3.0',
        'switchboard_lost_at_source_total{adapter="c"} 0.0',
        'switchboard_deliveries_total{adapter="c",outcome="duplicate"} 0.0',
        'switchboard_dead_letters_total{adapter="c",reason="id_conflict"} 0.0',
        'switchboard_claims_total{queue="work"} 0.0',
        'switchboard_leases_lost_total{queue="work"} 0.0',
    ):
        assert sample in lines
    assert not any('adapter="b"' in each for each in lines), "nothing lost is no sample"


def test_every_reason_of_a_dead_letter_is_exposed() -> None:
    assert KNOWN_VALUES["reason"] == get_args(DeadLetterReason)


def test_without_prometheus_client_nothing_is_counted_and_nothing_breaks() -> None:
    assert counted("blocked") == ""


def test_a_worker_without_prometheus_client_stores_as_ever(line: Line, tmp_path: Path) -> None:
    # Imported by every Python that starts with this folder in its path.
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
    with line.running() as worker:
        line.publish('{"n": 1}', "x" * 2000)
        line.settle(todos=1, letters=1)
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output
        assert "prometheus" not in worker.output.lower()
