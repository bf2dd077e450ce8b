"""The web's side when something is killed, frozen, flooded or told to stop."""

import concurrent.futures
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import psycopg
import pytest
from senders import GITHUB_SECRET, Sent, github
from serving import Served
from waiting import eventually

from switchboard.embedded import PostgresServer

CONFIG = """
[web]
max_in_progress = 20
read_timeout = "60s"
trusted_proxies = ["127.0.0.1"]

[adapters.repos]
type = "github"
secret = "${GITHUB_SECRET}"
queue = "repos"
"""

#: Connections to PostgreSQL that the web's process may have, as its service has it.
CONNECTIONS = 4


@pytest.fixture
def served(own_postgres: PostgresServer, tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path, own_postgres.url, CONFIG, {"GITHUB_SECRET": GITHUB_SECRET}) as served:
        yield served


def deliveries(count: int) -> list[Sent]:
    return [github(json.dumps({"n": n}).encode(), delivery=f"delivery-{n}") for n in range(count)]


def heard(served: Served, sent: Sent) -> int:
    """The status of the answer; 0 for none."""
    try:
        return served.send("repos", sent).status_code
    except httpx.TransportError:
        return 0


def send_until_taken(served: Served, sent: Sent) -> list[int]:
    """As a sender that tries again does, until it hears 202: the status of each try, 0 for none."""
    statuses = []
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline:
        statuses.append(heard(served, sent))
        if statuses[-1] == 202:
            return statuses
        time.sleep(0.05)
    raise AssertionError(f"never taken: {statuses[-20:]}")


@contextmanager
def locked(served: Served) -> Iterator[None]:
    """Nobody else can write events meanwhile."""
    with psycopg.connect(served.database_url) as connection:
        connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        yield


def in_progress(
    served: Served, requests: Sequence[Sent], pool: concurrent.futures.Executor
) -> list["concurrent.futures.Future[httpx.Response]"]:
    return [pool.submit(served.send, "repos", sent) for sent in requests]


def waits_for_lock(served: Served) -> bool:
    return bool(served.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))


def test_every_delivery_that_was_acknowledged_has_its_todo_exactly_once_through_kills_of_postgresql(
    served: Served, own_postgres: PostgresServer
) -> None:
    # Given a sender of many deliveries that tries each again until it is acknowledged
    sent = deliveries(300)
    statuses: list[list[int]] = []
    done = threading.Event()

    def kill_and_restart() -> None:
        for threshold in (40, 120, 200):
            eventually(lambda least=threshold: len(statuses) >= least or done.is_set(), within=100)  # type: ignore[misc]
            own_postgres.kill()
            own_postgres.start()

    # When PostgreSQL is killed and started again while they are sent
    killer = threading.Thread(target=kill_and_restart)
    killer.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for one in pool.map(lambda each: send_until_taken(served, each), sent):
                statuses.append(one)
    finally:
        done.set()
        killer.join()
    # Then each has exactly one todo, and what was heard meanwhile was a request to come again
    keys = served.rows("SELECT idempotency_key FROM todos ORDER BY id")
    assert sorted(keys) == sorted({(f"github:repos:delivery-{n}",) for n in range(len(sent))})
    assert {status for one in statuses for status in one} <= {0, 202, 503}
    assert any(503 in one for one in statuses), "nobody noticed the kills"
    assert served.output.count("the ledger is unavailable") <= 12


def test_a_frozen_postgresql_is_answered_503_and_nothing_waits_for_ever(
    served: Served, own_postgres: PostgresServer
) -> None:
    [sent] = deliveries(1)
    own_postgres.suspend()
    try:
        answer = served.send("repos", sent)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
    finally:
        own_postgres.resume()
    send_until_taken(served, sent)
    assert served.value("SELECT count(*) FROM todos") == 1


def test_a_flood_takes_no_more_connections_than_its_own(served: Served) -> None:
    sent = deliveries(100)
    with concurrent.futures.ThreadPoolExecutor(60) as pool:
        with locked(served):
            answers = in_progress(served, sent, pool)
            eventually(lambda: waits_for_lock(served), within=60)
            eventually(lambda: any(each.done() for each in answers), within=60)
            refused = next(each.result() for each in answers if each.done())
            assert refused.status_code == 503
            assert refused.headers["Retry-After"]
            ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'switchboard'"
            assert served.value(ours) <= CONNECTIONS
        statuses = [answer.result().status_code for answer in answers]
    assert set(statuses) <= {202, 503}
    stored = served.value("SELECT count(*) FROM todos")
    assert stored >= statuses.count(202) > 0


def begin(served: Served, *headers: str, size: int = 1000) -> socket.socket:
    """A request whose body never ends; its first byte is sent."""
    sender = socket.create_connection(("127.0.0.1", served.port), 60)
    lines = ["POST /webhooks/repos HTTP/1.1", "Host: x", f"Content-Length: {size}", *headers, "", "x"]
    sender.sendall("\r\n".join(lines).encode())
    return sender


def test_who_signs_nothing_is_refused_before_the_body_and_takes_nobodys_place(served: Served) -> None:
    with ExitStack() as senders:
        held = [senders.enter_context(closing(begin(served))) for _ in range(60)]
        assert served.send("repos", deliveries(1)[0]).status_code == 202
        assert {sender.recv(4096)[:13] for sender in held} == {b"HTTP/1.1 401 "}


def test_bodies_that_never_end_take_only_the_places_of_their_own_address(served: Served) -> None:
    forged, flooder = "X-Hub-Signature-256: sha256=" + "0" * 64, "X-Forwarded-For: 203.0.113.9"
    mine, others = deliveries(2)
    with ExitStack() as senders:
        for _ in range(110):
            senders.enter_context(closing(begin(served, forged, flooder)))
        from_there = mine.having("X-Forwarded-For", "203.0.113.9")
        eventually(lambda: served.send("repos", from_there).status_code == 503, within=60)
        assert served.send("repos", others.having("X-Forwarded-For", "198.51.100.7")).status_code == 202
    eventually(lambda: served.send("repos", from_there).status_code == 202, within=60)


def test_the_bytes_of_bodies_that_never_end_are_those_of_their_own_address_alone(served: Served) -> None:
    forged, flooder = "X-Hub-Signature-256: sha256=" + "0" * 64, "X-Forwarded-For: 203.0.113.9"
    size = 25 * 1024**2
    large = github(json.dumps({"n": "x" * 8 * 1024**2}).encode(), delivery="large")
    with ExitStack() as senders:
        # Given a stranger who sends all but the last byte of as many large bodies as are held of all together
        for _ in range(11):
            sender = senders.enter_context(closing(begin(served, forged, flooder, size=size)))
            # Some are answered before they are read.
            with suppress(ConnectionError):
                sender.sendall(b"x" * (size - 2))
        # Then a sender from elsewhere is taken, and the stranger has only a part
        assert served.send("repos", large.having("X-Forwarded-For", "198.51.100.7")).status_code == 202
        again = large.having("X-Forwarded-For", "203.0.113.9")
        eventually(lambda: heard(served, again) == 503, within=60)
    eventually(lambda: heard(served, again) == 202, within=60)


def test_idle_connections_beyond_the_limit_make_room_for_a_delivery(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    secret = {"GITHUB_SECRET": GITHUB_SECRET}
    with Served(tmp_path, own_postgres.url, CONFIG, secret, open_files=128) as served, ExitStack() as senders:
        for _ in range(300):
            senders.enter_context(closing(socket.create_connection(("127.0.0.1", served.port), 60)))
        sent = deliveries(5)
        assert [served.send("repos", each).status_code for each in sent] == [202] * len(sent)
        assert "Traceback" not in served.output
        assert "out of system resource" not in served.output
        assert served.output.count("as many as there may be") == 1


def test_a_key_that_somebody_has_locked_fails_alone(served: Served) -> None:
    first, held, *neighbours = deliveries(8)
    with (
        psycopg.connect(served.database_url) as connection,
        concurrent.futures.ThreadPoolExecutor(len(neighbours) + 2) as pool,
    ):
        # Given a key that a transaction has written and not committed, and deliveries that wait together
        connection.execute(
            "INSERT INTO events (source, family, event_type, external_id, trust_mode, verified, payload, payload_size)"
            " VALUES ('repos', 'webhook', 'push', 'github:repos:delivery-1', 'signed', true, 'x', 1)"
        )
        with connection.transaction(force_rollback=True):
            connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
            before = in_progress(served, [first], pool)
            eventually(lambda: waits_for_lock(served), within=60)
            answers = in_progress(served, [held, *neighbours], pool)
            eventually(lambda: served.established() >= len(answers) + 1, within=60)
        # Then all but the one with that key are stored, and nobody else was refused for it
        assert [answer.result().status_code for answer in before + answers] == [202, 503] + [202] * len(neighbours)
        connection.rollback()
    assert "the ledger is unavailable" not in served.output
    assert send_until_taken(served, held) == [202]


def test_a_stop_answers_what_is_in_progress_and_ends_well(served: Served) -> None:
    sent = deliveries(10)
    with concurrent.futures.ThreadPoolExecutor(len(sent)) as pool:
        with locked(served):
            answers = in_progress(served, sent, pool)
            eventually(lambda: waits_for_lock(served), within=60)
            # All of them have been read: one is being stored, the others wait for it.
            eventually(lambda: served.established() >= len(sent), within=60)
            served.signal(signal.SIGTERM)
            eventually(lambda: "Shutting down" in served.output, within=60)
            with pytest.raises(httpx.TransportError):
                eventually(lambda: served.send("repos", sent[0]) is None, within=60)
        assert [answer.result().status_code for answer in answers] == [202] * len(sent)
    assert served.ended() == 0
    assert served.value("SELECT count(*) FROM todos") == len(sent)


def test_it_is_started_again_where_it_was_killed_and_a_doubtful_delivery_is_stored_once(served: Served) -> None:
    [sent] = deliveries(1)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        with locked(served):
            [answer] = in_progress(served, [sent], pool)
            eventually(lambda: waits_for_lock(served), within=60)
            served.process.kill()
        with pytest.raises(httpx.TransportError):
            answer.result()
    served.process.wait()
    served.start()
    served.wait_ready()
    assert send_until_taken(served, sent) == [202]
    assert served.value("SELECT count(*) FROM todos") == 1


@pytest.mark.parametrize(
    ("config", "env", "said"),
    [
        ("[adapters.a]\ntype = 'githup'\n", {}, "did you mean 'github'?"),
        ("[adapters.a]\ntype = 'github'\nqueue = 'q'\nsecret = 'literal'\n", {}, "a literal password"),
        ("[adapters.a]\ntype = 'github'\nqueue = 'q'\nmax_body = '300MiB'\n", {}, "max_body"),
        ("[web]\nmax_in_progres = 1\n", {}, "did you mean 'max_in_progress'?"),
        ("", {"DATABASE_URL": ""}, "db: empty DATABASE_URL"),
        ("", {"DATABASE_URL": "postgresql://nobody@127.0.0.1:1/x"}, "db: connect: "),
    ],
)
def test_what_is_wrong_ends_it_with_one_line_and_status_1(
    tmp_path: Path, config: str, env: dict[str, str], said: str
) -> None:
    served = Served(tmp_path, "postgresql://127.0.0.1:1/none", config, env)
    served.start()
    try:
        assert served.ended() == 1
        [line] = served.output.splitlines()
        assert line.startswith("switchboard: ")
        assert said in line
    finally:
        served.kill()


def test_long_bodies_are_parsed_one_at_a_time_whatever_their_adapters(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    # Given a team's own function that notes when it begins and when it has ended
    noted = tmp_path / "noted"
    (tmp_path / "slowly.py").write_text(
        "import time\n"
        "from switchboard.model import Shape\n"
        "def note(what):\n"
        f"    with open({str(noted)!r}, 'a') as file: print(what, file=file, flush=True)\n"
        "def normalize(delivery):\n"
        "    note('begin'); time.sleep(0.5); note('end')\n"
        "    return Shape(title='t', kind='', event_type='', payload=None)\n"
    )
    config = "".join(
        f'[adapters.n{n}]\ntype = "generic"\ntrust = "open"\nqueue = "q"\nprovider = "slowly:normalize"\n'
        for n in range(3)
    )
    long = json.dumps({"text": "x" * 300_000}).encode()
    # When three adapters have a long body each
    with Served(tmp_path, own_postgres.url, config) as served, concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda n: served.post(f"/webhooks/n{n}", long), range(3)))
    # Then no two were parsed at once
    assert [answer.status_code for answer in answers] == [202] * 3
    assert noted.read_text().split() == ["begin", "end"] * 3
