"""Webhooks over real HTTP into a real PostgreSQL: who is let in, what is stored, and what each answer says."""

import json
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import quote

import httpx
import psycopg
import pytest
from senders import (
    DOCUMENTED,
    GITHUB_SECRET,
    SIGNED,
    SLACK_SECRET,
    STANDARD_SECRET,
    STRIPE_SECRET,
    TOKEN,
    Sent,
    github,
    slack,
    standard,
    stripe,
)
from servers import Service, fresh_database
from serving import Served
from waiting import eventually

from switchboard.ledger import Ledger
from switchboard.replay import replay

MAX_BODY, READ_SECONDS = 2000, 2

CONFIG = f"""
[web]
trusted_proxies = ["127.0.0.1"]
read_timeout = "{READ_SECONDS}s"

[adapters.github]
type = "github"
secret = "${{GITHUB_SECRET}}"
queue = "webhooks"

[adapters.stripe]
type = "stripe"
secret = ["${{STRIPE_SECRET}}", "${{NOT_SET}}"]
queue = "webhooks"

[adapters.slack]
type = "slack"
secret = "${{SLACK_SECRET}}"
queue = "webhooks"

[adapters.standard]
type = "generic"
trust = "signed"
secret = "${{STANDARD_SECRET}}"
queue = "webhooks"

[adapters.images]
type = "dockerhub"
token = "${{HOOK_TOKEN}}"
queue = "webhooks"

[adapters.builds]
type = "generic"
token = "${{HOOK_TOKEN}}"
queue = "webhooks"
max_body = {MAX_BODY}

[adapters.public]
type = "generic"
trust = "open"
queue = "webhooks"

[adapters.unset]
type = "github"
secret = "${{NOT_SET}}"
queue = "webhooks"

[adapters.ticks]
type = "redis-stream"
url = "${{NOT_SET_EITHER}}"
stream = "ticks"
queue = "ticks"
"""

SECRETS = {
    "GITHUB_SECRET": GITHUB_SECRET,
    "STRIPE_SECRET": STRIPE_SECRET,
    "SLACK_SECRET": SLACK_SECRET,
    "STANDARD_SECRET": STANDARD_SECRET,
    "HOOK_TOKEN": TOKEN,
}

TOKEN_HEADER = {"X-Webhook-Token": TOKEN}


@pytest.fixture(scope="module")
def served(postgres: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with fresh_database(postgres.url) as url, Served(folder, url, CONFIG, SECRETS) as served:
        yield served


def body(**fields: object) -> bytes:
    """A body that no other test sends."""
    return json.dumps({"n": time.monotonic_ns(), **fields}).encode()


def own(sender: str, **fields: object) -> Sent:
    """A delivery of that sender with a body and an id that no other test sends."""
    unique = f"id-{time.monotonic_ns()}"
    if sender == "github":
        return github(body(**fields), delivery=unique)
    if sender == "standard":
        return standard(body(**fields), message=unique)
    return SIGNED[sender](body(id=unique, event_id=unique, **fields))


class Untouched:
    """No row of any table changes while it is open."""

    def __init__(self, served: Served) -> None:
        self._served = served

    def __enter__(self) -> None:
        self._before = self._served.contents()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            assert self._served.contents() == self._before


# What is stored


@pytest.mark.parametrize("sender", SIGNED)
def test_a_signed_delivery_is_one_todo_and_a_redelivery_makes_no_second(served: Served, sender: str) -> None:
    sent = own(sender, type="order.paid")
    first = served.send(sender, sent)
    assert (first.status_code, first.json()) == (202, {"created": 1})
    again = SIGNED[sender](sent.body) if sender in ("stripe", "slack") else sent
    for _ in range(2):
        redelivery = served.send(sender, again)
        assert (redelivery.status_code, redelivery.json()) == (202, {"created": 0})
    [(event_id, *event)] = served.rows(
        "SELECT id, family, trust_mode, verified, host(source_ip), content_type FROM events WHERE payload = %s",
        sent.body,
    )
    assert event == ["webhook", "signed", True, "127.0.0.1", "application/json"]
    [todo] = served.rows("SELECT queue, source, state, payload FROM todos WHERE event_id = %s", event_id)
    assert todo == ("webhooks", sender, "pending", json.loads(sent.body))


@pytest.mark.parametrize("sender", SIGNED)
def test_a_redelivery_makes_no_todo_when_the_first_is_done(served: Served, sender: str) -> None:
    sent = own(sender)
    assert served.send(sender, sent).json() == {"created": 1}
    served.rows("UPDATE todos SET state = 'done', completed_at = now() WHERE source = %s", sender)
    assert served.send(sender, sent).json() == {"created": 0}
    assert served.value("SELECT count(*) FROM events WHERE payload = %s", sent.body) == 1


def test_the_published_example_of_github_is_let_in(served: Served) -> None:
    # Its body is no JSON, as nothing that GitHub sends is: it is kept as a dead letter.
    answer = served.send("github", DOCUMENTED["github"])
    assert (answer.status_code, answer.json()) == (202, {"created": 0, "dead_letter": True})
    assert served.value("SELECT reason FROM dead_letters WHERE payload = 'Hello, World!'") == "invalid"


def test_keys_are_scoped_to_the_adapter(served: Served) -> None:
    served.send("github", github(body(), delivery="the-same-id"))
    served.send("standard", standard(body(), message="the-same-id"))
    keys = served.rows("SELECT idempotency_key FROM todos WHERE idempotency_key LIKE '%%:the-same-id' ORDER BY 1")
    assert keys == [("generic:standard:the-same-id",), ("github:github:the-same-id",)]


@pytest.mark.parametrize("sender", ["github", "slack", "standard"])
def test_another_body_under_the_same_id_is_kept_as_a_dead_letter(served: Served, sender: str) -> None:
    one_id = f"id-{uuid.uuid4().hex}"
    make: dict[str, Callable[[bytes], Sent]] = {
        "github": lambda body: github(body, delivery=one_id),
        "slack": slack,
        "standard": lambda body: standard(body, message=one_id),
    }
    first, other = (make[sender](body(event_id=one_id)) for _ in range(2))
    assert served.send(sender, first).json() == {"created": 1}
    answer = served.send(sender, other)
    assert (answer.status_code, answer.json()) == (202, {"created": 0, "dead_letter": True})
    assert served.value("SELECT reason FROM dead_letters WHERE payload = %s", other.body) == "id_conflict"


def test_a_retry_of_stripes_has_the_id_and_not_the_bytes_and_is_a_redelivery(served: Served) -> None:
    """Stripe counts in its event how many webhooks are still to come."""
    event_id = f"evt_{uuid.uuid4().hex}"
    bodies = [json.dumps({"id": event_id, "pending_webhooks": count}).encode() for count in (2, 1)]
    answers = [served.send("stripe", stripe(body)) for body in bodies]
    assert [answer.json() for answer in answers] == [{"created": 1}, {"created": 0}]
    assert served.rows("SELECT id FROM dead_letters WHERE payload = ANY(%s)", bodies) == []


def test_a_dead_letter_that_is_replayed_has_the_trust_and_the_address_that_it_came_with(served: Served) -> None:
    sent = own("github")
    other = github(body(), delivery=sent.headers["X-GitHub-Delivery"])
    for each in (sent, other):
        assert served.send("github", each).status_code == 202
    letter = served.value("SELECT id FROM dead_letters WHERE payload = %s", other.body)
    with closing(Ledger(served.database_url)) as ledger, ledger.transaction() as transaction:
        assert replay(transaction.connection, letter)
    [event] = served.rows(
        "SELECT family, trust_mode, verified, verify_detail, host(source_ip) FROM events WHERE payload = %s", other.body
    )
    assert event == ("webhook", "signed", True, "github HMAC-SHA-256, secret 1 of 1", "127.0.0.1")


def test_deliveries_that_wait_together_each_hear_what_became_of_them(served: Served) -> None:
    old = [own("github") for _ in range(5)]
    for sent in old:
        assert served.send("github", sent).json() == {"created": 1}
    new = [own("github") for _ in range(5)]
    bad = github(b"no JSON", delivery=f"bad-{time.monotonic_ns()}")
    twins = [own("github")] * 3
    with psycopg.connect(served.database_url) as connection, ThreadPoolExecutor(20) as pool:
        # While the first of them waits for this lock, the others gather.
        connection.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        answers = [pool.submit(served.send, "github", sent) for sent in (*old, *new, bad, *twins)]
        read = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        eventually(lambda: served.value(read), within=60)
        eventually(lambda: served.established() >= len(answers), within=60)
        connection.rollback()
        heard = [answer.result().json() for answer in answers]
    assert heard[:5] == [{"created": 0}] * 5
    assert heard[5:10] == [{"created": 1}] * 5
    assert heard[10] == {"created": 0, "dead_letter": True}
    assert sorted(answer["created"] for answer in heard[11:]) == [0, 0, 1]


def test_what_the_ledger_refuses_is_kept_as_a_dead_letter_and_its_neighbours_are_stored(served: Served) -> None:
    served.rows("ALTER TABLE todos ADD CONSTRAINT no_cursed CHECK (payload ->> 'cursed' IS NULL)")
    cursed = own("github", cursed=True)
    try:
        answer = served.send("github", cursed)
    finally:
        served.rows("ALTER TABLE todos DROP CONSTRAINT no_cursed")
    assert (answer.status_code, answer.json()) == (202, {"created": 0, "dead_letter": True})
    [(reason, detail)] = served.rows("SELECT reason, detail FROM dead_letters WHERE payload = %s", cursed.body)
    assert reason == "poison"
    assert "no_cursed" in detail


def test_without_an_id_equal_bodies_are_one_todo_while_that_is_live(served: Served) -> None:
    sent = body(push_data={"tag": "1.2"}, repository={"repo_name": "acme/shop"})
    path = f"/webhooks/images?token={TOKEN}"
    assert served.post(path, sent).json() == {"created": 1}
    assert served.post(path, sent).json() == {"created": 0}
    served.rows("UPDATE todos SET state = 'done' WHERE source = 'images'")
    assert served.post(path, sent).json() == {"created": 1}


def test_a_body_may_be_any_bytes(served: Served) -> None:
    for sent in (b"", b"\x00\xff", b"plain text", bytes(range(256))):
        answer = served.post("/webhooks/builds", sent, TOKEN_HEADER)
        assert (answer.status_code, answer.json()) == (202, {"created": 1}), sent
        assert served.value("SELECT count(*) FROM events WHERE source = 'builds' AND payload = %s", sent) == 1


def test_the_form_encoding_of_github_is_read_as_its_json_and_stored_as_it_came(served: Served) -> None:
    document = {"ref": "refs/heads/main", "repository": {"full_name": "acme/shöp"}, "n": time.monotonic_ns()}
    form = b"payload=" + quote(json.dumps(document)).encode()
    sent = github(form, delivery=f"form-{document['n']}").having("Content-Type", "application/x-www-form-urlencoded")
    assert served.send("github", sent).json() == {"created": 1}
    [(payload, raw)] = served.rows(
        "SELECT t.payload, e.payload FROM todos t JOIN events e ON e.id = t.event_id WHERE e.payload = %s", form
    )
    assert (payload, raw) == (document, form)


def test_a_ping_of_github_is_a_todo_like_any_other(served: Served) -> None:
    sent = github(body(zen="Keep it logically awesome.", hook_id=1), delivery=f"{time.monotonic_ns()}", event="ping")
    assert served.send("github", sent).json() == {"created": 1}
    assert served.value("SELECT event_type FROM events WHERE payload = %s", sent.body) == "ping"


def test_slack_hears_its_challenge_and_no_todo_is_made(served: Served) -> None:
    sent = slack(body(type="url_verification", challenge="3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"))
    with Untouched(served):
        answer = served.send("slack", sent)
    assert (answer.status_code, answer.text) == (200, json.loads(sent.body)["challenge"])


def test_every_header_that_proves_something_is_stored_as_redacted(served: Served) -> None:
    sent = body()
    headers = {
        **TOKEN_HEADER,
        "Cookie": "session=5d41402abc4b2a76",
        "X-Hub-Signature-256": "sha256=757107ea",
        "Proxy-Authorization": "Basic 757107ea",
        "X-Original-URI": f"/webhooks/builds?token={TOKEN}",
        "X-Trace": "7",
    }
    assert served.post("/webhooks/builds", sent, headers).status_code == 202
    stored = served.value("SELECT headers FROM events WHERE payload = %s", sent)
    for name in ("x-webhook-token", "cookie", "x-hub-signature-256", "proxy-authorization", "x-original-uri"):
        assert stored[name] == "«redacted»", name
    assert stored["x-trace"] == "7"


@pytest.mark.parametrize(
    ("forwarded", "source"),
    [
        ("", "127.0.0.1"),
        ("198.51.100.7", "198.51.100.7"),
        ("203.0.113.9, 198.51.100.7", "198.51.100.7"),
        ("2001:db8::7", "2001:db8::7"),
        ("198.51.100.7, 127.0.0.1", "198.51.100.7"),
        ("nonsense", "127.0.0.1"),
    ],
)
def test_the_address_that_a_trusted_proxy_names_is_the_source(served: Served, forwarded: str, source: str) -> None:
    sent = body()
    headers = TOKEN_HEADER | ({"X-Forwarded-For": forwarded} if forwarded else {})
    assert served.post("/webhooks/builds", sent, headers).status_code == 202
    assert served.value("SELECT host(source_ip) FROM events WHERE payload = %s", sent) == source


# Who is refused


@pytest.mark.parametrize(
    ("sender", "fault"),
    [
        (sender, fault)
        for sender in SIGNED
        for fault in ("flipped", "wrong secret", "missing", "not ASCII", "twice", "old", "future", "empty body")
        # GitHub signs no time.
        if (sender, fault) not in (("github", "old"), ("github", "future"))
    ],
)
def test_what_is_not_signed_is_refused_and_nothing_is_stored(served: Served, sender: str, fault: str) -> None:
    sent = own(sender)
    headers = [(name.encode(), value.encode()) for name, value in sent.headers.items()]
    proof = sent.proof[0].encode()
    content = sent.body
    if fault == "flipped":
        content = content[:-2] + bytes([content[-2] ^ 1]) + content[-1:]
    elif fault == "empty body":
        content = b""
    elif fault == "missing":
        headers = [pair for pair in headers if pair[0] != proof]
    elif fault == "not ASCII":
        headers = [(name, value + b"\xe9" if name == proof else value) for name, value in headers]
    elif fault == "twice":
        headers += [pair for pair in headers if pair[0] == proof]
    else:
        secret = "whsec_" + "AAAA" * 8 if fault == "wrong secret" else str(sent.options["secret"])
        others = {} if sender == "github" else {"at": time.time() + {"old": -400, "future": 400}.get(fault, 0)}
        wrong = {"github": github, "stripe": stripe, "slack": slack, "standard": standard}[sender]
        made = wrong(content, secret=secret, **others)  # type: ignore[operator]
        headers = [(name.encode(), value.encode()) for name, value in made.headers.items()]
    before = len(served.output)
    with Untouched(served):
        answer = served.post(f"/webhooks/{sender}", content, headers)
    assert (answer.status_code, answer.json()) == (401, {"error": "the signature does not verify"})
    # Written before the answer, and by this request alone: one at a time is sent here.
    said = served.output[before:]
    [line] = [line for line in said.splitlines() if "refused" in line]
    assert f"webhook to adapter {sender} refused, 401, from 127.0.0.1: " in line
    for name, value in headers:
        if name in {each.encode() for each in sent.proof} and value:
            assert value.decode("latin-1") not in said


@pytest.mark.parametrize("adapter", ["images", "builds"])
@pytest.mark.parametrize(
    "query_and_headers",
    [("", {}), ("?token=wrong", {}), ("", {"X-Webhook-Token": "wrong"}), (f"?token={TOKEN}", TOKEN_HEADER)],
)
def test_without_the_token_it_is_refused_and_nothing_is_stored(
    served: Served, adapter: str, query_and_headers: tuple[str, dict[str, str]]
) -> None:
    query, headers = query_and_headers
    with Untouched(served):
        answer = served.post(f"/webhooks/{adapter}{query}", body(), headers)
    assert (answer.status_code, answer.json()) == (403, {"error": "the token does not verify"})


@pytest.mark.parametrize("way", [f"?token={TOKEN}", "bearer", "header"])
def test_a_token_is_taken_in_each_of_its_places(served: Served, way: str) -> None:
    headers = {"bearer": {"Authorization": f"Bearer {TOKEN}"}, "header": TOKEN_HEADER}.get(way, {})
    sent = body()
    assert served.post(f"/webhooks/builds{way if '?' in way else ''}", sent, headers).status_code == 202
    [event] = served.rows("SELECT trust_mode, verified, verify_detail FROM events WHERE payload = %s", sent)
    assert event[:2] == ("token", True)
    assert event[2].startswith("token in ")


@pytest.mark.parametrize("named", ["a b", "x" * 201, "", "caf\u00e9"])
@pytest.mark.parametrize("header", ["Webhook-Id", "X-Delivery-Id"])
def test_an_id_that_is_none_is_named_to_who_has_the_token(served: Served, header: str, named: str) -> None:
    headers = [(b"x-webhook-token", TOKEN.encode()), (header.encode(), named.encode("latin-1"))]
    with Untouched(served):
        answer = served.post("/webhooks/builds", body(), headers)
        stranger = served.post("/webhooks/builds", body(), headers[1:])
    assert (answer.status_code, stranger.status_code) == (400, 403)
    assert header.lower() in answer.json()["error"]


@pytest.mark.parametrize(
    ("path", "status"), [("/webhooks/builds?token=wrong", 403), ("/webhooks/standard", 401), ("/webhooks/slack", 401)]
)
def test_what_no_body_could_mend_is_refused_before_the_body(served: Served, path: str, status: int) -> None:
    headers = "\r\n".join(f"{name}: {value}" for name, value in standard(b"", at=time.time() - 400).headers.items())
    with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as sender:
        sender.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{headers}\r\n\r\n{{".encode())
        assert sender.recv(4096).startswith(b"HTTP/1.1 %d " % status)


def test_no_such_adapter_no_such_path_and_no_such_method(served: Served) -> None:
    odd = [
        "none",
        "github%20",
        "%00",
        "..",
        "%2e%2e",
        "github/",
        "git%2Fhub",
        "x" * 5000,
        "ticks",
        "%ff",
        "'; DROP TABLE",
    ]
    with Untouched(served):
        for name in odd:
            assert served.post(f"/webhooks/{name}", b"{}").status_code == 404, name
        for path in ("/", "/webhooks", "/webhooks/", "/docs", "/openapi.json", "/v1", "/metrics"):
            assert served.client.get(f"{served.url}{path}").status_code == 404
        for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
            assert served.client.request(method, f"{served.url}/webhooks/github").status_code == 405


@pytest.mark.parametrize("path", [f"/webhooks/builds/?token={TOKEN}", "/v1/queues/deploys/todos/", "/livez/"])
def test_a_slash_too_many_is_not_redirected_to_what_a_token_would_be_sent_to_in_plain_text(
    served: Served, path: str
) -> None:
    with Untouched(served):
        answer = served.post(path, body())
    assert answer.status_code == 404
    assert "location" not in answer.headers


def test_an_adapter_without_its_secret_is_off_and_says_so(served: Served) -> None:
    with Untouched(served):
        answer = served.send("unset", github(body(), secret=""))
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert served.output.count("adapter unset is OFF: its secret is not set") == 1
    assert "webhook to adapter unset refused, 503, from 127.0.0.1: the adapter is off" in served.output


def test_a_disabled_adapter_stores_nothing_until_it_may_again(served: Served) -> None:
    def enabled(value: bool) -> None:
        served.rows("UPDATE adapters SET enabled = %s WHERE name = 'standard'", value)

    enabled(False)
    refused = eventually(lambda: (a := served.send("standard", own("standard"))).status_code == 503 and a)
    assert isinstance(refused, httpx.Response)
    assert "Retry-After" in refused.headers
    with Untouched(served):
        served.send("standard", own("standard"))
    enabled(True)
    assert eventually(lambda: served.send("standard", own("standard")).status_code == 202)


def test_what_is_open_says_so_everywhere(served: Served) -> None:
    sent = body()
    assert served.post("/webhooks/public", sent).json() == {"created": 1}
    [event] = served.rows("SELECT trust_mode, verified, verify_detail FROM events WHERE payload = %s", sent)
    assert event == ("open", False, "OPEN: nobody was verified")
    assert served.output.count("adapter public is OPEN: nobody was verified") == 1


# Hardening


def test_no_answer_says_what_serves_it(served: Served) -> None:
    for answer in (
        served.post("/webhooks/public", body()),
        served.post("/webhooks/github", b"{}"),
        served.client.get(served.url),
        served.post("/webhooks/public", body(), {"Content-Encoding": "gzip"}),
    ):
        shown = f"{dict(answer.headers)} {answer.text}".lower()
        for name in ("uvicorn", "starlette", "python", "traceback", "switchboard"):
            assert name not in shown


def test_no_query_is_logged(served: Served) -> None:
    mark = f"seen-{time.monotonic_ns()}"
    for path in ("/webhooks/builds", "/webhooks/none", "/", f"/webhooks/public/{mark}-path"):
        served.post(f"{path}?token={mark}&x={mark}", body())
    served.post(f"/webhooks/builds?token={TOKEN}&x={mark}", body())
    eventually(lambda: f"{mark}-path" in served.output, what="the path was logged")
    assert mark not in served.output.replace(f"{mark}-path", "")


def test_a_body_of_exactly_max_body_is_taken_and_one_byte_more_is_not(served: Served) -> None:
    exactly = body()
    exactly += b" " * (MAX_BODY - len(exactly))
    assert served.post("/webhooks/builds", exactly, TOKEN_HEADER).status_code == 202
    with Untouched(served):
        assert served.post("/webhooks/builds", exactly + b" ", TOKEN_HEADER).status_code == 413


def test_a_body_of_no_declared_length_is_counted_while_it_comes(served: Served) -> None:
    def chunks(size: int) -> Iterator[bytes]:
        yield body()
        for _ in range(size // 100):
            yield b" " * 100

    taken = served.client.post(f"{served.url}/webhooks/builds", content=chunks(MAX_BODY // 2), headers=TOKEN_HEADER)
    assert taken.status_code == 202
    with closing(socket.create_connection(("127.0.0.1", served.port), 30)) as sender:
        # It never ends: the answer comes before the body does.
        headers = f"X-Webhook-Token: {TOKEN}\r\nTransfer-Encoding: chunked"
        sender.sendall(f"POST /webhooks/builds HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode())
        for _ in range(MAX_BODY // 100 + 1):
            sender.sendall(b"64\r\n" + b" " * 100 + b"\r\n")
        assert sender.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_is_refused_before_any_of_it_is_read(served: Served) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port), 30)) as sender:
        headers = f"X-Hub-Signature-256: sha256={'0' * 64}\r\nContent-Length: 99999999999999"
        sender.sendall(f"POST /webhooks/github HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n".encode())
        assert sender.recv(4096).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "identity, gzip"])
def test_a_compressed_body_is_refused(served: Served, encoding: str) -> None:
    with Untouched(served):
        answer = served.post("/webhooks/builds", b"\x1f\x8b", TOKEN_HEADER | {"Content-Encoding": encoding})
    assert answer.status_code == 415


def test_a_sender_of_a_slow_body_is_cut(served: Served) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as sender:
        headers = f"X-Hub-Signature-256: sha256={'0' * 64}\r\nContent-Length: 10"
        sender.sendall(f"POST /webhooks/github HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n{{".encode())
        answer = sender.recv(4096)
        assert answer.startswith(b"HTTP/1.1 408 ")
        while sender.recv(4096):
            pass


def test_a_sender_of_slow_headers_is_cut(served: Served) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as sender:
        sender.sendall(b"POST /webhooks/github HTTP/1.1\r\nHost: x\r\n")
        assert sender.recv(4096) == b""
    with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as silent:
        assert silent.recv(4096) == b""


def test_what_is_no_http_is_refused_and_the_next_is_served(served: Served) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"POST /webhooks/github\r\n\r\n",
        b"GET / HTTP/1.1\r\n: x\r\n\r\n",
    ):
        with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as sender:
            sender.sendall(garbage)
            assert sender.recv(4096).startswith(b"HTTP/1.1 400 ")
    assert served.post("/webhooks/public", body()).status_code == 202
