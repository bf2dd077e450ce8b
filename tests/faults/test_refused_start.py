"""A ledger that cannot serve stops the start: one line that names it, a status that is not 0, and nothing left."""

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
from line import Line, group_of
from psycopg import sql

SECRET = "hunter2-of-the-ledger"


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str) -> Line:
    return Line(tmp_path, database_url, redis_url)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refused(line: Line, database_url: str, *, processes: int = 1) -> str:
    """What the worker says when it is started with that DATABASE_URL, which it must not survive."""
    with line.worker(env={"DATABASE_URL": database_url}, processes=processes) as worker:
        status = worker.parent.wait(25)
        output = worker.output
        assert status != 0, output
        assert group_of(worker) == []
    assert "ready for action" not in output
    assert "Traceback" not in output, output
    assert SECRET not in output
    return output


def named(output: str) -> str:
    """The one line that names the ledger."""
    lines = [text for text in output.splitlines() if "db:" in text]
    assert len(lines) == 1, output
    return lines[0]


def test_an_empty_address_is_named(line: Line) -> None:
    assert named(refused(line, "")) == "db: empty DATABASE_URL"


def test_a_blank_address_is_an_empty_one(line: Line) -> None:
    assert named(refused(line, "  ")) == "db: empty DATABASE_URL"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://app:{SECRET}@127.0.0.1:1/ledger",
        f"postgresql://app:{SECRET}@no-such-host.invalid/ledger",
        f"host=127.0.0.1 port=1 dbname=ledger user=app password={SECRET}",
    ],
    ids=["refused", "unknown", "keywords"],
)
def test_a_wrong_host_is_named_without_the_password(line: Line, address: str) -> None:
    assert named(refused(line, address)).startswith("db: connect: ")


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://app:{SECRET}@127.0.0.1:port/ledger",
        f"postgresql//app:{SECRET}@127.0.0.1/ledger",
        f"postgresql://app:{SECRET}#@127.0.0.1/ledger",
        f"postgresql://app:%zz{SECRET}@127.0.0.1/ledger",
        f"postgresql://app:half/{SECRET}@127.0.0.1/ledger",
        f"postgresql://app:half@{SECRET}@127.0.0.1/ledger",
        f"mysql://app:{SECRET}@127.0.0.1/ledger",
        f"host=127.0.0.1 password={SECRET} no-such-option=1",
        f"host=127.0.0.1 password='{SECRET}",
    ],
)
def test_what_is_not_an_address_is_refused_without_the_password(line: Line, address: str) -> None:
    assert named(refused(line, address)).startswith("db: connect: ")


def test_a_server_that_answers_nothing_is_named(line: Line, silent_port: int) -> None:
    address = f"postgresql://app:{SECRET}@127.0.0.1:{silent_port}/ledger"
    assert named(refused(line, address)).startswith("db: connect: ")


def test_a_database_that_does_not_exist_is_named(line: Line, database_url: str) -> None:
    name = f"missing_{uuid.uuid4().hex}"
    said = named(refused(line, urlsplit(database_url)._replace(path=f"/{name}").geturl()))
    assert said.startswith("db: connect: ")
    assert name in said


def test_a_database_that_takes_no_connections_is_named(line: Line, database_url: str) -> None:
    parts = urlsplit(database_url)
    name = parts.path.removeprefix("/")
    with psycopg.connect(parts._replace(path="/postgres").geturl(), autocommit=True) as admin:
        allow = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
        admin.execute(allow.format(sql.Identifier(name), sql.SQL("false")))
        try:
            said = named(refused(line, database_url))
        finally:
            admin.execute(allow.format(sql.Identifier(name), sql.SQL("true")))
    assert said.startswith("db: connect: ")
    assert "not currently accepting connections" in said


def test_too_many_connections_are_named(line: Line, database_url: str) -> None:
    role = f"limited_{uuid.uuid4().hex}"
    line.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}' CONNECTION LIMIT 0")
    try:
        parts = urlsplit(database_url)
        address = parts._replace(netloc=f"{role}:{SECRET}@{parts.netloc.rpartition('@')[2]}").geturl()
        said = named(refused(line, address))
    finally:
        line.rows(f"DROP ROLE {role}")
    assert said.startswith("db: connect: ")
    assert "too many connections" in said


def test_a_ledger_whose_migrations_cannot_be_read_is_named(line: Line, database_url: str) -> None:
    role = f"blind_{uuid.uuid4().hex}"
    line.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    line.rows("CREATE TABLE schema_migrations (version text PRIMARY KEY)")
    try:
        parts = urlsplit(database_url)
        address = parts._replace(netloc=f"{role}:{SECRET}@{parts.netloc.rpartition('@')[2]}").geturl()
        said = named(refused(line, address))
        migrating = subprocess.run(
            [sys.executable, "-m", "switchboard.cli", "migrate"],
            env={**os.environ, "DATABASE_URL": address},
            cwd=line.folder,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    finally:
        line.rows(f"DROP ROLE {role}")
    assert said == "db: migrate: permission denied for table schema_migrations (42501)"
    assert (migrating.returncode, migrating.stdout) == (1, "")
    assert migrating.stderr == f"switchboard: {said}\n"


def test_every_process_of_several_ends(line: Line) -> None:
    output = refused(line, "", processes=3)
    assert "db: empty DATABASE_URL" in output


def test_a_ledger_whose_rights_do_not_suffice_is_named(line: Line, database_url: str) -> None:
    role = f"powerless_{uuid.uuid4().hex}"
    line.rows(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    try:
        parts = urlsplit(database_url)
        address = parts._replace(netloc=f"{role}:{SECRET}@{parts.netloc.rpartition('@')[2]}").geturl()
        output = refused(line, address)
    finally:
        line.rows(f"DROP ROLE {role}")
    assert "permission denied" in output
