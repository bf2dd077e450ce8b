"""Todos over HTTP: what an endpoint's credential lets its agent do, and nothing beyond it."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing

import httpx
import pytest
from servers import Service, fresh_database
from serving import Served
from waiting import eventually

from switchboard.ledger import (
    EndpointRow,
    Ledger,
    add_agent,
    add_human,
    revoke_agent,
    revoke_endpoint,
    rotate_endpoint,
    vend_endpoint,
)

URL = "/v1/queues/deploys/todos"


@pytest.fixture(scope="module")
def served(postgres: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with fresh_database(postgres.url) as url, Served(tmp_path_factory.mktemp("served"), url, "") as served:
        yield served


@pytest.fixture(scope="module")
def ledger(served: Served) -> Iterator[Ledger]:
    with closing(Ledger(served.database_url)) as ledger:
        yield ledger


@pytest.fixture
def endpoint(ledger: Ledger, served: Served, request: pytest.FixtureRequest) -> tuple[EndpointRow, str]:
    """An endpoint of an agent of its own, for two queues."""
    with ledger.transaction() as transaction:
        connection = transaction.connection
        human = add_human(connection, email=f"{abs(hash(request.node.nodeid))}@example.com")
        agent = add_agent(connection, owner_id=human.id, name="ci")
        return vend_endpoint(
            connection, agent_id=agent.id, name="deploys", queues=["deploys", "dépôt", "a/b"], verbs=["create"]
        )


def post(served: Served, credential: str, content: object, url: str = URL) -> httpx.Response:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return served.post(url, body, {"Authorization": f"Bearer {credential}"})


def test_a_todo_is_made_and_its_live_twin_is_found(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    row, credential = endpoint
    wanted = {
        "title": "Deploy checkout",
        "payload": {"service": "checkout"},
        "kind": "deploy",
        "idempotency_key": "build-7",
        "assignee": "ann",
        "max_attempts": 2,
    }
    made = post(served, credential, wanted)
    assert made.status_code == 201
    answer = made.json()
    assert answer == {"created": 1, "id": answer["id"], "queue": "deploys", "state": "pending"}
    [todo] = served.rows(
        "SELECT queue, source, title, payload, kind, assignee, max_attempts, idempotency_key FROM todos WHERE id = %s",
        answer["id"],
    )
    assert todo == (
        "deploys",
        f"endpoint:{row.id}",
        "Deploy checkout",
        {"service": "checkout"},
        "deploy",
        "ann",
        2,
        f"endpoint:{row.id}:build-7",
    )
    twin = post(served, credential, wanted)
    assert (twin.status_code, twin.json()) == (200, answer | {"created": 0})
    served.rows("UPDATE todos SET state = 'done' WHERE id = %s", answer["id"])
    assert post(served, credential, wanted).status_code == 201


def test_a_title_is_enough_and_a_queue_may_have_any_name(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    made = post(served, endpoint[1], {"title": "Schön"}, "/v1/queues/d%C3%A9p%C3%B4t/todos")
    assert made.status_code == 201
    assert served.rows("SELECT queue, payload FROM todos WHERE id = %s", made.json()["id"]) == [("dépôt", None)]


def test_a_queue_may_have_a_slash(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    for url in ("/v1/queues/a%2Fb/todos", "/v1/queues/a/b/todos"):
        made = post(served, endpoint[1], {"title": "t"}, url)
        assert (made.status_code, made.json()["queue"]) == (201, "a/b")


@pytest.mark.parametrize("title", ["Schön", "a\u00a0b", "全角\u3000空白", "\U0001f469\u200d\U0001f680 lift-off"])
def test_a_title_of_any_script_is_taken_as_it_is(served: Served, endpoint: tuple[EndpointRow, str], title: str) -> None:
    made = post(served, endpoint[1], {"title": title})
    assert made.status_code == 201
    assert served.value("SELECT title FROM todos WHERE id = %s", made.json()["id"]) == title


def test_numbers_and_text_of_a_payload_stay_what_they_were(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    payload = '{"big": 12345678901234567890.123456789, "one": 1.10, "text": "a\\u0000\\"\\\\b", "deep": [[null, true]]}'
    made = post(served, endpoint[1], f'{{"title": "t", "payload": {payload}}}'.encode())
    assert made.status_code == 201
    stored = served.value("SELECT payload::text FROM todos WHERE id = %s", made.json()["id"])
    assert '"big": 12345678901234567890.123456789' in stored
    assert '"one": 1.10' in stored
    assert json.loads(stored)["text"] == 'a\ufffd"\\b'


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer swb_" + "a" * 43},
        {"Authorization": "Basic swb_" + "a" * 43},
        {"Authorization": "Bearer sw\u00e9"},
        {"Authorization": "Bearer ' OR 1=1"},
    ],
)
def test_without_a_credential_nothing_is_made(served: Served, headers: dict[str, str]) -> None:
    before = served.contents()
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    answer = served.post(URL, b'{"title": "t"}', encoded)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert served.contents() == before


def test_a_credential_that_is_not_the_only_one_is_refused(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    header = (b"authorization", f"Bearer {endpoint[1]}".encode())
    assert served.post(URL, b'{"title": "t"}', [header, header]).status_code == 401
    assert served.post(f"{URL}?token={endpoint[1]}", b'{"title": "t"}').status_code == 401


@pytest.mark.parametrize("queue", ["builds", "Deploys", "deploys%20", "deploy", "%00", "webhooks"])
def test_another_queue_is_refused(served: Served, endpoint: tuple[EndpointRow, str], queue: str) -> None:
    before = served.contents()
    assert post(served, endpoint[1], {"title": "t"}, f"/v1/queues/{queue}/todos").status_code == 403
    assert served.contents() == before


def test_an_endpoint_without_the_verb_is_refused(
    served: Served, endpoint: tuple[EndpointRow, str], ledger: Ledger
) -> None:
    served.rows("UPDATE endpoints SET verbs = '{}' WHERE id = %s", endpoint[0].id)
    assert post(served, endpoint[1], {"title": "t"}).status_code == 403


@pytest.mark.parametrize("how", ["revoked", "agent revoked", "rotated", "expired"])
def test_what_was_taken_back_is_refused_at_once(
    served: Served, endpoint: tuple[EndpointRow, str], ledger: Ledger, how: str
) -> None:
    row, credential = endpoint
    assert post(served, credential, {"title": "t"}).status_code == 201
    with ledger.transaction() as transaction:
        if how == "revoked":
            revoke_endpoint(transaction.connection, row.id)
        elif how == "agent revoked":
            revoke_agent(transaction.connection, row.agent_id)
        elif how == "rotated":
            rotate_endpoint(transaction.connection, row.id)
    if how == "expired":
        served.rows("UPDATE endpoints SET expires_at = now() - interval '1 ms' WHERE id = %s", row.id)
    before = served.contents()
    assert post(served, credential, {"title": "t"}).status_code == 401
    assert served.contents() == before


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ({}, "title"),
        ({"title": ""}, "title"),
        ({"title": 7}, "title"),
        ({"title": "a\nb"}, "title"),
        ({"title": "   "}, "title"),
        ({"title": "\u009b31m"}, "title"),
        ({"title": "evil\u202e"}, "title"),
        ({"title": "a\u2028b"}, "title"),
        ({"title": "\ud800"}, "title"),
        ({"title": "x" * 201}, "title"),
        ({"title": ["t"]}, "title"),
        ({"title": "t", "max_attempts": 1.5}, "max_attempts"),
        (b'{"title": "t", "max_attempts": 1e999}', "max_attempts"),
        (b'{"title": "t", "max_attempts": 1' + b"0" * 5000 + b"}", "max_attempts"),
        ({"title": "t", "idempotency_key": "a\u0000"}, "idempotency_key"),
        ({"title": "t", "max_attempts": 0}, "max_attempts"),
        ({"title": "t", "max_attempts": "5"}, "max_attempts"),
        ({"title": "t", "priority": 1}, "priority"),
        ({"title": "t", "queue": "other"}, "queue"),
        ([], "body"),
        (b"", "body"),
        (b"\xff", "body"),
        (b'{"title": "t", "payload": NaN}', "body"),
        (b'{"title": "t", "payload": 1e999999}', "payload"),
        (b'{"title": "t", "payload": ' + b"[" * 600 + b"]" * 600 + b"}", ""),
    ],
)
def test_what_is_wrong_with_a_todo_is_named(
    served: Served, endpoint: tuple[EndpointRow, str], content: object, named: str
) -> None:
    before = served.contents()
    answer = post(served, endpoint[1], content)
    assert answer.status_code == 422
    assert named in answer.json()["error"]
    assert served.contents() == before


def test_a_stranger_learns_nothing_of_what_would_be_wrong(served: Served) -> None:
    for url in (URL, "/v1/queues/none/todos"):
        assert post(served, "swb_" + "0" * 43, b"not json", url).status_code == 401


def test_what_the_ledger_cannot_hold_is_not_to_come_again(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    served.rows("ALTER TABLE todos ADD CONSTRAINT no_cursed CHECK (title <> 'cursed')")
    try:
        assert post(served, endpoint[1], {"title": "cursed"}).status_code == 422
    finally:
        served.rows("ALTER TABLE todos DROP CONSTRAINT no_cursed")
    assert post(served, endpoint[1], {"title": "cursed"}).status_code == 201


@pytest.mark.parametrize("shown", ["", "Authorization: Bearer x\r\n", f"Authorization: Bearer swbs_{'a' * 43}\r\n"])
def test_what_could_be_no_credential_is_refused_before_the_body(served: Served, shown: str) -> None:
    with closing(socket.create_connection(("127.0.0.1", served.port), 60)) as sender:
        sender.sendall(f"POST {URL} HTTP/1.1\r\nHost: x\r\n{shown}Content-Length: 1000\r\n\r\n{{".encode())
        assert sender.recv(4096).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize("path", ["/v1/queues/{}/todos", "/webhooks/{}"])
def test_no_part_of_a_path_makes_a_line_of_the_log_or_moves_a_terminal(
    served: Served, endpoint: tuple[EndpointRow, str], path: str
) -> None:
    forged = "x%0d%0a[CRITICAL]%20forged%1b[31m%e2%80%a8forged%c2%9b"
    assert post(served, endpoint[1], {"title": "t"}, path.format(forged)).status_code in (403, 404)
    logged = eventually(lambda: [line for line in served.output.splitlines() if "forged" in line])
    assert not [line for line in logged if line.startswith(("[CRITICAL]", "forged"))]
    assert not {"\x1b", "\x9b", "\u2028"} & set(served.output)


def test_a_body_beyond_the_limit_is_refused(served: Served, endpoint: tuple[EndpointRow, str]) -> None:
    assert post(served, endpoint[1], {"title": "t", "payload": "x" * 1024**2}).status_code == 413


def test_no_credential_is_in_the_database_or_in_what_was_logged(
    served: Served, endpoint: tuple[EndpointRow, str]
) -> None:
    assert post(served, endpoint[1], {"title": "t"}).status_code == 201
    assert post(served, endpoint[1], {"title": "t"}, "/v1/queues/other/todos").status_code == 403
    assert endpoint[1] not in json.dumps(served.contents())
    assert endpoint[1] not in served.output
