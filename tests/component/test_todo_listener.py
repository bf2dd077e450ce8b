"""``todo_ready``: a nudge makes a todo start at once; whatever becomes of the nudges, the timer finds it.

Where the nudge is looked at, the timer is made slow: who starts at once has been nudged. Where it is missing, the timer
is as it is.
"""

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import dramatiq
import psycopg
import pytest
from proxy import Proxy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from waiting import eventually

import switchboard
from switchboard import ConfigError, StubBroker
from switchboard.brokers import todo_consumer
from switchboard.embedded import PostgresServer, free_port
from switchboard.ledger import CHANNEL, Ledger, create_todo, migrate, retry_todo

#: Seconds within which a nudged todo starts, on a loaded machine too.
AT_ONCE = 1.0

#: Seconds between two looks of a consumer that is not nudged, where a test must not live by them.
SLOW_SCAN = 60.0

_LISTENERS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND starts_with(query, 'LISTEN')"


class Works:
    """One handler on queue ``work`` of a worker in this process; what it has done is in the table."""

    def __init__(self, url: str, others: psycopg.Connection) -> None:
        self.url = url
        self._others = others

    def make(self, *, notify: bool = True) -> int:
        with closing(Ledger(self.url, notify=notify)) as ledger, ledger.transaction() as transaction:
            row, _ = create_todo(transaction.connection, queue="work", title="work")
        return row.id

    def value(self, query: str, *values: object) -> Any:
        row = self._others.execute(query.encode(), values or None).fetchone()
        return row[0] if row else None

    def latency(self, todo_id: int) -> float:
        """Seconds from its commit, about, to its claim."""
        done = "SELECT count(*) FROM todos WHERE id = %s AND state = 'done'"
        eventually(lambda: self.value(done, todo_id), within=10, what=f"todo {todo_id} is done")
        waited = "SELECT extract(epoch FROM claimed_at - created_at)::float FROM todos WHERE id = %s"
        return float(self.value(waited, todo_id))

    def listener(self, *, but: int = 0) -> int:
        """The backend that listens, once there is one, other than that."""
        return int(
            eventually(lambda: self.value(f"{_LISTENERS} AND pid <> %s", but), within=20, what="somebody listens")
        )


@pytest.fixture
def works(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Works]:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.delenv("SWITCHBOARD_NOTIFY", raising=False)
    monkeypatch.delenv("SWITCHBOARD_LISTEN_URL", raising=False)
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with psycopg.connect(database_url, autocommit=True) as others:
        yield Works(database_url, others)


@pytest.fixture
def slow_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(todo_consumer, "SCAN_INTERVAL", SLOW_SCAN)


@contextmanager
def working() -> Iterator[None]:
    broker = StubBroker()
    switchboard.todo(queue="work", broker=broker, actor_name="work")(lambda todo: None)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    try:
        yield
    finally:
        worker.stop()
        broker.close()


def is_idle(works: Works) -> None:
    """Returns when the worker has looked for todos once and found none: from now on only a nudge makes it look."""
    first = works.make()
    works.latency(first)
    # Its completion was written by a look that found nothing more.
    claimed = "SELECT count(*) FROM todos WHERE state IN ('pending', 'claimed')"
    assert works.value(claimed) == 0


@pytest.mark.usefixtures("slow_scan")
def test_a_todo_starts_at_once_when_it_is_committed(works: Works) -> None:
    with working():
        works.listener()
        is_idle(works)
        for _ in range(5):
            assert works.latency(works.make()) < AT_ONCE


@pytest.mark.usefixtures("slow_scan")
def test_a_todo_that_is_retried_by_hand_starts_at_once_too(works: Works) -> None:
    with working():
        works.listener()
        todo_id = works.make()
        works.latency(todo_id)
        completed = works.value("SELECT completed_at FROM todos WHERE id = %s", todo_id)
        with closing(Ledger(works.url)) as ledger, ledger.transaction() as transaction:
            retry_todo(transaction.connection, todo_id)
        again = "SELECT count(*) FROM todos WHERE id = %s AND state = 'done' AND completed_at > %s"
        eventually(lambda: works.value(again, todo_id, completed), within=2 * AT_ONCE, what="it is done again")


@pytest.mark.usefixtures("slow_scan")
def test_the_nudge_is_the_queues_name_and_there_is_one_a_queue_and_transaction(works: Works) -> None:
    with psycopg.connect(works.url, autocommit=True) as ear:
        ear.execute(f"LISTEN {CHANNEL}".encode())
        with closing(Ledger(works.url)) as ledger, ledger.transaction() as transaction:
            for number in range(20):
                create_todo(transaction.connection, queue=f"q{number % 2}", title="secret", payload="secret")
        heard = [note.payload for note in ear.notifies(timeout=0.5)]
    assert sorted(heard) == ["q0", "q1"]


@pytest.mark.usefixtures("slow_scan")
def test_a_listener_whose_backend_is_ended_listens_again(works: Works) -> None:
    with working():
        first = works.listener()
        is_idle(works)
        works.value("SELECT pg_terminate_backend(%s)", first)
        works.listener(but=first)
        assert works.latency(works.make()) < AT_ONCE


@pytest.fixture
def listen_proxy(own_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def behind_proxy(own_postgres: PostgresServer, listen_proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Works]:
    """Its worker reaches PostgreSQL directly, and listens through the proxy."""
    url = own_postgres.url
    monkeypatch.setenv("DATABASE_URL", url)
    through = f"postgresql://postgres@{listen_proxy.url_host}:{listen_proxy.port}/postgres"
    monkeypatch.setenv("SWITCHBOARD_LISTEN_URL", through)
    monkeypatch.delenv("SWITCHBOARD_NOTIFY", raising=False)
    with closing(Ledger(url)) as ledger:
        migrate(ledger)
    with psycopg.connect(url, autocommit=True) as others:
        yield Works(url, others)


@pytest.mark.usefixtures("slow_scan")
def test_what_was_made_while_nobody_listened_is_found_when_it_listens_again(
    behind_proxy: Works, listen_proxy: Proxy
) -> None:
    with working():
        first = behind_proxy.listener()
        is_idle(behind_proxy)
        listen_proxy.refuse()
        listen_proxy.cut()
        eventually(lambda: not behind_proxy.value(_LISTENERS), within=10, what="nobody listens")
        missed = behind_proxy.make()
        listen_proxy.accept()
        behind_proxy.listener(but=first)
        # The timer would take a minute.
        behind_proxy.latency(missed)


@pytest.mark.usefixtures("slow_scan")
def test_a_socket_that_is_half_open_is_noticed_and_left(
    behind_proxy: Works, listen_proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    with working():
        first = behind_proxy.listener()
        is_idle(behind_proxy)
        listen_proxy.stall()
        missed = behind_proxy.make()
        eventually(lambda: "listening for todo_ready is unavailable" in caplog.text, within=30, what="it is noticed")
        listen_proxy.cut()
        listen_proxy.flow()
        behind_proxy.listener(but=first)
        behind_proxy.latency(missed)
        assert behind_proxy.latency(behind_proxy.make()) < AT_ONCE
    assert "listening for todo_ready is back" in caplog.text


@pytest.mark.usefixtures("slow_scan")
def test_a_worker_stops_soon_while_its_listener_gets_no_answer(behind_proxy: Works, listen_proxy: Proxy) -> None:
    with working():
        behind_proxy.listener()
        listen_proxy.stall()
        began = time.monotonic()
    assert time.monotonic() - began < 8


def test_with_notify_off_nothing_is_announced_or_listened_for_and_todos_are_worked(
    works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_NOTIFY", "off")
    with psycopg.connect(works.url, autocommit=True) as ear:
        ear.execute(f"LISTEN {CHANNEL}".encode())
        mine = ear.info.backend_pid
        with working():
            for _ in range(3):
                assert works.latency(works.make(notify=False)) < 5
            assert works.value(f"{_LISTENERS} AND pid <> %s", mine) is None
        assert list(ear.notifies(timeout=0.2)) == []


def test_a_todo_that_another_program_inserts_without_a_nudge_is_found_by_the_timer(works: Works) -> None:
    with working():
        is_idle(works)
        todo_id = works.value("INSERT INTO todos (queue, title) VALUES ('work', 'plain') RETURNING id")
        works.latency(todo_id)


def test_an_address_to_listen_at_that_nobody_answers_costs_only_latency(
    works: Works, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"postgresql://postgres:hunter2@127.0.0.1:{free_port()}/postgres"
    monkeypatch.setenv("SWITCHBOARD_LISTEN_URL", address)
    with working():
        eventually(lambda: "listening for todo_ready is unavailable" in caplog.text, what="it is said")
        works.latency(works.make())
    assert "hunter2" not in caplog.text


def test_an_address_to_listen_at_that_cannot_be_read_stops_the_start_or_costs_only_latency(
    works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWITCHBOARD_LISTEN_URL", "nonsense hunter2")
    try:
        with working():
            works.latency(works.make())
    except SystemExit as end:
        assert "SWITCHBOARD_LISTEN_URL" in str(end)  # noqa: PT017
        assert "hunter2" not in str(end)  # noqa: PT017


def test_a_word_for_notify_that_is_neither_on_nor_off_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://localhost/x")
    monkeypatch.setenv("SWITCHBOARD_NOTIFY", "maybe")
    with pytest.raises(ConfigError, match="SWITCHBOARD_NOTIFY"):
        Ledger.from_environment()


# A pooler in transaction mode


@pytest.fixture
def pooler(database_url: str, tmp_path: Path) -> Iterator[str]:
    """The address of a PgBouncer in transaction mode in front of the test's database, with two server connections."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    server = conninfo_to_dict(database_url)
    port = free_port()
    known = {key: server[key] for key in ("host", "port", "dbname", "user", "password") if server.get(key)}
    (tmp_path / "users.txt").write_text(f'"{known.get("user", "")}" "{known.get("password", "")}"\n')
    (tmp_path / "pgbouncer.ini").write_text(
        f"[databases]\npooled = {make_conninfo('', **known)}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\npool_mode = transaction\n"
        f"default_pool_size = 2\nauth_type = any\nauth_file = {tmp_path / 'users.txt'}\n"
    )
    user: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        for folder in (tmp_path, *tmp_path.parents):
            if folder.owner() == pwd.getpwuid(0).pw_name and folder != Path("/"):
                folder.chmod(folder.stat().st_mode | 0o055)
    url = f"postgresql://postgres@127.0.0.1:{port}/pooled"

    def answers() -> bool:
        try:
            psycopg.connect(url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    with (tmp_path / "pgbouncer.log").open("w") as log:
        process = subprocess.Popen([program, str(tmp_path / "pgbouncer.ini")], stdout=log, stderr=log, **user)
    try:
        eventually(answers, within=15, what=f"PgBouncer answers: {(tmp_path / 'pgbouncer.log').read_text()}")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def test_through_a_pooler_everything_works_and_with_a_direct_address_it_starts_at_once(
    works: Works, pooler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(todo_consumer, "SCAN_INTERVAL", SLOW_SCAN)
    monkeypatch.setenv("DATABASE_URL", pooler)
    monkeypatch.setenv("SWITCHBOARD_LISTEN_URL", works.url)
    through = Works(pooler, works._others)
    with working():
        works.listener()
        is_idle(through)
        for _ in range(20):
            assert through.latency(through.make()) < AT_ONCE


def test_through_a_pooler_without_a_direct_address_only_the_nudge_is_missing(
    works: Works, pooler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", pooler)
    monkeypatch.setenv("SWITCHBOARD_NOTIFY", "off")
    through = Works(pooler, works._others)
    with working():
        for _ in range(3):
            through.latency(through.make(notify=False))
