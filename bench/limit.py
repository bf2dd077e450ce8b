"""The limit: PostgreSQL inserts the very same rows by itself, from tables, in one statement, with the same indexes."""

from __future__ import annotations

import time

from .servers import Servers

# Ready-made rows: nothing is parsed, looked up or sent, and no client takes part.
_INSERT = """
WITH stored AS (
    INSERT INTO events (source, family, event_type, external_id, trust_mode, verified, verify_detail, content_type,
                        headers, payload, payload_size, source_ip)
    SELECT source, family, event_type, external_id, trust_mode, verified, verify_detail, content_type,
           headers, payload, payload_size, source_ip FROM same_events ORDER BY id
)
INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key)
SELECT queue, source, kind, title, payload, event_id, idempotency_key FROM same_todos ORDER BY id
"""


def limit(servers: Servers) -> float:
    """Pairs of event and todo a second: those that the tables hold now, inserted once more into the emptied tables."""
    with servers.connect() as connection:
        connection.execute("CREATE TABLE same_events AS SELECT * FROM events")
        connection.execute("CREATE TABLE same_todos AS SELECT * FROM todos")
        connection.execute("TRUNCATE events, todos")
        connection.execute("VACUUM ANALYZE same_events, same_todos")
        connection.execute("CHECKPOINT")
        began = time.monotonic()
        stored = connection.execute(_INSERT).rowcount
        took = time.monotonic() - began
    return stored / took
