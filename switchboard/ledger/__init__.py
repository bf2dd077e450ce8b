"""PostgreSQL, the system of record: every SQL statement is in here.

Functions take the connection of an open transaction (``with ledger.transaction() as tx: …(tx.connection, …)``)
and work without Dramatiq.
"""

from .adapters import AdapterRow, adapter_enabled, get_adapter, list_adapters, set_adapter_enabled, upsert_adapter
from .connection import STATEMENT_TIMEOUT, Connection, savepoint
from .dead_letters import (
    DeadLetterBody,
    DeadLetterRow,
    get_dead_letter,
    insert_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from .events import get_event, insert_event
from .exclusive import ExclusiveLock
from .intake import Keyed, insert_batch
from .migrator import migrate
from .pending_acks import forget_acks, note_pending_acks, ready_acks
from .pool import Ledger, Transaction, current_transaction, transaction
from .retention import Pruned, prune
from .settings import get_setting, set_setting
from .todos import create_todo, get_todo, list_todos

__all__ = [
    "STATEMENT_TIMEOUT",
    "AdapterRow",
    "Connection",
    "DeadLetterBody",
    "DeadLetterRow",
    "ExclusiveLock",
    "Keyed",
    "Ledger",
    "Pruned",
    "Transaction",
    "adapter_enabled",
    "create_todo",
    "current_transaction",
    "forget_acks",
    "get_adapter",
    "get_dead_letter",
    "get_event",
    "get_setting",
    "get_todo",
    "insert_batch",
    "insert_dead_letters",
    "insert_event",
    "list_adapters",
    "list_dead_letters",
    "list_todos",
    "migrate",
    "note_pending_acks",
    "prune",
    "ready_acks",
    "resolve_dead_letter",
    "savepoint",
    "set_adapter_enabled",
    "set_setting",
    "transaction",
    "upsert_adapter",
]
