"""Every metric, read over HTTP from running workers as Prometheus reads it, against the database and the broker."""

import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from alerts import firing
from prometheus_client.parser import text_string_to_metric_families
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer, ValkeyServer, free_port
from switchboard.ledger import Ledger, migrate, set_adapter_enabled
from switchboard.telemetry.metrics import COUNTERS, GAUGES, HISTOGRAMS

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${SOURCE_URL}"
stream = "deploys"
queue = "deploys"
body = "data"
max_body = 1000

[adapters.jobs]
type = "redis-list"
url = "${SOURCE_URL}"
list = "jobs"
queue = "jobs"
"""

#: A team's module with the middleware that serves metrics, as its users run it, and a handler.
TEAM = """
import os
import time
from pathlib import Path
import dramatiq
from dramatiq.middleware.prometheus import Prometheus
import switchboard
broker = switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"])
if os.environ["SERVED"] == "yes":
    broker.add_middleware(Prometheus())
dramatiq.set_broker(broker)

@switchboard.todo(queue="work")
def work(todo):
    if todo.kind == "bad":
        raise ValueError("as it should")
    while todo.kind == "held" and not Path("let-go").exists():
        time.sleep(0.05)
"""

Samples = Mapping[tuple[str, ...], float]

TODOS = "SELECT queue, state, count(*) FROM todos GROUP BY 1, 2"


@dataclass
class Site:
    """A worker command on a host of its own: its folder, its directory of metrics and its port."""

    folder: Path
    database_url: str
    broker_url: str
    source_url: str
    served: bool = True
    team: str = TEAM
    port: int = field(default_factory=free_port)
    modules: tuple[str, ...] = ("team", "switchboard.actors")

    @contextmanager
    def running(self, processes: int = 2) -> Iterator[Worker]:
        self.metrics.mkdir(parents=True, exist_ok=True)
        (self.folder / "switchboard.toml").write_text(CONFIG)
        (self.folder / "team.py").write_text(self.team)
        env = {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.broker_url,
            "SOURCE_URL": self.source_url,
            "SWITCHBOARD_CONFIG": "",
            "PYTHONPATH": os.pathsep.join([str(self.folder), os.environ.get("PYTHONPATH", "")]),
            "SERVED": "yes" if self.served else "no",
            "dramatiq_prom_port": str(self.port),
            "dramatiq_prom_host": "127.0.0.1",
            "dramatiq_prom_db": str(self.metrics),
        }
        with Worker(self.modules, cwd=self.folder, env=env, processes=processes) as worker:
            worker.wait_ready(within=60)
            if self.served:
                eventually(self._answers, within=60, what="the exposition answers")
            yield worker

    def _answers(self) -> bool:
        try:
            return self.scrape() is not None
        except urllib.error.URLError:
            return False

    @property
    def metrics(self) -> Path:
        return self.folder / "prometheus"

    def scrape(self) -> Samples:
        """Switchboard's samples: by name and, in their order, the values of their labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/", timeout=30) as answer:
            text = answer.read().decode()
        found = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("switchboard_"):
                    labels = {name: sample.labels[name] for name in sorted(sample.labels)}
                    found[(sample.name, *labels.values())] = sample.value
        return found

    def has(self, name: str) -> bool:
        return any(key[0] == name for key in self.scrape())

    def insert(self, queue: str, number: int, *, kind: str = "", attempts: int = 5, age_seconds: int = 0) -> None:
        with psycopg.connect(self.database_url) as connection:
            connection.execute(
                "INSERT INTO todos (queue, kind, title, max_attempts, created_at) "
                "SELECT %s, %s, 't', %s, now() - make_interval(secs => %s) FROM generate_series(1, %s)",
                (queue, kind, attempts, age_seconds, number),
            )

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url) as connection:
            return connection.execute(query.encode()).fetchall()

    def todos(self) -> dict[tuple[str, ...], float]:
        """The table's own count, as the metric should have it."""
        found: dict[tuple[str, ...], float] = {
            ("switchboard_todos", queue, state): float(number) for queue, state, number in self.rows(TODOS)
        }
        for queue in {key[1] for key in found} | {"deploys", "jobs", "work"}:
            for state in ("pending", "claimed", "done", "failed"):
                found.setdefault(("switchboard_todos", queue, state), 0.0)
        return found

    def settle(self, todos: int, letters: int = 0) -> None:
        def done() -> bool:
            [(stored, dead)] = self.rows("SELECT (SELECT count(*) FROM todos), (SELECT count(*) FROM dead_letters)")
            return (stored, dead) == (todos, letters)

        eventually(done, within=60, what="all is stored")


def named(samples: Samples, name: str) -> dict[tuple[str, ...], float]:
    return {key: value for key, value in samples.items() if key[0] == name}


def set_enabled(database_url: str, enabled: bool, *adapters: str) -> None:
    ledger = Ledger(database_url)
    with ledger.transaction() as tx:
        for adapter in adapters:
            set_adapter_enabled(tx.connection, adapter, enabled)
    ledger.close()


@pytest.fixture
def site(tmp_path: Path, database_url: str, redis_url: str) -> Site:
    return Site(tmp_path / "site", database_url, redis_url, redis_url)


def test_every_metric_is_what_the_database_and_the_broker_say(site: Site, redis_client: Any) -> None:
    redis_client.xgroup_create("deploys", "switchboard", id="0", mkstream=True)
    gone = [redis_client.xadd("deploys", {"data": str(number)}) for number in range(2)]
    redis_client.xreadgroup("switchboard", "elsewhere/1/7/2", {"deploys": ">"})
    redis_client.xclaim("deploys", "switchboard", "elsewhere/1/7/2", 0, gone, idle=3_600_000, justid=True)
    redis_client.xdel("deploys", gone[0])
    started = time.time()
    with site.running() as worker:
        # Deliveries: of two that somebody left, one is lost; five more, two of them too large, one of those twice.
        bodies = ['{"n": 1}', '{"n": 2}', "x" * 2000, '{"n": 3}', "y" * 2000]
        for body in bodies:
            redis_client.xadd("deploys", {"data": body})
        redis_client.lpush("jobs", "one", "two")
        site.settle(todos=6, letters=2)
        eventually(lambda: redis_client.xpending("deploys", "switchboard")["pending"] == 0, within=30)
        redis_client.xgroup_setid("deploys", "switchboard", "0")
        again = ("switchboard_deliveries_total", "deploys", "duplicate")
        eventually(lambda: site.scrape().get(again) == 6, within=30, what="the redelivery is counted")

        # Todos in every state, one of them stolen while its handler runs; some that nobody works; a job of upkeep.
        site.insert("work", 5)
        site.insert("work", 2, kind="bad", attempts=1)
        site.insert("work", 2, kind="held")
        site.insert("idle", 4, age_seconds=1000)
        eventually(lambda: ("work", "claimed", 2) in site.rows(TODOS), within=30, what="the held ones are claimed")
        with psycopg.connect(site.database_url) as admin:
            admin.execute(
                "INSERT INTO upkeep (job, last_succeeded_at, last_duration_seconds) "
                "VALUES ('prune', timestamptz '2026-01-01 00:00:00Z', 1.5)"
            )
            admin.execute("UPDATE dead_letters SET resolved_at = now() WHERE payload LIKE 'y%'")

        # What waits at the sources: both switched off, then something unread at each, and read by somebody else.
        set_enabled(site.database_url, False, "deploys", "jobs")
        off = {("switchboard_adapter_enabled", name): 0.0 for name in ("deploys", "jobs")}
        eventually(lambda: named(site.scrape(), "switchboard_adapter_enabled") == off, within=30)
        # Each consumer looks once a second, and says each five that it is there.
        looked = "SELECT min(seen_at) > max(a.updated_at) + interval '3 s' FROM consumers, adapters a"
        eventually(lambda: site.rows(looked) == [(True,)], within=60, what="every consumer has seen that it is off")
        for number in range(7):
            redis_client.xadd("deploys", {"data": str(number)})
        redis_client.xreadgroup("switchboard", "elsewhere/1/7/2", {"deploys": ">"}, count=3)
        redis_client.lpush("jobs", *range(9))

        expected = {
            ("switchboard_deliveries_total", "deploys", "new"): 4,
            ("switchboard_deliveries_total", "deploys", "duplicate"): 6,
            ("switchboard_deliveries_total", "deploys", "dead_letter"): 2,
            ("switchboard_deliveries_total", "jobs", "new"): 2,
            ("switchboard_dead_letters_total", "deploys", "too_large"): 2,
            ("switchboard_lost_at_source_total", "deploys"): 1,
            ("switchboard_batch_deliveries_sum", "deploys"): 12,
            ("switchboard_batch_deliveries_sum", "jobs"): 2,
            ("switchboard_claims_total", "work"): 9,
            ("switchboard_dead_letters_unresolved", "deploys", "too_large"): 1,
            ("switchboard_adapter_unread", "deploys"): 4,
            ("switchboard_adapter_unread", "jobs"): 9,
            ("switchboard_adapter_pending", "deploys"): 3,
            ("switchboard_adapter_pending", "jobs"): 0,
            ("switchboard_adapter_consumers", "deploys"): 2,
            ("switchboard_adapter_consumers", "jobs"): 2,
            ("switchboard_upkeep_last_success_timestamp_seconds", "prune"): 1_767_225_600,
            ("switchboard_upkeep_last_duration_seconds", "prune"): 1.5,
            ("switchboard_pool_requests_waiting",): 0,
            # Of each process: 4 threads, 2 adapters, a queue of todos, its announcements, these metrics.
            ("switchboard_pool_connections_max",): 2 * (4 + 2 + 1 + 2),
            **site.todos(),
        }
        found: dict[tuple[str, ...], float] = {}

        def right() -> bool:
            found.clear()
            found.update(site.scrape())
            return {key: found.get(key) for key in expected} == expected

        try:
            eventually(right, within=60)
        except AssertionError:
            assert {key: found.get(key) for key in expected} == expected
        assert ("work", "done", 5) in site.rows(TODOS)
        assert ("work", "failed", 2) in site.rows(TODOS)
        ages = named(found, "switchboard_oldest_pending_age_seconds")
        assert 1000 <= ages["switchboard_oldest_pending_age_seconds", "idle"] <= 1000 + time.time() - started
        assert ages["switchboard_oldest_pending_age_seconds", "work"] == 0
        last_poll = "switchboard_adapter_last_poll_timestamp_seconds"

        def polled() -> dict[tuple[str, str], Any]:
            """Each note of a consumer reckons it anew."""
            rows = site.rows("SELECT adapter, max(polled_at) FROM consumers GROUP BY 1")
            return {(last_poll, adapter): pytest.approx(at.timestamp(), abs=0.01) for adapter, at in rows}

        eventually(lambda: named(site.scrape(), last_poll) == polled(), within=30)
        connections = found["switchboard_pool_connections",]
        assert 0 <= found["switchboard_pool_connections_in_use",] <= connections <= 18
        assert connections > 0
        for adapter, least in (("deploys", 2), ("jobs", 1)):
            took = found["switchboard_source_to_commit_seconds_sum", adapter]
            assert found["switchboard_source_to_commit_seconds_count", adapter] >= least
            assert 0 < took < 100 * (time.time() - started)

        with psycopg.connect(site.database_url) as thief:
            thief.execute("UPDATE todos SET owner = 'thief' WHERE id = (SELECT min(id) FROM todos WHERE kind = 'held')")
        (site.folder / "let-go").touch()
        lost = ("switchboard_leases_lost_total", "work")
        eventually(lambda: site.scrape().get(lost) == 1, within=60, what="the lost lease is counted")

        names = {name for name, *_ in site.scrape()}
        assert names >= {f"{name}_total" for name in COUNTERS} | set(GAUGES) | {f"{name}_sum" for name in HISTOGRAMS}
        assert worker.terminate(within=60) == 0
        assert not list(site.metrics.glob("*switchboard@*")), "nothing is left to be taken for what is"


def test_the_time_from_the_source_counts_what_waited_there_before_anybody_read(site: Site, redis_client: Any) -> None:
    # Given an entry that waits, one whose id its producer chose, and an element of a list, which has no time
    redis_client.xadd("deploys", {"data": "chosen"}, id="1-1")
    redis_client.lpush("jobs", "one")
    with site.running(1):
        site.settle(todos=2)
        sent = int(
            redis_client.xadd("deploys", {"data": "late"}, id=f"{int((time.time() - 100) * 1000)}-0").split(b"-")[0]
        )
        site.settle(todos=3)
        stored = time.time()
        name = "switchboard_source_to_commit_seconds"
        eventually(lambda: site.scrape().get((f"{name}_count", "deploys")) == 2, within=30, what="both are observed")
        found = site.scrape()
        # The chosen id is no time: since it was read, which was seconds ago, not fifty years.
        assert 100 <= found[f"{name}_sum", "deploys"] <= 2 * (stored - sent / 1000) + 60
        assert found[f"{name}_sum", "jobs"] < 60
        buckets = {key[2]: value for key, value in found.items() if key[:2] == (f"{name}_bucket", "deploys")}
        assert (buckets["60.0"], buckets["300.0"]) == (1, 2)


def test_a_source_that_is_away_from_the_start_on_raises_its_alert_and_no_webhook_does(
    site: Site, own_valkey: ValkeyServer
) -> None:
    # Given sources that nobody reaches, a webhook, which nobody reads, and a repair that has no schedule
    site.source_url = own_valkey.url
    own_valkey.kill()
    with closing(Ledger(site.database_url)) as ledger:
        migrate(ledger)
    with psycopg.connect(site.database_url) as admin:
        admin.execute("INSERT INTO adapters (name, family, trust_mode) VALUES ('repos', 'webhook', 'signed')")
        admin.execute(
            "INSERT INTO upkeep (job, last_succeeded_at, last_duration_seconds) "
            "VALUES ('rebuild_pending_index', now() - interval '1 year', 1), ('reap', now(), 1)"
        )
    with site.running(1):
        # When it is sampled
        both = {"deploys", "jobs"}
        eventually(
            lambda: firing("SwitchboardAdapterNotPolled", site.scrape()) == both, within=60, what="the alert is raised"
        )
        # Then nothing asks for consumers of a webhook, or for a repair that is made when it is needed
        found = site.scrape()
        assert firing("SwitchboardAdapterWithoutConsumers", found) == set()
        assert {key[1] for key in named(found, "switchboard_adapter_consumers")} == both
        for name in ("last_success_timestamp_seconds", "last_duration_seconds"):
            assert {key[1] for key in named(found, f"switchboard_upkeep_{name}")} == {"reap"}


def test_a_worker_without_a_module_of_ones_own_serves_them_where_their_port_is_set(
    site: Site, redis_client: Any
) -> None:
    site.modules = ("switchboard.actors",)
    redis_client.lpush("jobs", "one")
    with site.running(2) as worker:
        site.settle(todos=1)
        expected = {("switchboard_deliveries_total", "jobs", "new"): 1.0, ("switchboard_todos", "jobs", "pending"): 1.0}
        eventually(lambda: expected.items() <= site.scrape().items(), within=60, what="it is counted, and sampled")
        assert worker.terminate(within=60) == 0


def scans(site: Site) -> int:
    """How often anybody has looked at the table of upkeep, which the metrics alone read here, each time once."""
    [(number,)] = site.rows("SELECT seq_scan + idx_scan FROM pg_stat_user_tables WHERE relname = 'upkeep'")
    return int(number)


def test_one_process_asks_however_many_there_are_and_however_often_they_are_scraped(site: Site, tmp_path: Path) -> None:
    another = Site(tmp_path / "another", site.database_url, site.broker_url, site.source_url)
    with site.running(2), another.running(2):
        eventually(lambda: site.has("switchboard_todos") or another.has("switchboard_todos"), within=30)
        began, before = time.monotonic(), scans(site)
        scraped = 0
        # On a busy machine a look takes its time, and then comes the less often.
        while time.monotonic() < began + 20 or (scans(site) == before and time.monotonic() < began + 120):
            for each in (site, another):
                each.scrape()
                scraped += 1
        looked, took = scans(site) - before, time.monotonic() - began
        # The server tells of its scans late, those before the beginning too.
        assert 1 <= looked <= took / 5 + 2, f"{looked} times in {took:.0f} s"
        assert scraped > 2 * looked
        assert site.has("switchboard_todos") is not another.has("switchboard_todos")
        assert site.has("switchboard_pool_connections")
        assert another.has("switchboard_pool_connections")


def test_when_who_asks_is_killed_another_process_does_and_nothing_old_is_shown(site: Site, tmp_path: Path) -> None:
    another = Site(tmp_path / "another", site.database_url, site.broker_url, site.source_url)
    with site.running(2) as worker:
        site.insert("idle", 3)
        three, one = (("switchboard_todos", "idle", "pending"), 3), (("switchboard_todos", "idle", "pending"), 1)
        eventually(lambda: three in site.scrape().items(), within=30, what="it is sampled")
        with another.running(2):
            eventually(lambda: another.has("switchboard_pool_connections"), within=30, what="the other is up")
            assert not another.has("switchboard_todos")

            [leader] = [path.name.split("%2F")[2] for path in site.metrics.glob("gauge_livemostrecent_switchboard*.db")]
            worker.kill_all()
            with psycopg.connect(site.database_url) as admin:
                admin.execute("DELETE FROM todos WHERE id IN (SELECT id FROM todos WHERE queue = 'idle' LIMIT 2)")
            eventually(lambda: one in another.scrape().items(), within=60, what="another process has taken over")
            assert any(leader in path.name for path in site.metrics.iterdir()), "a killed process left its file"

            # The killed one comes back in the same directory: what it knew is not shown as if it were so.
            with site.running(2):
                eventually(lambda: site.has("switchboard_pool_connections"), within=30, what="it is up again")
                assert not site.has("switchboard_todos")
                eventually(
                    lambda: site.scrape()["switchboard_pool_connections_max",] == 18,
                    within=30,
                    what="the pools of the killed are not added to those of the living",
                )
                assert one in another.scrape().items()


def test_when_the_connection_of_who_asks_is_cut_somebody_goes_on(site: Site) -> None:
    holder = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
    with site.running(2) as worker:
        eventually(lambda: site.has("switchboard_todos"), within=30, what="it is sampled")
        [(pid,)] = {*site.rows(holder)}
        with psycopg.connect(site.database_url) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
        site.insert("idle", 3)

        def one_goes_on() -> bool:
            return {*site.rows(holder)} not in ({(pid,)}, set()) and (
                ("switchboard_todos", "idle", "pending"), 3) in site.scrape().items()  # fmt: skip

        eventually(one_goes_on, within=60, what="one process asks again")
        eventually(
            lambda: len(list(site.metrics.glob("gauge_livemostrecent_switchboard*.db"))) == 1,
            within=30,
            what="one alone",
        )
        assert "Traceback" not in worker.output


def test_without_anybody_who_serves_metrics_nothing_is_asked(site: Site) -> None:
    site.served = False
    with site.running(2):
        eventually(lambda: len(site.rows("SELECT 1 FROM consumers WHERE polled_at IS NOT NULL")) == 4, within=60)
        assert site.rows("SELECT pid FROM pg_locks WHERE locktype = 'advisory'") == []
        begun = "SELECT count(*) FROM consumers WHERE seen_at > begun_at + interval '12 seconds'"
        eventually(lambda: site.rows(begun) == [(4,)], within=60, what="there was time for it")
        assert scans(site) <= 1, "the migration's own"
        assert list(site.metrics.iterdir()) == []


# Outages


def test_a_ledger_that_gives_no_answer_shows_no_numbers_one_line_and_holds_up_no_stop(
    tmp_path: Path, own_postgres: PostgresServer, redis_url: str
) -> None:
    site = Site(tmp_path / "site", own_postgres.url, redis_url, redis_url)
    with site.running(1) as worker:
        site.insert("idle", 3)
        pending = (("switchboard_todos", "idle", "pending"), 3)
        eventually(lambda: pending in site.scrape().items(), within=30, what="it is sampled")
        own_postgres.suspend()
        eventually(lambda: not site.has("switchboard_todos"), within=120, what="what is not known is not shown")
        own_postgres.resume()
        eventually(lambda: pending in site.scrape().items(), within=60, what="it is sampled again")
        assert worker.output.count("metrics: the ledger is unavailable") <= 1

        own_postgres.suspend()
        began = time.monotonic()
        worker.terminate(within=60)
        assert time.monotonic() - began < 30
        own_postgres.resume()


def test_a_source_that_gives_no_answer_hides_its_lag_alone_and_holds_up_no_stop(
    site: Site, own_valkey: ValkeyServer
) -> None:
    site.source_url = own_valkey.url
    with redis.Redis.from_url(own_valkey.url) as client:
        client.lpush("elsewhere", "so that there is something")
    with site.running(1) as worker:
        eventually(lambda: site.has("switchboard_adapter_unread"), within=30, what="it is sampled")
        own_valkey.suspend()
        eventually(lambda: not site.has("switchboard_adapter_pending"), within=120, what="the lag is not shown")
        eventually(lambda: site.has("switchboard_todos"), within=30, what="what the ledger says is")
        for adapter in ("deploys", "jobs"):
            assert worker.output.count(f"metrics: the lag of adapter {adapter} is unavailable") <= 1
        assert "metrics: the lag of adapter" in worker.output
        began = time.monotonic()
        worker.terminate(within=60)
        assert time.monotonic() - began < 30
        own_valkey.resume()


def test_an_adapter_whose_source_refuses_hides_no_other_at_the_same_address(site: Site, redis_client: Any) -> None:
    redis_client.set("deploys", "of another type")
    redis_client.lpush("elsewhere", "so that there is something")
    with site.running(1) as worker:
        unread = {("switchboard_adapter_unread", "jobs"): 0.0}
        eventually(lambda: named(site.scrape(), "switchboard_adapter_unread") == unread, within=60)
        assert worker.output.count("metrics: the lag of adapter deploys is unavailable") == 1


def test_an_adapter_that_breaks_is_told_once_and_all_else_is_sampled_on(site: Site) -> None:
    site.team += """
class Odd(switchboard.RedisList):
    def lag(self):
        raise ValueError("as it should not")

broker.add_adapter(Odd("odd", url=os.environ["SOURCE_URL"], list="odd", queue="odd"))
"""
    with site.running(1) as worker:
        for number in (3, 7):
            site.insert("idle", number)
            pending = (("switchboard_todos", "idle", "pending"), 3 if number == 3 else 10)
            eventually(lambda pending=pending: pending in site.scrape().items(), within=60, what="it is sampled")  # type: ignore[misc]
        assert worker.output.count("ValueError: as it should not") == 1


def test_what_takes_too_long_hides_itself_alone(site: Site) -> None:
    with site.running(1) as worker:
        with psycopg.connect(site.database_url) as admin:
            admin.execute(
                "INSERT INTO dead_letters (adapter, idempotency_key, reason, detail, payload) "
                "VALUES ('deploys', 'k', 'invalid', 'why', '')"
            )
        letters = "switchboard_dead_letters_unresolved"
        eventually(lambda: site.has(letters), within=30, what="it is sampled")
        with psycopg.connect(site.database_url) as blocker:
            blocker.execute("LOCK TABLE dead_letters IN ACCESS EXCLUSIVE MODE")
            eventually(lambda: not site.has(letters), within=60, what="what is not known is not shown")
            site.insert("idle", 3)
            pending = (("switchboard_todos", "idle", "pending"), 3)
            eventually(lambda: pending in site.scrape().items(), within=60, what="all else goes on")
            assert not site.has(letters)
        assert worker.output.count("metrics: the number of dead letters is unavailable") == 1
        assert worker.output.count("is unavailable") == 1


def test_a_directory_that_cannot_be_written_is_said_once_and_the_worker_works_on(site: Site, redis_client: Any) -> None:
    with site.running(1) as worker:
        eventually(lambda: site.has("switchboard_todos"), within=30, what="it is sampled")
        for path in site.metrics.iterdir():
            path.unlink()
        site.metrics.rmdir()
        site.metrics.touch()
        eventually(lambda: f"metrics: {site.metrics} is unavailable" in worker.output, within=60, what="it is said")
        redis_client.lpush("jobs", "one")
        site.settle(todos=1)
        assert worker.terminate(within=60) == 0
        assert worker.output.count("is unavailable") == 1


def test_a_count_is_of_every_state_and_queue_at_once(database_url: str) -> None:
    ledger = Ledger(database_url)
    migrate(ledger)
    ledger.close()
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO todos (queue, title, state, owner, lease_expires_at) "
            "SELECT 'q', 't', 'claimed', CASE n % 3 WHEN 0 THEN 'me' END, now() + interval '1 hour' "
            "FROM generate_series(1, 10) n"
        )
    from switchboard.ledger import count_todos

    with ledger.transaction() as tx:
        [found] = count_todos(tx.connection, "claimed")
        assert (found.queue, found.count, found.oldest_age_seconds) == ("q", 10, None)
        assert count_todos(tx.connection, "pending") == []
    ledger.close()
