"""Fixtures on real servers. Each test has a database and a Redis of its own."""

import gc
import os
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from hypothesis import settings
from servers import (
    FAST_POSTGRES,
    Service,
    fresh_database,
    fresh_redis,
    postgres_service,
    unavailable,
    valkey_service,
)
from waiting import eventually

from switchboard.embedded import EmbeddedUnavailable, PostgresServer, ValkeyServer
from switchboard.embedded import server as embedded

# Each process of the suite has ports of its own: a server that is killed gives its port up until it starts again.
_number, _count = (os.environ.get(f"PYTEST_XDIST_WORKER{what}", "") for what in ("", "_COUNT"))
embedded.PORTS = embedded.PORTS[int(_number.removeprefix("gw") or 0) :: int(_count or 1)]

# A machine that stands still for a moment is no counterexample.
settings.register_profile("suite", deadline=None)
settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A report can be sent to another process: hostile text in a test's log has lone surrogates, UTF-8 has none."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    if isinstance(report.longrepr, str):
        report.longrepr = report.longrepr.encode(errors="backslashreplace").decode()
    return report


@pytest.fixture(scope="session", autouse=True)
def _state_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where this run's workers write their pulse: not among those of the machine's own."""
    os.environ["SWITCHBOARD_STATE_DIR"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with postgres_service(tmp_path_factory.mktemp("postgres")) as service:
        yield service


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with valkey_service(tmp_path_factory.mktemp("valkey")) as service:
        yield service


@pytest.fixture
def database_url(postgres: Service) -> Iterator[str]:
    """A fresh empty database of this test's own."""
    with fresh_database(postgres.url) as url:
        yield url


@pytest.fixture
def redis_url(valkey: Service) -> Iterator[str]:
    """An empty Redis database of this test's own."""
    with fresh_redis(valkey) as url:
        yield url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator["redis.Redis"]:
    with redis.Redis.from_url(redis_url, decode_responses=False) as client:
        yield client


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL for this test alone, to kill, suspend and start again."""
    try:
        server = PostgresServer(tmp_path / "own-postgres", settings=FAST_POSTGRES)
    except EmbeddedUnavailable as missing:
        unavailable(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey for this test alone, to kill, suspend and start again; it keeps what it acknowledged.

    Its log is written before it answers, which outlives its death; only the machine's own would need an fsync.
    """
    try:
        settings = {"appendfsync": "no"}
        server = ValkeyServer(tmp_path / "own-valkey", settings=settings, appendonly=True)
    except EmbeddedUnavailable as missing:
        unavailable(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture
def nothing_left_behind() -> Iterator[None]:
    """Fails the test that leaves a thread, a child process, a connection or an open file.

    What other fixtures opened before this one is not counted; request it after them."""
    before = _held()
    yield

    def left() -> list[str]:
        # What only a reference cycle keeps open would go at a time that nobody chose.
        gc.collect()
        return [name for key, name in _held().items() if key not in before]

    last: list[str] = []

    def gone() -> bool:
        last[:] = left()
        return not last

    try:
        eventually(gone, within=5)
    except AssertionError:
        pytest.fail("left behind:\n" + "\n".join(f"  {name}" for name in last), pytrace=False)


def _held() -> dict[tuple[object, ...], str]:
    """What this process holds: identities, and how to name them."""
    us = psutil.Process()
    held: dict[tuple[object, ...], str] = {}
    for thread in threading.enumerate():
        held["thread", thread.ident] = f"thread {thread.name}"
    for child in us.children(recursive=True):
        held["process", child.pid, child.create_time()] = f"process {child}"
    connections = {
        connection.fd: f"{connection.laddr} -> {connection.raddr} {connection.status}"
        for connection in us.net_connections(kind="all")
    }
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        try:
            status = os.fstat(descriptor)
        except OSError:  # the one that listed the folder
            continue
        try:
            target = os.readlink(f"/dev/fd/{name}")
        except OSError:
            target = ""
        about = connections.get(descriptor, target)
        held["descriptor", descriptor, status.st_dev, status.st_ino] = f"open file {descriptor}: {about}"
    return held
