"""What Sentry is told, by real workers over HTTP: once, with tags, and never a body or a credential."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from deploys import CONFIG, Deploys
from sentry_server import SentryServer
from waiting import eventually

from switchboard.embedded import PostgresServer, free_port

PASSWORD = "hunter2-never-sent"
CARD = "4111-1111-1111-1111"
HEADER = "s3cret-header"
SECRETS = (PASSWORD, CARD, HEADER, "card-holder")

#: A team's own initialisation, which asks for all that can be sent, before its own broker.
OWN_SENTRY = """
import os, sentry_sdk
sentry_sdk.init(
    os.environ["TEAM_DSN"], include_local_variables=True, send_default_pii=True, attach_stacktrace=True,
    traces_sample_rate=1.0, max_request_body_size="always", enable_logs=True,
)
"""

OWN_BROKER = """
import dramatiq, os, switchboard
dramatiq.set_broker(switchboard.RedisBroker(url=os.environ["SWITCHBOARD_BROKER_URL"]))
"""

HANDLERS = """
import logging, os, time
from datetime import timedelta
import dramatiq, switchboard

@switchboard.todo(queue="deploys", lease=timedelta(seconds=60), min_backoff=timedelta(milliseconds=1))
def deploy(todo):
    if todo.payload.get("fails"):
        raise ValueError("it cannot be deployed from " + os.environ["DEPLOYS_URL"])
    while todo.payload.get("waits") and not os.path.exists("go"):
        time.sleep(0.05)

@dramatiq.actor
def plain():
    logging.getLogger("team").error("a plain actor's own error")
"""

#: A provider whose errors and local variables are full of the body.
PROVIDER = """
from switchboard import Shape
def shape(delivery):
    body = delivery.body.decode()
    if "unreadable" in body:
        raise ValueError(f"cannot parse {body}")
    return Shape.of({"body": body, "fails": "fails" in body, "waits": "waits" in body}, title=body[:30])
"""

#: PostgreSQL refuses what it is given, and says what that was.
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'refused' USING DETAIL = NEW.payload::text; END $$;
CREATE TRIGGER refuse BEFORE INSERT ON todos FOR EACH ROW WHEN (NEW.title ~ 'refused') EXECUTE FUNCTION refuse();
"""


@pytest.fixture
def sentry() -> Iterator[SentryServer]:
    sentry = SentryServer()
    yield sentry
    sentry.close()


@pytest.fixture
def line(tmp_path: Path, database_url: str, redis_url: str, redis_client: "redis.Redis") -> Iterator[Deploys]:
    """The source's and the ledger's addresses have a password in them."""
    client: Any = redis_client
    client.execute_command("ACL", "SETUSER", "bot", "reset", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    line = Deploys(tmp_path, database_url, redis_url, client)
    line.env["DEPLOYS_URL"] = redis_url.replace("://", f"://bot:{PASSWORD}@", 1)
    line.env["PGPASSWORD"] = PASSWORD
    line.config = CONFIG + 'provider = "provider:shape"\nmax_deliveries = 3\n'
    line.write("provider.py", PROVIDER)
    yield line
    client.acl_deluser("bot")


def set_up(line: Deploys, sentry: SentryServer, whose: str) -> None:
    """Sentry as Switchboard sets it up, or as a team does."""
    line.write("team.py", HANDLERS if whose == "ours" else OWN_SENTRY + OWN_BROKER + HANDLERS)
    line.env |= {"SENTRY_DSN": sentry.dsn} if whose == "ours" else {"TEAM_DSN": sentry.dsn}
    line.modules = ("team", "switchboard.actors")


def assert_clean(sentry: SentryServer) -> None:
    everything = b"\n".join(sentry.envelopes)
    assert everything
    for secret in SECRETS:
        assert secret.encode() not in everything, f"{secret} was sent: {_around(everything, secret.encode())}"


def _around(everything: bytes, secret: bytes) -> str:
    at = everything.index(secret)
    return everything[max(0, at - 300) : at + 100].decode(errors="replace")


def card(what: str) -> str:
    return json.dumps({what: True, "card": CARD, "card-holder": 1})


both = pytest.mark.parametrize("whose", ["ours", "team"])


@both
def test_dead_letters_failures_and_lost_leases_are_told_with_tags_and_without_bodies_and_credentials(
    line: Deploys, sentry: SentryServer, whose: str
) -> None:
    set_up(line, sentry, whose)
    headers = {"authorization": HEADER, "x-note": "card-holder"}
    with line.running() as worker:
        line.rows(REFUSE)
        line.publish(card("unreadable"), card("unreadable"), CARD * 100, card("refused"), **headers)
        line.publish(card("fails"), **headers)
        line.publish(card("waits"), **headers)
        # Poison takes three tries, each later than the one before.
        line.settle(todos=2, dead_letters=4)
        eventually(lambda: len(sentry.events("poison")) == 1, within=20, what="all dead letters are told")
        letters = [event for reason in ("invalid", "too_large", "poison") for event in sentry.events(reason)]
        [(failing,)] = line.rows("SELECT id FROM todos WHERE payload ->> 'fails' = 'true'")
        [(waiting,)] = line.rows("SELECT id FROM todos WHERE payload ->> 'waits' = 'true'")

        # Another takes the todo while its handler runs.
        claimed = "SELECT count(*) FROM todos WHERE id = %s AND state = 'claimed'"
        eventually(lambda: line.rows(claimed, waiting)[0][0], within=20, what="it is handled")
        line.rows("UPDATE todos SET owner = 'another' WHERE id = %s", waiting)
        line.write("go", "")
        eventually(lambda: sentry.events("lease_lost"), within=20, what="the lost lease is told")
        line.ended(1)
        plain = "import team; team.plain.send()"
        run(line, plain)
        eventually(lambda: of_logger(sentry, "team"), within=20, what="a plain actor's error is told")
        assert worker.terminate() == 0

    assert sorted(event["tags"]["switchboard.reason"] for event in letters) == [
        "invalid",
        "invalid",
        "poison",
        "too_large",
    ]
    for event in letters:
        assert event["level"] == "error"
        assert event["tags"]["switchboard.adapter"] == event["tags"]["switchboard.queue"] == "deploys"
        assert event["fingerprint"] == ["switchboard", event["tags"]["switchboard.reason"], "deploys"]
        assert "redis:deploys:" in event["logentry"]["formatted"]
    [lost] = sentry.events("lease_lost")
    assert lost["tags"]["switchboard.queue"] == "deploys"
    assert lost["tags"]["switchboard.todo"] == str(waiting)
    assert lost["fingerprint"] == ["switchboard", "lease_lost", "deploys"]

    failures = [event for event in sentry.events() if "exception" in event]
    attempts = [event["tags"]["switchboard.attempt"] for event in failures]
    assert attempts == [f"{number} of 5" for number in range(1, 6)], "each attempt once, as any actor's"
    for event in failures:
        assert event["tags"]["switchboard.todo"] == str(failing)
        assert event["tags"]["switchboard.queue"] == "deploys"
        assert event["exception"]["values"][-1]["value"].startswith(
            "it cannot be deployed from redis://bot:«redacted»@"
        )

    [own] = of_logger(sentry, "team")
    assert not [tag for tag in own.get("tags", {}) if tag.startswith("switchboard.")], "tags end with their message"
    assert_clean(sentry)


def of_logger(sentry: SentryServer, name: str) -> list[dict[str, Any]]:
    return [event for event in sentry.events() if event.get("logger") == name]


def run(line: Deploys, code: str) -> None:
    subprocess.run([sys.executable, "-c", code], cwd=line.folder, env=line.environment(), check=True, timeout=60)


@both
def test_a_long_outage_of_the_ledger_is_told_once(
    line: Deploys, sentry: SentryServer, own_postgres: PostgresServer, whose: str
) -> None:
    set_up(line, sentry, whose)
    line.database_url = own_postgres.url
    with line.running() as worker:
        line.publish(*[card("fine")] * 20)
        line.settle(todos=20)
        line.ended(20)
        own_postgres.kill()
        line.publish(*[card("fine")] * 50)
        eventually(lambda: "the ledger is unavailable" in worker.output, within=30, what="it is noticed")
        # Work that needs the ledger fails meanwhile, and is tried again and again by Dramatiq.
        run(line, "import team, switchboard\nfor _ in range(5): switchboard.create_todo.send(queue='other')")
        failures = "Failed to process message switchboard.create_todo"
        eventually(lambda: worker.output.count(failures) >= 5, within=60, what="what needs the ledger fails")
        own_postgres.start()
        # Dramatiq's five come again when their time has come.
        line.settle(events=70)
        eventually(lambda: "is back after" in worker.output, within=30, what="it is back")
        assert worker.terminate() == 0
    [event] = sentry.events()
    assert event["tags"]["switchboard.reason"] == "ledger_unavailable"
    assert event["fingerprint"] == ["switchboard", "ledger_unavailable"], "one issue, whoever notices it first"
    assert_clean(sentry)


@both
def test_an_outage_of_the_source_is_told_once_with_its_adapter(line: Deploys, sentry: SentryServer, whose: str) -> None:
    set_up(line, sentry, whose)
    with line.running() as worker:
        line.publish(card("fine"))
        line.settle(todos=1)
        line.client.execute_command("ACL", "SETUSER", "bot", "-xack", "-xreadgroup")
        line.publish(card("fine"))
        eventually(
            lambda: sum(each["count"] for each in line.client.acl_log() if each["reason"] == "command") > 5,
            within=40,
            what="it is tried again and again",
        )
        assert worker.terminate() == 0
    [event] = sentry.events()
    assert event["tags"]["switchboard.reason"] == "source_unavailable"
    assert event["fingerprint"] == ["switchboard", "source_unavailable", "deploys"]
    assert_clean(sentry)


@both
def test_an_acknowledgement_that_a_list_refuses_is_told_without_the_body(
    line: Deploys, sentry: SentryServer, whose: str
) -> None:
    set_up(line, sentry, whose)
    text = line.config.replace("redis-stream", "redis-list").replace('stream = "deploys"', 'list = "deploys"')
    line.config = text.replace('body = "data"\n', "")
    line.client.execute_command("ACL", "SETUSER", "bot", "-lrem")
    with line.running() as worker:
        # LREM takes the body itself.
        line.client.lpush("deploys", CARD)
        eventually(lambda: line.rows("SELECT id FROM todos"), within=20, what="it is stored")
        eventually(lambda: sentry.events("source_unavailable"), within=20, what="the refusal is told")
        assert worker.terminate() == 0
        assert CARD not in worker.output
    assert_clean(sentry)


def test_beside_a_broker_of_the_teams_own_sentry_is_not_set_up(line: Deploys, sentry: SentryServer) -> None:
    line.write("team.py", OWN_BROKER + HANDLERS)
    line.modules = ("team", "switchboard.actors")
    line.env["SENTRY_DSN"] = sentry.dsn
    with line.running() as worker:
        line.publish(CARD * 100, card("fails"))
        line.settle(todos=1, dead_letters=1)
        line.ended(1)
        assert worker.terminate() == 0
    assert sentry.envelopes == []


def test_a_teams_sentry_without_its_dramatiq_part_gets_tags_that_end_with_their_message(
    line: Deploys, sentry: SentryServer
) -> None:
    own = OWN_SENTRY.replace("enable_logs=True", "disabled_integrations=[DramatiqIntegration()]")
    line.write(
        "team.py", "from sentry_sdk.integrations.dramatiq import DramatiqIntegration\n" + own + OWN_BROKER + HANDLERS
    )
    line.modules = ("team", "switchboard.actors")
    line.env["TEAM_DSN"] = sentry.dsn
    with line.running() as worker:
        line.publish(card("fails"))
        line.ended(1)
        run(line, "import team\nfor _ in range(8): team.plain.send()")
        eventually(lambda: len(of_logger(sentry, "team")) == 8, within=20, what="every thread has run one")
        assert worker.terminate() == 0
    failures = [event for event in sentry.events() if "exception" in event]
    assert {event["tags"]["switchboard.queue"] for event in failures} == {"deploys"}
    assert not [event for event in of_logger(sentry, "team") if "switchboard.queue" in event.get("tags", {})]
    assert_clean(sentry)


def test_without_a_dsn_nothing_is_sent(line: Deploys, sentry: SentryServer) -> None:
    # A proxy catches whatever would go anywhere.
    line.env |= {"SENTRY_DSN": "", "HTTP_PROXY": sentry.dsn, "HTTPS_PROXY": sentry.dsn, "NO_PROXY": ""}
    with line.running() as worker:
        line.publish(CARD * 100)
        line.settle(todos=0, dead_letters=1)
        assert worker.terminate() == 0
        assert "dead letter from adapter deploys: too_large" in worker.output
        assert "sentry" not in worker.output.lower()
    assert sentry.envelopes == []


def test_a_sentry_that_does_not_answer_holds_nothing_up(line: Deploys) -> None:
    line.env["SENTRY_DSN"] = f"http://public@127.0.0.1:{free_port()}/7"
    with line.running() as worker:
        line.publish(CARD * 100, card("fine"))
        line.settle(todos=1, dead_letters=1)
        assert worker.terminate() == 0


@pytest.mark.parametrize(
    "dsn", [f"https://{PASSWORD}@127.0.0.1/project", f"{PASSWORD}@127.0.0.1", f"https://{PASSWORD}@127.0.0.1:port/1"]
)
@pytest.mark.parametrize("command", [["-c", "import switchboard.actors"], ["-m", "switchboard.cli", "serve"]])
def test_an_address_that_sentry_cannot_use_ends_the_start_with_one_line_that_does_not_quote_it(
    tmp_path: Path, database_url: str, redis_url: str, command: list[str], dsn: str
) -> None:
    environment = {**os.environ, "SENTRY_DSN": dsn, "DATABASE_URL": database_url, "SWITCHBOARD_BROKER_URL": redis_url}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    [said] = done.stderr.splitlines()
    assert "SENTRY_DSN" in said
    assert PASSWORD not in said
