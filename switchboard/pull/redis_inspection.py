"""What can be wrong with a Redis, whatever is read from it: its version, memory, persistence, role, clock and user."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis

from ..finding import Finding, clock_finding, is_loopback
from .redis_client import acl_identity, connect, execute

#: How long one answer may take.
PATIENCE = timedelta(seconds=3)

#: The oldest releases that are tested.
OLDEST_REDIS, OLDEST_VALKEY = (6, 2), (7, 2)

#: A key that nobody has: a user that may read it may read what is not its adapter's.
FOREIGN_KEY = "switchboard:doctor:foreign"

Info = Mapping[str, Any]


def impatient(url: str) -> redis.Redis:
    """A client whose commands end after ``PATIENCE``."""
    return connect(url, timeout=PATIENCE, raw_commands=("XPENDING", "XRANGE"))


def inspect_server(client: redis.Redis, url: str, subject: str, *, keeps: bool = True) -> Iterator[Finding]:
    """What is wrong with the server at ``url``; ``keeps``: whether messages are to survive there.

    Raises what the client raises where there is no answer.
    """
    yield from transport_security(url, subject)
    yield from _clock(client, subject)
    try:
        info: Info = client.info()
    except redis.ResponseError:
        yield Finding(
            "server", subject, "warning", "INFO is denied to this user: memory and persistence cannot be looked at",
            "allow +info to the user, or see yourself that maxmemory-policy is noeviction and appendonly is yes",
        )  # fmt: skip
        return
    yield version_finding(info, subject)
    yield from _role(info, subject, keeps)
    if keeps:
        yield from _memory(info, subject)
        yield from _persistence(client, info, subject)


def transport_security(url: str, subject: str) -> Iterator[Finding]:
    """Whether what goes to this address can be read, or answered, by somebody else on the way."""
    parts = urlsplit(url)
    if parts.scheme == "rediss":
        if parse_qs(parts.query).get("ssl_cert_reqs", [""])[0].lower() == "none":
            yield Finding(
                "tls", subject, "warning", "TLS is used, but the server's certificate is not verified",
                "take ssl_cert_reqs=none out of the address, and name the authority with ssl_ca_certs",
            )  # fmt: skip
        else:
            yield Finding("tls", subject, "ok", "TLS")
    elif parts.scheme == "redis" and parts.password and not is_loopback(parts.hostname or ""):
        yield Finding(
            "tls", subject, "warning", f"the password goes to {parts.hostname} as plain text",
            "use a rediss:// address (tls-port in redis.conf)",
        )  # fmt: skip


def _clock(client: redis.Redis, subject: str) -> Iterator[Finding]:
    began = time.time()
    try:
        seconds, microseconds = client.time()
    except redis.ResponseError:
        return
    yield clock_finding(subject, float(seconds) + float(microseconds) / 1e6, began, time.time())


def version_finding(info: Info, subject: str) -> Finding:
    """Whether the release, as ``INFO`` names it, is one that is tested."""
    is_valkey = "valkey_version" in info
    name, oldest = ("Valkey", OLDEST_VALKEY) if is_valkey else ("Redis", OLDEST_REDIS)
    version = str(info["valkey_version" if is_valkey else "redis_version"])
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < oldest:
        wanted = ".".join(map(str, oldest))
        return Finding(
            "version", subject, "error", f"{name} {version} is older than {wanted}", f"upgrade it to {wanted} or newer"
        )
    return Finding("version", subject, "ok", f"{name} {version}")


def _role(info: Info, subject: str, keeps: bool) -> Iterator[Finding]:
    if info.get("role") != "slave":
        return
    if keeps:
        yield Finding(
            "role", subject, "error", "it is a replica, which takes no acknowledgement",
            f"point the address at its primary, {info.get('master_host')}:{info.get('master_port')}",
        )  # fmt: skip
    elif info.get("master_link_status") != "up":
        yield Finding(
            "role", subject, "error", "it is a replica that has lost its primary",
            f"restore its connection to {info.get('master_host')}:{info.get('master_port')}",
        )  # fmt: skip


def _memory(info: Info, subject: str) -> Iterator[Finding]:
    policy = str(info.get("maxmemory_policy", ""))
    limit = int(info.get("maxmemory", 0))
    if not policy or policy == "noeviction":
        yield Finding("noeviction", subject, "ok", "maxmemory-policy noeviction")
    else:
        yield Finding(
            "noeviction", subject, "error" if limit else "warning",
            f"maxmemory-policy is {policy}: {'' if limit else 'once maxmemory is set, '}messages may be evicted unread",
            "CONFIG SET maxmemory-policy noeviction, and the same in redis.conf",
        )  # fmt: skip
    used = int(info.get("used_memory", 0))
    if limit and used > limit * 0.9:
        yield Finding(
            "memory", subject, "warning", f"{used * 100 // limit} % of maxmemory is used: producers will be refused",
            "raise maxmemory, or let more workers read",
        )  # fmt: skip


def _persistence(client: redis.Redis, info: Info, subject: str) -> Iterator[Finding]:
    failed = [
        name
        for name in ("rdb_last_bgsave_status", "aof_last_write_status", "aof_last_bgrewrite_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        yield Finding(
            "persistence", subject, "error", f"it cannot write to its disk ({', '.join(failed)})",
            "see its log; make room on the disk, or give it the right to write there",
        )  # fmt: skip
    if int(info.get("aof_enabled", 0)):
        yield Finding("persistence", subject, "ok", "appendonly yes")
        return
    what = (
        "snapshots alone: a crash loses what came since the last"
        if _saves(client)
        else ("nothing is persisted: a restart loses every message that is not stored yet")
    )
    yield Finding("persistence", subject, "warning", what, "CONFIG SET appendonly yes, and the same in redis.conf")


def _saves(client: redis.Redis) -> bool:
    """Whether snapshots are made; so it is taken where the question is denied, as they are the default."""
    try:
        settings = client.config_get("save")
    except redis.ResponseError:
        return True
    return bool(settings.get("save"))


# The user's rights


def inspect_rights(
    client: redis.Redis, url: str, subject: str, denied: Sequence[str], keys: Sequence[str]
) -> Iterator[Finding]:
    """Whether the user's rights are too narrow, as ``denied`` says, or wider than reading ``keys`` needs."""
    user = acl_identity(client, url).removeprefix("redis acl: ")
    if denied:
        grants = " ".join(f"+{command}" for command in denied)
        yield Finding(
            "rights", subject, "error", f"user {user} may not run {', '.join(denied)} on {' '.join(keys)}",
            f"ACL SETUSER {user} {grants} {' '.join(keys)} (docs/guarantees.md lists all rights)",
        )  # fmt: skip
    too_wide = []
    if is_allowed(client, "CONFIG", "GET", "maxmemory-policy"):
        too_wide.append("administer the server")
    if is_allowed(client, "GET", FOREIGN_KEY):
        too_wide.append("reach keys that are not the adapter's")
    if too_wide:
        nobody = "" if unquote(urlsplit(url).password or "") else ", without a password,"
        yield Finding(
            "rights_wide", subject, "warning", f"user {user}{nobody} may {' and '.join(too_wide)}",
            "give the adapter a user of its own with the rights that docs/guarantees.md lists, and no more",
        )  # fmt: skip
    if not denied and not too_wide:
        yield Finding("rights", subject, "ok", f"user {user} has the rights it needs, and no more")


def not_looked_at(check: str, subject: str, key: str, rights: str) -> Finding:
    """That what waits there is not known, as the user lacks these rights."""
    return Finding(
        check, subject, "warning", f"what waits in {key} cannot be looked at: this user may not ask",
        f"allow {rights} to the user",
    )  # fmt: skip


def is_allowed(client: redis.Redis, *command: str) -> bool:
    """Whether the user may run it; whatever else the server says to it, it has run."""
    try:
        execute(client, *command)
    except redis.exceptions.NoPermissionError:
        return False
    except redis.ResponseError:
        return True
    return True


def denied_when_run(client: redis.Redis, commands: Sequence[Sequence[str]]) -> list[str]:
    """Those that the user may not run, by name, in their order: each is run, and has to be harmless."""
    return _names(command for command in commands if not is_allowed(client, *command))


def denied_when_queued(url: str, commands: Sequence[Sequence[str]]) -> list[str]:
    """Those that the user may not run: the server checks that as it queues them in a MULTI that is never executed."""
    with closing(impatient(url)) as pool, closing(_one_connection(pool)) as client:
        if not is_allowed(client, "MULTI"):
            return ["multi"]
        return _names(command for command in commands if not is_allowed(client, *command))


def _one_connection(pool: redis.Redis) -> redis.Redis:
    """A client that keeps to one connection, as a MULTI is one connection's."""
    client: redis.Redis = pool.client()  # type: ignore[no-untyped-call]
    return client


def _names(commands: Iterator[Sequence[str]]) -> list[str]:
    return list(dict.fromkeys(command[0].lower() for command in commands))
