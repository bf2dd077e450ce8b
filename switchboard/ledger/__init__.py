"""PostgreSQL, the system of record: every SQL statement is in here.

Functions take the connection of an open transaction (``with ledger.transaction() as tx: …(tx.connection, …)``)
and work without Dramatiq.
"""

from .adapters import AdapterRow, adapter_enabled, get_adapter, list_adapters, set_adapter_enabled, upsert_adapter
from .claims import (
    LEASE,
    Requeued,
    cancel_todo,
    claim_rows,
    claim_todo,
    claim_todos,
    complete_todo,
    complete_todos,
    count_expired,
    extend_leases,
    fail_todo,
    heartbeat,
    reap_expired,
    release_todos,
    retry_todo,
)
from .connection import STATEMENT_TIMEOUT, Connection, savepoint
from .dead_letters import (
    DeadLetterBody,
    DeadLetterRow,
    get_dead_letter,
    insert_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from .events import get_event, insert_event, remember_message
from .exclusive import ExclusiveLock
from .intake import Keyed, insert_batch
from .migrator import migrate
from .notify import CHANNEL, ask, heard, listen
from .pending_acks import forget_acks, note_pending_acks, ready_acks
from .pending_index import Holder, PendingIndex, cleanup_holder, inspect_pending_index, rebuild_pending_index
from .pool import Ledger, Transaction, current_transaction, transaction
from .retention import Pruned, prune
from .settings import SETTINGS, Setting, get_setting, list_settings, set_setting
from .todos import create_todo, database_time, get_todo, list_todos
from .upkeep import UpkeepRow, list_upkeep, note_upkeep, take_upkeep

__all__ = [
    "CHANNEL",
    "LEASE",
    "SETTINGS",
    "STATEMENT_TIMEOUT",
    "AdapterRow",
    "Connection",
    "DeadLetterBody",
    "DeadLetterRow",
    "ExclusiveLock",
    "Holder",
    "Keyed",
    "Ledger",
    "PendingIndex",
    "Pruned",
    "Requeued",
    "Setting",
    "Transaction",
    "UpkeepRow",
    "adapter_enabled",
    "ask",
    "cancel_todo",
    "claim_rows",
    "claim_todo",
    "claim_todos",
    "cleanup_holder",
    "complete_todo",
    "complete_todos",
    "count_expired",
    "create_todo",
    "current_transaction",
    "database_time",
    "extend_leases",
    "fail_todo",
    "forget_acks",
    "get_adapter",
    "get_dead_letter",
    "get_event",
    "get_setting",
    "get_todo",
    "heard",
    "heartbeat",
    "insert_batch",
    "insert_dead_letters",
    "insert_event",
    "inspect_pending_index",
    "list_adapters",
    "list_dead_letters",
    "list_settings",
    "list_todos",
    "list_upkeep",
    "listen",
    "migrate",
    "note_pending_acks",
    "note_upkeep",
    "prune",
    "ready_acks",
    "reap_expired",
    "rebuild_pending_index",
    "release_todos",
    "remember_message",
    "resolve_dead_letter",
    "retry_todo",
    "savepoint",
    "set_adapter_enabled",
    "set_setting",
    "take_upkeep",
    "transaction",
    "upsert_adapter",
]
