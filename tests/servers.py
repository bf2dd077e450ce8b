"""Where the tests' servers come from: the environment, else a wheel, else a Docker engine."""

import gc
import os
import random
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from psycopg import sql
from waiting import eventually

from switchboard.embedded import EmbeddedUnavailable, PostgresServer, ValkeyServer

#: For servers whose data nobody needs after the run.
FAST_POSTGRES = {"fsync": "off", "full_page_writes": "off", "max_connections": "200"}


@dataclass(frozen=True)
class Service:
    """A running server; `ours` when it was started for this run, so that all its data may be emptied."""

    url: str
    ours: bool


def unavailable(reason: str) -> NoReturn:
    """Skips the test, or fails it where SWITCHBOARD_REQUIRE_SERVICES=1."""
    if os.environ.get("SWITCHBOARD_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def postgres_service(folder: Path) -> Iterator[Service]:
    if url := os.environ.get("DATABASE_URL"):
        yield Service(url, ours=False)
        return
    try:
        server = PostgresServer(folder, settings=FAST_POSTGRES)
    except EmbeddedUnavailable as missing:
        with _container("postgres:18-alpine", 5432, missing, POSTGRES_HOST_AUTH_METHOD="trust") as address:
            url = f"postgresql://postgres@{address}/postgres"
            eventually(lambda: _postgres_answers(url), within=60, what="PostgreSQL's container answers")
            yield Service(url, ours=True)
        return
    with server:
        yield Service(server.url, ours=True)


@contextmanager
def valkey_service(folder: Path) -> Iterator[Service]:
    if url := os.environ.get("SWITCHBOARD_TEST_REDIS_URL"):
        yield Service(url, ours=False)
        return
    try:
        server = ValkeyServer(folder)
    except EmbeddedUnavailable as missing:
        with _container("valkey/valkey:9-alpine", 6379, missing) as address:
            url = f"redis://{address}/0"
            eventually(lambda: _redis_answers(url), within=60, what="Valkey's container answers")
            yield Service(url, ours=True)
        return
    with server:
        yield Service(server.url, ours=True)


@contextmanager
def fresh_database(url: str) -> Iterator[str]:
    """The URL of an empty database on that server, which is dropped afterwards, whoever is still in it."""
    name = f"switchboard_test_{uuid.uuid4().hex}"
    with psycopg.connect(url, autocommit=True) as admin:
        create = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'"
        admin.execute(sql.SQL(create).format(sql.Identifier(name)))
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def fresh_redis(service: Service) -> Iterator[str]:
    """The URL of an empty database on that server."""
    if service.ours:
        with redis.Redis.from_url(service.url) as client:
            client.flushall()
        yield service.url
        return
    url = _empty_database(service.url)
    try:
        yield url
    finally:
        with redis.Redis.from_url(url) as client:
            client.flushdb()


def _empty_database(url: str) -> str:
    numbers = list(range(1, 16))
    # Another run may be looking on the same server at this moment.
    random.shuffle(numbers)
    for number in numbers:
        candidate = urlsplit(url)._replace(path=f"/{number}").geturl()
        with redis.Redis.from_url(candidate) as client:
            if client.dbsize() == 0:
                return candidate
    unavailable("SWITCHBOARD_TEST_REDIS_URL: none of the databases 1 to 15 is empty")


@contextmanager
def _container(image: str, port: int, missing: Exception, **environment: str) -> Iterator[str]:
    if problem := _docker_problem():
        unavailable(f"{missing}; and no Docker engine answers ({problem})")
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_exposed_ports(port)
    for name, value in environment.items():
        container = container.with_env(name, value)
    with container:
        yield f"{container.get_container_host_ip()}:{container.get_exposed_port(port)}"


def _docker_problem() -> str:
    """Why no Docker engine can be used; empty when one answers."""
    with warnings.catch_warnings(action="ignore"):  # its client leaves a socket open where it cannot connect
        try:
            from testcontainers.core.docker_client import DockerClient

            DockerClient().client.ping()
            return ""
        except Exception as error:
            problem = str(error)
        gc.collect()
        return problem


def _postgres_answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


def _redis_answers(url: str) -> bool:
    try:
        with redis.Redis.from_url(url) as client:
            return bool(client.ping())
    except redis.RedisError:
        return False
