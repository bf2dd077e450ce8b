"""Dramatiq's own brokers with Switchboard's queues."""

from __future__ import annotations

from dramatiq.brokers import redis as dramatiq_redis
from dramatiq.brokers import stub as dramatiq_stub

from .adapter_queues import AdapterQueues


class RedisBroker(AdapterQueues, dramatiq_redis.RedisBroker):
    """``dramatiq.brokers.redis.RedisBroker`` that also answers for ``adapter.<name>`` queues."""


class StubBroker(AdapterQueues, dramatiq_stub.StubBroker):
    """``dramatiq.brokers.stub.StubBroker`` that also answers for ``adapter.<name>`` queues, for a team's tests."""
