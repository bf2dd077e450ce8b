"""The way to either server fails in every manner, or a server refuses to serve: nothing is lost, made twice or
dead-lettered, little is said, and it goes on by itself.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from line import Line, remains, said
from proxy import Proxy
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer, ValkeyServer

#: What a test of several short faults may print, Dramatiq's own words at the start and the end included.
FEW_LINES = 60

END_ALL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'switchboard'"


@dataclass
class OutageLine(Line):
    """A line whose poison would be found soon: a good message that is punished for an outage ends as a dead letter."""

    def worker(self, **how: Any) -> Worker:
        worker = super().worker(**how)
        with (self.folder / "switchboard.toml").open("a") as config:
            config.write("max_deliveries = 3\n")
        return worker


@dataclass
class ListLine(OutageLine):
    """As `OutageLine`, from a list: each body is another, so that its hash is its identity."""

    def worker(self, **how: Any) -> Worker:
        worker = super().worker(**how)
        config = self.folder / "switchboard.toml"
        config.write_text(config.read_text().replace("redis-stream", "redis-list").replace("stream =", "list ="))
        return worker

    def publish(self, count: int) -> None:
        first = len(self.published)
        bodies = [json.dumps({"event": "deploy", "number": first + n}).encode() for n in range(count)]
        with self.source() as source:
            source.lpush(self.name, *bodies)
        self.published += [f"redis:{self.name}:{sha256(body).hexdigest()}" for body in bodies]

    def pending(self) -> list[dict[str, Any]]:
        """What is on the workers' own lists."""
        with self.source() as source:
            keys = list(source.scan_iter(f"{{{self.name}}}:switchboard:processing:*"))
            return [{"body": body} for key in keys for body in source.lrange(key, 0, -1)]

    def group(self) -> dict[str, Any]:
        """In the words of a stream's group: what is taken and what waits."""
        with self.source() as source:
            return {"name": self.name, "pending": len(self.pending()), "lag": source.llen(self.name)}

    def assert_exactly_once(self) -> None:
        todos = [key for (key,) in self.rows("SELECT idempotency_key FROM todos WHERE queue = %s", self.name)]
        assert sorted(todos) == sorted(self.published)
        assert self.value("SELECT count(*) FROM events WHERE source = %s", self.name) == len(self.published)
        assert self.rows("SELECT reason, detail FROM dead_letters") == []
        assert self.pending() == []


KINDS = pytest.mark.parametrize("kind", [OutageLine, ListLine], ids=["stream", "list"])


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


@pytest.fixture
def second_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """Only where `own_valkey` is: that fixture says what to do where there is no wheel."""
    server = ValkeyServer(tmp_path / "second-valkey")
    try:
        server.start()
        yield server
    finally:
        server.kill()


# Between a worker and its source


def through(proxy: Proxy, redis_url: str) -> dict[str, str]:
    return {"LINE_URL": f"redis://{proxy.url_host}:{proxy.port}{urlsplit(redis_url).path}"}


@KINDS
def test_connections_to_the_source_are_cut_half_closed_and_reset_in_mid_reply_under_load(
    kind: type[Line], tmp_path: Path, database_url: str, redis_url: str, proxy: Proxy
) -> None:
    line = kind(tmp_path, database_url, redis_url, options={"batch": 50}, env=through(proxy, redis_url))
    faults: list[Callable[[], None]] = [
        proxy.cut,
        proxy.half_close,
        # A reply's first byte, its header, the middle of a batch.
        lambda: proxy.reset_in_reply(0),
        lambda: proxy.reset_in_reply(1),
        lambda: proxy.reset_in_reply(200),
        lambda: proxy.reset_in_reply(3_000),
        proxy.cut,
    ]
    with line.running() as worker:
        pids = worker.pids
        line.slow_down(0.002)
        for fault in faults:
            before = line.stored()
            line.publish(200)
            line.wait_stored(before + 20)
            fault()
        line.settle(worker, within=40)
        assert worker.pids == pids
        assert_quiet(worker)


@KINDS
def test_the_way_to_the_source_stalls_with_a_batch_in_the_store_and_flows_again(
    kind: type[Line], tmp_path: Path, database_url: str, redis_url: str, proxy: Proxy
) -> None:
    line = kind(tmp_path, database_url, redis_url, env=through(proxy, redis_url))
    with line.running() as worker:
        pids = worker.pids
        with line.locked():
            line.publish(40)
            line.wait_blocked()
            read = len(line.pending())
            proxy.stall()
        eventually(lambda: line.stored() >= read, what="what was read is stored")
        said(worker, "unavailable")
        line.publish(40)
        # What was sent before the stall arrives after all, from connections that were given up.
        proxy.flow()
        line.settle(worker)
        assert worker.pids == pids
        assert_quiet(worker)


def test_a_read_of_a_killed_worker_that_the_list_server_grants_late_is_found(
    tmp_path: Path, database_url: str, redis_url: str, proxy: Proxy
) -> None:
    """The server knows of a death only when the connection's end reaches it; till then its blocked BLMOVE is served."""
    line = ListLine(tmp_path, database_url, redis_url, options={"claim_idle": "1s"}, env=through(proxy, redis_url))
    with line.running(env={"LINE_URL": redis_url}) as survivor:
        eventually(lambda: len(workers_of(line)) == 1, what="the survivor reads")
        for _ in range(8):
            with line.running() as victim:
                # The one before it may not be forgotten yet: how many there are says nothing.
                name = eventually(lambda: worker_of(line, victim.pids[0]), what="the victim reads")
                proxy.stall()
                victim.kill_all()
            # One for each who waits at the server; the victim among them, if its read has not timed out yet.
            line.publish(3)
            with line.source() as source:
                granted = source.llen(f"{{line}}:switchboard:processing:{name.decode()}")
            proxy.cut()
            proxy.flow()
            if granted:
                break
        else:
            pytest.skip("the server has served the dead worker's read no single time")
        line.settle(survivor, within=15)


def worker_of(line: Line, pid: int) -> bytes:
    return next((name for name in workers_of(line) if f"/{pid}/".encode() in name), b"")


def workers_of(line: Line) -> list[bytes]:
    with line.source() as source:
        return list(source.hkeys(f"{{{line.name}}}:switchboard:workers"))


@pytest.mark.parametrize(("kind", "mode"), [(OutageLine, "ALL"), (ListLine, "WRITE")], ids=["stream-all", "list-write"])
def test_the_source_pauses_its_clients(
    kind: type[Line], mode: str, tmp_path: Path, database_url: str, own_valkey: ValkeyServer, redis_url: str
) -> None:
    line = kind(tmp_path, database_url, own_valkey.url, env={"SWITCHBOARD_BROKER_URL": redis_url})
    with line.running() as worker:
        with line.locked():
            line.publish(60)
            line.wait_blocked()
            read = len(line.pending())
            with line.source() as source:
                # Longer than a command may take, five seconds: its answer comes when nobody waits for it any more.
                # Less than twice that, as ALL holds UNPAUSE up as well.
                source.execute_command("CLIENT", "PAUSE", 8_000, mode)
        eventually(lambda: line.stored() >= read, what="what was read is stored")
        said(worker, "unavailable")
        with line.source() as source:
            source.execute_command("CLIENT", "UNPAUSE")
        line.publish(20)
        line.settle(worker)
        assert_quiet(worker)


@KINDS
def test_the_source_becomes_a_read_only_replica_and_the_primary_again(
    kind: type[Line],
    tmp_path: Path,
    database_url: str,
    own_valkey: ValkeyServer,
    second_valkey: ValkeyServer,
    redis_url: str,
) -> None:
    line = kind(tmp_path, database_url, own_valkey.url, env={"SWITCHBOARD_BROKER_URL": redis_url})
    with line.running() as worker, redis.Redis.from_url(second_valkey.url) as second, line.source() as first:
        line.publish(40)
        line.settle(worker)
        with line.locked():
            line.publish(40)
            line.wait_blocked()
            follow(second, own_valkey)
            second.replicaof("NO", "ONE")
            follow(first, second_valkey)
        said(worker, "unavailable")
        remains(lambda: bool(worker.pids), seconds=1, what="the worker has ended")
        first.replicaof("NO", "ONE")
        line.publish(40)
        line.settle(worker)
        assert_quiet(worker)


def follow(replica: Any, primary: ValkeyServer) -> None:
    """Returns when it has all that the primary has, and goes on following."""
    with redis.Redis.from_url(primary.url) as client:
        client.config_set("repl-diskless-sync-delay", 0)
    replica.replicaof("127.0.0.1", primary.port)
    eventually(lambda: replica.info("replication").get("master_link_status") == "up", what="the replica follows")


@pytest.mark.parametrize(
    ("kind", "refusal"),
    [
        pytest.param(OutageLine, ("maxmemory", "1mb", "0"), id="stream-oom"),
        pytest.param(ListLine, ("maxmemory", "1mb", "0"), id="list-oom"),
        pytest.param(OutageLine, ("min-replicas-to-write", "1", "0"), id="stream-noreplicas"),
    ],
)
def test_the_source_refuses_writes(
    kind: type[Line],
    refusal: tuple[str, str, str],
    tmp_path: Path,
    database_url: str,
    own_valkey: ValkeyServer,
    redis_url: str,
) -> None:
    option, refuses, serves = refusal
    line = kind(tmp_path, database_url, own_valkey.url, env={"SWITCHBOARD_BROKER_URL": redis_url})
    with line.running() as worker, line.source() as source:
        pids = worker.pids
        with line.locked():
            line.publish(60)
            line.wait_blocked()
            read = len(line.pending())
            source.config_set(option, refuses)
        eventually(lambda: line.stored() >= read, what="what was read is stored")
        with pytest.raises(redis.RedisError):
            line.publish(1)
        # A full server may take acknowledgements and hand out streams (XACK and XREADGROUP need no memory).
        remains(lambda: worker.pids == pids, seconds=2, what="a process has ended")
        source.config_set(option, serves)
        line.publish(20)
        line.settle(worker)
        assert_quiet(worker)


# Between a worker and the ledger


@pytest.fixture
def ledger(own_postgres: PostgresServer) -> PostgresServer:
    """PostgreSQL with a user `app` who may do in its database what an application may."""
    with psycopg.connect(own_postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE app LOGIN")
        admin.execute("ALTER DATABASE postgres OWNER TO app")
    return own_postgres


def as_app(ledger: PostgresServer) -> dict[str, str]:
    return {"DATABASE_URL": ledger.url.replace("postgres@", "app@")}


@KINDS
def test_connections_to_postgresql_are_cut_half_closed_reset_and_ended_under_load(
    kind: type[Line], tmp_path: Path, own_postgres: PostgresServer, redis_url: str
) -> None:
    with Proxy("127.0.0.1", own_postgres.port) as proxy:
        url = f"postgresql://postgres@{proxy.url_host}:{proxy.port}/postgres"
        line = kind(tmp_path, own_postgres.url, redis_url, options={"batch": 50}, env={"DATABASE_URL": url})
        faults: list[Callable[[], object]] = [
            proxy.cut,
            lambda: line.rows(END_ALL),
            proxy.half_close,
            lambda: proxy.reset_in_reply(0),
            lambda: proxy.reset_in_reply(10),
        ]
        with line.running() as worker:
            pids = worker.pids
            line.slow_down(0.002)
            for fault in faults:
                before = line.stored()
                line.publish(200)
                line.wait_stored(before + 20)
                fault()
            line.settle(worker, within=40)
            assert worker.pids == pids
            assert_quiet(worker)


def test_postgresql_has_no_connection_left(tmp_path: Path, ledger: PostgresServer, redis_url: str) -> None:
    line = OutageLine(tmp_path, ledger.url, redis_url, env=as_app(ledger))
    with line.running() as worker:
        line.publish(40)
        line.settle(worker)
        with all_connections_taken(ledger):
            line.publish(40)
            said(worker, "unavailable")
            remains(lambda: bool(worker.pids), seconds=2, what="the worker has ended")
        line.settle(worker)
        assert_quiet(worker)


@contextmanager
def all_connections_taken(ledger: PostgresServer) -> Iterator[None]:
    """Nobody but who is in may connect meanwhile, and no worker is in."""
    taken: list[psycopg.Connection[Any]] = []
    with psycopg.connect(ledger.url, autocommit=True) as admin:
        try:
            # Ours may take the reserved ones too.
            while True:
                with suppress(psycopg.OperationalError):
                    while True:
                        taken.append(psycopg.connect(ledger.url))
                if not admin.execute(END_ALL.encode()).fetchall():
                    break
            yield
        finally:
            for connection in taken:
                connection.close()


def set_read_only(admin: psycopg.Connection[Any]) -> None:
    admin.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    admin.execute("SELECT pg_reload_conf()")


def set_writable(admin: psycopg.Connection[Any]) -> None:
    admin.execute("SET default_transaction_read_only = off")
    admin.execute("ALTER SYSTEM RESET default_transaction_read_only")
    admin.execute("SELECT pg_reload_conf()")


def revoke(admin: psycopg.Connection[Any]) -> None:
    admin.execute("REVOKE INSERT ON events, todos, dead_letters FROM app")


def grant(admin: psycopg.Connection[Any]) -> None:
    admin.execute("GRANT INSERT ON events, todos, dead_letters TO app")


def fill_disk(admin: psycopg.Connection[Any]) -> None:
    """What a client hears from a server whose disk is full."""
    admin.execute(
        "CREATE FUNCTION disk_full() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END $$"
    )
    for table in ("events", "todos", "dead_letters"):
        admin.execute(
            f"CREATE TRIGGER disk_full BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION disk_full()".encode()
        )


def empty_disk(admin: psycopg.Connection[Any]) -> None:
    admin.execute("DROP FUNCTION disk_full CASCADE")


@pytest.mark.parametrize(
    ("kind", "refuse", "serve"),
    [
        pytest.param(OutageLine, set_read_only, set_writable, id="stream-read-only-25006"),
        pytest.param(ListLine, set_read_only, set_writable, id="list-read-only-25006"),
        pytest.param(OutageLine, revoke, grant, id="stream-revoked-42501"),
        pytest.param(OutageLine, fill_disk, empty_disk, id="stream-disk-full-53100"),
    ],
)
def test_postgresql_answers_and_refuses_to_write(
    kind: type[Line],
    refuse: Callable[[psycopg.Connection[Any]], None],
    serve: Callable[[psycopg.Connection[Any]], None],
    tmp_path: Path,
    ledger: PostgresServer,
    redis_url: str,
) -> None:
    line = kind(tmp_path, ledger.url, redis_url, env=as_app(ledger))
    with line.running() as worker:
        line.publish(20)
        line.settle(worker)
        pids = worker.pids
        with psycopg.connect(ledger.url, autocommit=True) as admin:
            refuse(admin)
            try:
                line.publish(8)
                said(worker, "unavailable")
                # Long enough for a batch to be halved down to one, and for that one to spend its two tries.
                remains(lambda: worker.pids == pids, seconds=4, what="a process has ended")
            finally:
                serve(admin)
        assert_unpunished(line)
        line.settle(worker)
        assert worker.output.count("is unavailable") < 5, worker.output
        assert_quiet(worker)


def assert_unpunished(line: Line) -> None:
    """Asked as soon as each message has become something: none may be a dead letter."""
    became = "SELECT (SELECT count(*) FROM todos) + (SELECT count(*) FROM dead_letters)"
    eventually(lambda: line.value(became) >= len(line.published), within=20, what="each became a todo or dead letter")
    assert line.rows("SELECT idempotency_key, reason, detail FROM dead_letters") == []


def assert_quiet(worker: Worker) -> None:
    assert "Traceback" not in worker.output, worker.output
    assert worker.output.count("\n") < FEW_LINES, worker.output
