"""A password never appears in any output or in any table, whatever goes wrong on either side."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import redis
from line import Line, said
from proxy import Proxy
from psycopg import sql
from waiting import eventually
from worker import Worker

from switchboard.embedded import PostgresServer, ValkeyServer

#: With every character that an address must escape; each is looked for as it is and as it stands in the address.
SOURCE_SECRET = "source-s3cr3t/p@ss:w#rd?+%"
TRANSPORT_SECRET = "transport-s3cr3t"
LEDGER_SECRET = "ledger-s3cr3t/p@ss:w#rd?+%'"
SECRETS = [SOURCE_SECRET, TRANSPORT_SECRET, LEDGER_SECRET]

#: No part of one may be seen either.
TELLTALES = ["s3cr3t", *(quote(secret, safe="") for secret in SECRETS), *(secret.encode().hex() for secret in SECRETS)]

_COLUMNS = """
SELECT table_schema, table_name, column_name FROM information_schema.columns
WHERE table_schema NOT IN ('pg_catalog', 'information_schema')
"""


@pytest.fixture
def source_proxy(own_valkey: ValkeyServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_valkey.port) as proxy:
        yield proxy


@pytest.fixture
def ledger_proxy(own_postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", own_postgres.port) as proxy:
        yield proxy


@pytest.fixture
def line(
    tmp_path: Path,
    own_valkey: ValkeyServer,
    own_postgres: PostgresServer,
    source_proxy: Proxy,
    ledger_proxy: Proxy,
    redis_url: str,
) -> Line:
    """The workers need a password on every side, and reach their source and their ledger through proxies."""
    with redis.Redis.from_url(own_valkey.url) as source:
        source.execute_command("ACL", "SETUSER", "deploy-bot", "on", f">{SOURCE_SECRET}", "~*", "&*", "+@all")
    with redis.Redis.from_url(redis_url) as transport:
        transport.execute_command("ACL", "SETUSER", "dramatiq", "on", f">{TRANSPORT_SECRET}", "~*", "&*", "+@all")
    with closing(psycopg.connect(own_postgres.url, autocommit=True)) as admin:
        role = sql.SQL("CREATE ROLE ledger LOGIN SUPERUSER PASSWORD {}")
        admin.execute(role.format(sql.Literal(LEDGER_SECRET)))
        [rules] = admin.execute("SHOW hba_file").fetchone() or [""]
        Path(rules).write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        admin.execute("SELECT pg_reload_conf()")
    source_at = f"{source_proxy.url_host}:{source_proxy.port}"
    ledger_at = f"{ledger_proxy.url_host}:{ledger_proxy.port}"
    transport_at = urlsplit(redis_url)
    env = {
        "LINE_URL": f"redis://deploy-bot:{quote(SOURCE_SECRET, safe='')}@{source_at}/0",
        "DATABASE_URL": f"postgresql://ledger:{quote(LEDGER_SECRET, safe='')}@{ledger_at}/postgres",
        "SWITCHBOARD_BROKER_URL": transport_at._replace(
            netloc=f"dramatiq:{TRANSPORT_SECRET}@{transport_at.netloc}"
        ).geturl(),
    }
    return Line(tmp_path, own_postgres.url, own_valkey.url, env=env)


def assert_nowhere(line: Line) -> None:
    """No secret in what any worker of this test said, nor in any column of any table."""
    for log in line.folder.glob("worker-*.log"):
        text = log.read_text(errors="replace")
        for telltale in TELLTALES:
            assert telltale not in text, f"{telltale} in the log:\n{text}"
    columns = line.rows(_COLUMNS)
    assert columns
    for schema, table, column in columns:
        # As text a bytea is its bytes in hexadecimal digits.
        found = line.rows(f'SELECT "{column}"::text FROM "{schema}"."{table}"')
        for telltale in [*TELLTALES, b"s3cr3t".hex()]:
            assert not [value for (value,) in found if value and telltale in value], f"{telltale} in {table}.{column}"


def test_what_works_shows_no_password(line: Line) -> None:
    with line.running(processes=2) as worker:
        line.publish(50)
        line.settle(worker)
        assert line.value("SELECT DISTINCT verify_detail FROM events") == "redis acl: deploy-bot"
        assert worker.terminate() == 0
    assert_nowhere(line)


def test_servers_that_cut_refuse_and_vanish_bring_out_no_password(
    line: Line,
    own_valkey: ValkeyServer,
    own_postgres: PostgresServer,
    source_proxy: Proxy,
    ledger_proxy: Proxy,
) -> None:
    with line.running() as worker:
        for proxy in (source_proxy, ledger_proxy):
            line.publish(50)
            times = worker.output.count("is unavailable")
            proxy.refuse()
            proxy.cut()
            wait_unavailable(worker, times + 1)
            proxy.accept()
            line.settle(worker)
        own_postgres.kill()
        own_postgres.start()
        line.publish(50)
        line.settle(worker)
        worker.terminate()
    assert_nowhere(line)


def test_a_password_that_is_no_longer_right_is_not_shown(
    line: Line, own_valkey: ValkeyServer, source_proxy: Proxy, ledger_proxy: Proxy
) -> None:
    with line.running() as worker:
        line.publish(50)
        line.settle(worker)
        with line.source() as source:
            source.execute_command("ACL", "SETUSER", "deploy-bot", "resetpass", ">another-one")
        source_proxy.cut()
        eventually(lambda: refused_logins(line) > 0, within=20, what="the source refuses it")
        line.rows("ALTER ROLE ledger PASSWORD 'another-one'")
        ledger_proxy.cut()
        said(worker, "the ledger is unavailable")
        assert worker.terminate() == 0
        # And at the start.
        worker.start()
        assert worker.parent.wait(30) != 0
        assert "password authentication failed" in worker.output
    assert_nowhere(line)


def wait_unavailable(worker: Worker, times: int) -> None:
    eventually(lambda: worker.output.count("is unavailable") >= times, what="it notices")


def refused_logins(line: Line) -> int:
    with line.source() as source:
        return sum(entry["reason"] == "auth" for entry in source.acl_log())


def test_rights_that_are_taken_away_bring_out_no_password(line: Line) -> None:
    with line.running() as worker:
        line.publish(50)
        line.settle(worker)
        with line.source() as source:
            source.execute_command("ACL", "SETUSER", "deploy-bot", "-xreadgroup", "-acl")
        said(worker, "is unavailable")
        line.publish(50)
        with line.source() as source:
            source.execute_command("ACL", "SETUSER", "deploy-bot", "+@all")
        line.settle(worker)
        worker.terminate()
    assert_nowhere(line)


@pytest.mark.parametrize(
    ("name", "address"),
    [
        # Characters that should have been escaped, and were not.
        ("LINE_URL", "redis://deploy-bot:half#s3cr3t@127.0.0.1:6379/0"),
        ("LINE_URL", "redis://deploy-bot:half/s3cr3t@127.0.0.1:6379/0"),
        ("LINE_URL", "redis://:s3cr3t@127.0.0.1:port/0"),
        ("LINE_URL", "redis//:s3cr3t@127.0.0.1:6379/0"),
        ("LINE_URL", "redis://:[s3cr3t@127.0.0.1:6379/0"),
        ("SWITCHBOARD_BROKER_URL", "redis://:half#s3cr3t@127.0.0.1:6379/0"),
        ("SWITCHBOARD_BROKER_URL", "redis://:s3cr3t/half@127.0.0.1:6379/0"),
        ("SWITCHBOARD_BROKER_URL", "redis://:s3cr3t@127.0.0.1:port/0"),
        ("SWITCHBOARD_BROKER_URL", "redis://:[s3cr3t@127.0.0.1:6379/0"),
    ],
)
def test_an_address_that_cannot_be_read_is_refused_without_being_shown(
    tmp_path: Path, database_url: str, redis_url: str, name: str, address: str
) -> None:
    line = Line(tmp_path, database_url, redis_url, env={name: address})
    with line.worker() as worker:
        eventually(lambda: worker.parent.poll() is not None or "is unavailable" in worker.output, within=20)
        output = worker.output
        worker.kill_all()
    assert "s3cr3t" not in output, output
    assert "Traceback" not in output, output
