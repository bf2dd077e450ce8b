"""The `switchboard` command as its users run it: a process of its own, a real PostgreSQL, a real Valkey."""

import base64
import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from signals import inherited_by_none
from waiting import eventually

from switchboard.embedded import ValkeyServer
from switchboard.ledger import (
    Connection,
    Ledger,
    create_todo,
    insert_dead_letters,
    migrate,
    upsert_adapter,
)
from switchboard.model import DeadLetter, Delivery, Route
from switchboard.pull.publisher import CHUNK

COMMAND = [sys.executable, "-m", "switchboard.cli"]
PASSWORD = "hunter2-never-shown"
NOT_UTF8 = b"\xff\x00\nraw\r\n"

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_REDIS_URL}"
stream = "deploys"
queue = "deploys"
body = "body"

[adapters.repositories]
type = "redis-stream"
url = "${DEPLOYS_REDIS_URL}"
stream = "repositories"
queue = "repositories"
"""

LISTINGS = [["adapters", "list"], ["todos", "list"], ["dead-letters", "list"]]
ON_THE_LEDGER = [
    *LISTINGS,
    ["adapters", "enable", "deploys"],
    ["adapters", "disable", "deploys"],
    ["todos", "show", "1"],
    ["dead-letters", "show", "1"],
    ["prune"],
]


@dataclass(frozen=True)
class Ran:
    status: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """Runs the command in a folder and an environment of its own."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        kept = {
            name: value
            for name, value in os.environ.items()
            if name not in ("DATABASE_URL", "FORCE_COLOR") and not name.startswith("SWITCHBOARD_")
        }
        self.environment = kept | {"PYTHONWARNINGS": "error::ResourceWarning"} | environment

    def __call__(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment | environment,
            input=stdin,
            capture_output=True,
            timeout=60,
        )
        ran = Ran(done.returncode, done.stdout, done.stderr.decode())
        # Whatever a test is about: no traceback, and no password.
        assert "Traceback" not in ran.err, ran.err
        assert PASSWORD not in ran.err
        assert PASSWORD.encode() not in ran.out
        return ran

    def ok(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Ran:
        ran = self(*arguments, stdin=stdin, **environment)
        assert (ran.status, ran.err) == (0, ""), ran
        return ran

    def on_terminal(self, *arguments: str) -> str:
        """What a person sees on a terminal of 80 columns."""
        ours, its = pty.openpty()
        environment = self.environment | {"TERM": "dumb"}
        process = subprocess.Popen([*COMMAND, *arguments], cwd=self.folder, env=environment, stdout=its)
        os.close(its)
        seen = b""
        # Linux answers EIO once the other end is closed.
        with contextlib.suppress(OSError):
            while chunk := os.read(ours, 65536):
                seen += chunk
        os.close(ours)
        assert process.wait(timeout=60) == 0
        return seen.decode().replace("\r\n", "\n")


@pytest.fixture
def nowhere(tmp_path: Path) -> Cli:
    """The command with nothing set."""
    return Cli(tmp_path)


@pytest.fixture
def empty(tmp_path: Path, database_url: str) -> Cli:
    """The command on a database that is not migrated."""
    return Cli(tmp_path, DATABASE_URL=database_url)


@pytest.fixture
def cli(empty: Cli, ledger: Ledger) -> Cli:
    """The command on a migrated database."""
    return empty


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    opened = Ledger(database_url)
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def connection(ledger: Ledger, database_url: str) -> Iterator[Connection]:
    with Connection.connect(database_url, autocommit=True) as opened:
        yield opened


@pytest.fixture
def publisher(tmp_path: Path, redis_url: str) -> Cli:
    """The command with two adapters, and no database at all."""
    (tmp_path / "switchboard.toml").write_text(CONFIG)
    return Cli(tmp_path, DEPLOYS_REDIS_URL=redis_url)


def register(connection: Connection, name: str, **config: object) -> None:
    with connection.transaction():
        upsert_adapter(
            connection,
            name=name,
            family="queue",
            trust_mode="queue",
            queue=name,
            namespace=f"redis:{name}",
            config={"type": "redis-stream"} | config,
        )


def dead_letter(
    connection: Connection, body: bytes, *, adapter: str = "deploys", key: str = "redis:deploys:1-1"
) -> int:
    route = Route(adapter=adapter, queue="deploys", key_prefix="redis:deploys")
    delivery = Delivery(body, "1-1", "redis acl: deploy-bot", {"x-trace": "7"}, "application/json")
    insert_dead_letters(connection, route, [DeadLetter(delivery, key, "invalid", f"password={PASSWORD} is no JSON")])
    row = connection.execute("SELECT max(id) FROM dead_letters").fetchone()
    assert row
    return int(row[0])


def with_password(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"someone:{PASSWORD}@{host}").geturl()


# Help and wrong use


def test_the_command_line_names_every_command(nowhere: Cli) -> None:
    help_text = nowhere.ok("--help").text
    for command in (
        "migrate",
        "adapters",
        "todos",
        "dead-letters",
        "publish",
        "prune",
        "settings",
        "serve",
        "humans",
        "agents",
        "endpoints",
        "demo",
        "doctor",
        "top",
        "health",
    ):
        assert re.search(rf"^  {command} ", help_text, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["migrate"],
        ["adapters"],
        ["adapters", "list"],
        ["adapters", "enable"],
        ["adapters", "disable"],
        ["todos"],
        ["todos", "list"],
        ["todos", "show"],
        ["dead-letters"],
        ["dead-letters", "list"],
        ["dead-letters", "show"],
        ["publish"],
        ["prune"],
        ["settings"],
        ["settings", "list"],
        ["settings", "get"],
        ["settings", "set"],
        ["doctor"],
        ["top"],
        ["health"],
        ["health", "live"],
        ["health", "ready"],
        ["health", "upkeep"],
    ],
    ids=" ".join,
)
def test_help_has_a_summary_and_examples(nowhere: Cli, arguments: list[str]) -> None:
    help_text = nowhere.ok(*arguments, "--help").text
    summary = help_text.split("\n\n")[1].strip()
    assert summary.endswith(".")
    assert "\n" not in summary
    assert f"switchboard {' '.join(arguments)}" in help_text.partition("Examples:\n")[2]


def test_the_installed_command_is_the_same(nowhere: Cli) -> None:
    script = Path(sys.executable).with_name("switchboard")
    if not script.exists():
        pytest.skip("the package is not installed beside this Python")
    shown = subprocess.run([script, "--version"], env=nowhere.environment, capture_output=True, check=True, timeout=60)
    assert shown.stdout == nowhere.ok("--version").out


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tods"], "tods"),
        (["todos", "list", "--stat", "done"], "--stat"),
        (["todos", "list", "--state", "pendin"], "'pending', 'claimed', 'done', 'failed'"),
        (["todos", "list", "--limit", "0"], "--limit"),
        (["todos", "list", "--before", "x"], "--before"),
        (["todos", "show"], "ID"),
        (["todos", "show", "seven"], "seven"),
        (["adapters", "enable"], "NAME"),
        (["dead-letters", "show", "1", "2", "--body"], "--body"),
        (["dead-letters", "show", "1", "--body", "--json"], "--body"),
        (["publish", "deploys", "no-such-file"], "no-such-file"),
        (["publish", "deploys", "--header", PASSWORD], "NAME=VALUE"),
        (["publish", "deploys", "--header", f"a={PASSWORD}", "--header", "a=2"], "'a' is given twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_status_2_and_named(nowhere: Cli, arguments: list[str], named: str) -> None:
    ran = nowhere(*arguments)
    assert ran.status == 2
    assert named in ran.err
    assert ran.out == b""


# The ledger that is not there


@pytest.mark.parametrize("arguments", [["migrate"], *ON_THE_LEDGER], ids=" ".join)
def test_without_a_database_url_one_line_names_it(nowhere: Cli, arguments: list[str]) -> None:
    ran = nowhere(*arguments)
    assert (ran.status, ran.out, ran.err) == (1, b"", "switchboard: db: empty DATABASE_URL\n")


@pytest.mark.parametrize("arguments", [["migrate"], ["todos", "list", "--json"]], ids=" ".join)
def test_a_database_that_is_away_is_one_line_without_the_password(nowhere: Cli, arguments: list[str]) -> None:
    ran = nowhere(*arguments, DATABASE_URL=f"postgresql://someone:{PASSWORD}@127.0.0.1:1/nothing")
    assert (ran.status, ran.out) == (1, b"")
    assert ran.err.startswith("switchboard: db: connect: ")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("url", [f"postgresql://someone:{PASSWORD}@[", f"password='{PASSWORD}"], ids=["url", "pairs"])
def test_an_address_that_cannot_be_read_does_not_show_the_password(nowhere: Cli, url: str) -> None:
    ran = nowhere("todos", "list", DATABASE_URL=url)
    assert (ran.status, ran.out) == (1, b"")
    assert "DATABASE_URL" in ran.err


def test_a_database_that_is_not_migrated_says_what_to_run(empty: Cli) -> None:
    for arguments in ON_THE_LEDGER:
        ran = empty(*arguments)
        assert (ran.status, ran.out) == (1, b""), arguments
        assert "run `switchboard migrate`" in ran.err
        assert ran.err.count("\n") == 1


# migrate


def test_migrate_applies_what_is_missing_once(empty: Cli, database_url: str) -> None:
    first = empty.ok("migrate")
    assert "applied 0001_init\n" in first.text

    assert empty.ok("migrate").text == "up to date\n"
    assert empty.ok("migrate", "--json").json == []
    with psycopg.connect(database_url) as connection:
        rows = connection.execute("SELECT version FROM schema_migrations ORDER BY version").fetchall()
    assert [f"applied {version}" for (version,) in rows] == first.text.splitlines()


def test_migrate_lists_what_it_applied_as_json(empty: Cli) -> None:
    assert {"version": "0001_init"} in empty.ok("migrate", "--json").json


# Listings in general


@pytest.mark.parametrize("arguments", LISTINGS, ids=" ".join)
def test_an_empty_listing_says_so(cli: Cli, arguments: list[str]) -> None:
    said = f"no {arguments[0].replace('-', ' ')}\n"
    assert cli.ok(*arguments).text == said
    assert cli.on_terminal(*arguments) == said
    assert cli.ok(*arguments, "--json").out == b"[]\n"


def test_a_reader_that_goes_away_is_no_traceback(cli: Cli, connection: Connection) -> None:
    # Given more than a pipe holds
    connection.execute("INSERT INTO todos (queue, title) SELECT 'q', repeat('x', 70) FROM generate_series(1, 3000)")

    # When the reader leaves after one line
    arguments = [*COMMAND, "todos", "list", "--limit", "3000"]
    with subprocess.Popen(
        arguments, cwd=cli.folder, env=cli.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()

    # Then nothing is said
    assert said == b""


def test_interrupted_it_exits_130_and_says_nothing(cli: Cli, connection: Connection, database_url: str) -> None:
    # Given a lock that the command waits for
    with psycopg.connect(database_url) as other:
        other.execute("LOCK TABLE todos")
        with inherited_by_none():
            started = subprocess.Popen(
                [*COMMAND, "todos", "list"],
                cwd=cli.folder,
                env=cli.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        with started as process:
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            eventually(lambda: (connection.execute(waiting).fetchone() or [0])[0], what="the command waits")

            # When it is interrupted
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)

    # Then it ends at once, quietly
    assert (process.returncode, out, err) == (130, b"", b"")


# adapters


def test_adapters_are_listed_with_what_the_ledger_knows(cli: Cli, connection: Connection) -> None:
    register(connection, "deploys", broker=f"redis://someone:{PASSWORD}@example.com")
    register(connection, "repositories")

    rows = cli.ok("adapters", "list", "--json").json
    assert [row["name"] for row in rows] == ["deploys", "repositories"]
    assert {key: rows[0][key] for key in ("type", "queue", "enabled", "key_prefix", "family", "trust_mode")} == {
        "type": "redis-stream",
        "queue": "deploys",
        "enabled": True,
        "key_prefix": "redis:deploys",
        "family": "queue",
        "trust_mode": "queue",
    }
    assert rows[0]["config"]["broker"] == "redis://someone:«redacted»@example.com"

    header, first, second = cli.ok("adapters", "list").text.splitlines()
    columns = ["name", "type", "queue", "enabled", "trust", "lag", "pending", "consumers", "last_poll", "last_error"]
    assert header.split() == columns
    assert first.split() == ["deploys", "redis-stream", "deploys", "yes", "queue", "?", "?", "0"]
    assert second.split()[0] == "repositories"


def test_what_is_open_or_off_stands_out_among_the_adapters(cli: Cli, connection: Connection) -> None:
    with connection.transaction():
        for name, trust_mode, off in (("public", "open", ""), ("repositories", "signed", "its secret is not set")):
            upsert_adapter(
                connection,
                name=name,
                family="webhook",
                trust_mode=trust_mode,  # type: ignore[arg-type]
                queue=name,
                namespace=f"generic:{name}",
                config={"type": "generic", "off": off},
            )
    _, public, repositories = cli.ok("adapters", "list").text.splitlines()
    assert "OPEN: nobody is verified" in public
    assert "OFF: its secret is not set" in repositories


def test_adapters_are_disabled_and_enabled(cli: Cli, connection: Connection) -> None:
    for name in ("deploys", "repositories", "audit"):
        register(connection, name)

    def enabled() -> dict[str, bool]:
        return dict(connection.execute("SELECT name, enabled FROM adapters").fetchall())

    disabled = cli.ok("adapters", "disable", "repositories", "deploys", "--json").json
    assert [(row["name"], row["enabled"]) for row in disabled] == [("deploys", False), ("repositories", False)]
    assert enabled() == {"deploys": False, "repositories": False, "audit": True}

    assert cli.ok("adapters", "enable", "deploys").text.splitlines()[1].split()[3] == "yes"
    assert enabled() == {"deploys": True, "repositories": False, "audit": True}


def test_an_unknown_adapter_is_named_and_nothing_is_changed(cli: Cli, connection: Connection) -> None:
    register(connection, "deploys")

    ran = cli("adapters", "disable", "deploys", "deplyos")
    assert (ran.status, ran.out) == (1, b"")
    assert ran.err == "switchboard: no adapter deplyos; did you mean 'deploys'?\n"
    assert connection.execute("SELECT enabled FROM adapters").fetchall() == [(True,)]


# todos


def test_todos_are_listed_newest_first_and_page_by_page(cli: Cli, connection: Connection) -> None:
    ids = [create_todo(connection, queue="deploys", title=f"deploy {n}")[0].id for n in range(5)]
    create_todo(connection, queue="audit", title="other")
    connection.execute("UPDATE todos SET state = 'done', completed_at = now() WHERE id = %s", (ids[0],))

    def listed(*options: str) -> list[int]:
        return [row["id"] for row in cli.ok("todos", "list", "--queue", "deploys", *options, "--json").json]

    assert listed() == ids[::-1]
    assert listed("--limit", "2") == [ids[4], ids[3]]
    assert listed("--limit", "2", "--before", str(ids[3])) == [ids[2], ids[1]]
    assert listed("--state", "done") == [ids[0]]
    assert listed("--state", "pending") == ids[:0:-1]
    assert len(cli.ok("todos", "list", "--json").json) == 6


def test_todos_listed_for_people_are_a_narrow_table(cli: Cli, connection: Connection) -> None:
    todo, _ = create_todo(connection, queue="deploys", title="api 4.2 deployed " + "x" * 300)

    header, row = cli.ok("todos", "list").text.splitlines()
    assert header.split() == ["id", "queue", "state", "attempt", "created_at", "title"]
    assert row.split()[:4] == [str(todo.id), "deploys", "pending", "0"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row.split()[4])
    assert row.endswith("x…")

    for line in cli.on_terminal("todos", "list").splitlines():
        assert len(line) <= 80
    assert "api 4.2 deployed" in cli.on_terminal("todos", "list")


def test_a_title_cannot_steer_the_terminal_or_the_table(cli: Cli, connection: Connection) -> None:
    create_todo(connection, queue="deploys", title="\x1b[2J[bold]two\nlines[/bold]")

    for shown in (cli.ok("todos", "list").text, cli.on_terminal("todos", "list")):
        assert "\x1b[2J" not in shown
        assert "[bold]two lines[/bold]" in shown
        assert len(shown.splitlines()) == 2


def test_output_survives_a_terminal_that_knows_fewer_characters(cli: Cli, connection: Connection) -> None:
    create_todo(connection, queue="deploys", title="café 🚀")

    assert "caf? ?" in cli.ok("todos", "list", PYTHONIOENCODING="ascii").text
    assert cli.ok("todos", "list", "--json", PYTHONIOENCODING="ascii").json[0]["title"] == "café 🚀"


def test_a_todo_is_shown_whole(cli: Cli, connection: Connection) -> None:
    todo, _ = create_todo(
        connection, queue="deploys", title="deploy", payload={"service": "api"}, idempotency_key="redis:deploys:1-1"
    )
    connection.execute("UPDATE todos SET last_error = %s", (f"cannot reach amqp://someone:{PASSWORD}@example.com",))

    (row,) = cli.ok("todos", "show", str(todo.id), "--json").json
    assert row["payload"] == {"service": "api"}
    assert row["idempotency_key"] == "redis:deploys:1-1"
    assert row["last_error"] == "cannot reach amqp://someone:«redacted»@example.com"
    assert row["completed_at"] is None
    created_at = datetime.fromisoformat(row["created_at"])
    assert created_at == todo.created_at
    assert created_at.utcoffset() == timedelta(0)

    shown = cli.ok("todos", "show", str(todo.id)).text
    assert "idempotency_key: redis:deploys:1-1\n" in shown
    assert 'payload: {"service": "api"}\n' in shown
    assert f"todo {todo.id}" in cli.on_terminal("todos", "show", str(todo.id))


def test_json_has_every_column_and_keeps_the_value_of_numbers(cli: Cli, connection: Connection) -> None:
    numbers = '{"price": 1.10, "large": 12345678901234567890.123456789, "exp": 1e400}'
    connection.execute("INSERT INTO todos (queue, title, payload) VALUES ('q', 't', %s::jsonb)", (numbers,))
    columns = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'todos' AND is_generated = 'NEVER'"
    )

    out = cli.ok("todos", "list", "--json").out
    assert b'"price": 1.10' in out
    assert b"12345678901234567890.123456789" in out
    assert set(json.loads(out)[0]) >= {name for (name,) in columns}


def test_an_unknown_todo_is_named_and_nothing_is_shown(cli: Cli, connection: Connection) -> None:
    todo, _ = create_todo(connection, queue="deploys", title="deploy")

    for options in ([], ["--json"]):
        ran = cli("todos", "show", str(todo.id), "4711", *options)
        assert (ran.status, ran.out, ran.err) == (1, b"", "switchboard: no todo 4711\n")


# dead-letters


def test_dead_letters_are_listed_unless_they_are_resolved(cli: Cli, connection: Connection) -> None:
    first = dead_letter(connection, b"{not json", key="redis:deploys:1-1")
    second = dead_letter(connection, NOT_UTF8, key="redis:deploys:1-2")
    other = dead_letter(connection, b"", adapter="audit")
    connection.execute("UPDATE dead_letters SET resolved_at = now() WHERE id = %s", (first,))

    def listed(*options: str) -> list[int]:
        return [row["id"] for row in cli.ok("dead-letters", "list", *options, "--json").json]

    assert listed() == [other, second]
    assert listed("--all") == [other, second, first]
    assert listed("--all", "--adapter", "deploys") == [second, first]
    assert listed("--all", "--limit", "1", "--before", str(other)) == [second]

    header, *rows = cli.ok("dead-letters", "list", "--all").text.splitlines()
    assert header.split() == ["id", "adapter", "reason", "received_at", "payload_size", "detail"]
    assert [row.split()[0] for row in rows] == [str(other), str(second), str(first)]
    assert rows[0].endswith("password=«redacted» is no JSON")


def test_dead_letters_are_shown_with_their_exact_bytes(cli: Cli, connection: Connection) -> None:
    text = dead_letter(connection, "{not json, café".encode(), key="redis:deploys:1-1")
    binary = dead_letter(connection, NOT_UTF8, key="redis:deploys:1-2")

    shown_text, shown_binary = cli.ok("dead-letters", "show", str(text), str(binary), "--json").json
    assert shown_text["payload"] == "{not json, café"
    assert base64.b64decode(shown_text["payload_base64"]) == "{not json, café".encode()
    assert shown_text["headers"] == {"x-trace": "7"}
    assert shown_text["reason"] == "invalid"
    trust = [shown_text[key] for key in ("family", "trust_mode", "verified", "source_ip")]
    assert trust == ["queue", "queue", False, None]
    assert shown_binary["payload"] is None
    assert base64.b64decode(shown_binary["payload_base64"]) == NOT_UTF8

    assert cli.ok("dead-letters", "show", str(binary), "--body").out == NOT_UTF8
    shown = cli.ok("dead-letters", "show", str(text), str(binary)).text
    assert "payload: {not json, café\n" in shown
    assert "payload: not text; --body writes it\n" in shown
    assert f"dead letter {text}" in cli.on_terminal("dead-letters", "show", str(text))


def test_an_unknown_dead_letter_is_named(cli: Cli) -> None:
    for options in ([], ["--json"], ["--body"]):
        ran = cli("dead-letters", "show", "4711", *options)
        assert (ran.status, ran.out, ran.err) == (1, b"", "switchboard: no dead letter 4711\n")


# prune


def test_prune_deletes_what_is_too_old_and_keeps_live_todos(cli: Cli, connection: Connection) -> None:
    # Given an old todo that is done, an old one that is pending, and a new one that is done
    connection.execute("""
        INSERT INTO todos (queue, title, state, completed_at, created_at) VALUES
            ('q', 'old and done', 'done', now() - interval '40 days', now() - interval '40 days'),
            ('q', 'old and pending', 'pending', NULL, now() - interval '40 days'),
            ('q', 'new and done', 'done', now(), now())
    """)

    # When I prune
    assert cli.ok("prune").text == "pruned 0 events, 1 todos and 0 dead letters\n"

    # Then only the first is gone
    titles = connection.execute("SELECT title FROM todos ORDER BY id").fetchall()
    assert titles == [("old and pending",), ("new and done",)]
    assert cli.ok("prune", "--json").json == [{"events": 0, "todos": 0, "dead_letters": 0, "unresolved": 0}]


def test_a_dry_prune_says_the_same_and_deletes_nothing(cli: Cli, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO todos (queue, title, state, completed_at) VALUES ('q', 't', 'done', now() - interval '40 days')"
    )
    assert cli.ok("prune", "--dry-run").text == "would prune 0 events, 1 todos and 0 dead letters\n"
    assert connection.execute("SELECT count(*) FROM todos").fetchone() == (1,)
    assert connection.execute("SELECT count(*) FROM upkeep").fetchone() == (0,)
    assert cli.ok("prune", "--json").json[0]["todos"] == 1


def test_dead_letters_that_nobody_had_settled_are_said_to_be_pruned(cli: Cli, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO dead_letters (adapter, idempotency_key, reason, detail, payload, received_at) "
        "VALUES ('a', 'k', 'invalid', 'd', '', now() - interval '91 days')"
    )
    assert cli.ok("prune").text == "pruned 0 events, 0 todos and 1 dead letters (1 of them unresolved)\n"


def test_prune_names_a_setting_that_is_no_number(cli: Cli, connection: Connection) -> None:
    connection.execute("UPDATE settings SET value = 'many' WHERE key = 'retention_max_rows'")
    ran = cli("prune")
    assert (ran.status, ran.out) == (1, b"")
    assert "retention_max_rows" in ran.err


def test_prune_leaves_it_to_another_session_that_prunes(cli: Cli, connection: Connection, database_url: str) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("SELECT pg_advisory_xact_lock(hashtext('switchboard.prune'))")
        assert "another session" in cli.ok("prune").text
        assert cli.ok("prune", "--json").json == []


# settings


def test_settings_are_listed_with_their_defaults_and_meaning(cli: Cli, connection: Connection) -> None:
    rows = {row["key"]: row for row in cli.ok("settings", "list", "--json").json}
    assert set(rows) == {
        "retention_max_age_days", "retention_max_rows", "dead_letters_max_age_days", "dead_letters_max_rows"
    }  # fmt: skip
    assert (rows["retention_max_age_days"]["value"], rows["retention_max_age_days"]["default"]) == ("30", 30)
    assert "ended todos" in cli.ok("settings", "list").text


def test_a_setting_that_is_set_is_what_prune_goes_by(cli: Cli, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO todos (queue, title, state, completed_at) VALUES ('q', 't', 'done', now() - interval '10 days')"
    )
    assert "7" in cli.ok("settings", "set", "retention_max_age_days", "7").text
    assert cli.ok("settings", "get", "retention_max_age_days").text == "7\n"
    assert cli.ok("prune", "--json").json[0]["todos"] == 1


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5", "", "99999999999999999999999", "36501"])
def test_a_value_that_a_setting_may_not_have_is_refused_and_changes_nothing(
    cli: Cli, connection: Connection, value: str
) -> None:
    ran = cli("settings", "set", "--", "retention_max_age_days", value)
    assert ran.status == 1
    assert "retention_max_age_days: expected a whole number from 1 to 36500" in ran.err
    assert cli.ok("settings", "get", "retention_max_age_days").text == "30\n"


@pytest.mark.parametrize("arguments", [["get", "retention_max_age"], ["set", "retention_max_age", "7"]])
def test_an_unknown_setting_is_named_with_the_nearest(cli: Cli, connection: Connection, arguments: list[str]) -> None:
    ran = cli("settings", *arguments)
    assert (ran.status, ran.out) == (1, b"")
    assert "no setting retention_max_age; did you mean 'retention_max_age_days'?" in ran.err


# publish


def test_a_file_is_one_message(publisher: Cli, redis_client: "redis.Redis") -> None:
    (publisher.folder / "message.json").write_bytes(b'{"a":\n\n1}\n')
    published = publisher.ok("publish", "deploys", "message.json", "--header", "content-type=application/json")
    assert published.text == "published 1 message to deploys\n"

    assert redis_client.xlen("deploys") == 1
    ((_, fields),) = entries(redis_client, "deploys")
    assert fields == {b"content-type": b"application/json", b"body": b'{"a":\n\n1}\n'}


@pytest.mark.parametrize("file", [[], ["-"]], ids=["nothing", "dash"])
def test_standard_input_is_published_byte_for_byte(
    publisher: Cli, redis_client: "redis.Redis", file: list[str]
) -> None:
    (published,) = publisher.ok("publish", "deploys", *file, "--json", stdin=NOT_UTF8).json
    assert published["adapter"] == "deploys"
    assert entries(redis_client, "deploys") == [(published["id"].encode(), {b"body": NOT_UTF8})]


def test_each_line_is_a_message_and_empty_ones_are_skipped(publisher: Cli, redis_client: "redis.Redis") -> None:
    lines = b'{"n": 1}\n\n{"n": 2}\r\n   \n{"n": 3}'
    published = publisher.ok("publish", "deploys", "--lines", "--json", stdin=lines).json

    assert redis_client.xlen("deploys") == 3
    found = entries(redis_client, "deploys")
    assert [fields[b"body"] for _, fields in found] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}']
    assert [row["id"].encode() for row in published] == [entry_id for entry_id, _ in found]
    assert publisher.ok("publish", "deploys", "--lines", stdin=lines).text == "published 3 messages to deploys\n"


def test_a_refused_line_takes_its_step_with_it_and_those_before_are_told(
    publisher: Cli, redis_client: "redis.Redis"
) -> None:
    ran = publisher("publish", "repositories", "--lines", "--json", stdin=b'{"n": 1}\nnot an object\n{"n": 3}\n')
    assert (ran.status, ran.json) == (1, [])
    assert "(0 published, none of the lines after them)" in ran.err
    assert redis_client.dbsize() == 0

    # Given more lines than one step takes, and the refused one in the second
    lines = b"".join(b'{"n": %d}\n' % number for number in range(CHUNK + 3))
    ran = publisher("publish", "repositories", "--lines", "--json", stdin=lines + b"not an object\n")
    assert ran.status == 1
    assert ran.err.startswith("switchboard: message 4 of 4: publish: ")
    assert f"({CHUNK} published, none of the lines after them)" in ran.err
    assert len(ran.json) == redis_client.xlen("repositories") == CHUNK
    assert [row["id"].encode() for row in ran.json] == [
        entry_id for entry_id, _ in entries(redis_client, "repositories")
    ]


def test_headers_that_would_be_lost_are_refused(publisher: Cli, redis_client: "redis.Redis") -> None:
    without_body_field = publisher("publish", "repositories", "--header", "a=b", stdin=b'{"n": 1}')
    assert without_body_field.status == 2
    assert "repositories has no body field" in without_body_field.err

    the_body_field = publisher("publish", "deploys", "--header", "body=b", stdin=b"{}")
    assert the_body_field.status == 2
    assert redis_client.dbsize() == 0


def test_a_source_that_is_away_is_tried_again_for_as_long_as_the_timeout_says(
    publisher: Cli, own_valkey: ValkeyServer
) -> None:
    def publish(timeout: str) -> int:
        ran = publisher("publish", "deploys", "--timeout", timeout, stdin=b"{}", DEPLOYS_REDIS_URL=own_valkey.url)
        return ran.status

    own_valkey.kill()
    began = time.monotonic()
    assert publish("0") == 1
    one_try = time.monotonic() - began
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(publish, "30")
        time.sleep(one_try + 1)
        assert not waiting.done(), "it is still trying"
        own_valkey.start()
        assert waiting.result(timeout=30) == 0


def test_a_key_of_the_producers_own_is_published_where_the_adapter_has_one(
    publisher: Cli, redis_client: "redis.Redis"
) -> None:
    refused = publisher("publish", "deploys", "--key", "k", stdin=b"{}")
    assert refused.status == 1
    assert 'set key = "' in refused.err
    with_lines = publisher("publish", "deploys", "--key", "k", "--lines", stdin=b"{}")
    assert with_lines.status == 2
    assert redis_client.dbsize() == 0

    (publisher.folder / "keyed.toml").write_text(
        (publisher.folder / "switchboard.toml").read_text().replace('body = "body"', 'body = "body"\nkey = "id"')
    )
    publisher.ok("publish", "deploys", "--key", "k", stdin=b"{}", SWITCHBOARD_CONFIG="keyed.toml")
    ((_, fields),) = entries(redis_client, "deploys")
    assert fields == {b"body": b"{}", b"id": b"k"}


def test_an_adapter_that_is_not_configured_is_named_with_the_nearest(publisher: Cli) -> None:
    ran = publisher("publish", "deplyos", stdin=b"{}")
    assert (ran.status, ran.out) == (2, b"")
    assert "no adapter 'deplyos' in switchboard.toml; did you mean 'deploys'?" in ran.err


def test_a_wrong_configuration_is_one_line_that_names_its_key(publisher: Cli) -> None:
    unset = publisher("publish", "deploys", stdin=b"{}", DEPLOYS_REDIS_URL="")
    assert (unset.status, unset.out) == (1, b"")
    assert "DEPLOYS_REDIS_URL" in unset.err
    assert unset.err.count("\n") == 1

    missing = publisher("publish", "deploys", stdin=b"{}", SWITCHBOARD_CONFIG="elsewhere.toml")
    assert missing.status == 1
    assert "elsewhere.toml" in missing.err


@pytest.mark.parametrize("options", [[], ["--json"], ["--lines"]], ids=["plain", "json", "lines"])
def test_a_source_that_refuses_is_one_line_without_the_password(
    publisher: Cli, redis_url: str, options: list[str]
) -> None:
    for url in (with_password(redis_url), f"redis://someone:{PASSWORD}@127.0.0.1:1/0"):
        ran = publisher("publish", "deploys", "--timeout", "0", *options, stdin=b"{}", DEPLOYS_REDIS_URL=url)
        assert ran.status == 1
        assert ran.err.count("\n") == 1
        assert "publish to redis://127.0.0.1" in ran.err
        assert ran.out == (b"[]\n" if options == ["--json"] else b"")


def test_the_password_of_the_database_is_in_no_output(cli: Cli, database_url: str, connection: Connection) -> None:
    register(connection, "deploys")
    todo, _ = create_todo(connection, queue="deploys", title="deploy")
    letter = dead_letter(connection, b"{")
    # A server that asks for no password takes any.
    url = add_password(database_url)
    commands: list[list[str]] = [
        ["migrate"],
        *LISTINGS,
        ["adapters", "disable", "deploys"],
        ["adapters", "enable", "deploys"],
        ["todos", "show", str(todo.id)],
        ["todos", "show", "4711"],
        ["dead-letters", "show", str(letter)],
        ["prune"],
    ]
    for arguments in commands:
        # Cli itself looks for the password.
        assert cli(*arguments, DATABASE_URL=url).status == ("4711" in arguments)


def add_password(url: str) -> str:
    separator = "&" if "?" in url else "?"
    return url if urlsplit(url).password else f"{url}{separator}password={PASSWORD}"


def entries(client: "redis.Redis", stream: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    xrange: Callable[[str], Any] = client.xrange
    return [(entry_id, dict(fields)) for entry_id, fields in xrange(stream)]
