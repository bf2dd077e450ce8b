"""What is pushed and what is pulled of one logical event is the identical todo (ADR-0014, Confirmation)."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import redis
from senders import GITHUB_SECRET, SLACK_SECRET, STRIPE_SECRET, TOKEN, github, slack, stripe
from serving import Served
from waiting import eventually
from worker import Worker

PAYLOADS = Path(__file__).parents[1] / "unit" / "payloads"

PROVIDERS = ("github", "stripe", "slack", "dockerhub", "generic")

SECRETS = {
    "github": GITHUB_SECRET,
    "stripe": STRIPE_SECRET,
    "slack": SLACK_SECRET,
    "dockerhub": TOKEN,
    "generic": TOKEN,
}

PUSHED = """
[adapters.{name}]
type = "{name}"
{key} = "${{{variable}}}"
queue = "{name}"
"""

PULLED = """
[adapters.pulled-{name}]
type = "redis-stream"
url = "${{STREAMS_URL}}"
stream = "{name}"
body = "body"
provider = "{name}"
queue = "{name}"
"""


def key_of(provider: str) -> str:
    return "secret" if provider in ("github", "stripe", "slack") else "token"


def variable_of(provider: str) -> str:
    return f"{provider.upper()}_{key_of(provider).upper()}"


def bodies(provider: str) -> list[tuple[str, bytes]]:
    """The name and the body of each event that its provider documents."""
    if provider == "generic":
        return [
            ("order", b'{"type": "order.paid", "title": "Order 7", "total": 12345678901234567890.10}'),
            ("text", b"up"),
        ]
    # What asks whether an address is ours is answered, and is no todo of the webhook's.
    files = sorted(path for path in (PAYLOADS / provider).iterdir() if path.stem != "url_verification")
    return [(path.stem, _with_own_id(path.read_bytes(), path.stem)) for path in files]


def _with_own_id(body: bytes, name: str) -> bytes:
    """The documents share the ids of their events, which no two events do."""
    own = rb'"\1": "\g<2>%b"' % name.replace(".", "_").encode()
    return re.sub(rb'"(id|event_id)": "(evt_|Ev)\w*"', own, body, count=1)


def push(served: Served, provider: str, name: str, body: bytes) -> None:
    headers = headers_of(provider, name)
    if provider == "github":
        sent = github(body, delivery=f"pushed-{name}", event=headers["X-GitHub-Event"])
    elif provider in ("stripe", "slack"):
        sent = (stripe if provider == "stripe" else slack)(body)
    else:
        answer = served.post(f"/webhooks/{provider}?token={TOKEN}", body, dict(headers))
        assert (answer.status_code, answer.json()) == (202, {"created": 1}), name
        return
    answer = served.post(f"/webhooks/{provider}", body, {**sent.headers, **headers})
    assert (answer.status_code, answer.json()) == (202, {"created": 1}), name


def headers_of(provider: str, name: str) -> Mapping[str, str]:
    form = {"Content-Type": "application/x-www-form-urlencoded" if name == "slash_command" else "application/json"}
    return form | ({"X-GitHub-Event": name.partition(".")[0]} if provider == "github" else {})


def test_a_push_and_a_pull_of_one_event_are_the_identical_todo(
    database_url: str, redis_url: str, tmp_path: Path
) -> None:
    config = "".join(
        (PUSHED + PULLED).format(name=name, key=key_of(name), variable=variable_of(name)) for name in PROVIDERS
    )
    env = {variable_of(name): SECRETS[name] for name in PROVIDERS} | {
        "STREAMS_URL": redis_url,
        "SWITCHBOARD_BROKER_URL": redis_url,
        "DATABASE_URL": database_url,
        "SWITCHBOARD_CONFIG": "",
    }
    sent = {provider: bodies(provider) for provider in PROVIDERS}
    with Served(tmp_path, database_url, config, env) as served, Worker(cwd=tmp_path, env=env) as worker:
        for provider, events in sent.items():
            for name, body in events:
                push(served, provider, name, body)
        with redis.Redis.from_url(redis_url) as stream:
            for provider, events in sent.items():
                for name, body in events:
                    fields: dict[str, str | bytes] = {"body": body, **headers_of(provider, name)}
                    stream.xadd(provider, fields)
        worker.wait_ready(within=60)
        total = 2 * sum(map(len, sent.values()))
        eventually(lambda: served.value("SELECT count(*) FROM todos") == total, within=60, what="all are todos")
        for provider, events in sent.items():
            pushed, pulled = (
                served.rows(
                    "SELECT t.queue, t.kind, t.title, t.payload::text, e.event_type FROM todos t "
                    "JOIN events e ON e.id = t.event_id WHERE t.source = %s ORDER BY e.payload",
                    source,
                )
                for source in (provider, f"pulled-{provider}")
            )
            assert len(pushed) == len(events)
            assert pushed == pulled
        assert served.value("SELECT count(*) FROM dead_letters") == 0


def test_the_legacy_token_of_slack_is_in_no_todo(database_url: str, tmp_path: Path) -> None:
    config = PUSHED.format(name="slack", key="secret", variable="SLACK_SECRET")
    body = json.dumps(
        {"type": "event_callback", "event_id": "Ev1", "token": "legacy-Jhj5dZrVaK7ZwHHjRyZWjbDl"}
    ).encode()
    with Served(tmp_path, database_url, config, {"SLACK_SECRET": SLACK_SECRET}) as served:
        assert served.send("slack", slack(body)).status_code == 202
        assert served.value("SELECT payload ->> 'token' FROM todos") == "«redacted»"
