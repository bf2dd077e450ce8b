"""Dramatiq's RabbitMQ broker with Switchboard's queues; needs the extra ``rabbitmq``."""

from __future__ import annotations

from dramatiq.brokers import rabbitmq as dramatiq_rabbitmq

from .adapter_queues import AdapterQueues


class RabbitmqBroker(AdapterQueues, dramatiq_rabbitmq.RabbitmqBroker):
    """``dramatiq.brokers.rabbitmq.RabbitmqBroker`` that also answers for ``adapter.<name>`` queues."""
