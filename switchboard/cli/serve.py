"""``switchboard serve``: takes webhooks and todos over HTTP."""

from __future__ import annotations

import logging
import signal
import sys

import click
from dramatiq.cli import LOGFORMAT

from ..errors import ConfigError
from ..telemetry.logs import set_up_logs
from ..telemetry.sentry import set_up_sentry, tidy_events


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="The port; 0: any.")
@click.option(
    "--metrics-port", type=click.IntRange(1, 65_535), help="Serve this process's metrics there, at the same address."
)
def serve(host: str, port: int, metrics_port: int | None) -> None:
    """Take webhooks and todos over HTTP.

    POST /webhooks/ADAPTER for the adapters of switchboard.toml that are webhooks, POST /v1/queues/QUEUE/todos for
    who has an endpoint's credential; GET /livez and /readyz for orchestrators. It listens on this machine alone
    unless told otherwise: put a proxy that speaks TLS before it. SIGTERM ends it once it has answered what it has.

    \b
    Examples:
      switchboard serve
      switchboard serve --host 0.0.0.0 --port 8000 --metrics-port 9192
    """
    try:
        from ..web.app import create_app
        from ..web.server import server
        from ..web.service import Service
    except ImportError as error:
        raise ConfigError(f"serve: needs `pip install 'dramatiq-switchboard[web]'` ({error})") from error
    # As the worker beside it logs, so that one reader fits both.
    logging.basicConfig(format=LOGFORMAT, level="INFO")
    set_up_logs()
    set_up_sentry()
    tidy_events()
    if metrics_port is not None:
        _serve_metrics(host, metrics_port)
    service = Service()
    service.open()
    # uvicorn raises the signal once more when it has ended well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server(create_app(service), host, port, service.read_timeout).run()


def _serve_metrics(host: str, port: int) -> None:
    try:
        from prometheus_client import start_http_server
    except ImportError as error:
        raise ConfigError(
            f"serve: --metrics-port needs `pip install 'dramatiq-switchboard[prometheus]'` ({error})"
        ) from error
    try:
        start_http_server(port, host)
    except OSError as error:
        raise ConfigError(f"serve: --metrics-port: cannot listen at {host}, port {port}: {error}") from error
