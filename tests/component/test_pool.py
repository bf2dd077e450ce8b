"""The ledger's pool: when it connects, what it says when it cannot, and that nothing waits on it for ever."""

import logging
import os
import socket
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo
from waiting import eventually

from switchboard.embedded import PostgresServer
from switchboard.errors import ConfigError, LedgerError, LedgerUnavailable, SwitchboardError
from switchboard.ledger import (
    Connection,
    ExclusiveLock,
    Ledger,
    adapter_enabled,
    create_todo,
    current_transaction,
    get_dead_letter,
    get_event,
    get_setting,
    get_todo,
    insert_dead_letters,
    insert_event,
    list_adapters,
    list_dead_letters,
    list_todos,
    migrate,
    prune,
    set_adapter_enabled,
    set_setting,
    transaction,
    upsert_adapter,
)
from switchboard.model import DeadLetter, Delivery, Route

SECOND = timedelta(seconds=1)

#: Every function that waits for PostgreSQL, called with a timeout.
CALLS: dict[str, Callable[[Connection, timedelta], object]] = {
    "insert_event": lambda c, t: insert_event(c, source="a", payload=b"x", timeout=t),
    "get_event": lambda c, t: get_event(c, 1, timeout=t),
    "create_todo": lambda c, t: create_todo(c, queue="q", title="t", timeout=t),
    "get_todo": lambda c, t: get_todo(c, 1, timeout=t),
    "list_todos": lambda c, t: list_todos(c, timeout=t),
    "insert_dead_letters": lambda c, t: insert_dead_letters(
        c, Route("a", "q", "redis:a"), [DeadLetter(Delivery(b"", "1-0", ""), "redis:a:1-0", "invalid", "x")], timeout=t
    ),
    "get_dead_letter": lambda c, t: get_dead_letter(c, 1, timeout=t),
    "list_dead_letters": lambda c, t: list_dead_letters(c, timeout=t),
    "upsert_adapter": lambda c, t: upsert_adapter(
        c, name="a", family="queue", trust_mode="queue", queue="q", namespace="redis:a", config={}, timeout=t
    ),
    "adapter_enabled": lambda c, t: adapter_enabled(c, "a", timeout=t),
    "set_adapter_enabled": lambda c, t: set_adapter_enabled(c, "a", False, timeout=t),
    "list_adapters": lambda c, t: list_adapters(c, timeout=t),
    "get_setting": lambda c, t: get_setting(c, "retention_max_rows", timeout=t),
    "set_setting": lambda c, t: set_setting(c, "retention_max_rows", "1", timeout=t),
    "prune": lambda c, t: prune(c, timeout=t),
}


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        yield ledger


@pytest.fixture
def migrated(ledger: Ledger) -> Ledger:
    migrate(ledger)
    return ledger


@pytest.fixture
def own_ledger(own_postgres: PostgresServer) -> Iterator[Ledger]:
    """A ledger on a server that the test may freeze and kill."""
    with closing(Ledger(own_postgres.tcp_url, statement_timeout=timedelta(seconds=20))) as ledger:
        migrate(ledger)
        yield ledger


@contextmanager
def within_seconds(limit: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < limit, f"took {took:.1f} s"


@contextmanager
def all_tables_locked(url: str) -> Iterator[None]:
    """Another session holds every table, as a long migration of somebody's would."""
    with psycopg.connect(url) as holder:
        tables = holder.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
        names = sql.SQL(", ").join(sql.Identifier(name) for (name,) in tables)
        holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(names))
        yield
        holder.rollback()


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        row = connection.execute(query.encode()).fetchone()
    return row and row[0]


def sessions(url: str) -> object:
    return ask(
        url,
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'switchboard' AND pid <> pg_backend_pid()",
    )


def waiting(url: str) -> object:
    """How many of our sessions wait for a lock."""
    return ask(
        url,
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name LIKE 'switchboard%' AND wait_event_type = 'Lock'",
    )


def backend(ledger: Ledger) -> int:
    with ledger.transaction() as tx:
        return tx.connection.info.backend_pid


# When it connects


def test_nothing_connects_before_the_first_use(database_url: str) -> None:
    with closing(Ledger(database_url)) as ledger:
        assert sessions(database_url) == 0
        repr(ledger)
        assert sessions(database_url) == 0
        with ledger.transaction():
            # The one it looked at the address with may not have gone yet.
            eventually(lambda: sessions(database_url) == 1, what="one session is left")


def test_an_address_that_nobody_answers_is_no_trouble_until_it_is_used() -> None:
    Ledger("postgresql://nobody@127.0.0.1:1/nowhere").close()


@pytest.mark.usefixtures("database_url", "nothing_left_behind")
def test_close_ends_its_threads_and_sessions_and_the_next_use_opens_it_again(database_url: str) -> None:
    before = threading.active_count()
    ledger = Ledger(database_url)
    with ledger.transaction():
        pass
    assert threading.active_count() > before
    ledger.close()
    eventually(lambda: sessions(database_url) == 0, what="its sessions have ended")
    assert threading.active_count() == before
    ledger.close()

    assert backend(ledger) > 0
    ledger.close()


def test_a_forked_child_connects_anew_and_leaves_its_parents_connection_alone(ledger: Ledger) -> None:
    parents = backend(ledger)
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 and newer warn of forking beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(backend(ledger)).encode())
            ledger.close()
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as pipe:
        childs = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    assert childs.isdigit()
    assert int(childs) != parents
    assert backend(ledger) == parents


def test_many_threads_at_once_open_one_pool(database_url: str) -> None:
    together = threading.Barrier(8)
    with closing(Ledger(database_url, max_size=3)) as ledger, ThreadPoolExecutor(8) as threads:

        def use(_: int) -> int:
            together.wait()
            return backend(ledger)

        backends = list(threads.map(use, range(8)))
        assert len(set(backends)) <= 3
        assert sum(thread.name.startswith("switchboard-scheduler") for thread in threading.enumerate()) <= 1


# What it says when it cannot


@pytest.mark.parametrize("value", [None, "", "  "])
def test_without_an_address_it_names_the_variable(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("DATABASE_URL", value)
    with pytest.raises(ConfigError) as failure:
        Ledger.from_environment()
    assert str(failure.value) == "db: empty DATABASE_URL"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres@127.0.0.1:1/db",
        "postgresql://postgres@no-such-host.invalid/db",
        "host=/no/such/folder user=postgres",
    ],
)
def test_a_server_that_cannot_be_reached_is_named_as_such(url: str) -> None:
    with closing(Ledger(url)) as ledger, within_seconds(10), pytest.raises(LedgerUnavailable) as failure:
        ledger.open()
    assert str(failure.value).startswith("db: connect: ")
    assert "\n" not in str(failure.value)


def test_a_server_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"postgresql://postgres@127.0.0.1:{server.getsockname()[1]}/db"
        with (
            closing(Ledger(url)) as ledger,
            within_seconds(10),
            pytest.raises(LedgerUnavailable, match=r"^db: connect"),
        ):
            ledger.open()


def test_a_database_that_is_not_there_is_named(database_url: str) -> None:
    url = make_conninfo(database_url, dbname="no_such_database", password="hunter2")
    with closing(Ledger(url)) as ledger, pytest.raises(SwitchboardError) as failure:
        ledger.open()
    assert str(failure.value).startswith("db: connect: ")
    assert "no_such_database" in str(failure.value)
    assert "hunter2" not in everything_said(failure.value)


def test_a_password_that_is_refused_is_said_to_be_and_not_shown(own_postgres: PostgresServer) -> None:
    # Given a server that asks one role for its password
    with psycopg.connect(own_postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE deploy LOGIN PASSWORD 'right-pass'")
        row = admin.execute("SHOW data_directory").fetchone()
        assert row
        rules = "VALUES ('host all deploy all scram-sha-256'), ('local all all trust'), ('host all all all trust')"
        admin.execute(sql.SQL("COPY (" + rules + ") TO {}").format(sql.Literal(f"{row[0]}/pg_hba.conf")))
        admin.execute("SELECT pg_reload_conf()")
    address = f"127.0.0.1:{own_postgres.port}/postgres"

    def refused() -> str:
        with closing(Ledger(f"postgresql://deploy:hunter2@{address}")) as ledger:
            try:
                ledger.open()
            except LedgerUnavailable as error:
                return everything_said(error)
            return ""

    said = eventually(refused, what="the rules are in force")
    assert "db: connect: " in said
    assert "password authentication failed" in said
    assert "hunter2" not in said

    with closing(Ledger(f"postgresql://deploy:right-pass@{address}")) as ledger:
        ledger.open()


MALFORMED = [
    "postgresql://u:hunter2@h:port/db",
    "host=x password=hunter2 nonsense",
    "postgresql://u:hunter2@[::1/db",
    "postgresql://u:hun%ter2@h/db",
    "postgresql://u:hunter2%@h/db",
    "postgresql://u:hunter2@127.0.0.1:1/db?nonsense=1",
    "postgresql://u@127.0.0.1:1/db?password=hunter2&sslmode=nonsense",
    "postgresql://u:hunter2@127.0.0.1:1/db?sslmode=nonsense",
    "postgresql://u:hunter2@127.0.0.1:99999/db",
    "postgresql://u:hunter2@127.0.0.1:1/db?connect_timeout=soon",
    "postgresql://u:hunter2@127.0.0.1:1/db",
    "postgresql://u:hunter2@no-such-host.invalid/db",
    "postgresql://u:@hunter2@127.0.0.1:1/db",
    "postgresql://u:p@hunter2@127.0.0.1:1/db",
    "postgresql://u:hunter2/p@127.0.0.1:1/db",
    "postgresql://u:p/hunter2@127.0.0.1:1/db",
    "postgresql://u:p?hunter2@127.0.0.1:1/db",
    "postgresql://u:p#hunter2@127.0.0.1:1/db",
    "postgresql://u:p%zzhunter2@127.0.0.1:1/db",
    "postgres//u:hunter2@127.0.0.1/db",
    "mysql://u:hunter2@127.0.0.1:1/db",
    "hunter2",
    "password='hunter2",
    "password = hunter2 host = 127.0.0.1 port = 1",
    "password=hun\\ hunter2 host=127.0.0.1 port=1",
    "password='p hunter2' host=127.0.0.1 port=1",
    "host=127.0.0.1 port=1 password=p hunter2",
    "host=127.0.0.1 port=1 pasword=hunter2",
    "host=127.0.0.1 port=1 passfile=/dev/null password=hunter2 hunter2=x",
]


@pytest.mark.parametrize("url", MALFORMED)
def test_however_the_address_is_wrong_its_password_is_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with closing(Ledger(url)) as ledger, pytest.raises(SwitchboardError) as failure:
        ledger.open()
    assert str(failure.value).startswith("db: connect: ")
    assert "hunter2" not in everything_said(failure.value)
    assert "hunter2" not in caplog.text
    assert "hunter2" not in repr(ledger)


def test_the_password_is_not_shown_by_the_log_of_an_outage(
    own_postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = make_conninfo(own_postgres.tcp_url, password="hunter2")
    with closing(Ledger(url)) as ledger:
        backend(ledger)
        own_postgres.kill()
        for _ in range(2):
            with pytest.raises((LedgerError, psycopg.Error)) as failure, ledger.transaction() as tx:
                tx.connection.execute("SELECT 1")
            assert "hunter2" not in everything_said(failure.value)
    assert "hunter2" not in caplog.text


def everything_said(error: BaseException) -> str:
    """The error as a program that dies of it shows it."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
def test_a_database_that_is_not_utf8_is_refused(database_url: str, encoding: str) -> None:
    name = f"switchboard_test_{encoding.lower()}_{os.getpid()}"
    with psycopg.connect(database_url, autocommit=True) as admin:
        admin.execute(
            sql.SQL(
                "CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE_PROVIDER libc LC_COLLATE 'C' LC_CTYPE 'C'"
            ).format(sql.Identifier(name), sql.Literal(encoding))
        )
        try:
            with closing(Ledger(make_conninfo(database_url, dbname=name))) as ledger:
                with pytest.raises(ConfigError, match=rf"^db: ping: .*{encoding}.*UTF8"):
                    ledger.open()
                with pytest.raises(ConfigError, match="UTF8"):
                    migrate(ledger)
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


# Its transactions


def test_what_a_transaction_wrote_is_there_after_its_block_and_not_before(migrated: Ledger, database_url: str) -> None:
    with migrated.transaction() as tx:
        create_todo(tx.connection, queue="q", title="t")
        assert ask(database_url, "SELECT count(*) FROM todos") == 0
    assert ask(database_url, "SELECT count(*) FROM todos") == 1


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, psycopg.errors.UniqueViolation])
def test_a_block_that_raises_leaves_nothing_and_its_error_comes_out(
    migrated: Ledger, database_url: str, error: type[BaseException]
) -> None:
    def write() -> None:
        with migrated.transaction() as tx:
            create_todo(tx.connection, queue="q", title="t")
            raise error

    with pytest.raises(error):
        write()
    assert ask(database_url, "SELECT count(*) FROM todos") == 0
    assert backend(migrated) > 0


def test_a_callback_runs_once_the_commit_can_be_seen(migrated: Ledger, database_url: str) -> None:
    seen: list[object] = []
    with migrated.transaction() as tx:
        tx.on_commit(lambda: seen.append(ask(database_url, "SELECT count(*) FROM todos")))
        create_todo(tx.connection, queue="q", title="t")
        assert seen == []
    assert seen == [1]


def test_a_callback_never_runs_for_what_was_rolled_back(migrated: Ledger) -> None:
    called: list[str] = []

    def write() -> None:
        with migrated.transaction() as tx:
            tx.on_commit(lambda: called.append("committed"))
            raise ValueError

    with pytest.raises(ValueError):
        write()
    assert called == []


def test_a_callback_never_runs_where_the_commit_is_refused(ledger: Ledger, database_url: str) -> None:
    called: list[str] = []
    with psycopg.connect(database_url) as connection:
        connection.execute("CREATE TABLE target (id int PRIMARY KEY)")
        connection.execute("CREATE TABLE late (id int REFERENCES target DEFERRABLE INITIALLY DEFERRED)")

    def write() -> None:
        with ledger.transaction() as tx:
            tx.on_commit(lambda: called.append("committed"))
            tx.connection.execute("INSERT INTO late VALUES (1)")

    with pytest.raises(LedgerError, match="commit"):
        write()
    assert ask(database_url, "SELECT count(*) FROM late") == 0
    assert called == []


def test_a_transaction_that_postgresql_has_aborted_is_not_taken_for_committed(
    migrated: Ledger, database_url: str
) -> None:
    called: list[str] = []

    def swallow() -> None:
        with migrated.transaction() as tx:
            tx.on_commit(lambda: called.append("committed"))
            create_todo(tx.connection, queue="q", title="t")
            # An actor that swallows the error of a statement: PostgreSQL answers its COMMIT with ROLLBACK.
            with suppress(psycopg.Error):
                tx.connection.execute("SELECT 1 / 0")

    with pytest.raises(LedgerError):
        swallow()
    assert ask(database_url, "SELECT count(*) FROM todos") == 0
    assert called == []


def test_the_connection_of_the_moment_is_the_open_transactions_and_no_other(migrated: Ledger) -> None:
    for outside in (transaction, current_transaction):
        with pytest.raises(LedgerError, match="store_then_ack"):
            outside()
    with migrated.transaction() as tx:
        assert transaction() is tx.connection
        assert current_transaction() is tx
    with pytest.raises(LedgerError):
        transaction()


def test_what_an_actor_sets_for_its_session_does_not_outlive_its_transaction(database_url: str) -> None:
    with closing(Ledger(database_url, max_size=1)) as ledger:
        with ledger.transaction(timeout=SECOND) as tx:
            pass
        with ledger.transaction() as tx:
            row = tx.connection.execute("SHOW statement_timeout").fetchone()
        assert row == ("30s",)


def test_a_pool_whose_connections_are_all_in_use_says_so_in_time(database_url: str) -> None:
    with (
        closing(Ledger(database_url, max_size=1)) as ledger,
        ledger.transaction(),
        within_seconds(8),
        ThreadPoolExecutor(1) as thread,
        pytest.raises(LedgerUnavailable),
    ):
        thread.submit(backend, ledger).result()


# Nothing waits for ever


def test_a_statement_ends_by_the_transactions_timeout(migrated: Ledger) -> None:
    with (
        within_seconds(4),
        pytest.raises((LedgerUnavailable, psycopg.errors.QueryCanceled)),
        migrated.transaction(timeout=SECOND) as tx,
    ):
        tx.connection.execute("SELECT pg_sleep(60)")
    assert backend(migrated) > 0


def test_a_statement_of_the_ledgers_own_that_takes_too_long_is_ledger_unavailable(
    migrated: Ledger, database_url: str
) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(
            "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'"
        )
        connection.execute("CREATE TRIGGER slow BEFORE INSERT ON todos FOR EACH ROW EXECUTE FUNCTION slow()")
    with (
        within_seconds(4),
        pytest.raises(LedgerUnavailable, match=r"^create todo: "),
        migrated.transaction(timeout=SECOND) as tx,
    ):
        create_todo(tx.connection, queue="q", title="t")


@pytest.mark.parametrize("name", CALLS)
def test_each_function_gives_way_to_its_timeout_while_another_session_holds_the_lock(
    migrated: Ledger, database_url: str, name: str
) -> None:
    with (
        all_tables_locked(database_url),
        within_seconds(3),
        pytest.raises(LedgerUnavailable),
        migrated.transaction() as tx,
    ):
        CALLS[name](tx.connection, timedelta(seconds=0.5))
    assert backend(migrated) > 0


def test_a_key_that_another_session_has_not_committed_yet_is_not_waited_for_longer_than_asked(
    migrated: Ledger, database_url: str
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("INSERT INTO todos (queue, title, idempotency_key) VALUES ('q', 't', 'k')")
        with (
            within_seconds(3),
            pytest.raises(LedgerUnavailable, match=r"^create todo: "),
            migrated.transaction() as tx,
        ):
            create_todo(tx.connection, queue="q", title="t", idempotency_key="k", timeout=SECOND)


def test_each_function_gives_way_to_a_stop_while_another_session_holds_the_lock(database_url: str) -> None:
    with closing(Ledger(database_url, max_size=len(CALLS))) as ledger, ThreadPoolExecutor(len(CALLS)) as threads:
        migrate(ledger)

        def call(name: str) -> None:
            with ledger.transaction() as tx:
                CALLS[name](tx.connection, timedelta(seconds=60))

        with all_tables_locked(database_url):
            calls: dict[str, Future[None]] = {name: threads.submit(call, name) for name in CALLS}
            eventually(lambda: waiting(database_url) == len(CALLS), what="all of them wait for the lock")
            with within_seconds(3):
                ledger.stop()
                errors = {name: call.exception(timeout=10) for name, call in calls.items()}
        assert {name: type(error) for name, error in errors.items()} == dict.fromkeys(CALLS, LedgerUnavailable)


def test_after_a_stop_what_is_quickly_answered_still_is(migrated: Ledger, database_url: str) -> None:
    backend(migrated)
    migrated.stop()
    with migrated.transaction() as tx:
        create_todo(tx.connection, queue="q", title="t")
    assert ask(database_url, "SELECT count(*) FROM todos") == 1
    with (
        within_seconds(3),
        pytest.raises((LedgerUnavailable, psycopg.errors.QueryCanceled)),
        migrated.transaction() as tx,
    ):
        tx.connection.execute("SELECT pg_sleep(60)")


def test_a_ledger_that_was_stopped_and_closed_can_be_used_again(migrated: Ledger) -> None:
    migrated.stop()
    migrated.close()
    with migrated.transaction() as tx:
        tx.connection.execute("SELECT pg_sleep(1.5)")


# A server that freezes, ends and comes back


@pytest.fixture
def frozen(own_postgres: PostgresServer, own_ledger: Ledger) -> Iterator[Ledger]:
    """A ledger with one idle connection to a server that has just frozen."""
    backend(own_ledger)
    own_postgres.suspend()
    yield own_ledger
    own_postgres.resume()


@pytest.mark.parametrize("said_by", ["the function", "the transaction"])
def test_a_frozen_server_is_given_up_by_the_deadline(
    own_postgres: PostgresServer, own_ledger: Ledger, said_by: str
) -> None:
    limits: dict[str, Any] = {"timeout": SECOND} if said_by == "the function" else {}

    def write() -> None:
        with own_ledger.transaction(timeout=SECOND) as tx:
            own_postgres.suspend()
            with within_seconds(3.5):
                create_todo(tx.connection, queue="q", title="t", **limits)

    with within_seconds(4), pytest.raises(LedgerUnavailable):
        write()
    own_postgres.resume()
    eventually(lambda: succeeds(own_ledger), what="it goes on by itself")
    assert ask(own_postgres.url, "SELECT count(*) FROM todos") == 0


def test_a_server_that_freezes_before_the_commit_is_given_up_by_the_deadline(
    own_postgres: PostgresServer, own_ledger: Ledger
) -> None:
    called: list[str] = []

    def write() -> None:
        with own_ledger.transaction(timeout=SECOND) as tx:
            tx.on_commit(lambda: called.append("committed"))
            create_todo(tx.connection, queue="q", title="t")
            own_postgres.suspend()

    with within_seconds(4), pytest.raises(LedgerUnavailable, match="commit"):
        write()
    assert called == []
    own_postgres.resume()


def test_a_transaction_that_would_begin_on_a_frozen_server_is_given_up_by_its_deadline(frozen: Ledger) -> None:
    with within_seconds(4), pytest.raises(LedgerUnavailable), frozen.transaction(timeout=SECOND):
        pass
    # With no connection left, a new one is not waited for either.
    with within_seconds(7), pytest.raises(LedgerUnavailable), frozen.transaction(timeout=SECOND):
        pass


def test_a_statement_on_a_frozen_server_gives_way_to_a_stop(own_postgres: PostgresServer, own_ledger: Ledger) -> None:
    inside = threading.Event()

    def use() -> None:
        with own_ledger.transaction() as tx:
            own_postgres.suspend()
            inside.set()
            create_todo(tx.connection, queue="q", title="t")

    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(use)
        assert inside.wait(10)
        with within_seconds(3):
            own_ledger.stop()
            assert isinstance(call.exception(timeout=15), LedgerUnavailable)
    own_postgres.resume()


def test_a_transaction_that_begins_after_the_stop_on_a_frozen_server_gives_way(frozen: Ledger) -> None:
    frozen.stop()
    with within_seconds(3), pytest.raises(LedgerUnavailable), frozen.transaction():
        pass


def test_a_connection_that_is_waited_for_on_a_frozen_server_gives_way_to_a_stop(
    own_postgres: PostgresServer, own_ledger: Ledger
) -> None:
    # Given that the pool's one connection is taken when the server freezes, so that a new one is needed
    with own_ledger.transaction(), ThreadPoolExecutor(1) as thread:
        own_postgres.suspend()
        call = thread.submit(backend, own_ledger)
        with suppress(TimeoutError):
            call.exception(timeout=0.5)
        with within_seconds(5):
            own_ledger.stop()
            assert isinstance(call.exception(timeout=15), LedgerUnavailable)
        own_postgres.resume()


def test_close_is_not_held_up_by_a_frozen_server(own_postgres: PostgresServer, own_ledger: Ledger) -> None:
    before = threading.active_count()
    backend(own_ledger)
    own_postgres.suspend()
    own_ledger.stop()
    with within_seconds(7):
        own_ledger.close()
    own_postgres.resume()
    eventually(lambda: threading.active_count() < before, what="its threads have ended")


def test_after_a_freeze_it_goes_on_by_itself(own_postgres: PostgresServer, frozen: Ledger) -> None:
    with pytest.raises(LedgerUnavailable), frozen.transaction(timeout=SECOND):
        pass
    own_postgres.resume()
    eventually(lambda: succeeds(frozen), what="a transaction succeeds")


def succeeds(ledger: Ledger) -> bool:
    try:
        ledger.probe()
    except LedgerUnavailable:
        return False
    return True


def test_after_a_crash_and_a_restart_the_next_transactions_work(
    own_postgres: PostgresServer, own_ledger: Ledger
) -> None:
    def write() -> None:
        with own_ledger.transaction() as tx:
            own_postgres.kill()
            create_todo(tx.connection, queue="q", title="lost")

    with pytest.raises(LedgerUnavailable):
        write()
    for _ in range(2):
        with within_seconds(7), pytest.raises(LedgerUnavailable), own_ledger.transaction():
            pass
    own_postgres.start()

    tries = [succeeds(own_ledger) for _ in range(4)]
    assert any(tries), "at most a few tries"
    with own_ledger.transaction() as tx:
        create_todo(tx.connection, queue="q", title="kept")
    assert ask(own_postgres.url, "SELECT string_agg(title, ',') FROM todos") == "kept"


def test_a_pool_full_of_broken_connections_recovers_within_a_few_tries(own_postgres: PostgresServer) -> None:
    with closing(Ledger(own_postgres.tcp_url, max_size=4)) as ledger, ThreadPoolExecutor(4) as threads:
        together = threading.Barrier(4)

        def hold(_: int) -> None:
            with ledger.transaction():
                together.wait(10)

        list(threads.map(hold, range(4)))
        own_postgres.kill()
        own_postgres.start()
        tries = [succeeds(ledger) for _ in range(6)]
        assert tries[-1], "once each broken connection has been met, all is well"


def test_a_session_that_an_operator_ends_is_ledger_unavailable_and_the_next_one_works(
    migrated: Ledger, database_url: str
) -> None:
    def write() -> None:
        with migrated.transaction() as tx:
            assert ask(database_url, f"SELECT pg_terminate_backend({tx.connection.info.backend_pid}, 5000)") is True
            create_todo(tx.connection, queue="q", title="t")

    with pytest.raises(LedgerUnavailable, match=r"57P01|terminat|closed") as failure:
        write()
    assert "create todo" in str(failure.value)
    tries = [succeeds(migrated) for _ in range(2)]
    assert tries[-1]
    assert ask(database_url, "SELECT count(*) FROM todos") == 0


def test_an_idle_session_that_an_operator_ends_costs_at_most_one_try(migrated: Ledger, database_url: str) -> None:
    assert ask(database_url, f"SELECT pg_terminate_backend({backend(migrated)}, 5000)") is True
    succeeds(migrated)
    assert succeeds(migrated)


def test_an_error_line_of_the_pool_is_not_logged_for_every_attempt(
    own_postgres: PostgresServer, own_ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    backend(own_ledger)
    own_postgres.kill()
    caplog.clear()
    for _ in range(2):
        assert not succeeds(own_ledger)
    assert [record.getMessage() for record in caplog.records if "error connecting" in record.getMessage()] == []


def test_a_lock_that_may_not_be_asked_for_is_ledger_unavailable(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE locked_out LOGIN")
        admin.execute("REVOKE EXECUTE ON FUNCTION pg_try_advisory_xact_lock(bigint) FROM PUBLIC")
    url = own_postgres.url.replace("postgres@", "locked_out@", 1)
    with closing(Ledger(url)) as ledger, pytest.raises(LedgerUnavailable, match="lock one: permission denied"):
        ExclusiveLock(ledger, "one").take()
