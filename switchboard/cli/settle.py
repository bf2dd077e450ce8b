"""Changing many rows one by one: each in a transaction of its own, with what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ..errors import LedgerUnavailable, SwitchboardError
from ..ledger import Connection, Ledger
from ..redact import redact
from .database import open_ledger
from .output import write_table

#: Ids looked up at a time where a filter selects them.
SELECTED_PAGE = 500


def settle(
    doing: str,
    noun: str,
    select: Callable[[Ledger], Iterable[int]],
    settle_one: Callable[[Connection, int], str],
    as_json: bool,
) -> None:
    """Calls ``settle_one`` for each selected row and prints what it answered, its outcome.

    A refusal is that row's outcome, the rest goes on, and the command fails at the end. Once the ledger is away
    nothing goes on: what was done until then is printed.
    """
    rows: list[dict[str, object]] = []

    def show() -> None:
        write_table(rows, ("id", "outcome"), nothing=f"no {noun}s", as_json=as_json, free_text=("outcome",))

    with open_ledger() as ledger:
        try:
            for row_id in select(ledger):
                rows.append({"id": row_id, "outcome": _outcome(ledger, f"{doing} {noun} {row_id}", settle_one, row_id)})
        except LedgerUnavailable:
            if rows:
                show()
            raise
    show()
    failed = sum(str(row["outcome"]).startswith("failed") for row in rows)
    if failed:
        raise SwitchboardError(f"{doing}: {failed} of {len(rows)} {noun}s failed")


def selected(ledger: Ledger, doing: str, page: Callable[[Connection, int | None], list[int]]) -> Iterator[int]:
    """The ids of all pages, newest first: ``page`` gives at most ``SELECTED_PAGE`` below an id."""
    before = None
    while True:
        with ledger.transaction(doing=doing) as transaction:
            ids = page(transaction.connection, before)
        yield from ids
        if len(ids) < SELECTED_PAGE:
            return
        before = ids[-1]


def _outcome(ledger: Ledger, doing: str, settle_one: Callable[[Connection, int], str], row_id: int) -> str:
    try:
        with ledger.transaction(doing=doing) as transaction:
            return settle_one(transaction.connection, row_id)
    except LedgerUnavailable:
        raise
    except SwitchboardError as error:
        return f"failed: {redact(str(error))}"
