"""The proxy itself, in front of a real Valkey: what it does to a client is what the fault tests rest on."""

import socket
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import psutil
import pytest
import redis
from proxy import Proxy
from waiting import eventually

PING = b"*1\r\n$4\r\nPING\r\n"
PONG = b"+PONG\r\n"


@pytest.fixture
def proxy(redis_url: str) -> Iterator[Proxy]:
    server = urlsplit(redis_url)
    assert server.hostname
    with Proxy(server.hostname, server.port or 6379) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: Proxy) -> Iterator[socket.socket]:
    """A client that has had an answer through the proxy, so that both ends are known to be connected."""
    with connect(proxy) as client:
        assert ask(client) == PONG
        yield client


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection((proxy.url_host, proxy.port), timeout=5)


def ask(client: socket.socket) -> bytes:
    client.sendall(PING)
    return client.recv(100)


def test_commands_and_large_values_pass_unchanged_both_ways(proxy: Proxy, redis_client: "redis.Redis") -> None:
    value = bytes(range(256)) * 20_000
    database = redis_client.connection_pool.connection_kwargs.get("db", 0)
    with redis.Redis(host=proxy.url_host, port=proxy.port, db=database) as client:
        client.set("through", value)
        assert client.get("through") == value
    assert redis_client.get("through") == value


def test_cut_resets_present_connections_and_new_ones_work(proxy: Proxy, connection: socket.socket) -> None:
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        connection.recv(1)
    with connect(proxy) as another:
        assert ask(another) == PONG


def test_cut_resets_the_server_side_too(proxy: Proxy, connection: socket.socket) -> None:
    with connect(proxy) as named:
        named.sendall(b"CLIENT SETNAME seen-by-the-server\r\n")
        assert named.recv(100) == b"+OK\r\n"
        assert "seen-by-the-server" in names(connection)
        proxy.cut()
    with connect(proxy) as another:
        eventually(lambda: "seen-by-the-server" not in names(another), what="the server has dropped it")


def names(client: socket.socket) -> str:
    client.sendall(b"CLIENT LIST\r\n")
    answer = client.recv(65_536)
    while not answer.endswith(b"\n\r\n"):
        answer += client.recv(65_536)
    return answer.decode()


def test_refuse_turns_new_connections_away_and_keeps_present_ones(proxy: Proxy, connection: socket.socket) -> None:
    proxy.refuse()
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    assert ask(connection) == PONG

    proxy.accept()
    with connect(proxy) as another:
        assert ask(another) == PONG


def test_stall_holds_traffic_of_old_and_new_connections_until_flow(proxy: Proxy, connection: socket.socket) -> None:
    proxy.stall()
    with connect(proxy) as another:
        for client in (connection, another):
            client.settimeout(0.3)
            client.sendall(PING)
            with pytest.raises(TimeoutError):
                client.recv(1)

        proxy.flow()
        for client in (connection, another):
            client.settimeout(5)
            assert client.recv(100) == PONG


def test_stall_holds_a_reply_that_was_already_asked_for(
    proxy: Proxy, connection: socket.socket, redis_client: "redis.Redis"
) -> None:
    database = redis_client.connection_pool.connection_kwargs.get("db", 0)
    connection.sendall(b"SELECT %d\r\n" % database)
    assert connection.recv(100) == b"+OK\r\n"
    connection.sendall(b"BLPOP list 0\r\n")
    eventually(lambda: "blpop" in {c["cmd"] for c in redis_client.client_list()}, what="it waits")

    proxy.stall()
    redis_client.rpush("list", "value")
    connection.settimeout(0.3)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    assert redis_client.llen("list") == 0

    proxy.flow()
    connection.settimeout(5)
    assert b"value" in connection.recv(100)


def test_half_close_ends_the_replies_and_still_forwards_requests(
    proxy: Proxy, connection: socket.socket, redis_client: "redis.Redis"
) -> None:
    database = redis_client.connection_pool.connection_kwargs.get("db", 0)
    proxy.half_close()
    assert connection.recv(1) == b""

    connection.sendall(b"SELECT %d\r\nSET written after-the-fin\r\n" % database)
    assert eventually(lambda: redis_client.get("written"), what="the request arrives") == b"after-the-fin"


@pytest.mark.parametrize("passed", [0, 1, 3, len(PONG)])
def test_reset_in_reply_passes_exactly_so_many_bytes(proxy: Proxy, connection: socket.socket, passed: int) -> None:
    proxy.reset_in_reply(passed)
    connection.sendall(PING)
    if passed:
        assert connection.recv(passed, socket.MSG_WAITALL) == PONG[:passed]
    with pytest.raises(ConnectionResetError):
        connection.recv(1)

    with connect(proxy) as another:
        assert ask(another) == PONG


def test_an_unreachable_server_shows_as_a_reset() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # It may come before connecting has returned.
    with Proxy("127.0.0.1", port) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


@pytest.mark.usefixtures("redis_url", "nothing_left_behind")
def test_the_proxy_leaves_no_thread_and_no_socket(valkey_address: tuple[str, int]) -> None:
    with Proxy(*valkey_address) as proxy:
        client = connect(proxy)
        assert ask(client) == PONG
        proxy.stall()
    with client, pytest.raises(ConnectionResetError):
        client.recv(1)
    assert not any(thread.name.startswith("proxy") for thread in threading.enumerate())
    assert not [c for c in psutil.Process().net_connections("tcp") if c.laddr and c.laddr.port == proxy.port]


@pytest.fixture
def valkey_address(redis_url: str) -> tuple[str, int]:
    server = urlsplit(redis_url)
    assert server.hostname
    return server.hostname, server.port or 6379
