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
    extend_leases,
    fail_todo,
    heartbeat,
    reap_expired,
    release_todos,
    retry_todo,
)
from .connection import STATEMENT_TIMEOUT, Connection, savepoint
from .consumers import ConsumerRow, forget_consumers, list_consumers, note_poll
from .dead_letters import (
    DeadLetterBody,
    DeadLetterRow,
    get_dead_letter,
    insert_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from .events import event_traces, get_event, insert_event, remember_message
from .exclusive import ExclusiveLock
from .intake import Keyed, insert_batch
from .measures import count_todos, count_unresolved_dead_letters, list_adapter_activity, list_upkeep_successes
from .migrator import migrate
from .notify import CHANNEL, ask, heard, listen
from .pending_acks import forget_acks, note_pending_acks, ready_acks
from .pool import Ledger, PoolUse, Transaction, current_transaction, transaction
from .retention import Pruned, prune
from .settings import get_setting, set_setting
from .todos import create_todo, get_todo, list_todos

__all__ = [
    "CHANNEL",
    "LEASE",
    "STATEMENT_TIMEOUT",
    "AdapterRow",
    "Connection",
    "ConsumerRow",
    "DeadLetterBody",
    "DeadLetterRow",
    "ExclusiveLock",
    "Keyed",
    "Ledger",
    "PoolUse",
    "Pruned",
    "Requeued",
    "Transaction",
    "adapter_enabled",
    "ask",
    "cancel_todo",
    "claim_rows",
    "claim_todo",
    "claim_todos",
    "complete_todo",
    "complete_todos",
    "count_todos",
    "count_unresolved_dead_letters",
    "create_todo",
    "current_transaction",
    "event_traces",
    "extend_leases",
    "fail_todo",
    "forget_acks",
    "forget_consumers",
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
    "list_adapter_activity",
    "list_adapters",
    "list_consumers",
    "list_dead_letters",
    "list_todos",
    "list_upkeep_successes",
    "listen",
    "migrate",
    "note_pending_acks",
    "note_poll",
    "prune",
    "ready_acks",
    "reap_expired",
    "release_todos",
    "remember_message",
    "resolve_dead_letter",
    "retry_todo",
    "savepoint",
    "set_adapter_enabled",
    "set_setting",
    "transaction",
    "upsert_adapter",
]
