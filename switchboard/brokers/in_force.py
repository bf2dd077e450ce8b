"""Which broker Switchboard's actors go on: the one that is set, else one made from ``SWITCHBOARD_BROKER_URL``.

``dramatiq.get_broker()`` would make one for RabbitMQ on localhost where none is set, so it is not asked.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq
import dramatiq.broker
import redis

from ..config import required
from ..errors import ConfigError
from .adapter_queues import AdapterQueues
from .ready import RedisBroker


def broker_in_force() -> AdapterQueues:
    """The broker for Switchboard's actors; raises ``ConfigError`` that says what to change where there is none."""
    broker = dramatiq.broker.global_broker
    if broker is None:
        if os.environ.get("SENTRY_DSN", "").strip():
            # Before the broker is made, as Sentry's middleware is put on those that are made later.
            from ..telemetry.sentry import set_up_sentry

            set_up_sentry()
        broker = _from_environment()
        if os.environ.get("dramatiq_prom_port", "").strip():  # noqa: SIM112 - Dramatiq's own name
            _serve_metrics(broker)
        dramatiq.set_broker(broker)
    if not isinstance(broker, AdapterQueues):
        name = type(broker).__name__
        raise ConfigError(
            f"the broker that is set, {name}, lacks switchboard.AdapterQueues: use switchboard.RedisBroker, "
            f"switchboard.RabbitmqBroker or `class Broker(switchboard.AdapterQueues, {name})`"
        )
    broker.has_own_actors = True
    return broker


def _from_environment() -> AdapterQueues:
    try:
        url = required("SWITCHBOARD_BROKER_URL")
    except ConfigError as error:
        raise ConfigError(
            f"{error} (redis://…, rediss://… or amqp://…), and no broker is set; if you set one yourself, "
            f"name its module first: `dramatiq myapp.tasks switchboard.actors`"
        ) from None
    scheme = _scheme(url)
    if scheme in ("redis", "rediss", "unix"):
        with _readable(url):
            # Made and thrown away: an option it does not know would surface with the first message only.
            redis.ConnectionPool.from_url(url).make_connection()
            return RedisBroker(url=url)
    if scheme in ("amqp", "amqps"):
        try:
            from .rabbitmq import RabbitmqBroker
        except ImportError as error:
            raise ConfigError(
                f"SWITCHBOARD_BROKER_URL: {scheme}:// needs `pip install 'dramatiq-switchboard[rabbitmq]'` ({error})"
            ) from error
        with _readable(url):
            return RabbitmqBroker(url=url)
    raise ConfigError(
        f"SWITCHBOARD_BROKER_URL: expected redis://, rediss:// or amqp://, got {scheme + '://' if scheme else 'none'}"
    )


def _serve_metrics(broker: AdapterQueues) -> None:
    """Adds Dramatiq's Prometheus middleware, whose own variable asks for it here."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise ConfigError("dramatiq_prom_port needs `pip install 'dramatiq-switchboard[prometheus]'`")
    try:
        # With the import it reads the environment, and makes its directory.
        from dramatiq.middleware.prometheus import Prometheus
    except ValueError:
        raise ConfigError("dramatiq_prom_port: expected a port's number") from None
    except OSError as error:
        raise ConfigError(f"dramatiq_prom_db: cannot make the directory of metrics: {error}") from error
    broker.add_middleware(Prometheus())


def _scheme(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme if separator and scheme.isalnum() else ""


@contextmanager
def _readable(url: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError):
        # The parser's own message can quote the password.
        raise ConfigError(
            f"SWITCHBOARD_BROKER_URL: not an address that can be used: {_scheme(url)}://… "
            f"(is its port a number, are its options known, special characters percent-encoded?)"
        ) from None
