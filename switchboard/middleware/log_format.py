"""Writes a worker's log as it is asked for, from the moment its process has booted."""

from __future__ import annotations

import dramatiq

from ..errors import ConfigError
from ..telemetry.logs import set_up_logs


class LogFormat(dramatiq.Middleware):
    """Applies ``SWITCHBOARD_LOG`` in each worker process, also in one without ``switchboard.actors``.

    A value that is unknown ends the process with one line. Without it ``switchboard.actors`` does so when imported.
    """

    def after_process_boot(self, broker: dramatiq.Broker) -> None:
        try:
            set_up_logs()
        except ConfigError as error:
            # Any other exception would be logged and the worker run on (dramatiq.Broker.emit_after).
            raise SystemExit(f"switchboard: {error}") from None
