"""The ledger's functions for todos: each move of the state machine, what refuses it, and what it leaves behind."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta

import psycopg
import pytest
from waiting import eventually

from switchboard.errors import Conflict, LedgerUnavailable, NotFound
from switchboard.ledger import (
    CHANNEL,
    Connection,
    Ledger,
    NewTodo,
    Requeued,
    cancel_todo,
    claim_todo,
    claim_todos,
    complete_todo,
    complete_todos,
    create_todo,
    create_todos,
    extend_leases,
    fail_todo,
    get_todo,
    heartbeat,
    list_todos,
    migrate,
    reap_expired,
    release_todos,
    retry_todo,
)
from switchboard.ledger.todos import database_time
from switchboard.model import JsonText, TodoRow, TodoState

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
ABSENT = 4711


@pytest.fixture
def ledger(database_url: str) -> Iterator[Ledger]:
    with closing(Ledger(database_url, max_size=20)) as ledger:
        migrate(ledger)
        yield ledger


@pytest.fixture
def connection(ledger: Ledger) -> Iterator[Connection]:
    """A connection on which each statement is a transaction, so that time goes on between them."""
    with closing(ledger.connect(direct=True)) as connection:
        yield connection


def make(
    connection: Connection,
    queue: str = "work",
    *,
    key: str | None = None,
    assignee: str | None = None,
    max_attempts: int = 5,
    title: str = "t",
) -> TodoRow:
    made, new = create_todo(
        connection, queue=queue, title=title, idempotency_key=key, assignee=assignee, max_attempts=max_attempts
    )
    assert new
    return made


def claim(connection: Connection, queue: str = "work", *, worker: str = "w1", lease: timedelta = MINUTE) -> TodoRow:
    todo = claim_todo(connection, queue, worker=worker, lease=lease)
    assert todo is not None
    return todo


def owner_of(todo: TodoRow) -> str:
    assert todo.owner is not None
    return todo.owner


def lapse(connection: Connection, todo: TodoRow) -> None:
    """The clock moves past its lease, or past its wait."""
    connection.execute("UPDATE todos SET lease_expires_at = now() - interval '1 ms' WHERE id = %s", (todo.id,))


def fail(connection: Connection, todo: TodoRow, *, error: str = "no", final: bool = False) -> TodoRow:
    return fail_todo(connection, todo.id, owner_of(todo), error=error, retry_in=HOUR, final=final)


# Claiming


def test_a_claim_sets_owner_lease_time_and_attempt(connection: Connection) -> None:
    made = make(connection)
    todo = claim_todo(connection, "work", worker="w1", lease=timedelta(minutes=7))
    assert todo is not None
    assert (todo.id, todo.state, todo.attempt) == (made.id, "claimed", 1)
    assert owner_of(todo).startswith("w1:")
    assert todo.lease_expires_at is not None
    assert todo.claimed_at is not None
    assert todo.lease_expires_at - todo.claimed_at == timedelta(minutes=7)
    assert todo.updated_at > made.updated_at
    assert get_todo(connection, made.id) == todo


def test_each_claim_has_an_owner_of_its_own(connection: Connection) -> None:
    make(connection)
    first = claim(connection)
    release_todos(connection, [(first.id, owner_of(first))])
    assert owner_of(claim(connection)) != owner_of(first)


def test_the_oldest_are_claimed_first_and_never_more_than_asked(connection: Connection) -> None:
    ids = [make(connection).id for _ in range(6)]
    # Given that age is what created_at says, whatever the ids do
    connection.execute("UPDATE todos SET created_at = now() - interval '1 day' WHERE id = %s", (ids[4],))
    order = [ids[4], *ids[:4], ids[5]]

    assert claim_todos(connection, "work", worker="w1", limit=0) == []
    for limit, expected in ((1, order[:1]), (3, order[1:4]), (9, order[4:])):
        assert [todo.id for todo in claim_todos(connection, "work", worker="w1", limit=limit)] == expected
    assert claim_todo(connection, "work", worker="w1") is None


def test_a_queue_gives_its_own_todos_alone(connection: Connection) -> None:
    make(connection, "other")
    assert claim_todos(connection, "work", worker="w1", limit=5) == []
    assert claim_todo(connection, "other", worker="w1") is not None


def test_two_that_claim_at_once_get_different_todos_and_do_not_wait(ledger: Ledger, connection: Connection) -> None:
    ids = [make(connection).id for _ in range(3)]
    with ledger.transaction() as one, ledger.transaction() as two:
        first = claim_todos(one.connection, "work", worker="w1", limit=2)
        second = claim_todos(two.connection, "work", worker="w2", limit=2, timeout=timedelta(seconds=2))
    assert [[todo.id for todo in claimed] for claimed in (first, second)] == [ids[:2], ids[2:]]


def test_a_claim_that_is_rolled_back_leaves_the_todo_as_it_was(ledger: Ledger, connection: Connection) -> None:
    made = make(connection)
    with ledger.transaction() as tx:
        claim(tx.connection)
        tx.connection.rollback()
    assert get_todo(connection, made.id) == made


def test_a_todo_with_an_assignee_is_claimed_by_that_one_alone(connection: Connection) -> None:
    hers, anybodys = make(connection, assignee="ann"), make(connection)

    def claimed_by(assignee: str | None) -> list[int]:
        with connection.transaction(force_rollback=True):
            return [todo.id for todo in claim_todos(connection, "work", worker="w1", limit=5, assignee=assignee)]

    assert claimed_by(None) == [anybodys.id]
    assert claimed_by("bob") == [anybodys.id]
    assert claimed_by("ann") == [hers.id, anybodys.id]


def test_a_plain_insert_of_another_program_can_be_claimed_and_completed(
    connection: Connection, database_url: str
) -> None:
    with psycopg.connect(database_url) as other:
        other.execute("""INSERT INTO todos (queue, title, payload) VALUES ('work', 'by hand', '{"a": 1}')""")
    todo = claim(connection)
    assert (todo.title, todo.payload, todo.attempt, todo.max_attempts) == ("by hand", {"a": 1}, 1, 5)
    complete_todo(connection, todo.id, owner_of(todo))
    assert get_todo(connection, todo.id).state == "done"


# Heartbeats


def test_a_heartbeat_extends_the_lease_from_now_and_nothing_else(connection: Connection) -> None:
    make(connection)
    todo = claim(connection)
    heartbeat(connection, todo.id, owner_of(todo), lease=HOUR)
    later = get_todo(connection, todo.id)
    assert later.lease_expires_at is not None
    assert timedelta(minutes=59) < later.lease_expires_at - database_time(connection) <= HOUR
    later.lease_expires_at = todo.lease_expires_at
    assert later == todo


def test_leases_are_extended_together_and_those_that_are_lost_are_left_out(connection: Connection) -> None:
    for _ in range(4):
        make(connection)
    held = [(todo.id, owner_of(todo)) for todo in claim_todos(connection, "work", worker="w1", limit=4)]
    # Given that one has ended, one is another's, and one was never there
    complete_todo(connection, *held[0])
    asked = [held[0], (held[1][0], "w2:other"), held[2], held[3], (ABSENT, held[0][1])]

    assert extend_leases(connection, asked, lease=HOUR) == {held[2][0], held[3][0]}
    assert extend_leases(connection, []) == set()

    leases = [get_todo(connection, todo_id).lease_expires_at for todo_id, _ in held]
    assert leases[0] is None
    assert leases[1] is not None
    assert leases[2] is not None
    assert leases[1] < database_time(connection) + 10 * MINUTE < leases[2]


def test_heartbeats_touch_no_index(ledger: Ledger, connection: Connection) -> None:
    def updates() -> list[int]:
        row = connection.execute(
            "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'todos'"
        ).fetchone()
        assert row
        return list(row)

    # Given one claimed todo among others on its page; a session reports what it did when it ends
    with closing(ledger.connect(direct=True)) as first:
        for _ in range(20):
            make(first)
        todo = claim(first)
        first.execute("VACUUM todos")
    eventually(lambda: updates()[0] == 1, what="the claim is counted")
    before = updates()

    # When its lease is extended many times
    with closing(ledger.connect(direct=True)) as second:
        for _ in range(100):
            heartbeat(second, todo.id, owner_of(todo))
    eventually(lambda: updates()[0] == before[0] + 100, what="the heartbeats are counted")

    # Then each new version stayed on its page, found by the index entries that were there
    assert updates()[1] - before[1] == 100


# Ends


def test_a_completed_todo_is_done_with_its_result(connection: Connection) -> None:
    make(connection)
    first = fail(connection, claim(connection), error="first try")
    lapse(connection, first)
    reap_expired(connection)
    todo = claim(connection)
    assert todo.last_error == "first try"

    complete_todo(connection, todo.id, owner_of(todo), result={"url": "x", "n": [1, None]})
    done = get_todo(connection, todo.id)
    assert (done.state, done.result, done.last_error, done.attempt) == ("done", {"url": "x", "n": [1, None]}, None, 2)
    assert done.lease_expires_at is None
    assert done.completed_at is not None
    assert done.completed_at >= todo.updated_at


def test_todos_are_completed_together_each_with_its_result(connection: Connection) -> None:
    ids = [make(connection).id for _ in range(4)]
    claimed = claim_todos(connection, "work", worker="w1", limit=4)
    results = [JsonText('{"n": 1}'), None, JsonText("12345678901234567890.10"), JsonText('"lost"')]
    ended = [(todo.id, owner_of(todo), result) for todo, result in zip(claimed, results, strict=True)]
    ended[3] = (ids[3], "w2:other", results[3])

    assert complete_todos(connection, [*ended, (ABSENT, "w1:x", None)]) == set(ids[:3])
    assert complete_todos(connection, []) == set()
    rows = connection.execute("SELECT state, result::text FROM todos ORDER BY id").fetchall()
    assert rows == [("done", '{"n": 1}'), ("done", None), ("done", "12345678901234567890.10"), ("claimed", None)]


def test_a_lease_that_ran_out_and_that_nobody_took_can_still_be_completed(connection: Connection) -> None:
    make(connection)
    todo = claim(connection)
    lapse(connection, todo)
    complete_todo(connection, todo.id, owner_of(todo))
    assert get_todo(connection, todo.id).state == "done"


@pytest.mark.parametrize("text", ["a\x00b", "a\ud800b"], ids=["NUL", "surrogate"])
def test_a_result_that_jsonb_refuses_is_made_storable(connection: Connection, text: str) -> None:
    make(connection)
    todo = claim(connection)
    complete_todo(connection, todo.id, owner_of(todo), result={text: [text]})
    assert get_todo(connection, todo.id).result == {"a\ufffdb": ["a\ufffdb"]}


def test_a_result_that_is_no_json_is_refused_and_is_no_outage(connection: Connection) -> None:
    make(connection)
    todo = claim(connection)
    with pytest.raises(TypeError):
        complete_todo(connection, todo.id, owner_of(todo), result=object())
    with pytest.raises(ValueError, match="JSON"):
        complete_todo(connection, todo.id, owner_of(todo), result=float("nan"))
    assert get_todo(connection, todo.id) == todo


def test_a_failed_attempt_waits_and_is_claimed_by_nobody_until_then(connection: Connection) -> None:
    make(connection)
    waiting = fail(connection, claim(connection), error="first try")
    assert (waiting.state, waiting.owner, waiting.attempt, waiting.last_error) == ("claimed", None, 1, "first try")
    assert waiting.completed_at is None
    assert waiting.lease_expires_at is not None
    assert timedelta(minutes=59) < waiting.lease_expires_at - database_time(connection) <= HOUR

    # Then it is not claimed and not requeued before its time
    assert reap_expired(connection) == Requeued()
    assert claim_todo(connection, "work", worker="w1") is None
    assert get_todo(connection, waiting.id) == waiting

    # And both after it
    lapse(connection, waiting)
    assert claim_todo(connection, "work", worker="w1") is None
    assert reap_expired(connection) == Requeued(pending=1)
    pending = get_todo(connection, waiting.id)
    assert (pending.state, pending.lease_expires_at, pending.attempt) == ("pending", None, 1)
    assert pending.last_error == "first try"
    assert claim(connection).attempt == 2


def test_the_last_attempt_that_fails_is_the_end(connection: Connection) -> None:
    make(connection, max_attempts=2)
    lapse(connection, fail(connection, claim(connection)))
    reap_expired(connection)
    failed = fail(connection, claim(connection), error="second try")
    assert (failed.state, failed.attempt, failed.last_error) == ("failed", 2, "second try")
    assert (failed.owner, failed.lease_expires_at) == (None, None)
    assert failed.completed_at is not None
    assert reap_expired(connection) == Requeued()


def test_a_final_failure_is_the_end_at_once(connection: Connection) -> None:
    make(connection)
    failed = fail(connection, claim(connection), final=True)
    assert (failed.state, failed.attempt, failed.lease_expires_at) == ("failed", 1, None)
    assert failed.completed_at is not None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


ERRORS: dict[str, tuple[BaseException | str, str]] = {
    "NUL": ("a\x00b", "a\ufffdb"),
    "surrogate": (ValueError("a\ud800b"), "ValueError: a\ufffdb"),
    "password": (
        OSError("amqp://joe:hunter2@host/x password=hunter2"),
        "OSError: amqp://joe:«redacted»@host/x password=«redacted»",
    ),
    "unspeakable": (Unspeakable(), "Unspeakable"),
    "long": ("x" * 100_000, "x" * 1_999 + "…"),
}


@pytest.mark.parametrize(("error", "kept"), ERRORS.values(), ids=ERRORS.keys())
def test_an_errors_text_is_made_safe(connection: Connection, error: BaseException | str, kept: str) -> None:
    make(connection)
    todo = claim(connection)
    fail_todo(connection, todo.id, owner_of(todo), error=error, retry_in=HOUR)
    assert get_todo(connection, todo.id).last_error == kept


def test_what_is_released_is_pending_as_if_it_had_not_been_claimed(connection: Connection) -> None:
    made = make(connection)
    make(connection)
    first, second = claim_todos(connection, "work", worker="w1", limit=2)

    asked = [(first.id, owner_of(first)), (second.id, "w2:other"), (ABSENT, owner_of(first))]
    assert release_todos(connection, asked) == {made.id}
    released = get_todo(connection, made.id)
    assert released.updated_at > made.updated_at
    released.updated_at = made.updated_at
    assert released == made
    assert get_todo(connection, second.id) == second
    assert claim(connection).attempt == 1


def test_what_is_released_to_wait_is_pending_after_it_and_no_attempt_is_spent(connection: Connection) -> None:
    make(connection, max_attempts=1)
    todo = claim(connection)
    assert release_todos(connection, [(todo.id, owner_of(todo))], wait=HOUR) == {todo.id}
    waiting = get_todo(connection, todo.id)
    assert (waiting.state, waiting.owner, waiting.attempt) == ("claimed", None, 0)
    assert claim_todo(connection, "work", worker="w1") is None
    assert reap_expired(connection) == Requeued()

    lapse(connection, waiting)
    assert reap_expired(connection) == Requeued(pending=1)
    assert claim(connection).attempt == 1


# The way back, and calling off


@pytest.mark.parametrize("ended", ["done", "failed"])
def test_a_retried_todo_has_all_its_attempts_again(connection: Connection, ended: str) -> None:
    make(connection, max_attempts=1)
    todo = claim(connection)
    if ended == "done":
        complete_todo(connection, todo.id, owner_of(todo), result=1)
    else:
        fail(connection, todo)
    assert get_todo(connection, todo.id).state == ended

    retried = retry_todo(connection, todo.id)
    assert (retried.state, retried.attempt, retried.owner, retried.result) == ("pending", 0, None, None)
    assert (retried.lease_expires_at, retried.claimed_at, retried.completed_at) == (None, None, None)
    assert get_todo(connection, todo.id) == retried
    assert claim(connection).attempt == 1


def test_a_retry_whose_key_has_a_live_twin_is_a_conflict_that_says_so(ledger: Ledger, connection: Connection) -> None:
    make(connection, key="k-1")
    ended = fail(connection, claim(connection), final=True)
    twin = make(connection, key="k-1")

    with ledger.transaction() as tx:
        with pytest.raises(
            Conflict, match=rf"todo {ended.id}: another todo of queue 'work' with its key 'k-1' is live"
        ):
            retry_todo(tx.connection, ended.id)
        # Then the transaction goes on, and what else it does is stored
        make(tx.connection, title="beside it")
    assert get_todo(connection, ended.id) == ended
    assert get_todo(connection, twin.id) == twin
    assert connection.execute("SELECT count(*) FROM todos WHERE title = 'beside it'").fetchone() == (1,)

    # And once the twin has ended, it may be retried
    cancel_todo(connection, twin.id)
    assert retry_todo(connection, ended.id).state == "pending"


def test_a_key_in_another_queue_or_no_key_is_no_twin(connection: Connection) -> None:
    make(connection, key="k")
    make(connection)
    ended = [fail(connection, claim(connection), final=True) for _ in range(2)]
    make(connection, "other", key="k")
    make(connection)
    for todo in ended:
        assert retry_todo(connection, todo.id).state == "pending"


def test_a_cancelled_todo_is_failed_and_its_worker_cannot_complete_it(connection: Connection) -> None:
    make(connection)
    todo = claim(connection)
    cancelled = cancel_todo(connection, todo.id)
    assert (cancelled.state, cancelled.last_error, cancelled.owner) == ("failed", "cancelled", None)
    assert cancelled.lease_expires_at is None
    assert cancelled.completed_at is not None
    with pytest.raises(Conflict, match=f"complete todo {todo.id}: it is failed, expected claimed"):
        complete_todo(connection, todo.id, owner_of(todo))
    assert get_todo(connection, todo.id) == cancelled


# Leases that run out


def test_a_lease_that_ran_out_is_requeued_and_its_old_owner_refused(connection: Connection) -> None:
    make(connection)
    lost = claim(connection)
    lapse(connection, lost)
    assert reap_expired(connection) == Requeued(pending=1)
    pending = get_todo(connection, lost.id)
    assert (pending.state, pending.owner, pending.attempt) == ("pending", None, 1)
    assert pending.last_error == f"the lease of {owner_of(lost)} ran out"

    # Given that it is claimed again, by a worker of the same name
    taken = claim(connection)
    assert taken.attempt == 2
    for move in OWNED.values():
        with pytest.raises(Conflict, match="its lease is another's now"):
            move(connection, lost.id, owner_of(lost))
        assert get_todo(connection, lost.id) == taken
    assert release_todos(connection, [(lost.id, owner_of(lost))]) == set()
    assert get_todo(connection, lost.id) == taken


def test_a_lease_that_ran_out_in_the_last_attempt_fails_its_todo_and_says_why(connection: Connection) -> None:
    make(connection, max_attempts=1)
    todo = claim(connection)
    lapse(connection, todo)
    assert reap_expired(connection) == Requeued(failed=1)
    failed = get_todo(connection, todo.id)
    assert (failed.state, failed.owner, failed.lease_expires_at) == ("failed", None, None)
    assert failed.completed_at is not None
    assert failed.last_error == f"the lease of {owner_of(todo)} ran out"


def test_only_what_ran_out_is_requeued_of_the_queue_that_was_asked_for_and_no_more_than_asked(
    connection: Connection,
) -> None:
    for queue in ("a", "a", "a", "b"):
        make(connection, queue)
    first, second, running, other = (claim(connection, queue) for queue in ("a", "a", "a", "b"))
    for todo in (first, second, other):
        lapse(connection, todo)

    assert reap_expired(connection, queue="nobody's") == Requeued()
    assert reap_expired(connection, queue="a", limit=1) == Requeued(pending=1)
    assert reap_expired(connection, queue="a") == Requeued(pending=1)
    assert get_todo(connection, other.id).state == "claimed"
    assert get_todo(connection, running.id) == running
    assert reap_expired(connection) == Requeued(pending=1)
    assert get_todo(connection, other.id).state == "pending"


def test_what_somebody_is_just_completing_is_not_requeued(ledger: Ledger, connection: Connection) -> None:
    make(connection)
    todo = claim(connection)
    lapse(connection, todo)
    with ledger.transaction() as tx:
        complete_todo(tx.connection, todo.id, owner_of(todo))
        assert reap_expired(connection, timeout=timedelta(seconds=2)) == Requeued()
    assert get_todo(connection, todo.id).state == "done"


# Every move from every state

Move = Callable[[Connection, int, str], object]

#: The moves of an owner; each raises where it is refused.
OWNED: dict[str, Move] = {
    "heartbeat": lambda c, i, o: heartbeat(c, i, o),
    "complete": lambda c, i, o: complete_todo(c, i, o),
    "fail": lambda c, i, o: fail_todo(c, i, o, error="no", retry_in=HOUR),
    "fail finally": lambda c, i, o: fail_todo(c, i, o, error="no", retry_in=HOUR, final=True),
}
MOVES: dict[str, Move] = OWNED | {
    "retry": lambda c, i, o: retry_todo(c, i),
    "cancel": lambda c, i, o: cancel_todo(c, i),
}
#: Where each allowed move leads to.
LEADS: dict[tuple[str, str], TodoState] = {
    ("claimed", "heartbeat"): "claimed",
    ("claimed", "complete"): "done",
    ("claimed", "fail"): "claimed",
    ("claimed", "fail finally"): "failed",
    ("done", "retry"): "pending",
    ("failed", "retry"): "pending",
    ("pending", "cancel"): "failed",
    ("claimed", "cancel"): "failed",
    ("waiting", "cancel"): "failed",
}


def bring_to(connection: Connection, state: str) -> tuple[int, str]:
    """A todo in that state, and the owner of its last claim."""
    make(connection)
    todo = claim(connection)
    if state == "pending":
        release_todos(connection, [(todo.id, owner_of(todo))])
    elif state == "done":
        complete_todo(connection, todo.id, owner_of(todo), result=1)
    elif state != "claimed":
        fail(connection, todo, final=state == "failed")
    return todo.id, owner_of(todo)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("state", ["pending", "claimed", "waiting", "done", "failed"])
def test_a_move_is_made_from_its_states_and_refused_from_all_others(
    connection: Connection, state: str, move: str
) -> None:
    todo_id, owner = bring_to(connection, state)
    before = get_todo(connection, todo_id)
    if leads := LEADS.get((state, move)):
        MOVES[move](connection, todo_id, owner)
        assert get_todo(connection, todo_id).state == leads
    else:
        with pytest.raises(Conflict, match=rf"^{move.split()[0]} todo {todo_id}: "):
            MOVES[move](connection, todo_id, owner)
        assert get_todo(connection, todo_id) == before


@pytest.mark.parametrize("state", ["pending", "waiting", "done", "failed"])
def test_the_moves_of_many_leave_out_what_is_not_claimed(connection: Connection, state: str) -> None:
    todo_id, owner = bring_to(connection, state)
    before = get_todo(connection, todo_id)
    assert release_todos(connection, [(todo_id, owner)]) == set()
    assert extend_leases(connection, [(todo_id, owner)]) == set()
    assert complete_todos(connection, [(todo_id, owner, None)]) == set()
    assert get_todo(connection, todo_id) == before


@pytest.mark.parametrize("move", OWNED)
def test_who_does_not_hold_the_claim_is_refused(connection: Connection, move: str) -> None:
    make(connection)
    todo = claim(connection)
    for stranger in ("w1", "", owner_of(todo).upper(), "w2:" + owner_of(todo).partition(":")[2]):
        with pytest.raises(Conflict, match="its lease is another's now"):
            OWNED[move](connection, todo.id, stranger)
    assert get_todo(connection, todo.id) == todo


@pytest.mark.parametrize("move", MOVES)
def test_a_todo_that_is_not_there_is_not_found(connection: Connection, move: str) -> None:
    with pytest.raises(NotFound, match=f"no todo {ABSENT}"):
        MOVES[move](connection, ABSENT, "w1:x")


# None of them waits for ever

Call = Callable[[Connection, timedelta | None], object]
CALLS: dict[str, Call] = {
    "claim_todo": lambda c, t: claim_todo(c, "work", worker="w1", timeout=t),
    "claim_todos": lambda c, t: claim_todos(c, "work", worker="w1", limit=2, timeout=t),
    "heartbeat": lambda c, t: heartbeat(c, 1, "w1:x", timeout=t),
    "extend_leases": lambda c, t: extend_leases(c, [(1, "w1:x")], timeout=t),
    "complete_todo": lambda c, t: complete_todo(c, 1, "w1:x", timeout=t),
    "complete_todos": lambda c, t: complete_todos(c, [(1, "w1:x", None)], timeout=t),
    "fail_todo": lambda c, t: fail_todo(c, 1, "w1:x", error="no", retry_in=HOUR, timeout=t),
    "release_todos": lambda c, t: release_todos(c, [(1, "w1:x")], timeout=t),
    "retry_todo": lambda c, t: retry_todo(c, 1, timeout=t),
    "cancel_todo": lambda c, t: cancel_todo(c, 1, timeout=t),
    "reap_expired": lambda c, t: reap_expired(c, timeout=t),
    "reap_expired of a queue": lambda c, t: reap_expired(c, queue="work", timeout=t),
}


@contextmanager
def table_locked(url: str) -> Iterator[None]:
    """Another session holds the table, as a long migration of somebody's would."""
    with psycopg.connect(url) as holder:
        holder.execute("LOCK TABLE todos IN ACCESS EXCLUSIVE MODE")
        yield
        holder.rollback()


def all_at_once(ledger: Ledger, timeout: timedelta | None, then: Callable[[], object]) -> dict[str, tuple[str, float]]:
    """Calls each function in a thread of its own, then ``then``; how each ended, and after how many seconds."""

    def ended(call: Call) -> tuple[str, float]:
        began = time.monotonic()
        try:
            with ledger.transaction() as tx:
                call(tx.connection, timeout)
        except LedgerUnavailable:
            return "unavailable", time.monotonic() - began
        return "answered", time.monotonic() - began

    with ThreadPoolExecutor(len(CALLS)) as threads:
        running = {name: threads.submit(ended, call) for name, call in CALLS.items()}
        then()
        return {name: future.result() for name, future in running.items()}


def waiting_sessions(connection: Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    ).fetchone()
    assert row
    return int(row[0])


def test_each_ends_by_its_timeout(ledger: Ledger, database_url: str) -> None:
    with table_locked(database_url):
        ended = all_at_once(ledger, timedelta(seconds=0.5), then=lambda: None)
    assert {name: how for name, (how, _) in ended.items()} == dict.fromkeys(CALLS, "unavailable")
    assert max(seconds for _, seconds in ended.values()) < 10


def test_each_ends_soon_after_a_stop(ledger: Ledger, connection: Connection, database_url: str) -> None:
    def stop() -> None:
        eventually(lambda: waiting_sessions(connection) == len(CALLS), what="all wait for the lock")
        ledger.stop()

    with table_locked(database_url):
        ended = all_at_once(ledger, None, then=stop)
    assert {name: how for name, (how, _) in ended.items()} == dict.fromkeys(CALLS, "unavailable")
    assert max(seconds for _, seconds in ended.values()) < 20


# Nudges

END = "the test's own"


@contextmanager
def listening(url: str) -> Iterator[Callable[[], list[str]]]:
    """Gives what asks for the queues that were nudged since it was asked last."""
    with psycopg.connect(url, autocommit=True) as listener, psycopg.connect(url, autocommit=True) as sender:
        listener.execute(f"LISTEN {CHANNEL}".encode())

        def heard() -> list[str]:
            sender.execute("SELECT pg_notify(%s, %s)", (CHANNEL, END))
            names: list[str] = []
            for notify in listener.notifies(timeout=20):
                if notify.payload == END:
                    return names
                names.append(notify.payload)
            raise AssertionError(f"no end; heard {names}")

        yield heard


def test_at_most_one_nudge_a_queue_and_transaction(ledger: Ledger, connection: Connection, database_url: str) -> None:
    for queue in ("retried", "released", "reaped"):
        for _ in range(2):
            make(connection, queue)
    retried = [fail(connection, claim(connection, "retried"), final=True) for _ in range(2)]
    released = claim_todos(connection, "released", worker="w1", limit=2)
    for todo in claim_todos(connection, "reaped", worker="w1", limit=2):
        lapse(connection, todo)

    with listening(database_url) as heard:
        with ledger.transaction() as tx:
            for _ in range(3):
                make(tx.connection, "created")
            for todo in retried:
                retry_todo(tx.connection, todo.id)
            for todo in released:
                release_todos(tx.connection, [(todo.id, owner_of(todo))])
            reap_expired(tx.connection)
            make(tx.connection, "reaped")
        assert sorted(heard()) == ["created", "reaped", "released", "retried"]


def test_what_makes_nothing_claimable_does_not_nudge(connection: Connection, database_url: str) -> None:
    for _ in range(5):
        make(connection, max_attempts=1)
    made = make(connection, key="k")
    with listening(database_url) as heard:
        create_todo(connection, queue="work", title="twin", idempotency_key="k")
        one, two, three, four, five = claim_todos(connection, "work", worker="w1", limit=5)
        heartbeat(connection, one.id, owner_of(one))
        complete_todo(connection, one.id, owner_of(one))
        fail(connection, two)
        release_todos(connection, [(three.id, owner_of(three))], wait=HOUR)
        cancel_todo(connection, four.id)
        lapse(connection, five)
        assert reap_expired(connection) == Requeued(failed=1)
        with pytest.raises(Conflict):
            retry_todo(connection, made.id)
        assert heard() == []


def test_what_is_rolled_back_does_not_nudge(ledger: Ledger, database_url: str) -> None:
    with listening(database_url) as heard:
        with ledger.transaction() as tx:
            make(tx.connection)
            tx.connection.rollback()
        assert heard() == []


def test_notifications_can_be_off(ledger: Ledger, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("SWITCHBOARD_NOTIFY", "off")
    with listening(database_url) as heard, closing(Ledger.from_environment()) as quiet:
        with quiet.transaction() as tx:
            make(tx.connection)
            todo = claim(tx.connection)
            release_todos(tx.connection, [(todo.id, owner_of(todo))])
            lapse(tx.connection, claim(tx.connection))
        with quiet.transaction() as tx:
            assert reap_expired(tx.connection) == Requeued(pending=1)
            cancel_todo(tx.connection, todo.id)
            retry_todo(tx.connection, todo.id)
        assert heard() == []


def test_many_todos_are_made_in_one_statement_and_a_live_key_makes_no_second(ledger: Ledger) -> None:
    made = [NewTodo(f"todo {n}", {"n": n, "text": "\x00"}, kind="k", idempotency_key=f"key {n % 3}") for n in range(5)]
    with ledger.transaction() as tx:
        ids = create_todos(tx.connection, made, queue="q", source="import")
        assert len(ids) == 3
        assert create_todos(tx.connection, made, queue="q") == []
        assert len(create_todos(tx.connection, [NewTodo("no key"), NewTodo("no key")], queue="q")) == 2
    with ledger.transaction() as tx:
        rows = [get_todo(tx.connection, todo_id) for todo_id in ids]
    assert {(row.queue, row.source, row.kind, row.state) for row in rows} == {("q", "import", "k", "pending")}
    assert rows[0].payload == {"n": 0, "text": "\ufffd"}


def test_of_many_todos_one_that_json_cannot_say_makes_none(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="JSON"), ledger.transaction() as tx:
        create_todos(tx.connection, [NewTodo("a"), NewTodo("b", float("nan"))], queue="q")
    with ledger.transaction() as tx:
        assert list_todos(tx.connection, queue="q") == []


def test_many_todos_wake_who_waits(ledger: Ledger) -> None:
    with closing(ledger.connect(direct=True)) as listener:
        listener.execute("LISTEN todo_ready")
        with ledger.transaction() as tx:
            create_todos(tx.connection, [NewTodo("a"), NewTodo("b")], queue="q")
        assert [notify.payload for notify in listener.notifies(timeout=10, stop_after=1)] == ["q"]
