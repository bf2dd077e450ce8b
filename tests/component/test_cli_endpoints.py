"""``switchboard humans``, ``agents`` and ``endpoints`` as an operator uses them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from switchboard.cli import cli
from switchboard.errors import CredentialInvalid
from switchboard.ledger import Connection, Ledger, authenticate_endpoint, begin_session, find_human, migrate
from switchboard.ledger.credentials import mint
from switchboard.redact import MASK

VEND = ("endpoints", "vend", "ci", "deploys", "--queue", "deploys", "--queue", "builds", "--verb", "create")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Command:
    """Runs the command in this process, on this test's database."""

    def __init__(self, **environment: str | None) -> None:
        self.environment = environment

    def __call__(self, *arguments: str) -> Ran:
        ran = CliRunner().invoke(cli, arguments, env=self.environment, prog_name="switchboard")
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    def ok(self, *arguments: str) -> Ran:
        ran = self(*arguments)
        assert ran.status == 0, ran
        return ran

    def fails(self, *arguments: str) -> str:
        """The one line that it says when it fails."""
        ran = self(*arguments)
        assert (ran.status, ran.out) == (1, ""), ran
        assert ran.err.startswith("switchboard: ")
        assert ran.err.count("\n") == 1
        return ran.err.removeprefix("switchboard: ").rstrip("\n")


@pytest.fixture
def connection(database_url: str) -> Iterator[Connection]:
    """A migrated database; each statement commits."""
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
    with Connection.connect(database_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def command(connection: Connection, database_url: str) -> Command:
    """The command where Ann owns an agent, ci."""
    command = Command(DATABASE_URL=database_url)
    command.ok("humans", "add", "ann@example.com", "--name", "Ann Bell")
    command.ok("agents", "add", "ci", "--owner", "ann@example.com")
    return command


@pytest.fixture
def nowhere() -> Command:
    """The command without a database."""
    return Command(DATABASE_URL=None)


def refused(connection: Connection, credential: str) -> bool:
    try:
        authenticate_endpoint(connection, credential)
    except CredentialInvalid:
        return True
    return False


# Help and wrong use


@pytest.mark.parametrize(
    "arguments",
    [
        ["humans"],
        ["humans", "add"],
        ["humans", "list"],
        ["humans", "show"],
        ["humans", "remove"],
        ["agents"],
        ["agents", "add"],
        ["agents", "list"],
        ["agents", "show"],
        ["agents", "revoke"],
        ["endpoints"],
        ["endpoints", "vend"],
        ["endpoints", "list"],
        ["endpoints", "show"],
        ["endpoints", "rotate"],
        ["endpoints", "revoke"],
    ],
    ids=" ".join,
)
def test_help_has_a_summary_and_examples(nowhere: Command, arguments: list[str]) -> None:
    help_text = nowhere.ok(*arguments, "--help").out
    summary = help_text.split("\n\n")[1].strip()
    assert summary.endswith(".")
    assert "\n" not in summary
    assert f"switchboard {' '.join(arguments)}" in help_text.partition("Examples:\n")[2]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["humans", "add", "ann"], "'ann': expected an address such as ann@example.com"),
        (["humans", "add", "ann bell@example.com"], "expected an address"),
        (["humans", "add", "ann@example.com\x1b[2J"], "expected an address"),
        (["agents", "add", "ci"], "--owner"),
        (["agents", "add", "17", "--owner", "ann@example.com"], "'17' would be taken for an id"),
        (["agents", "add", "", "--owner", "ann@example.com"], "1 to 200 printable characters"),
        (["agents", "add", "a\nb", "--owner", "ann@example.com"], "1 to 200 printable characters"),
        (["endpoints", "vend", "ci", "deploys", "--verb", "create"], "--queue"),
        (["endpoints", "vend", "ci", "deploys", "--queue", "deploys"], "--verb"),
        ([*VEND[:-1], "craete"], "unknown verb 'craete'; did you mean 'create'?"),
        ([*VEND[:-1], "xyz"], "unknown verb 'xyz'; expected 'create'"),
        ([*VEND, "--queue", ""], "expected a queue's name"),
        ([*VEND, "--queue", "q" * 201], "expected a queue's name"),
        ([*VEND, "--expires-in", "soon"], "'soon': expected a duration with its unit"),
        ([*VEND, "--expires-in", "0s"], "'0s': expected more than nothing"),
        ([*VEND, "--expires-in", "36501d"], "36500d at most"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_wrong_use_is_status_2_and_named(nowhere: Command, arguments: list[str], named: str) -> None:
    ran = nowhere(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert named in " ".join(ran.err.split())


@pytest.mark.parametrize("noun", ["humans", "agents", "endpoints"])
def test_a_listing_without_a_database_or_rows_says_so(
    nowhere: Command, connection: Connection, database_url: str, noun: str
) -> None:
    assert nowhere.fails(noun, "list") == "db: empty DATABASE_URL"
    command = Command(DATABASE_URL=database_url)
    assert command.ok(noun, "list").out == f"no {noun}\n"
    assert command.ok(noun, "list", "--json").out == "[]\n"


def test_what_an_argument_names_may_be_near_unknown_or_several(command: Command) -> None:
    command.ok("humans", "add", "bob@example.com")
    command.ok("agents", "add", "ci", "--owner", "bob@example.com")
    command.ok("agents", "add", "nightly", "--owner", "2")
    assert command.fails("agents", "show", "nigthly") == "no agent nigthly; did you mean 'nightly'?"
    assert command.fails("agents", "show", "4711") == "no agent 4711"
    assert command.fails("agents", "show", "9" * 5000).startswith("no agent 999")
    assert command.fails(*VEND) == "agent ci is 1 of ann@example.com or 2 of bob@example.com: give the id"
    assert command.fails("agents", "list", "--owner", "anne@example.com") == (
        "no human anne@example.com; did you mean 'ann@example.com'?"
    )
    assert command.fails("endpoints", "revoke", "deploys") == "no endpoint deploys"
    assert [row["owner"] for row in command.ok("agents", "show", "1", "2", "--json").json] == [
        "ann@example.com",
        "bob@example.com",
    ]


def test_a_credential_given_as_a_name_is_not_printed(command: Command) -> None:
    credential = mint("endpoint").plaintext
    assert command.fails("endpoints", "revoke", credential) == f"no endpoint swb_{MASK}"


# Humans


def test_people_are_added_listed_and_shown(command: Command) -> None:
    [added] = command.ok("humans", "add", "Bob@Example.com", "--json").json
    assert (added["id"], added["email"], added["display_name"]) == (2, "bob@example.com", "")
    assert command.fails("humans", "add", "BOB@example.com") == "there is a human BOB@example.com already"

    header, ann, bob = command.ok("humans", "list").out.splitlines()
    assert header.split() == ["id", "email", "display_name", "created_at"]
    assert ann.split()[:4] == ["1", "ann@example.com", "Ann", "Bell"]
    assert bob.split()[:2] == ["2", "bob@example.com"]

    [shown] = command.ok("humans", "show", "ann@example.com", "--json").json
    assert {key: shown[key] for key in ("id", "agents", "endpoints", "sessions")} == {
        "id": 1,
        "agents": 1,
        "endpoints": 0,
        "sessions": 0,
    }
    assert "display_name: Ann Bell\n" in command.ok("humans", "show", "1").out


def test_removing_a_person_wants_a_yes_and_says_what_goes(command: Command, connection: Connection) -> None:
    credential = command.ok(*VEND).out.strip()
    begin_session(connection, find_human(connection, "ann@example.com").id, lifetime=timedelta(hours=1))

    asked = command("humans", "remove", "ann@example.com")
    assert (asked.status, asked.out) == (2, "")
    assert "this deletes ann@example.com (agents: 1, endpoints: 1, sessions: 1); --yes does it" in " ".join(
        asked.err.split()
    )
    assert not refused(connection, credential)

    done = command.ok("humans", "remove", "ann@example.com", "--yes")
    assert done.out == "deleted ann@example.com (agents: 1, endpoints: 1, sessions: 1)\n"
    assert refused(connection, credential)
    for noun in ("humans", "agents", "endpoints"):
        assert command.ok(noun, "list", "--json").json == []
    assert command.fails("humans", "remove", "ann@example.com", "--yes") == "no human ann@example.com"


# Agents


def test_agents_are_listed_until_they_are_revoked(command: Command, connection: Connection) -> None:
    credential = command.ok(*VEND).out.strip()
    assert command.fails("agents", "add", "ci", "--owner", "1") == "ann@example.com has an agent ci already"
    header, row = command.ok("agents", "list", "--owner", "ann@example.com").out.splitlines()
    assert header.split() == ["id", "name", "owner", "created_at"]
    assert row.split()[:3] == ["1", "ci", "ann@example.com"]

    assert command.ok("agents", "revoke", "ci").out == "revoked agent 1, ci of ann@example.com (active endpoints: 1)\n"
    assert refused(connection, credential)
    assert command.ok("agents", "list", "--json").json == []
    assert command.ok("endpoints", "list", "--json").json == []
    assert [row["revoked_at"] is None for row in command.ok("agents", "list", "--all", "--json").json] == [False]
    assert [row["state"] for row in command.ok("endpoints", "list", "--all", "--json").json] == ["revoked"]
    assert command.fails("agents", "revoke", "ci") == "no agent ci"
    assert command.fails("agents", "revoke", "1") == "agent 1 is already revoked"


# Endpoints


def test_a_credential_is_shown_once_alone(command: Command, connection: Connection) -> None:
    ran = command.ok(*VEND)
    credential = ran.out.removesuffix("\n")
    endpoint = authenticate_endpoint(connection, credential)
    assert (endpoint.queues, endpoint.verbs) == (["deploys", "builds"], ["create"])
    assert ran.err == "endpoint 1, deploys of ci: not shown again\n"

    # Never again, and its hash not at all
    row = connection.execute("SELECT encode(credential_hash, 'hex'), credential_hash::text FROM endpoints").fetchone()
    assert row
    for arguments in (["list"], ["list", "--json"], ["show", "deploys"], ["show", "1", "--json"]):
        shown = command.ok("endpoints", *arguments).out
        assert endpoint.credential_prefix in shown
        assert credential[12:] not in shown
        assert not any(text in shown for text in (*row, "hash"))


def test_with_json_a_credential_comes_with_its_endpoint(command: Command, connection: Connection) -> None:
    ran = command.ok(*VEND, "--expires-in", "90d", "--json")
    assert ran.err == ""
    [row] = ran.json
    assert authenticate_endpoint(connection, row["credential"]).id == row["id"]
    assert {key: row[key] for key in ("agent", "name", "queues", "verbs", "state")} == {
        "agent": "ci",
        "name": "deploys",
        "queues": ["deploys", "builds"],
        "verbs": ["create"],
        "state": "active",
    }
    stored = connection.execute("SELECT expires_at - created_at = interval '90 days' FROM endpoints").fetchone()
    assert stored == (True,)


def test_a_second_endpoint_of_one_name_is_a_conflict_and_shows_nothing(command: Command) -> None:
    command.ok(*VEND)
    assert command.fails(*VEND) == "agent ci has an endpoint deploys already: rotate it, or revoke it first"
    assert len(command.ok("endpoints", "list", "--json").json) == 1


def test_rotating_shows_the_new_credential_alone(command: Command, connection: Connection) -> None:
    old = command.ok(*VEND).out.strip()
    new = command.ok("endpoints", "rotate", "deploys").out.strip()
    assert refused(connection, old)
    assert authenticate_endpoint(connection, new).id == 1
    [row] = command.ok("endpoints", "rotate", "1", "--json").json
    assert refused(connection, new)
    assert not refused(connection, row["credential"])


def test_endpoints_are_revoked_all_of_the_named_or_none(command: Command, connection: Connection) -> None:
    credentials = [command.ok(*VEND[:3], name, *VEND[4:]).out.strip() for name in ("deploys", "builds", "audit")]
    assert command.fails("endpoints", "revoke", "deploys", "buidls") == "no endpoint buidls; did you mean 'builds'?"
    assert [refused(connection, each) for each in credentials] == [False, False, False]

    rows = command.ok("endpoints", "revoke", "builds", "1", "1", "--json").json
    assert [(row["name"], row["state"]) for row in rows] == [("deploys", "revoked"), ("builds", "revoked")]
    assert [refused(connection, each) for each in credentials] == [True, True, False]
    assert [row["name"] for row in command.ok("endpoints", "list", "--agent", "ci", "--json").json] == ["audit"]
    assert len(command.ok("endpoints", "list", "--all", "--json").json) == 3
    assert command.fails("endpoints", "revoke", "1") == "endpoint 1 is already revoked"
    # Its name is free again, and is the new one's.
    command.ok(*VEND)
    assert command.ok("endpoints", "show", "deploys", "--json").json[0]["id"] == 4


def test_as_a_process_a_script_gets_the_credential_and_nothing_else(
    command: Command, connection: Connection, database_url: str, tmp_path: Path
) -> None:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "switchboard.cli", *arguments],
            cwd=tmp_path,
            env={**os.environ, "DATABASE_URL": database_url},
            capture_output=True,
            text=True,
            timeout=120,
        )

    vended = run(*VEND)
    assert vended.returncode == 0
    assert vended.stdout == f"{vended.stdout.strip()}\n"
    assert vended.stdout.strip() not in vended.stderr
    assert authenticate_endpoint(connection, vended.stdout.strip()).may("builds", "create")
    again = run(*VEND)
    assert (again.returncode, again.stdout) == (1, "")
    revoked = run("endpoints", "revoke", "deploys")
    assert (revoked.returncode, revoked.stderr) == (0, "")
    assert refused(connection, vended.stdout.strip())
