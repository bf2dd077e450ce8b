"""Todos as two workers, an operator and the reaper move them, in any order, compared with a model of the design."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from switchboard.errors import Conflict
from switchboard.ledger import (
    Connection,
    Ledger,
    Requeued,
    cancel_todo,
    claim_todos,
    complete_todo,
    complete_todos,
    create_todo,
    extend_leases,
    fail_todo,
    heartbeat,
    migrate,
    reap_expired,
    release_todos,
    retry_todo,
)
from switchboard.model import JsonText, TodoRow

HOUR = timedelta(hours=1)
QUEUES = ("a", "b")
ENDED = ("done", "failed")


@dataclass(eq=False)
class Todo:
    """What the model knows of a todo. ``waiting`` is a claimed one that nobody holds."""

    queue: str
    key: str | None
    assignee: str | None
    max_attempts: int
    state: Literal["pending", "claimed", "waiting", "done", "failed"] = "pending"
    owner: str | None = None
    expired: bool = False
    attempt: int = 0
    result: int | None = None
    error: str | None = None
    #: Owners of all its claims.
    owners: list[str] = field(default_factory=list)

    def seen(self) -> tuple[object, ...]:
        """As its row must be."""
        held = self.state in ("claimed", "waiting")
        return (
            "claimed" if held else self.state,
            self.owner,
            ("past" if self.expired else "future") if held else None,
            self.attempt,
            self.result,
            self.error,
            self.state in ENDED,
        )

    def end(self, state: Literal["done", "failed"], *, owner: str | None = None, error: str | None = None) -> None:
        self.state, self.owner, self.expired, self.error = state, owner, False, error


# What a row shows of it: the lease as past or future, the end as whether there is a time.
SEEN = """
SELECT id, state, owner,
       CASE WHEN lease_expires_at IS NULL THEN NULL WHEN lease_expires_at <= now() THEN 'past' ELSE 'future' END,
       attempt, result, last_error, completed_at IS NOT NULL
FROM todos ORDER BY id
"""

#: Mostly the same queue, so that moves meet.
queues = st.sampled_from(("a", "a", "a", "b"))
workers = st.sampled_from((0, 1))
assignees = st.sampled_from((None, "ann"))
counts = st.sampled_from((1, 1, 2, 3, 0))
#: Which todo, of those there are; which of its claims, 0 being the last: most calls come from who holds it.
picks = st.integers(0, 50)
claims = st.sampled_from((0, 0, 0, 1, 2))


class Moves(RuleBasedStateMachine):
    """Each rule makes a move in the database and in the model, and compares the answers."""

    connections: ClassVar[tuple[Connection, Connection]]
    operator: ClassVar[Connection]

    def __init__(self) -> None:
        super().__init__()
        self.operator.execute("TRUNCATE todos")
        self.todos: dict[int, Todo] = {}
        self.results = 0

    # The model's own questions

    def pick(self, number: int, *, ever_claimed: bool = False) -> tuple[int, Todo]:
        choice = [pair for pair in self.todos.items() if pair[1].owners or not ever_claimed]
        return choice[number % len(choice)]

    def held(self) -> list[tuple[int, Todo]]:
        return [pair for pair in self.todos.items() if pair[1].state in ("claimed", "waiting")]

    def ever_claimed(self) -> bool:
        return any(todo.owners for todo in self.todos.values())

    def owner(self, todo: Todo, claim: int) -> str:
        return todo.owners[-1 - claim] if claim < len(todo.owners) else "nobody:0"

    def live_twin(self, todo: Todo) -> bool:
        return todo.key is not None and any(
            other is not todo and (other.queue, other.key) == (todo.queue, todo.key) and other.state not in ENDED
            for other in self.todos.values()
        )

    def claimable(self, queue: str, assignee: str | None) -> list[int]:
        """Ids grow with age here: each todo is made in a transaction of its own."""
        return [
            todo_id
            for todo_id, todo in self.todos.items()
            if todo.queue == queue and todo.state == "pending" and todo.assignee in (None, assignee)
        ]

    def note_claims(self, rows: list[TodoRow], expected: list[int], worker: int) -> None:
        assert [row.id for row in rows] == expected
        for row in rows:
            todo = self.todos[row.id]
            assert row.owner is not None
            assert row.owner.startswith(f"worker-{worker}:")
            assert row.owner not in todo.owners
            todo.state, todo.owner, todo.expired = "claimed", row.owner, False
            todo.attempt += 1
            todo.owners.append(row.owner)

    # Moves

    @initialize(keys=st.lists(st.sampled_from((None, "k1", "k2")), min_size=3, max_size=6), attempts=st.integers(1, 3))
    def begin(self, keys: list[str | None], attempts: int) -> None:
        for key in keys:
            self.create("a", key, None, attempts, 0)

    @precondition(lambda self: len(self.todos) < 12)
    @rule(
        queue=queues,
        key=st.sampled_from((None, "k1", "k2")),
        assignee=st.sampled_from((None, None, "ann")),
        max_attempts=st.integers(1, 3),
        worker=workers,
    )
    def create(self, queue: str, key: str | None, assignee: str | None, max_attempts: int, worker: int) -> None:
        todo = Todo(queue, key, assignee, max_attempts)
        row, new = create_todo(
            self.connections[worker],
            queue=queue,
            title="t",
            idempotency_key=key,
            assignee=assignee,
            max_attempts=max_attempts,
        )
        assert new != self.live_twin(todo)
        if new:
            self.todos[row.id] = todo
        else:
            assert (self.todos[row.id].queue, self.todos[row.id].key) == (queue, key)

    @precondition(lambda self: self.claimable("a", None))
    @rule(worker=workers, kind=st.sampled_from(("complete", "fail", "final", "heartbeat")))
    def work(self, worker: int, kind: str) -> None:
        """The plain way: claimed, and ended by who claimed it."""
        first = self.claimable("a", None)[0]
        self.claim("a", 1, None, worker)
        self.owners_move(first, self.todos[first], self.owner(self.todos[first], 0), worker, kind)

    @precondition(lambda self: any(todo.state == "pending" for todo in self.todos.values()))
    @rule(queue=queues, limit=counts, assignee=assignees, worker=workers)
    def claim(self, queue: str, limit: int, assignee: str | None, worker: int) -> None:
        rows = claim_todos(
            self.connections[worker], queue, worker=f"worker-{worker}", limit=limit, lease=HOUR, assignee=assignee
        )
        self.note_claims(rows, self.claimable(queue, assignee)[:limit], worker)

    @precondition(lambda self: any(todo.state == "pending" for todo in self.todos.values()))
    @rule(queue=queues, first=counts, second=counts, commits=st.booleans())
    def claim_side_by_side(self, queue: str, first: int, second: int, commits: bool) -> None:
        """One has claimed and not committed while the other claims."""
        free = self.claimable(queue, None)
        one, two = self.connections
        with one.transaction(force_rollback=not commits):
            mine = claim_todos(one, queue, worker="worker-0", limit=first, lease=HOUR)
            assert [row.id for row in mine] == free[:first]
            others = claim_todos(two, queue, worker="worker-1", limit=second, lease=HOUR)
        self.note_claims(others, free[first:][:second], 1)
        if commits:
            self.note_claims(mine, free[:first], 0)

    @precondition(lambda self: self.ever_claimed())
    @rule(number=picks, claim=claims, worker=workers, kind=st.sampled_from(("heartbeat", "complete", "fail", "final")))
    def move_of_an_owner(self, number: int, claim: int, worker: int, kind: str) -> None:
        todo_id, todo = self.pick(number, ever_claimed=True)
        self.owners_move(todo_id, todo, self.owner(todo, claim), worker, kind)

    def owners_move(self, todo_id: int, todo: Todo, owner: str, worker: int, kind: str) -> None:
        connection = self.connections[worker]
        self.results += 1

        def move() -> None:
            if kind == "heartbeat":
                heartbeat(connection, todo_id, owner, lease=HOUR)
            elif kind == "complete":
                complete_todo(connection, todo_id, owner, result=self.results)
            else:
                error = f"error {self.results}"
                fail_todo(connection, todo_id, owner, error=error, retry_in=HOUR, final=kind == "final")

        if todo.state != "claimed" or todo.owner != owner:
            with pytest.raises(Conflict):
                move()
            return
        move()
        if kind == "heartbeat":
            todo.expired = False
        elif kind == "complete":
            todo.end("done", owner=owner)
            todo.result = self.results
        elif kind == "final" or todo.attempt >= todo.max_attempts:
            todo.end("failed", error=f"error {self.results}")
        else:
            todo.state, todo.owner, todo.expired, todo.error = "waiting", None, False, f"error {self.results}"

    @precondition(lambda self: self.ever_claimed())
    @rule(
        chosen=st.lists(st.tuples(picks, claims), min_size=1, max_size=4),
        worker=workers,
        kind=st.sampled_from(("extend", "complete", "release", "release to wait")),
    )
    def move_of_many(self, chosen: list[tuple[int, int]], worker: int, kind: str) -> None:
        asked = {}
        for number, claim in chosen:
            todo_id, todo = self.pick(number, ever_claimed=True)
            asked[todo_id] = self.owner(todo, claim)
        held = {
            todo_id
            for todo_id, owner in asked.items()
            if self.todos[todo_id].state == "claimed" and self.todos[todo_id].owner == owner
        }
        connection, pairs = self.connections[worker], list(asked.items())
        self.results += 1
        if kind == "extend":
            assert extend_leases(connection, pairs, lease=HOUR) == held
        elif kind == "complete":
            text = JsonText(str(self.results))
            assert complete_todos(connection, [(todo_id, owner, text) for todo_id, owner in pairs]) == held
        else:
            assert release_todos(connection, pairs, wait=HOUR if kind == "release to wait" else None) == held
        for todo in map(self.todos.__getitem__, held):
            if kind == "complete":
                todo.end("done", owner=todo.owner)
                todo.result = self.results
            elif kind != "extend":
                todo.state, todo.owner = "pending" if kind == "release" else "waiting", None
                todo.attempt -= 1
            todo.expired = False

    @precondition(lambda self: self.todos)
    @rule(number=picks, kind=st.sampled_from(("retry", "cancel")))
    def move_of_an_operator(self, number: int, kind: str) -> None:
        todo_id, todo = self.pick(number)
        ended = todo.state in ENDED
        if kind == "cancel":
            if ended:
                with pytest.raises(Conflict, match="expected pending or claimed"):
                    cancel_todo(self.operator, todo_id)
                return
            cancel_todo(self.operator, todo_id)
            todo.end("failed", error="cancelled")
        elif not ended or self.live_twin(todo):
            with pytest.raises(Conflict, match="is live" if ended else "expected done or failed"):
                retry_todo(self.operator, todo_id)
        else:
            retry_todo(self.operator, todo_id)
            todo.state, todo.owner, todo.attempt, todo.result = "pending", None, 0, None

    @precondition(lambda self: any(todo.state in ENDED and todo.key for todo in self.todos.values()))
    @rule(number=picks)
    def come_again(self, number: int) -> None:
        """A message comes again whose todo has ended."""
        ended = [todo for todo in self.todos.values() if todo.state in ENDED and todo.key]
        todo = ended[number % len(ended)]
        self.create(todo.queue, todo.key, None, 2, 0)

    @precondition(lambda self: self.held())
    @rule(numbers=st.sets(picks, min_size=1, max_size=3))
    def time_passes(self, numbers: set[int]) -> None:
        """The leases of some run out, or their waits do."""
        held = self.held()
        for todo_id, todo in (held[number % len(held)] for number in numbers):
            self.operator.execute(
                "UPDATE todos SET lease_expires_at = now() - interval '1 s' WHERE id = %s", (todo_id,)
            )
            todo.expired = True

    @precondition(lambda self: self.held())
    @rule(queue=st.sampled_from((None, *QUEUES)), worker=workers)
    def reap(self, queue: str | None, worker: int) -> None:
        expired = [todo for todo in self.todos.values() if todo.expired and queue in (None, todo.queue)]
        failed = [todo for todo in expired if todo.attempt >= todo.max_attempts]
        assert reap_expired(self.connections[worker], queue=queue) == Requeued(
            pending=len(expired) - len(failed), failed=len(failed)
        )
        for todo in expired:
            error = todo.error if todo.owner is None else f"the lease of {todo.owner} ran out"
            todo.end("failed", error=error)
            if todo not in failed:
                todo.state = "pending"

    # What always holds

    @invariant()
    def the_rows_are_the_models(self) -> None:
        rows = {row[0]: row[1:] for row in self.operator.execute(SEEN)}
        assert rows == {todo_id: todo.seen() for todo_id, todo in self.todos.items()}


@pytest.fixture
def moves(database_url: str) -> Iterator[type[Moves]]:
    with closing(Ledger(database_url)) as ledger:
        migrate(ledger)
        one, two, operator = (ledger.connect(direct=True) for _ in range(3))
        with closing(one), closing(two), closing(operator):
            Moves.connections, Moves.operator = (one, two), operator
            yield Moves


def test_the_state_machine_is_the_designs(moves: type[Moves]) -> None:
    run_state_machine_as_test(
        moves,
        settings=settings(
            max_examples=100, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
