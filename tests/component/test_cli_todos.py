"""``switchboard todos`` and ``switchboard reap`` as an operator uses them: filters, and moves of many."""

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner
from waiting import eventually

from switchboard.cli import cli
from switchboard.cli.settle import SELECTED_PAGE, settle
from switchboard.errors import Conflict, LedgerUnavailable
from switchboard.ledger import Connection, Ledger, create_todo, get_todo, migrate
from switchboard.ledger.claims import REQUEUE_STEP


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
        self.environment: dict[str, str | None] = {"SWITCHBOARD_NOTIFY": None, **environment}

    def __call__(self, *arguments: str) -> Ran:
        ran = CliRunner().invoke(cli, arguments, env=self.environment, prog_name="switchboard")
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return Ran(ran.exit_code, ran.stdout, ran.stderr)

    def ok(self, *arguments: str) -> Ran:
        ran = self(*arguments)
        assert (ran.status, ran.err) == (0, ""), ran
        return ran

    def listed(self, *filters: str) -> list[int]:
        """The ids that a listing shows."""
        return [row["id"] for row in self.ok("todos", "list", *filters, "--json").json]


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def connection(ledger: Ledger) -> Iterator[Connection]:
    with closing(ledger.connect(direct=True)) as connection:
        yield connection


@pytest.fixture
def command(ledger: Ledger, database_url: str) -> Command:
    return Command(DATABASE_URL=database_url)


@pytest.fixture
def nowhere() -> Command:
    """The command without a database."""
    return Command(DATABASE_URL=None)


#: Made in this order: title, queue, state, kind, key, age.
TODOS = (
    ("0", "deploys", "done", "deploy", "k-0", "3 days"),
    ("1", "deploys", "failed", "deploy", "k-1", "3 days"),
    ("2", "audit", "failed", "note", "k-1", "3 days"),
    ("3", "deploys", "failed", "note", None, "3 hours"),
    ("4", "deploys", "pending", "deploy", "k-4", "3 hours"),
    ("5", "deploys", "claimed", "deploy", "k-5", "3 hours"),
    ("6", "audit", "pending", "note", None, "3 minutes"),
    ("7", "deploys", "failed", "deploy", None, "3 minutes"),
    ("8", "audit", "done", "note", "k-8", "3 minutes"),
    ("9", "deploys", "waiting", "note", "k-9", "3 minutes"),
)


@pytest.fixture
def ids(connection: Connection) -> list[int]:
    """The todos above, by their titles."""
    for title, queue, state, kind, key, age in TODOS:
        connection.execute(
            """
            INSERT INTO todos (queue, title, state, kind, idempotency_key, created_at, attempt, owner, lease_expires_at,
                               completed_at)
            SELECT %(queue)s, %(title)s, CASE state WHEN 'waiting' THEN 'claimed' ELSE state END, %(kind)s, %(key)s,
                   now() - %(age)s::interval, 3, CASE state WHEN 'claimed' THEN 'w1:x' END,
                   CASE WHEN state IN ('claimed', 'waiting') THEN now() + interval '1 h' END,
                   CASE WHEN state IN ('done', 'failed') THEN now() END
            FROM (VALUES (%(state)s)) AS given (state)
            """,
            {"title": title, "queue": queue, "state": state, "kind": kind, "key": key, "age": age},
        )
    return [row[0] for row in connection.execute("SELECT id FROM todos ORDER BY id")]


def states(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT title, state FROM todos ORDER BY id").fetchall())


def count(connection: Connection, condition: str) -> int:
    row = connection.execute(f"SELECT count(*) FROM todos WHERE {condition}".encode()).fetchone()
    assert row
    return int(row[0])


# Help and wrong use


@pytest.mark.parametrize(
    "arguments", [["todos", "list"], ["todos", "retry"], ["todos", "cancel"], ["reap"]], ids=" ".join
)
def test_help_has_a_summary_and_examples(nowhere: Command, arguments: list[str]) -> None:
    help_text = nowhere.ok(*arguments, "--help").out
    summary = help_text.split("\n\n")[1].strip()
    assert summary.endswith(".")
    assert "\n" not in summary
    assert f"switchboard {' '.join(arguments)}" in help_text.partition("Examples:\n")[2]


@pytest.mark.parametrize("move", ["retry", "cancel"])
def test_a_move_of_many_wants_ids_or_filters_and_not_both(
    command: Command, connection: Connection, ids: list[int], move: str
) -> None:
    before = states(connection)
    for arguments in ([], ["--json"], ["1", "--queue", "deploys"], ["1", "--older-than", "0s"]):
        ran = command("todos", move, *arguments)
        assert (ran.status, ran.out) == (2, "")
        assert "give the IDs, or select with --queue, --state, --kind, --key or an age" in ran.err
    assert states(connection) == before


def test_a_filter_that_a_shell_left_empty_selects_nothing(
    command: Command, connection: Connection, ids: list[int]
) -> None:
    before = states(connection)
    for name in ("--queue", "--kind", "--key"):
        assert command.listed(name, "") == []
        assert command.ok("todos", "retry", name, "").out == "no todos\n"
    assert states(connection) == before


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["todos", "list", "--older-than", "2"], "'2': expected a duration with its unit"),
        (["todos", "list", "--newer-than", "two hours"], "--newer-than"),
        (["todos", "list", "--newer-than", "-2h"], "--newer-than"),
        (["todos", "list", "--older-than", "99999999999999d"], "--older-than"),
        (["todos", "list", "--older-than", "36501d"], "36500d at most"),
        (["todos", "retry", "--state", "pending"], "'done', 'failed'"),
        (["todos", "cancel", "--state", "failed"], "'pending', 'claimed'"),
        (["todos", "retry", "x"], "x"),
        (["todos", "cancel", "0"], "0"),
        (["reap", "now"], "now"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_status_2_and_named(nowhere: Command, arguments: list[str], named: str) -> None:
    ran = nowhere(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert named in ran.err


@pytest.mark.parametrize(
    "arguments",
    [["todos", "retry", "1"], ["todos", "retry", "--queue", "q"], ["todos", "cancel", "1"], ["reap"]],
    ids=" ".join,
)
def test_without_a_database_url_one_line_names_it(nowhere: Command, arguments: list[str]) -> None:
    assert nowhere(*arguments) == Ran(1, "", "switchboard: db: empty DATABASE_URL\n")


# Filters

FILTERS: dict[str, tuple[Sequence[str], str]] = {
    "queue": (["--queue", "audit"], "862"),
    "state": (["--state", "claimed"], "95"),
    "kind": (["--kind", "note"], "98632"),
    "key": (["--key", "k-1"], "21"),
    "older": (["--older-than", "2h"], "543210"),
    "newer": (["--newer-than", "2h"], "9876"),
    "between": (["--older-than", "1h", "--newer-than", "2d"], "543"),
    "unit": (["--newer-than", "1.5d", "--older-than", "90m"], "543"),
    "queue and state": (["--queue", "deploys", "--state", "failed"], "731"),
    "queue and key": (["--queue", "deploys", "--key", "k-1"], "1"),
    "queue, state and age": (["--queue", "deploys", "--state", "failed", "--newer-than", "1d"], "73"),
    "all": (["--queue", "audit", "--state", "done", "--kind", "note", "--key", "k-8", "--newer-than", "1h"], "8"),
    "nothing": (["--queue", "deploys", "--key", "k-8"], ""),
}


@pytest.mark.parametrize(("filters", "titles"), FILTERS.values(), ids=FILTERS.keys())
def test_a_listing_shows_what_all_filters_agree_with_newest_first(
    command: Command, ids: list[int], filters: Sequence[str], titles: str
) -> None:
    expected = [ids[int(title)] for title in titles]
    assert command.listed(*filters) == expected
    # And page by page
    paged: list[int] = []
    while page := command.listed(*filters, "--limit", "2", *(["--before", str(paged[-1])] if paged else [])):
        paged += page
    assert paged == expected


@pytest.mark.parametrize(("filters", "titles"), FILTERS.values(), ids=FILTERS.keys())
def test_exactly_what_a_listing_shows_is_retried(
    command: Command, connection: Connection, ids: list[int], filters: Sequence[str], titles: str
) -> None:
    before = states(connection)
    ended = [title for title in titles if before[title] in ("done", "failed")]
    if "claimed" in filters:
        assert command("todos", "retry", *filters).status == 2
        return

    ran = command.ok("todos", "retry", *filters, "--json")
    assert ran.json == [{"id": ids[int(title)], "outcome": "retried"} for title in ended]
    assert states(connection) == before | dict.fromkeys(ended, "pending")
    assert count(connection, "state = 'pending' AND attempt = 0") == len(ended)
    # And once more: nothing is left to retry
    assert command.ok("todos", "retry", *filters).out == "no todos\n"


@pytest.mark.parametrize(
    ("filters", "titles"),
    [
        (["--queue", "deploys"], "954"),
        (["--state", "pending"], "64"),
        (["--state", "claimed", "--kind", "note"], "9"),
        (["--key", "k-4"], "4"),
        (["--older-than", "1h"], "54"),
        (["--kind", "nobody's"], ""),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_exactly_what_a_listing_shows_is_cancelled(
    command: Command, connection: Connection, ids: list[int], filters: list[str], titles: str
) -> None:
    before = states(connection)
    ran = command.ok("todos", "cancel", *filters, "--json")
    assert ran.json == [{"id": ids[int(title)], "outcome": "cancelled"} for title in titles]
    assert states(connection) == before | dict.fromkeys(titles, "failed")
    assert count(connection, "last_error = 'cancelled' AND owner IS NULL") == len(titles)


def test_the_age_is_of_the_databases_clock(command: Command, connection: Connection) -> None:
    # Given one made just now, and one that the database's clock has not come to yet
    now, _ = create_todo(connection, queue="q", title="now")
    connection.execute("INSERT INTO todos (queue, title, created_at) VALUES ('q', 'later', now() + interval '1 h')")
    assert command.listed("--older-than", "0s") == [now.id]
    assert command.listed("--older-than", "1h") == []
    assert len(command.listed("--newer-than", "1h")) == 2


def test_a_filter_is_text_and_not_sql(command: Command, connection: Connection) -> None:
    text = "'); DROP TABLE todos; -- %s %(x)s {} \\"
    made, _ = create_todo(connection, queue=text, title="t", kind=text, idempotency_key=text)
    create_todo(connection, queue="q", title="t")
    assert command.listed("--queue", text, "--kind", text, "--key", text) == [made.id]


# Moves by id


def test_todos_are_retried_by_id_and_a_refusal_does_not_stop_the_rest(
    command: Command, connection: Connection, ids: list[int]
) -> None:
    before = states(connection)
    asked = [ids[1], 4711, ids[4], ids[0]]
    ran = command("todos", "retry", *map(str, asked), "--json")
    assert ran.status == 1
    assert ran.err == "switchboard: retry: 2 of 4 todos failed\n"
    assert ran.json == [
        {"id": ids[1], "outcome": "retried"},
        {"id": 4711, "outcome": "failed: no todo 4711"},
        {"id": ids[4], "outcome": f"failed: retry todo {ids[4]}: it is pending, expected done or failed"},
        {"id": ids[0], "outcome": "retried"},
    ]
    assert states(connection) == before | {"0": "pending", "1": "pending"}


def test_todos_are_cancelled_by_id_and_a_refusal_does_not_stop_the_rest(
    command: Command, connection: Connection, ids: list[int]
) -> None:
    before = states(connection)
    ran = command("todos", "cancel", *(str(ids[number]) for number in (4, 1, 5, 9)))
    assert ran.status == 1
    assert ran.err == "switchboard: cancel: 1 of 4 todos failed\n"
    header, *rows = ran.out.splitlines()
    assert header.split() == ["id", "outcome"]
    assert [re.split(r"\s+", row, maxsplit=1) for row in rows] == [
        [str(ids[4]), "cancelled"],
        [str(ids[1]), f"failed: cancel todo {ids[1]}: it is failed, expected pending or claimed"],
        [str(ids[5]), "cancelled"],
        [str(ids[9]), "cancelled"],
    ]
    assert states(connection) == before | dict.fromkeys("459", "failed")


# Moves of many


def test_more_than_a_page_is_retried(command: Command, connection: Connection) -> None:
    many = SELECTED_PAGE + 3
    connection.execute(
        "INSERT INTO todos (queue, title, state, completed_at) SELECT 'q', 't', 'failed', now() "
        "FROM generate_series(1, %s)",
        (many,),
    )
    assert len(command.ok("todos", "retry", "--queue", "q", "--json").json) == many
    assert count(connection, "state = 'pending'") == many


def test_a_retry_whose_key_has_a_live_twin_is_reported_and_the_rest_goes_on(
    command: Command, connection: Connection, ids: list[int]
) -> None:
    # Given that the message of one of them came again
    twin, new = create_todo(connection, queue="deploys", title="twin", idempotency_key="k-1")
    assert new
    before = states(connection)

    ran = command("todos", "retry", "--queue", "deploys", "--state", "failed", "--json")
    assert ran.status == 1
    assert ran.err == "switchboard: retry: 1 of 3 todos failed\n"
    outcomes = {row["id"]: row["outcome"] for row in ran.json}
    assert list(outcomes) == [ids[7], ids[3], ids[1]]
    assert outcomes[ids[7]] == outcomes[ids[3]] == "retried"
    assert outcomes[ids[1]].startswith(f"failed: todo {ids[1]}: another todo of queue 'deploys' with its key 'k-1'")
    assert states(connection) == before | {"3": "pending", "7": "pending"}
    assert get_todo(connection, twin.id) == twin


def test_of_two_with_one_key_the_newer_is_retried(command: Command, connection: Connection) -> None:
    connection.execute(
        "INSERT INTO todos (queue, title, state, idempotency_key, completed_at) "
        "SELECT 'q', n::text, 'failed', 'k', now() FROM generate_series(1, 2) AS n"
    )
    assert command("todos", "retry", "--key", "k").status == 1
    assert states(connection) == {"1": "failed", "2": "pending"}


def test_what_has_changed_since_it_was_selected_is_left_alone(
    command: Command, ledger: Ledger, connection: Connection, ids: list[int]
) -> None:
    def waits() -> bool:
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        ).fetchone()
        return row == (1,)

    # Given somebody who retries one of them, and whose worker is quick
    with ThreadPoolExecutor(1) as thread, ledger.transaction() as other:
        other.connection.execute("UPDATE todos SET state = 'done', result = '1' WHERE id = %s", (ids[3],))
        running = thread.submit(command, "todos", "retry", "--queue", "deploys", "--state", "failed", "--json")
        eventually(waits, what="the command waits for that row")
        other.connection.commit()
        ran = running.result(timeout=30)

    # Then it is done, and not done again
    assert (ran.status, ran.err) == (0, "")
    assert {row["id"]: row["outcome"] for row in ran.json} == {
        ids[7]: "retried",
        ids[3]: "changed meanwhile, left alone",
        ids[1]: "retried",
    }
    assert states(connection)["3"] == "done"


def test_once_the_ledger_is_away_what_was_done_is_told(
    ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def settle_one(connection: Connection, todo_id: int) -> str:
        if todo_id == 2:
            raise Conflict("refused, password=hunter2")
        if todo_id == 3:
            raise LedgerUnavailable("gone")
        return "retried"

    monkeypatch.setenv("DATABASE_URL", database_url)
    with pytest.raises(LedgerUnavailable, match="gone"):
        settle("retry", "todo", lambda ledger: (1, 2, 3, 4), settle_one, as_json=True)
    assert json.loads(capsys.readouterr().out) == [
        {"id": 1, "outcome": "retried"},
        {"id": 2, "outcome": "failed: refused, password=«redacted»"},
    ]


# reap


def test_a_database_that_is_not_migrated_says_what_to_run(database_url: str) -> None:
    ran = Command(DATABASE_URL=database_url)("reap")
    assert ran == Ran(1, "", "switchboard: reap: the database is not migrated; run `switchboard migrate`\n")


def reaped(**counts: int) -> dict[str, int]:
    names = ("pending", "failed", "deliveries", "consumers", "unreachable", "rebuilt")
    return dict.fromkeys(names, 0) | counts


def test_reap_requeues_what_ran_out_and_counts_it(
    command: Command, connection: Connection, ids: list[int], ledger: Ledger
) -> None:
    before = states(connection)
    assert command.ok("reap").out == "requeued 0 todos; 0 ran out in their last attempt and are failed\n"
    assert states(connection) == before

    connection.execute(
        "UPDATE todos SET lease_expires_at = now() - interval '1 s', attempt = CASE title WHEN '5' THEN 5 ELSE 1 END "
        "WHERE state = 'claimed'"
    )
    assert command.ok("reap", "--queue", "audit", "--json").json == [reaped()]
    assert command.ok("reap", "--queue", "deploys", "--dry-run", "--json").json == [reaped(pending=1, failed=1)]
    assert command.ok("reap", "--queue", "deploys", "--json").json == [reaped(pending=1, failed=1)]
    assert states(connection) == before | {"5": "failed", "9": "pending"}


@pytest.mark.parametrize("owner", ["NULL", "'w1:x'"], ids=["waiting", "held"])
def test_reap_takes_all_in_steps(command: Command, connection: Connection, owner: str) -> None:
    many = 2 * REQUEUE_STEP + 7
    connection.execute(
        "INSERT INTO todos (queue, title, state, attempt, owner, lease_expires_at) "
        f"SELECT 'q' || n % 3, 't', 'claimed', 1, {owner}, now() FROM generate_series(1, {many}) AS n".encode()
    )
    assert command.ok("reap").out == f"requeued {many} todos; 0 ran out in their last attempt and are failed\n"
    assert count(connection, "state = 'pending'") == many


def test_a_retry_wakes_who_waits(command: Command, ledger: Ledger, connection: Connection, ids: list[int]) -> None:
    with closing(ledger.connect(direct=True)) as listener:
        listener.execute("LISTEN todo_ready")
        command.ok("todos", "retry", str(ids[1]))
        assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["deploys"]
