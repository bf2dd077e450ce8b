"""`switchboard doctor` on real servers: each thing it knows is made wrong, is found, and is named with what to do."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from altering import Altering
from pooler import Pooler
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from waiting import eventually

from switchboard.doctor import examine
from switchboard.doctor.postgres import check_cleaning_up
from switchboard.embedded import PostgresServer, ValkeyServer
from switchboard.ledger import Connection, Ledger, migrate, note_poll
from switchboard.process_name import process_name
from switchboard.pull.redis_client import execute

PASSWORD = "hunter2-never-shown"

STREAM = """
[adapters.deploys]
type = "redis-stream"
url = "${SOURCE_URL}"
stream = "deploys"
queue = "deploys"
"""
LIST = """
[adapters.jobs]
type = "redis-list"
url = "${SOURCE_URL}"
list = "jobs"
queue = "jobs"
"""
PUBSUB = """
[adapters.ticks]
type = "redis-pubsub"
url = "${SOURCE_URL}"
channel = "ticks"
queue = "ticks"
loss_tolerant = true
"""
GITHUB = """
[adapters.repos]
type = "github"
secret = "${GITHUB_SECRET}"
queue = "repos"
"""

#: The rights that docs/guarantees.md names.
STREAM_RIGHTS = "~deploys +xgroup +xreadgroup +xack +xclaim +xpending +xinfo +xrange"
LIST_RIGHTS = (
    "~jobs ~{jobs}:switchboard:* +blmove +lmove +lrem +rpush +llen +lrange +hset +hgetall +hmget +hlen +hkeys +hdel "
    "+time +multi +exec"
)


@dataclass
class Doctor:
    """Looks from a folder and an environment of its own: by itself, or as the command."""

    folder: Path
    patch: pytest.MonkeyPatch
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *options: str) -> tuple[int, str]:
        """The command's exit status and what it printed."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SWITCHBOARD_", "DATABASE_"))}
        done = subprocess.run(
            [sys.executable, "-m", "switchboard.cli", "doctor", *options],
            cwd=self.folder,
            env=kept | self.env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert "Traceback" not in done.stderr
        assert PASSWORD not in done.stdout
        return done.returncode, done.stdout

    def findings(self) -> list[dict[str, str]]:
        with self.patch.context() as patch:
            patch.chdir(self.folder)
            for name in [name for name in os.environ if name.startswith(("SWITCHBOARD_", "DATABASE_"))]:
                patch.delenv(name)
            for name, value in self.env.items():
                patch.setenv(name, value)
            found = [asdict(each) for each in examine()]
        for each in found:
            assert each["severity"] == "ok" or each["remedy"], each
            assert PASSWORD not in str(each)
        return found

    def find(self, check: str, severity: str, what: str, remedy: str = "", subject: str = "") -> dict[str, str]:
        """The one finding with these; an AssertionError that shows all of them where there is none."""
        found = self.findings()
        for each in found:
            right_kind = (each["check"], each["severity"]) == (check, severity) and subject in each["subject"]
            if right_kind and what in each["what"] and remedy in each["remedy"]:
                return each
        raise AssertionError(f"no {severity} {check} with {what!r}, {remedy!r}:\n" + "\n".join(map(str, found)))

    def finds_no(self, check: str, subject: str = "") -> None:
        wrong = [each for each in self.findings() if each["severity"] != "ok" and subject in each["subject"]]
        assert [each for each in wrong if each["check"] == check] == []

    def configure(self, *tables: str) -> None:
        (self.folder / "switchboard.toml").write_text("".join(tables))


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_url: str, redis_url: str) -> Doctor:
    """On a migrated database, with one adapter."""
    ledger = Ledger(database_url)
    migrate(ledger)
    ledger.close()
    env = {"DATABASE_URL": database_url, "SWITCHBOARD_BROKER_URL": redis_url, "SOURCE_URL": redis_url}
    doctor = Doctor(tmp_path, monkeypatch, env)
    doctor.configure(STREAM)
    return doctor


@pytest.fixture
def connection(doctor: Doctor) -> Iterator[Connection]:
    with closing(Ledger(doctor.env["DATABASE_URL"])) as ledger, closing(ledger.connect()) as connection:
        connection.autocommit = True
        yield connection


@contextmanager
def started(server: ValkeyServer | PostgresServer) -> Iterator[Any]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def other_database(url: str, name: str) -> str:
    return urlsplit(url)._replace(path=f"/{name}").geturl()


def polled(connection: Connection, adapter: str) -> None:
    """A worker, this process, has just polled it."""
    connection.execute(
        "INSERT INTO adapters (name, family, trust_mode) VALUES (%s, 'queue', 'queue') ON CONFLICT DO NOTHING",
        (adapter,),
    )
    note_poll(connection, process=process_name(), adapter=adapter, polled_ago=timedelta(0))


# All is well, and its two forms


def test_where_nothing_is_wrong_it_ends_with_0_and_says_what_it_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appendonly = ValkeyServer(tmp_path / "valkey", appendonly=True)
    with started(PostgresServer(tmp_path / "postgres")) as postgres, started(appendonly) as valkey:
        with psycopg.connect(postgres.url, autocommit=True) as admin:
            admin.execute("CREATE ROLE switchboard LOGIN")
            admin.execute("CREATE DATABASE ledger OWNER switchboard")
        url = make_conninfo(postgres.tcp_url, user="switchboard", dbname="ledger")
        with closing(Ledger(url)) as ledger:
            migrate(ledger)
            with closing(ledger.connect()) as connection:
                connection.autocommit = True
                polled(connection, "deploys")
        with redis.Redis.from_url(valkey.url) as client:
            client.xgroup_create("deploys", "switchboard", mkstream=True)
            execute(
                client,
                "ACL",
                "SETUSER",
                "bot",
                "on",
                ">secret",
                *STREAM_RIGHTS.split(),
                "+info",
                "+time",
                "+acl|whoami",
            )
            execute(client, "ACL", "SETUSER", "bot", "+ping")
        address = f"redis://bot:secret@127.0.0.1:{valkey.port}/0"
        doctor = Doctor(
            tmp_path, monkeypatch, {"DATABASE_URL": url, "SWITCHBOARD_BROKER_URL": address, "SOURCE_URL": address}
        )
        doctor.configure(STREAM)
        status, printed = doctor.run("--json")
        found = json.loads(printed)
        assert [each for each in found if each["severity"] != "ok"] == []
        assert status == 0
        assert all(sorted(each) == ["check", "remedy", "severity", "subject", "what"] for each in found)
        assert {"PostgreSQL", "adapter deploys", "Dramatiq's broker", "upkeep"} <= {each["subject"] for each in found}


def test_people_get_one_line_a_finding_with_its_remedy_under_it(doctor: Doctor) -> None:
    doctor.env["DATABASE_URL"] = ""
    status, printed = doctor.run()
    lines = printed.splitlines()
    assert status == 1
    at = lines.index("PostgreSQL")
    assert lines[at + 1].startswith("  ✗ error: reach: ")
    assert lines[at + 2].strip().startswith("→ set DATABASE_URL")
    assert "errors" in lines[-1]


def test_wrong_use_is_2_and_warnings_alone_are_0(doctor: Doctor, tmp_path: Path) -> None:
    assert doctor.run("--nonsense")[0] == 2
    # The tests' other servers have fsync off, which is an error.
    with started(PostgresServer(tmp_path / "durable")) as postgres, closing(Ledger(postgres.url)) as ledger:
        doctor.env["DATABASE_URL"] = postgres.url
        migrate(ledger)
        with closing(ledger.connect()) as connection:
            connection.autocommit = True
            polled(connection, "deploys")
        status, printed = doctor.run("--json")
    found = {each["severity"] for each in json.loads(printed)}
    assert (found, status) == ({"ok", "warning"}, 0), printed


# The configuration


def test_a_missing_variable_is_named_and_the_other_adapters_are_looked_at_all_the_same(doctor: Doctor) -> None:
    doctor.configure(STREAM, LIST.replace("SOURCE_URL", "JOBS_URL"))
    doctor.find("configuration", "error", "JOBS_URL is not set", "set it")
    doctor.find("version", "ok", "Valkey", subject="adapter deploys")


def test_an_unknown_key_is_named(doctor: Doctor) -> None:
    doctor.configure(STREAM, 'qeue = "x"\n')
    doctor.find("configuration", "error", "did you mean 'queue'", "correct it")


def test_a_file_that_is_not_there_is_said(doctor: Doctor) -> None:
    (doctor.folder / "switchboard.toml").unlink()
    doctor.find("configuration", "warning", "there is no switchboard.toml here", "SWITCHBOARD_CONFIG")


def test_webhooks_are_adapters_too_and_what_is_wrong_with_one_is_named(doctor: Doctor) -> None:
    doctor.env["GITHUB_SECRET"] = PASSWORD
    doctor.configure(GITHUB)
    doctor.find("configuration", "ok", "adapters 1")
    doctor.configure(STREAM, GITHUB, 'tolerance = "5m"\n')
    doctor.find("configuration", "error", "adapters.repos: unknown key 'tolerance'", "correct it")
    # The others are looked at all the same.
    doctor.find("version", "ok", "Valkey", subject="adapter deploys")
    doctor.configure(GITHUB.replace('"github"', '"gitub"'))
    assert [each["what"] for each in doctor.findings() if "gitub" in each["what"]] == [
        "switchboard.toml: adapters.repos.type: unknown type 'gitub'; did you mean 'github'? "
        "(expected one of redis-stream, redis-list, redis-pubsub, github, stripe, slack, dockerhub, generic)"
    ]


def test_a_webhook_that_is_off_names_the_variable_that_would_turn_it_on(doctor: Doctor) -> None:
    doctor.configure(GITHUB)
    doctor.find("trust", "error", "it is OFF, as its secret is not set", "set GITHUB_SECRET", "adapter repos")
    doctor.env["GITHUB_SECRET"] = " "
    doctor.find("trust", "error", "it is OFF", "set GITHUB_SECRET", "adapter repos")
    doctor.env["GITHUB_SECRET"] = PASSWORD
    doctor.finds_no("trust")
    doctor.configure(GITHUB.replace("secret", "# secret"))
    doctor.find("trust", "error", "it is OFF", "name it in the adapter's table", "adapter repos")


def test_a_webhook_that_anybody_may_send_to_is_a_warning(doctor: Doctor) -> None:
    doctor.configure('[adapters.builds]\ntype = "generic"\ntrust = "open"\nqueue = "builds"\n')
    doctor.find("trust", "warning", "it is OPEN", "a token", "adapter builds")


def test_a_wrong_table_of_the_web_or_of_upkeep_is_named_once(doctor: Doctor) -> None:
    doctor.configure(STREAM, '[web]\nmax_in_progres = 5\n[upkeep]\nprune = "0 0 * * 0"\n')
    doctor.find("configuration", "error", "web: unknown key 'max_in_progres'; did you mean 'max_in_progress'")
    doctor.find("configuration", "error", "upkeep.prune", "correct it")
    assert sum("upkeep.prune" in each["what"] for each in doctor.findings()) == 1
    # What comes after upkeep is looked at all the same.
    doctor.find("consumers", "error", "no worker polls it", subject="adapter deploys")


def test_two_adapters_of_one_group_are_named(doctor: Doctor) -> None:
    doctor.configure(STREAM, STREAM.replace("adapters.deploys", "adapters.copies"))
    doctor.find("shared_source", "error", "deploys and copies read the same source", "a group of its own")
    doctor.configure(STREAM, STREAM.replace("adapters.deploys", "adapters.copies") + 'group = "other"\n')
    doctor.finds_no("shared_source")


# PostgreSQL


def test_a_database_that_is_not_there_a_wrong_port_and_a_server_that_is_frozen(
    doctor: Doctor, own_postgres: PostgresServer
) -> None:
    doctor.env["DATABASE_URL"] = other_database(own_postgres.tcp_url, "nowhere")
    doctor.find("reach", "error", 'database "nowhere" does not exist', "create it", "PostgreSQL")
    doctor.env["DATABASE_URL"] = f"postgresql://someone:{PASSWORD}@127.0.0.1:1/x"
    doctor.find("reach", "error", "refused", "start the server", "PostgreSQL")
    doctor.env["DATABASE_URL"] = own_postgres.tcp_url
    own_postgres.suspend()
    doctor.find("reach", "error", "", "frozen", "PostgreSQL")
    # The others have been looked at all the same.
    doctor.find("version", "ok", "Valkey", subject="adapter deploys")


def test_a_server_that_answers_nothing_after_the_connection_is_made_is_bounded(
    doctor: Doctor, own_postgres: PostgresServer
) -> None:
    with Proxy("127.0.0.1", own_postgres.port) as proxy:
        proxy.stall()
        doctor.env["DATABASE_URL"] = f"postgresql://postgres@{proxy.url_host}:{proxy.port}/postgres"
        doctor.find("reach", "error", "", "frozen", "PostgreSQL")


def test_a_schema_that_is_not_there_behind_or_ahead(doctor: Doctor, connection: Connection) -> None:
    doctor.find("schema", "ok", "")
    connection.execute("INSERT INTO schema_migrations VALUES ('9999_later')")
    doctor.find("schema", "warning", "9999_later", "run the release here")
    connection.execute("DELETE FROM schema_migrations WHERE version >= '0003'")
    doctor.find("schema", "error", "behind: it lacks 0003_todo_leases", "switchboard migrate")
    connection.execute("DROP TABLE schema_migrations")
    doctor.find("schema", "error", "not migrated", "switchboard migrate")


def test_a_role_without_a_right_and_one_that_may_everything(doctor: Doctor, connection: Connection) -> None:
    doctor.find("role", "warning", "superuser", "a role of its own")
    role = f"narrow_{os.getpid()}"
    connection.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {role}".encode())
        connection.execute(f"REVOKE UPDATE, DELETE ON todos FROM {role}".encode())
        admin = doctor.env["DATABASE_URL"]
        doctor.env["DATABASE_URL"] = make_conninfo(admin, user=role)
        doctor.find("rights", "error", "todos (UPDATE, DELETE)", "GRANT", "PostgreSQL")
        connection.execute(f"GRANT UPDATE, DELETE ON todos TO {role}".encode())
        # Deliveries without a native id ask for their event's number themselves.
        doctor.find("rights", "error", "events_id_seq (USAGE)", "GRANT USAGE ON ALL SEQUENCES")
        connection.execute(f"GRANT USAGE ON SEQUENCE events_id_seq TO {role}".encode())
        doctor.find("rights", "ok", role)
        # What `serve` and the commands ask for, too.
        connection.execute(f"REVOKE ALL ON humans, agents, endpoints, sessions FROM {role}".encode())
        connection.execute(f"REVOKE INSERT, UPDATE ON settings FROM {role}".encode())
        lacks = "agents (SELECT, INSERT, UPDATE), endpoints (SELECT, INSERT, UPDATE), humans (SELECT, INSERT, DELETE), "
        lacks += "sessions (SELECT, INSERT, DELETE), settings (INSERT, UPDATE), events_id_seq (USAGE)"
        connection.execute(f"REVOKE ALL ON SEQUENCE events_id_seq FROM {role}".encode())
        found = doctor.find("rights", "error", lacks, "IN SCHEMA public")
        # It has been told what to do: so it is done.
        connection.execute(found["remedy"].encode())
        doctor.find("rights", "ok", role)
        doctor.finds_no("role")
    finally:
        connection.execute(f"DROP OWNED BY {role}".encode())
        connection.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    ("setting", "value", "check", "severity", "what", "remedy"),
    [
        ("synchronous_commit", "off", "synchronous_commit", "error", "loses commits", "RESET synchronous_commit"),
        ("default_transaction_read_only", "on", "read_only", "error", "read-only", "RESET default_transaction"),
        ("timezone", "Asia/Kolkata", "time_zone", "warning", "Asia/Kolkata", "'UTC'"),
    ],
)
def test_a_setting_of_the_database_that_is_wrong(
    doctor: Doctor, connection: Connection, setting: str, value: str, check: str, severity: str, what: str, remedy: str
) -> None:
    doctor.finds_no(check)
    name = urlsplit(doctor.env["DATABASE_URL"]).path[1:]
    connection.execute(f"ALTER DATABASE {name} SET {setting} TO '{value}'".encode())
    doctor.find(check, severity, what, remedy)


def test_settings_of_the_server_that_are_wrong(doctor: Doctor, tmp_path: Path) -> None:
    settings = {"fsync": "off", "autovacuum": "off", "max_connections": "12"}
    with started(PostgresServer(tmp_path / "wrong", settings=settings)) as server:
        doctor.env["DATABASE_URL"] = server.url
        found = doctor.findings()
    said = {each["check"]: (each["severity"], each["what"] + each["remedy"]) for each in found}
    assert said["fsync"][0] == "error"
    assert "fsync = on" in said["fsync"][1]
    assert said["autovacuum"][0] == "error"
    assert "autovacuum = on" in said["autovacuum"][1]
    assert said["connections"][0] == "warning"
    assert "max_connections (12)" in said["connections"][1]


def test_a_database_of_another_encoding(doctor: Doctor, own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc")
    doctor.env["DATABASE_URL"] = other_database(own_postgres.tcp_url, "latin")
    doctor.find("encoding", "error", "LATIN1", "ENCODING 'UTF8'")


def test_dead_rows_and_the_transaction_that_keeps_them(doctor: Doctor, connection: Connection) -> None:
    connection.execute("ALTER TABLE todos SET (autovacuum_enabled = off)")
    with psycopg.connect(doctor.env["DATABASE_URL"], application_name="forgotten") as forgotten:
        forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        forgotten.execute("SELECT count(*) FROM todos")
        connection.execute("INSERT INTO todos (queue, title) SELECT 'q', 't' FROM generate_series(1, 25000)")
        connection.execute("DELETE FROM todos")

        def said() -> bool:
            return any("25000 dead rows" in finding.what for finding in check_cleaning_up(connection))

        eventually(said, what="the dead rows are counted")
        doctor.find("dead_rows", "warning", "todos has 25000 dead rows", "VACUUM todos")
        # As after ten minutes.
        [holder] = [each for each in check_cleaning_up(connection, timedelta(0)) if each.check == "oldest_transaction"]
        assert "forgotten (idle in transaction)" in holder.what
        assert f"pg_terminate_backend({forgotten.info.backend_pid})" in holder.remedy


def test_a_pooler_in_transaction_mode_and_that_nobody_hears_through_it(
    doctor: Doctor, own_postgres: PostgresServer
) -> None:
    direct = own_postgres.tcp_url
    with closing(Ledger(direct)) as ledger:
        migrate(ledger)
    doctor.env["DATABASE_URL"] = direct
    doctor.find("pooler", "ok", "no pooler")
    doctor.find("listen", "ok", "are heard")
    with Pooler(own_postgres.port) as pooler:
        doctor.env["DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres"
        doctor.find("pooler", "ok", "a pooler in transaction mode")
        doctor.find("listen", "warning", "not heard", "SWITCHBOARD_LISTEN_URL")
        doctor.env["SWITCHBOARD_LISTEN_URL"] = direct
        doctor.find("listen", "ok", "are heard")
        doctor.env["SWITCHBOARD_LISTEN_URL"] = "postgresql://postgres@127.0.0.1:1/postgres"
        doctor.find("listen", "error", "cannot listen", "SWITCHBOARD_LISTEN_URL")
        doctor.env["SWITCHBOARD_NOTIFY"] = "off"
        doctor.finds_no("listen")


@pytest.mark.parametrize(
    ("mode", "severity", "what"),
    [("session", "warning", "a thread holds each connection"), ("statement", "error", "it allows no transaction")],
)
def test_a_pooler_in_another_mode(
    doctor: Doctor, own_postgres: PostgresServer, mode: str, severity: str, what: str
) -> None:
    with Pooler(own_postgres.port, mode) as pooler:
        doctor.env["DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{pooler.port}/postgres"
        doctor.find("pooler", severity, f"a pooler in {mode} mode is in between: {what}", "pool_mode = transaction")


# Upkeep, consumers, dead letters


def test_upkeep_that_was_never_done_or_too_long_ago(doctor: Doctor, connection: Connection) -> None:
    doctor.finds_no("upkeep")
    connection.execute("UPDATE schema_migrations SET applied_at = now() - interval '1 day'")
    doctor.find("upkeep", "error", "reap is overdue: it has never been done", "periodiq switchboard.actors")
    done = (
        "INSERT INTO upkeep (job, last_succeeded_at, last_duration_seconds)"
        " VALUES ('prune', now() - %s, 1), ('reap', now() - %s, 1)"
    )
    connection.execute(done, (timedelta(hours=3), timedelta(minutes=2)))
    doctor.find("upkeep", "error", "prune is overdue: it was last done 3:00:0", "switchboard prune")
    doctor.find("upkeep", "ok", "reap was last done 0:02:0")


def test_an_adapter_that_nobody_polls_one_that_is_disabled_and_one_that_is_not_in_the_file(
    doctor: Doctor, connection: Connection
) -> None:
    doctor.find("consumers", "error", "no worker polls it", "dramatiq switchboard.actors", "adapter deploys")
    polled(connection, "deploys")
    doctor.find("consumers", "ok", "running consumers 1", subject="adapter deploys")
    connection.execute("UPDATE consumers SET polled_at = now() - interval '2 minutes', last_error = 'gone fishing'")
    doctor.find("consumers", "error", "no answer from the source for 12", "see what is wrong")
    connection.execute("UPDATE consumers SET seen_at = now() - interval '2 minutes'")
    doctor.find("consumers", "error", "no worker polls it")
    connection.execute("UPDATE adapters SET enabled = false")
    doctor.find("enabled", "warning", "it is disabled", "switchboard adapters enable deploys")
    polled(connection, "elsewhere")
    doctor.find("configuration", "warning", "a worker reads it", "the same switchboard.toml", "adapter elsewhere")


def test_dead_letters_that_nobody_has_decided_about(doctor: Doctor, connection: Connection) -> None:
    letter = (
        "INSERT INTO dead_letters (adapter, idempotency_key, reason, detail, payload, resolved_at)"
        " VALUES ('deploys', %s, %s, 'x', 'x', %s)"
    )
    connection.execute(letter, ("a", "invalid", None))
    connection.execute(letter, ("b", "poison", None))
    connection.execute("UPDATE dead_letters SET received_at = now() - interval '3 hours' WHERE reason = 'poison'")
    doctor.find(
        "dead_letters",
        "warning",
        "unresolved dead letters: 2, the oldest 3:00:0",
        "dead-letters list --adapter deploys",
    )
    connection.execute("UPDATE dead_letters SET resolved_at = now(), resolution = 'discarded'")
    doctor.finds_no("dead_letters")


# The sources


def test_a_source_that_is_away_frozen_or_wants_a_password(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    doctor.env["SOURCE_URL"] = "redis://127.0.0.1:1/0"
    doctor.find("reach", "error", "refused", "start the server", "adapter deploys")
    doctor.env["SOURCE_URL"] = f"redis://someone:{PASSWORD}@127.0.0.1:{own_valkey.port}/0"
    doctor.find("reach", "error", "", "correct the user or the password", "adapter deploys")
    with redis.Redis.from_url(own_valkey.url) as client:
        client.config_set("requirepass", PASSWORD)
    doctor.env["SOURCE_URL"] = own_valkey.url
    doctor.find("reach", "error", "", "password", "adapter deploys")
    own_valkey.suspend()
    doctor.find("reach", "error", "", "frozen", "adapter deploys")


def test_memory_and_persistence_that_lose_messages(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    doctor.env["SOURCE_URL"] = own_valkey.url
    doctor.finds_no("noeviction", "adapter")
    doctor.finds_no("persistence", "adapter")
    with redis.Redis.from_url(own_valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        doctor.find("noeviction", "warning", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction", "adapter deploys")
        client.config_set("maxmemory", "100mb")
        doctor.find("noeviction", "error", "evicted unread", "CONFIG SET maxmemory-policy noeviction")
        client.config_set("appendonly", "no")
        doctor.find("persistence", "warning", "nothing is persisted", "appendonly yes", "adapter deploys")
        client.config_set("save", "60 1")
        doctor.find("persistence", "warning", "snapshots alone", "appendonly yes", "adapter deploys")


def test_memory_that_is_nearly_full(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    doctor.env["SOURCE_URL"] = own_valkey.url
    with redis.Redis.from_url(own_valkey.url) as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"]) + 10_000)
        doctor.find("memory", "warning", "% of maxmemory", "raise maxmemory", "adapter deploys")


def test_a_replica_takes_no_acknowledgement(doctor: Doctor, tmp_path: Path, own_valkey: ValkeyServer) -> None:
    with started(ValkeyServer(tmp_path / "replica", settings={"replicaof": f"127.0.0.1 {own_valkey.port}"})) as replica:
        doctor.env["SOURCE_URL"] = replica.url
        doctor.find("role", "error", "replica", f"127.0.0.1:{own_valkey.port}", "adapter deploys")


def test_a_password_in_plain_text_to_another_host(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        execute(client, "ACL", "SETUSER", "bot", "on", f">{PASSWORD}", "~*", "+@all")
    doctor.env["SOURCE_URL"] = f"redis://bot:{PASSWORD}@127.0.0.1:{own_valkey.port}/0"
    doctor.finds_no("tls")
    with Proxy("127.0.0.1", own_valkey.port) as proxy:
        # Not loopback by its name, and reachable.
        doctor.env["SOURCE_URL"] = f"redis://bot:{PASSWORD}@{socket.gethostname()}:{proxy.port}/0"
        doctor.find("tls", "warning", "plain text", "rediss://", "adapter deploys")


@pytest.mark.parametrize(
    ("table", "rights", "missing"),
    [
        (STREAM, STREAM_RIGHTS, ["xack", "xclaim"]),
        (LIST, LIST_RIGHTS, ["lrem", "rpush"]),
        (PUBSUB, "&ticks +subscribe", ["subscribe"]),
    ],
    ids=["stream", "list", "pubsub"],
)
def test_a_user_whose_rights_are_too_narrow_or_too_wide(
    doctor: Doctor, own_valkey: ValkeyServer, table: str, rights: str, missing: list[str]
) -> None:
    doctor.configure(table)
    doctor.env["SOURCE_URL"] = f"redis://bot:{PASSWORD}@127.0.0.1:{own_valkey.port}/0"
    with redis.Redis.from_url(own_valkey.url) as client:

        def allow(*rules: str) -> None:
            execute(client, "ACL", "SETUSER", "bot", "reset", "resetchannels", "on", f">{PASSWORD}", *rules)

        allow(*rights.split(), "+acl|whoami")
        doctor.find("rights", "ok", "user bot has the rights it needs", subject="adapter")
        doctor.find("server", "warning", "INFO is denied", "+info", "adapter")
        allow(*rights.split(), *(f"-{command}" for command in missing))
        found = doctor.find("rights", "error", f"may not run {', '.join(missing)} on", "ACL SETUSER bot", "adapter")
        assert all(f"+{command}" in found["remedy"] for command in missing)
        # It has been told what to do: so it is done.
        execute(client, *found["remedy"].split(" (")[0].split())
        doctor.finds_no("rights")
        allow("~*", "&*", "+@all")
        wide = doctor.find("rights_wide", "warning", "administer the server and reach keys", "a user of its own")
        assert "user bot" in wide["what"]
    doctor.env["SOURCE_URL"] = own_valkey.url
    doctor.find("rights_wide", "warning", "user default, without a password,", "a user of its own", "adapter")


@pytest.mark.parametrize(
    ("table", "rights", "lacks", "what"),
    [
        (STREAM, STREAM_RIGHTS.replace("+xinfo", "+xinfo|groups"), "xinfo", "what waits in deploys"),
        (STREAM, STREAM_RIGHTS.replace("+xinfo", "+xinfo|groups +xinfo|stream"), "xinfo", "unread"),
        (LIST, LIST_RIGHTS.replace("+hkeys", ""), "hkeys", "what waits in jobs"),
    ],
    ids=["groups alone", "all but consumers", "no hkeys"],
)
def test_a_right_without_which_what_waits_cannot_be_seen(
    doctor: Doctor, own_valkey: ValkeyServer, table: str, rights: str, lacks: str, what: str
) -> None:
    doctor.configure(table)
    doctor.env["SOURCE_URL"] = f"redis://bot:{PASSWORD}@127.0.0.1:{own_valkey.port}/0"
    with redis.Redis.from_url(own_valkey.url) as client:
        client.xgroup_create("deploys", "switchboard", mkstream=True)
        execute(client, "ACL", "SETUSER", "bot", "reset", "on", f">{PASSWORD}", *rights.split())
        found = [each for each in doctor.findings() if "adapter" in each["subject"]]
    [narrow] = [each for each in found if each["check"] == "rights"]
    assert (narrow["severity"], f"may not run {lacks} on" in narrow["what"]) == ("error", True)
    assert any(each["check"] in ("group", "list") and what in each["what"] for each in found), found
    assert not [each for each in found if each["check"] == "reach"], found


def test_looking_at_rights_and_sources_changes_nothing(doctor: Doctor, redis_client: "redis.Redis") -> None:
    doctor.configure(STREAM + "delete = true\n", LIST)
    redis_client.xadd("deploys", {"a": "b"})
    redis_client.xgroup_create("deploys", "switchboard", id="0")
    redis_client.lpush("jobs", "1", "", "2")
    before = {key: redis_client.dump(key) for key in redis_client.scan_iter()}
    doctor.findings()
    assert {key: redis_client.dump(key) for key in redis_client.scan_iter()} == before


def test_a_stream_and_a_group_that_are_not_there_and_a_key_of_another_type(
    doctor: Doctor, redis_client: "redis.Redis"
) -> None:
    doctor.configure(STREAM, LIST)
    doctor.find("stream", "warning", "no stream deploys", "the producer's")
    redis_client.xadd("deploys", {"a": "b"})
    doctor.find("group", "warning", "no consumer group switchboard", "start a worker")
    redis_client.xgroup_create("deploys", "switchboard", id="0")
    redis_client.xadd("deploys", {"a": "b"})
    redis_client.xreadgroup("switchboard", "someone", {"deploys": ">"}, count=1)
    doctor.find("group", "ok", "unread 1, pending 1")
    redis_client.set("jobs", "x")
    doctor.find("key_type", "error", "jobs is not a list", "rename", "adapter jobs")
    redis_client.delete("deploys")
    redis_client.lpush("deploys", "x")
    doctor.find("key_type", "error", "deploys is not a stream", "rename", "adapter deploys")


def test_entries_that_were_trimmed_before_they_were_read_or_stored(doctor: Doctor, redis_client: "redis.Redis") -> None:
    redis_client.xgroup_create("deploys", "switchboard", id="0", mkstream=True)
    for _ in range(10):
        redis_client.xadd("deploys", {"a": "b"})
    redis_client.xreadgroup("switchboard", "someone", {"deploys": ">"}, count=4)
    doctor.finds_no("trimmed")
    redis_client.xtrim("deploys", maxlen=3, approximate=False)
    found = [each["what"] for each in doctor.findings() if each["check"] == "trimmed"]
    assert "at least 3 entries of deploys were trimmed before switchboard read them" in found
    assert "pending entries of deploys were trimmed before they were stored" in found


# Dramatiq's broker


def test_the_broker_of_dramatiq_is_looked_at_too(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    doctor.find("transport", "ok", "redis://127.0.0.1", subject="Dramatiq's broker")
    doctor.env["SWITCHBOARD_BROKER_URL"] = "redis://127.0.0.1:1/0"
    doctor.find("reach", "error", "refused", "start the server", "Dramatiq's broker")
    doctor.env["SWITCHBOARD_BROKER_URL"] = f"amqp://guest:{PASSWORD}@127.0.0.1:1/"
    doctor.find("reach", "error", "127.0.0.1:1", "start the server", "Dramatiq's broker")
    doctor.env["SWITCHBOARD_BROKER_URL"] = "http://example.com"
    doctor.find("reach", "error", "expected redis://", "", "Dramatiq's broker")
    doctor.env["SWITCHBOARD_BROKER_URL"] = own_valkey.url
    with redis.Redis.from_url(own_valkey.url) as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    doctor.find("noeviction", "warning", "allkeys-lru", "noeviction", "Dramatiq's broker")
    del doctor.env["SWITCHBOARD_BROKER_URL"]
    doctor.find("transport", "warning", "not set", "unless a module of yours")


# What a server says of itself, and of the time


def test_a_postgresql_whose_clock_is_wrong(doctor: Doctor, own_postgres: PostgresServer) -> None:
    year = datetime.now(UTC).year
    with Altering(own_postgres.port, {f"{year}-".encode(): f"{year + 1}-".encode()}) as line:
        doctor.env["DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{line.port}/postgres"
        doctor.find("clock", "warning", "ahead of this host's", "NTP", "PostgreSQL")
    doctor.env["DATABASE_URL"] = own_postgres.tcp_url
    doctor.finds_no("clock")


def test_a_source_whose_clock_is_wrong(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    # The answer to TIME begins with the seconds since 1970, in ten digits until the year 2286.
    with Altering(own_valkey.port, {b"$10\r\n1": b"$10\r\n0"}) as line:
        doctor.env["SOURCE_URL"] = f"redis://127.0.0.1:{line.port}/0"
        doctor.find("clock", "warning", "behind this host's", "NTP", "adapter deploys")


@pytest.mark.parametrize(
    ("major", "severity", "what"), [(13, "error", "older than 14"), (19, "warning", "newer than any that was tested")]
)
def test_a_postgresql_that_is_not_supported(
    doctor: Doctor, own_postgres: PostgresServer, major: int, severity: str, what: str
) -> None:
    with psycopg.connect(own_postgres.url) as connection:
        [number] = connection.execute("SELECT current_setting('server_version_num')").fetchone() or [""]
    with Altering(own_postgres.port, {number.encode(): f"{major}{number[2:]}".encode()}) as line:
        doctor.env["DATABASE_URL"] = f"postgresql://postgres@127.0.0.1:{line.port}/postgres"
        doctor.find("version", severity, what, "14" if major < 14 else "18")


def test_a_valkey_that_is_not_supported(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    with Altering(own_valkey.port, {b"valkey_version:9.": b"valkey_version:6."}) as line:
        doctor.env["SOURCE_URL"] = f"redis://127.0.0.1:{line.port}/0"
        doctor.find("version", "error", "Valkey 6.", "upgrade it", "adapter deploys")


def test_a_standby_stores_nothing(doctor: Doctor, own_postgres: PostgresServer) -> None:
    with closing(Ledger(own_postgres.url)) as ledger:
        migrate(ledger)
    with psycopg.connect(own_postgres.url) as connection:
        [data] = connection.execute("SHOW data_directory").fetchone() or [""]
    own_postgres.stop()
    (Path(data) / "standby.signal").touch()
    own_postgres.start()
    doctor.env["DATABASE_URL"] = own_postgres.tcp_url
    doctor.find("read_only", "error", "it is a standby", "target_session_attrs=read-write")


def test_a_password_to_a_postgresql_on_another_host_in_plain_text(doctor: Doctor, own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE remote LOGIN PASSWORD '{PASSWORD}'".encode())
        [rules] = admin.execute("SHOW hba_file").fetchone() or [""]
        text = Path(rules).read_text()
        Path(rules).write_text(f"host all remote all scram-sha-256\n{text}")
        admin.execute("SELECT pg_reload_conf()")
    with Altering(own_postgres.port, {}) as line:
        # Not loopback by its name, and reachable.
        address = f"postgresql://remote:{PASSWORD}@{socket.gethostname()}:{line.port}/postgres"
        doctor.env["DATABASE_URL"] = f"{address}?sslmode=disable"
        doctor.find("tls", "warning", "not encrypted", "sslmode=verify-full", "PostgreSQL")


def test_a_prepared_transaction_that_keeps_dead_rows(tmp_path: Path) -> None:
    with started(PostgresServer(tmp_path / "pg", settings={"max_prepared_transactions": "2"})) as server:
        with psycopg.connect(server.url) as forgotten:
            forgotten.execute("CREATE TABLE forgotten ()")
            forgotten.execute("PREPARE TRANSACTION 'forgotten'")
        with closing(Ledger(server.url)) as ledger, closing(ledger.connect(direct=True)) as connection:
            # As after ten minutes.
            [holder] = [
                each for each in check_cleaning_up(connection, timedelta(0)) if each.check == "oldest_transaction"
            ]
    assert "forgotten (prepared)" in holder.what
    assert "ROLLBACK PREPARED 'forgotten'" in holder.remedy


def test_a_replica_that_has_lost_its_primary(doctor: Doctor, tmp_path: Path) -> None:
    # Pub/sub can be read from one: there is nothing to acknowledge.
    doctor.configure(PUBSUB)
    with started(ValkeyServer(tmp_path / "replica", settings={"replicaof": "127.0.0.1 1"})) as replica:
        doctor.env["SOURCE_URL"] = replica.url
        doctor.find("role", "error", "lost its primary", "127.0.0.1:1", "adapter ticks")


def test_a_source_that_cannot_write_to_its_disk(doctor: Doctor, own_valkey: ValkeyServer) -> None:
    with redis.Redis.from_url(own_valkey.url) as client:
        shutil.rmtree(client.config_get("dir")["dir"])
        client.bgsave()
        eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", within=30)
    doctor.env["SOURCE_URL"] = own_valkey.url
    doctor.find("persistence", "error", "cannot write to its disk", "make room on the disk", "adapter deploys")
