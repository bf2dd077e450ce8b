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
from .events import get_event, insert_event, remember_message
from .exclusive import ExclusiveLock
from .humans import Belongings, HumanRow, add_human, belongings, find_human, get_human, list_humans, remove_human
from .intake import Keyed, insert_batch
from .migrator import migrate
from .notify import CHANNEL, ask, heard, listen
from .pending_acks import forget_acks, note_pending_acks, ready_acks
from .pool import Ledger, Transaction, current_transaction, transaction
from .retention import Pruned, prune
from .sessions import SessionRow, authenticate_session, begin_session, end_session
from .settings import get_setting, set_setting
from .todos import create_todo, get_todo, list_todos
from .wire import RawJson

__all__ = [
    "CHANNEL",
    "LEASE",
    "STATEMENT_TIMEOUT",
    "AdapterRow",
    "AgentRow",
    "Belongings",
    "Connection",
    "DeadLetterBody",
    "DeadLetterRow",
    "EndpointRow",
    "ExclusiveLock",
    "HumanRow",
    "Keyed",
    "Ledger",
    "Pruned",
    "RawJson",
    "Requeued",
    "SessionRow",
    "Transaction",
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
    "complete_todo",
    "complete_todos",
    "create_todo",
    "current_transaction",
    "end_session",
    "extend_leases",
    "fail_todo",
    "find_human",
    "forget_acks",
    "get_adapter",
    "get_agent",
    "get_dead_letter",
    "get_endpoint",
    "get_event",
    "get_human",
    "get_setting",
    "get_todo",
    "heard",
    "heartbeat",
    "insert_batch",
    "insert_dead_letters",
    "insert_event",
    "list_adapters",
    "list_agents",
    "list_dead_letters",
    "list_endpoints",
    "list_humans",
    "list_todos",
    "listen",
    "migrate",
    "note_pending_acks",
    "prune",
    "ready_acks",
    "reap_expired",
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
    "transaction",
    "upsert_adapter",
    "vend_endpoint",
]
