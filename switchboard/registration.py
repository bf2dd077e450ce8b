"""How an adapter, of either family, becomes known to the ledger."""

from __future__ import annotations

from .adapter import Adapter
from .ledger import Connection, upsert_adapter
from .model import Route


def register_adapter(connection: Connection, adapter: Adapter) -> Route:
    """Upserts the adapter, which decides its key prefix, and returns the route of its deliveries
    (SPEC-0002, Adapter Interface).
    """
    options = adapter.options
    row = upsert_adapter(
        connection,
        name=adapter.name,
        family=adapter.family,
        trust_mode=adapter.trust_mode,
        queue=options.queue,
        namespace=adapter.namespace,
        config=adapter.describe(),
    )
    return Route(
        adapter=adapter.name,
        queue=options.queue,
        key_prefix=row.key_prefix,
        provider=options.provider,
        family=adapter.family,
        trust_mode=adapter.trust_mode,
        max_body=options.max_body,
        broker=adapter.broker,
        namespace=adapter.namespace,
    )
