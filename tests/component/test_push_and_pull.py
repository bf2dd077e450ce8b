"""What is pushed and what is pulled of one logical event is the identical todo (ADR-0014, Confirmation)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_plus

import redis
from senders import GITHUB_SECRET, SLACK_SECRET, STANDARD_SECRET, STRIPE_SECRET, TOKEN, github, slack, standard, stripe
from serving import Served
from waiting import eventually
from worker import Worker

PAYLOADS = Path(__file__).parents[1] / "unit" / "payloads"

#: What each line's sender is known by; `standard` is the type `generic` with a signature.
SECRETS = {
    "github": GITHUB_SECRET,
    "stripe": STRIPE_SECRET,
    "slack": SLACK_SECRET,
    "dockerhub": TOKEN,
    "generic": TOKEN,
    "standard": STANDARD_SECRET,
}

PUSHED = """
[adapters.{name}]
type = "{type}"
{key} = "${{{variable}}}"
queue = "{name}"
"""

PULLED = """
[adapters.pulled-{name}]
type = "redis-stream"
url = "${{STREAMS_URL}}"
stream = "{name}"
body = "body"
provider = "{type}"
queue = "{name}"
"""

JSON, FORM = {"Content-Type": "application/json"}, {"Content-Type": "application/x-www-form-urlencoded"}

#: Event types that only a header says, among them letters beyond ASCII and what looks like a credential in a value.
TYPES = ("build.done", "Dépôt ✓", "token=rotated", "https://ci.example/builds?key=7&id=8")


class Event(NamedTuple):
    """What happened, as its provider says it by either way."""

    name: str
    body: bytes
    headers: Mapping[str, str]


def key_of(name: str) -> str:
    return "token" if name in ("dockerhub", "generic") else "secret"


def variable_of(name: str) -> str:
    return f"{name.upper()}_{key_of(name).upper()}"


def configured(template: str, name: str) -> str:
    kind = "generic" if name == "standard" else name
    text = template.format(name=name, type=kind, key=key_of(name), variable=variable_of(name))
    return f'{text}trust = "signed"\n' if name == "standard" and template is PUSHED else text


def events_of(name: str) -> list[Event]:
    """The events that its provider documents; of any other sender those that its headers and its body tell apart."""
    if name in ("generic", "standard"):
        order = b'{"type": "order.paid", "title": "Order 7", "total": 12345678901234567890.10}'
        return [
            Event("order", order, JSON),
            Event("text", b"up", JSON),
            *(Event(f"typed{n}", b"up %d" % n, {"X-Event-Type": kind}) for n, kind in enumerate(TYPES)),
        ]
    # What asks whether an address is ours is answered, and is no todo of the webhook's.
    files = sorted(path for path in (PAYLOADS / name).iterdir() if path.stem != "url_verification")
    events = [
        Event(path.stem, _with_own_id(path.read_bytes(), path.stem), FORM if path.stem == "slash_command" else JSON)
        for path in files
    ]
    if name != "github":
        return events
    typed = [event._replace(headers=JSON | {"X-GitHub-Event": event.name.partition(".")[0]}) for event in events]
    # What GitHub sends to a webhook whose content type is a form.
    forms = [
        Event(f"form-{event.name}", b"payload=" + quote_plus(event.body).encode(), {**event.headers, **FORM})
        for event in typed
    ]
    return [*typed, *forms]


def _with_own_id(body: bytes, name: str) -> bytes:
    """The documents share the ids of their events, which no two events do."""
    own = rb'"\1": "\g<2>%b"' % name.replace(".", "_").encode()
    return re.sub(rb'"(id|event_id)": "(evt_|Ev)\w*"', own, body, count=1)


def push(served: Served, name: str, event: Event) -> None:
    query, proof = "", dict[str, str]()
    if name == "github":
        proof = dict(github(event.body, delivery=f"pushed-{event.name}").headers)
    elif name == "standard":
        proof = dict(standard(event.body, message=f"pushed-{event.name}").headers)
    elif name in ("stripe", "slack"):
        proof = dict((stripe if name == "stripe" else slack)(event.body).headers)
    else:
        query = f"?token={TOKEN}"
    headers = {key.encode(): value.encode() for key, value in {**proof, **event.headers}.items()}
    answer = served.post(f"/webhooks/{name}{query}", event.body, headers)
    assert (answer.status_code, answer.json()) == (202, {"created": 1}), event.name


def test_a_push_and_a_pull_of_one_event_are_the_identical_todo(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    config = "".join(configured(template, name) for name in SECRETS for template in (PUSHED, PULLED))
    env = {variable_of(name): secret for name, secret in SECRETS.items()} | {
        "STREAMS_URL": redis_url,
        "SWITCHBOARD_BROKER_URL": redis_url,
        "DATABASE_URL": database_url,
        "SWITCHBOARD_CONFIG": "",
    }
    sent = {name: events_of(name) for name in SECRETS}
    with Served(tmp_path, database_url, config, env) as served, Worker(cwd=tmp_path, env=env) as worker:
        for name, events in sent.items():
            for event in events:
                push(served, name, event)
        with redis.Redis.from_url(redis_url) as stream:
            for name, events in sent.items():
                for event in events:
                    fields: dict[str, str | bytes] = {"body": event.body, **event.headers}
                    stream.xadd(name, fields)
        worker.wait_ready(within=60)
        total = 2 * sum(map(len, sent.values()))
        eventually(lambda: served.value("SELECT count(*) FROM todos") == total, within=60, what="all are todos")
        for name, events in sent.items():
            pushed, pulled = (
                served.rows(
                    "SELECT t.queue, t.kind, t.title, t.payload::text, e.event_type FROM todos t "
                    "JOIN events e ON e.id = t.event_id WHERE t.source = %s ORDER BY e.payload",
                    source,
                )
                for source in (name, f"pulled-{name}")
            )
            assert len(pushed) == len(events)
            assert pushed == pulled
        told = {kind for (kind,) in served.rows("SELECT event_type FROM events WHERE source = 'generic'")}
        assert told >= set(TYPES)
        assert served.value("SELECT count(*) FROM dead_letters") == 0


def test_the_legacy_token_of_slack_is_in_no_todo(database_url: str, tmp_path: Path) -> None:
    config = configured(PUSHED, "slack")
    body = json.dumps(
        {"type": "event_callback", "event_id": "Ev1", "token": "legacy-Jhj5dZrVaK7ZwHHjRyZWjbDl"}
    ).encode()
    with Served(tmp_path, database_url, config, {"SLACK_SECRET": SLACK_SECRET}) as served:
        assert served.send("slack", slack(body)).status_code == 202
        assert served.value("SELECT payload ->> 'token' FROM todos") == "«redacted»"
