"""PostgreSQL, the system of record: every SQL statement is in here.

Functions take the connection of an open transaction (``with ledger.transaction() as tx: …(tx.connection, …)``)
and work without Dramatiq.
"""

from .adapters import AdapterRow, adapter_enabled, get_adapter, list_adapters, set_adapter_enabled, upsert_adapter
from .agents import AgentRow, add_agent, get_agent, list_agents, revoke_agent
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
from .connection import STATEMENT_TIMEOUT, Connection, give_way, savepoint
from .consumers import ConsumerRow, forget_consumers, list_consumers, note_poll
from .dead_letters import (
    DeadLetterBody,
    DeadLetterRow,
    get_dead_letter,
    insert_dead_letters,
    list_dead_letters,
    resolve_dead_letter,
)
from .endpoints import (
    EndpointRow,
    Verb,
    authenticate_endpoint,
    get_endpoint,
    list_endpoints,
    revoke_endpoint,
    rotate_endpoint,
    vend_endpoint,
)
from .events import event_traces, get_event, insert_event, remember_message
from .exclusive import ExclusiveLock
from .holders import Holder, cleanup_holders
from .humans import Belongings, HumanRow, add_human, belongings, find_human, get_human, list_humans, remove_human
from .intake import Keyed, insert_batch
from .measures import count_todos, count_unresolved_dead_letters, list_adapter_activity
from .migrator import migrate
from .notify import CHANNEL, ask, heard, listen
from .pending_acks import forget_acks, note_pending_acks, ready_acks
from .pending_index import PendingIndex, inspect_pending_index, look_after_pending_index, rebuild_pending_index
from .pool import Ledger, PoolUse, Transaction, current_transaction, transaction
from .retention import Pruned, prune
from .sessions import SessionRow, authenticate_session, begin_session, end_session
from .settings import SETTINGS, Setting, get_setting, list_settings, set_setting
from .todos import NewTodo, create_todo, create_todos, database_time, get_todo, list_todos
from .upkeep import UpkeepRow, list_upkeep, migrated_seconds_ago, note_upkeep, take_upkeep

__all__ = [
    "CHANNEL",
    "LEASE",
    "SETTINGS",
    "STATEMENT_TIMEOUT",
    "AdapterRow",
    "AgentRow",
    "Belongings",
    "Connection",
    "ConsumerRow",
    "DeadLetterBody",
    "DeadLetterRow",
    "EndpointRow",
    "ExclusiveLock",
    "Holder",
    "HumanRow",
    "Keyed",
    "Ledger",
    "NewTodo",
    "PendingIndex",
    "PoolUse",
    "Pruned",
    "Requeued",
    "SessionRow",
    "Setting",
    "Transaction",
    "UpkeepRow",
    "Verb",
    "adapter_enabled",
    "add_agent",
    "add_human",
    "ask",
    "authenticate_endpoint",
    "authenticate_session",
    "begin_session",
    "belongings",
    "cancel_todo",
    "claim_rows",
    "claim_todo",
    "claim_todos",
    "cleanup_holders",
    "complete_todo",
    "complete_todos",
    "count_expired",
    "count_todos",
    "count_unresolved_dead_letters",
    "create_todo",
    "create_todos",
    "current_transaction",
    "database_time",
    "end_session",
    "event_traces",
    "extend_leases",
    "fail_todo",
    "find_human",
    "forget_acks",
    "forget_consumers",
    "get_adapter",
    "get_agent",
    "get_dead_letter",
    "get_endpoint",
    "get_event",
    "get_human",
    "get_setting",
    "get_todo",
    "give_way",
    "heard",
    "heartbeat",
    "insert_batch",
    "insert_dead_letters",
    "insert_event",
    "inspect_pending_index",
    "list_adapter_activity",
    "list_adapters",
    "list_agents",
    "list_consumers",
    "list_dead_letters",
    "list_endpoints",
    "list_humans",
    "list_settings",
    "list_todos",
    "list_upkeep",
    "listen",
    "look_after_pending_index",
    "migrate",
    "migrated_seconds_ago",
    "note_pending_acks",
    "note_poll",
    "note_upkeep",
    "prune",
    "ready_acks",
    "reap_expired",
    "rebuild_pending_index",
    "release_todos",
    "remember_message",
    "remove_human",
    "resolve_dead_letter",
    "retry_todo",
    "revoke_agent",
    "revoke_endpoint",
    "rotate_endpoint",
    "savepoint",
    "set_adapter_enabled",
    "set_setting",
    "take_upkeep",
    "transaction",
    "upsert_adapter",
    "vend_endpoint",
]
