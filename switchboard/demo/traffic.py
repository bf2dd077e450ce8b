"""Deliveries as a deployment system and a code host would send them: the same seed gives the same ones."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

#: The two lines that the deliveries come in on; each is a stream, an adapter and a todo queue of that name.
LINES = ("deploys", "repositories")

#: Bytes of a body: nothing shorter or longer is made.
SMALLEST, LARGEST = 250, 12_000

_EPOCH = datetime(2026, 1, 5, 7, 30, tzinfo=UTC)

_SERVICES = ("billing", "checkout", "search", "notifications", "inventory", "gateway", "identity", "reports")
_ENVIRONMENTS = ("staging", "staging", "production", "production-eu", "production-us")
_PEOPLE = (
    ("Ada Brandt", "abrandt"),
    ("Łukasz Wójcik", "lwojcik"),
    ("Zoë Lindqvist", "zoe-l"),
    ("Priya Raman", "praman"),
    ("Marek Novák", "mnovak"),
    ("María José Ortega", "mjortega"),
    ("田中 陽子", "yoko-t"),
    ("Samuel Okafor", "sokafor"),
)
_VERBS = ("Fix", "Add", "Remove", "Speed up", "Simplify", "Test", "Document", "Retry", "Log", "Guard", "Revert")
_THINGS = (
    "the invoice export",
    "cursor pagination in /v2/orders",
    "a flaky session test",
    "currency rounding",
    "the retry budget of the mail client",
    "connection pool metrics",
    'the "café" search analyser',
    "tenant isolation in reports",
    "the stock reservation lock",
    "webhook signature checks",
    "dead code around feature flags",
)
_REASONS = (
    "It timed out under load since last week's import.",
    "Customers with more than 10,000 rows saw an empty page.",
    "The old path has had no caller since the migration → gone.",
    "Measured on staging: p99 from 840 ms to 95 ms.",
    "No behaviour changes; the next commit builds on it.",
    "Reported by support twice, see the linked ticket.",
)
_FILES = ("app/models.py", "app/api/orders.py", "web/src/Cart.tsx", "deploy/values.yaml", "tests/test_orders.py")
_STEPS = ("checkout", "build image", "push image", "run migrations", "roll out", "health check", "smoke test")
_LOG_LINES = (
    "pulling registry.example.com/{service}@sha256:{sha}",
    "waiting for 6 replicas: {n} updated, {m} ready",
    "GET /healthz 200 in {n} ms",
    "GET /healthz 503 in {n} ms: upstream connect error, reset before headers",
    "migration 0{n} applied in {m} ms",
    "pod {service}-{sha} restarted: OOMKilled (limit 512Mi)",
    'WARN config key "cache.ttl" is deprecated, use "cache.max_age"',
    "Traceback: psycopg.OperationalError: server closed the connection unexpectedly",
)


@dataclass(frozen=True, slots=True)
class Message:
    """One delivery: ``id`` is its sender's own and stands in its body too, a JSON object in UTF-8."""

    line: str
    id: str
    event: str
    body: bytes


def messages(count: int, seed: int) -> Iterator[Message]:
    """``count`` deliveries on both lines, each a few hundred bytes to some 10 KB, most of them below 2 KB."""
    chance = random.Random(seed)  # noqa: S311 - repeatable is the point
    at = _EPOCH
    for _ in range(count):
        at += timedelta(milliseconds=chance.randrange(50, 4_000))
        make = chance.choices(_KINDS, _WEIGHTS)[0]
        line, event, fields = make(chance, at)
        delivery_id = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        body = {"id": delivery_id, "event": event, "sent_at": _iso(at), **fields}
        yield Message(line, delivery_id, event, json.dumps(body, ensure_ascii=False).encode())


_Made = tuple[str, str, dict[str, object]]


def _deploy_started(chance: random.Random, at: datetime) -> _Made:
    deploy = _deploy(chance)
    summary = f"Deploy of {deploy['service']} {deploy['version']} to {deploy['environment']} started"
    return "deploys", "deploy.started", {"summary": summary, **deploy, "started_at": _iso(at)}


def _deploy_finished(chance: random.Random, at: datetime) -> _Made:
    deploy = _deploy(chance)
    summary = f"{deploy['service']} {deploy['version']} is live in {deploy['environment']}"
    steps = _steps(chance, at, len(_STEPS), "succeeded")
    ended: dict[str, object] = {"status": "succeeded", "finished_at": _iso(at), "steps": steps}
    return "deploys", "deploy.finished", {"summary": summary, **deploy, **ended}


def _deploy_failed(chance: random.Random, at: datetime) -> _Made:
    deploy = _deploy(chance)
    steps = _steps(chance, at, chance.randrange(2, len(_STEPS)), "failed")
    summary = f"Deploy of {deploy['service']} to {deploy['environment']} failed at {steps[-1]['name']!r}"
    service = str(deploy["service"])
    # Most logs are short, and a few are what makes a stream's entries so uneven.
    log = _log(chance, at, service, int(min(90, 8 + chance.expovariate(1 / 14))))
    return "deploys", "deploy.failed", {"summary": summary, **deploy, "status": "failed", "steps": steps, "log": log}


def _push(chance: random.Random, at: datetime) -> _Made:
    name, login = chance.choice(_PEOPLE)
    repository = chance.choice(_SERVICES)
    commits = [_commit(chance, at) for _ in range(int(min(14, 1 + chance.expovariate(1 / 1.6))))]
    summary = f"{name} pushed {len(commits)} commit{'s' * (len(commits) > 1)} to {repository}"
    fields: dict[str, object] = {
        "summary": summary,
        "repository": {"full_name": f"example/{repository}", "private": True, "default_branch": "main"},
        "ref": chance.choice(("refs/heads/main", f"refs/heads/{login}/{chance.randrange(100, 4_000)}")),
        "before": _sha(chance),
        "after": commits[-1]["id"],
        "pusher": {"name": name, "login": login},
        "commits": commits,
    }
    return "repositories", "push", fields


def _pull_request(chance: random.Random, at: datetime) -> _Made:
    name, login = chance.choice(_PEOPLE)
    repository, number = chance.choice(_SERVICES), chance.randrange(100, 9_000)
    action = chance.choice(("opened", "synchronize", "review_requested", "closed"))
    title = _headline(chance)
    fields: dict[str, object] = {
        "summary": f"{repository}#{number} {action.replace('_', ' ')}: {title}",
        "action": action,
        "repository": {"full_name": f"example/{repository}", "private": True, "default_branch": "main"},
        "pull_request": {
            "number": number,
            "title": title,
            "body": "\n\n".join(chance.choices(_REASONS, k=chance.randrange(1, 9))),
            "user": {"name": name, "login": login},
            "head": {"ref": f"{login}/{number}", "sha": _sha(chance)},
            "base": {"ref": "main", "sha": _sha(chance)},
            "merged": action == "closed" and chance.random() < 0.8,
            "additions": chance.randrange(1, 900),
            "deletions": chance.randrange(0, 400),
            "labels": chance.sample(("bug", "backend", "frontend", "needs-review", "security 🔒"), k=2),
        },
        "sender": {"login": chance.choice(_PEOPLE)[1], "type": "User"},
    }
    return "repositories", f"pull_request.{action}", fields


_KINDS: tuple[Callable[[random.Random, datetime], _Made], ...] = (
    _deploy_started,
    _deploy_finished,
    _deploy_failed,
    _push,
    _pull_request,
)
_WEIGHTS = (22, 18, 6, 30, 24)


def _deploy(chance: random.Random) -> dict[str, object]:
    return {
        "service": chance.choice(_SERVICES),
        "version": f"{chance.randrange(1, 9)}.{chance.randrange(40)}.{chance.randrange(20)}",
        "environment": chance.choice(_ENVIRONMENTS),
        "commit": _sha(chance),
        "actor": chance.choice(_PEOPLE)[0],
    }


def _steps(chance: random.Random, at: datetime, count: int, last: str) -> list[dict[str, object]]:
    return [
        {
            "name": name,
            "status": last if name == _STEPS[count - 1] else "succeeded",
            "started_at": _iso(at + timedelta(seconds=9 * place)),
            "seconds": round(chance.uniform(0.2, 90), 3),
        }
        for place, name in enumerate(_STEPS[:count])
    ]


def _log(chance: random.Random, at: datetime, service: str, count: int) -> list[str]:
    lines = []
    for _ in range(count):
        at += timedelta(milliseconds=chance.randrange(1, 900))
        numbers = {"n": chance.randrange(1, 990), "m": chance.randrange(1, 990)}
        text = chance.choice(_LOG_LINES).format(service=service, sha=_sha(chance)[:12], **numbers)
        lines.append(f"{_iso(at)} {text}")
    return lines


def _commit(chance: random.Random, at: datetime) -> dict[str, object]:
    name, login = chance.choice(_PEOPLE)
    return {
        "id": _sha(chance),
        "message": f"{_headline(chance)}\n\n{chance.choice(_REASONS)}",
        "timestamp": _iso(at - timedelta(minutes=chance.randrange(1, 600))),
        "author": {"name": name, "email": f"{login}@example.com"},
        "modified": chance.sample(_FILES, k=chance.randrange(1, 4)),
    }


def _headline(chance: random.Random) -> str:
    return f"{chance.choice(_VERBS)} {chance.choice(_THINGS)}"


def _sha(chance: random.Random) -> str:
    return f"{chance.getrandbits(160):040x}"


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
