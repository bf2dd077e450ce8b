"""Migrations on a real PostgreSQL: once each, in order, whole or not at all, whoever else is starting."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from waiting import eventually

from switchboard.errors import LedgerError, LedgerUnavailable
from switchboard.ledger import SETTINGS, Ledger, migrate
from switchboard.ledger.migrator import shipped_migrations

STARTERS = 12

START = """
import sys
from switchboard.ledger import Ledger, migrate
ledger = Ledger.from_environment()
print("here", flush=True)
sys.stdin.readline()
migrate(ledger)
ledger.close()
"""


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        yield ledger


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of migrations whose first makes a table that later ones write their names into."""
    folder = tmp_path / "migrations"
    folder.mkdir()
    write(
        folder, "0001_first", "CREATE TABLE seen (n int GENERATED ALWAYS AS IDENTITY, name text);" + said("0001_first")
    )
    return folder


def write(folder: Path, version: str, statements: str) -> None:
    (folder / f"{version}.sql").write_text(statements, encoding="utf-8")


def said(name: str) -> str:
    return f"\nINSERT INTO seen (name) VALUES ('{name}');\n"


def column(url: str, query: str) -> list[object]:
    with psycopg.connect(url, autocommit=True) as connection:
        return [row[0] for row in connection.execute(query.encode())]


def recorded(url: str) -> list[object]:
    return column(url, "SELECT version FROM schema_migrations ORDER BY applied_at, version")


def exists(url: str, table: str) -> bool:
    return column(url, f"SELECT to_regclass('{table}') IS NOT NULL") == [True]


def test_an_empty_database_gets_each_shipped_migration_and_its_row(ledger: Ledger, database_url: str) -> None:
    shipped = [migration.version for migration in shipped_migrations()]
    applied = migrate(ledger)
    assert recorded(database_url) == shipped == sorted(shipped)
    assert exists(database_url, "todos")
    assert applied == shipped


def test_a_later_start_skips_what_is_recorded(ledger: Ledger, database_url: str, folder: Path) -> None:
    migrate(ledger, folder)
    assert migrate(ledger, folder) == []
    with closing(Ledger(database_url)) as another:
        assert migrate(another, folder) == []
    assert column(database_url, "SELECT name FROM seen") == ["0001_first"]
    assert recorded(database_url) == ["0001_first"]


def test_files_are_applied_in_lexical_order_and_other_files_are_left_alone(
    ledger: Ledger, database_url: str, folder: Path
) -> None:
    names = ["0010_tenth", "0002_second", "0002_a_second", "0009_ninth"]
    for name in names:
        write(folder, name, said(name))
    (folder / "README.md").write_text("no SQL at all")
    (folder / "0005_old.sql.bak").write_text("no SQL at all")

    applied = migrate(ledger, folder)
    assert column(database_url, "SELECT name FROM seen ORDER BY n") == ["0001_first", *sorted(names)]
    assert recorded(database_url) == applied == ["0001_first", *sorted(names)]


def test_a_file_that_comes_with_a_later_release_is_all_that_is_applied(
    ledger: Ledger, database_url: str, folder: Path
) -> None:
    migrate(ledger, folder)
    write(folder, "0002_second", said("0002_second"))
    assert migrate(ledger, folder) == ["0002_second"]
    assert column(database_url, "SELECT name FROM seen ORDER BY n") == ["0001_first", "0002_second"]


def test_a_file_says_what_it_says_percent_signs_and_other_scripts_included(
    ledger: Ledger, database_url: str, folder: Path
) -> None:
    write(folder, "0002_text", said("100 % käse, %s %(x)s $1 ж 日本"))
    migrate(ledger, folder)
    assert "100 % käse, %s %(x)s $1 ж 日本" in column(database_url, "SELECT name FROM seen")


def test_each_migration_is_a_transaction_of_its_own(ledger: Ledger, database_url: str, folder: Path) -> None:
    write(folder, "0002_second", "INSERT INTO seen (name) VALUES (pg_current_xact_id()::text);")
    write(folder, "0003_third", "INSERT INTO seen (name) VALUES (pg_current_xact_id()::text);")
    migrate(ledger, folder)
    second, third = column(database_url, "SELECT name FROM seen ORDER BY n")[1:]
    assert second != third
    rows = column(database_url, "SELECT xmin::text FROM schema_migrations ORDER BY version")[1:]
    assert [second, third] == rows, "the row of a migration is written by its own transaction"


BAD = {
    "a statement fails": "SELECT 1 / 0;",
    "a statement is no SQL": "CREATE TABEL half_again (id int);",
    "a table is missing": "INSERT INTO no_such_table VALUES (1);",
    "a right is missing": "SET LOCAL ROLE pg_monitor; CREATE TABLE half_again (id int);",
    "a check fails only at the commit": """
        CREATE TABLE target (id int PRIMARY KEY);
        CREATE TABLE late (id int REFERENCES target (id) DEFERRABLE INITIALLY DEFERRED);
        INSERT INTO late VALUES (1);
    """,
    "its own row cannot be written": "INSERT INTO schema_migrations (version) VALUES ('0002_bad');",
    "it is no text that PostgreSQL takes": "INSERT INTO seen (name) VALUES (E'\\x00');",
}


@pytest.mark.parametrize("statements", BAD.values(), ids=BAD.keys())
def test_a_migration_that_fails_leaves_nothing_of_itself_and_is_named(
    ledger: Ledger, database_url: str, folder: Path, statements: str
) -> None:
    write(folder, "0002_bad", "CREATE TABLE half (id int);" + said("half") + statements)
    write(folder, "0003_never", "CREATE TABLE never (id int);")

    with pytest.raises(LedgerError, match="migration 0002_bad") as failure:
        migrate(ledger, folder)
    assert not exists(database_url, "half")
    assert column(database_url, "SELECT name FROM seen") == ["0001_first"]
    assert recorded(database_url) == ["0001_first"]
    assert not exists(database_url, "never"), "what follows a failure is not tried"
    assert not isinstance(failure.value, LedgerUnavailable), "trying again cannot help"

    # When the file is put right, the next start goes on where this one stopped.
    write(folder, "0002_bad", said("put right"))
    assert migrate(ledger, folder) == ["0002_bad", "0003_never"]
    assert column(database_url, "SELECT name FROM seen ORDER BY n") == ["0001_first", "put right"]


def test_twelve_processes_that_start_together_on_an_empty_database_all_succeed(database_url: str) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", START],
            env={**os.environ, "DATABASE_URL": database_url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(STARTERS)
    ]
    try:
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "here\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        ends = [(process.communicate(timeout=60)[0], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert ends == [("", 0)] * STARTERS
    assert recorded(database_url) == [migration.version for migration in shipped_migrations()]
    assert set(column(database_url, "SELECT key FROM settings")) == set(SETTINGS)


def test_twelve_threads_that_start_together_share_the_work_and_repeat_none_of_it(
    database_url: str, folder: Path
) -> None:
    names = [f"{number:04}_more" for number in range(2, 30)]
    for name in names:
        write(folder, name, said(name))
    together = threading.Barrier(STARTERS)

    def start(_: int) -> list[str]:
        with closing(Ledger(database_url)) as ledger:
            together.wait()
            return migrate(ledger, folder)

    with ThreadPoolExecutor(STARTERS) as threads:
        applied = list(threads.map(start, range(STARTERS)))
    assert column(database_url, "SELECT name FROM seen ORDER BY n") == ["0001_first", *names]
    assert recorded(database_url) == ["0001_first", *names]
    assert sorted(version for each in applied for version in each) == ["0001_first", *names]


def test_one_that_fails_while_others_wait_for_it_fails_for_all_and_leaves_nothing(
    database_url: str, folder: Path
) -> None:
    write(folder, "0002_bad", "CREATE TABLE half (id int); SELECT pg_sleep(0.1); SELECT 1 / 0;")
    together = threading.Barrier(4)

    def start(_: int) -> str:
        with closing(Ledger(database_url)) as ledger:
            together.wait()
            try:
                migrate(ledger, folder)
            except LedgerError as error:
                return str(error)
            return "no error"

    with ThreadPoolExecutor(4) as threads:
        errors = list(threads.map(start, range(4)))
    assert not exists(database_url, "half")
    assert recorded(database_url) == ["0001_first"]
    assert all("migration 0002_bad" in error for error in errors), errors


def test_a_migration_under_way_elsewhere_is_waited_for(ledger: Ledger, database_url: str, folder: Path) -> None:
    # Given another process in the middle of its migrations
    with psycopg.connect(database_url) as other, ThreadPoolExecutor(1) as thread:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('switchboard.migrate'))")
        started = thread.submit(migrate, ledger, folder)
        waiting = (
            "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        eventually(lambda: column(database_url, waiting), what="it waits for the lock")
        assert not exists(database_url, "seen")
        other.commit()
        assert started.result(timeout=10) == ["0001_first"]


def test_a_database_that_is_away_is_not_taken_for_a_bad_migration(folder: Path) -> None:
    with (
        closing(Ledger("postgresql://postgres@127.0.0.1:1/nothing-here")) as ledger,
        pytest.raises(LedgerUnavailable, match=r"^db: connect: "),
    ):
        migrate(ledger, folder)
