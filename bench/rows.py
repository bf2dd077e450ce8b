"""The rows that a rival stores for a message: the very columns that Switchboard fills, in its own tables."""

from __future__ import annotations

import json
from typing import LiteralString

#: An event and its todo in one statement, so that one message is one round trip and one commit.
INSERT: LiteralString = """
WITH stored AS (
    INSERT INTO events (source, family, event_type, external_id, trust_mode, verified, verify_detail,
                        content_type, headers, payload, payload_size)
    VALUES ('bench', 'queue', %(event_type)s, %(key)s, 'queue', false, 'redis acl: default',
            '', '{}', %(body)b, octet_length(%(body)b))
    ON CONFLICT (source, external_id) WHERE external_id IS NOT NULL DO NOTHING
    RETURNING id
)
INSERT INTO todos (queue, source, kind, title, payload, event_id, idempotency_key)
SELECT 'bench', 'bench', %(event_type)s, %(title)s, %(payload)s::jsonb, id, %(key)s FROM stored
ON CONFLICT (queue, idempotency_key) WHERE idempotency_key IS NOT NULL AND state <> 'done' AND state <> 'failed'
DO NOTHING
"""


def row(entry_id: str, body: bytes) -> dict[str, object]:
    """The statement's values for one message."""
    text = body.decode()
    event_type = json.loads(text)["event"]
    return {
        "key": f"redis:bench:{entry_id}",
        "event_type": event_type,
        "title": event_type,
        "body": body,
        "payload": text,
    }
