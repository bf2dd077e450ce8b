"""JSON lines in the log, where ``SWITCHBOARD_LOG=json`` asks for them."""

from __future__ import annotations

import json
import logging
import os
import re
from datetime import UTC, datetime

from ..errors import ConfigError
from ..redact import redact

_SURROGATE = re.compile(r"[\ud800-\udfff]")

#: What every record has; the rest of its attributes are its structured fields.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

#: What stands in a line before a record's own fields, which do not take their place.
_FIRST = ("time", "level", "logger", "message", "process", "thread", "exception")


def set_up_logs() -> None:
    """Writes JSON lines where ``SWITCHBOARD_LOG=json`` asks for them; ``ConfigError`` for any other value but ``text``.

    It changes the handlers that the commands ``dramatiq`` and ``periodiq`` have put on the root logger, and no others:
    a team that sets up logging itself can give its handlers a ``JsonFormatter``. Warnings are logged then as well.
    """
    wanted = os.environ.get("SWITCHBOARD_LOG", "").strip().lower() or "text"
    if wanted not in ("json", "text"):
        raise ConfigError(f"SWITCHBOARD_LOG: expected json or text, got {wanted!r}")
    if wanted == "text":
        return
    from dramatiq.cli import LOGFORMAT  # not at the top: only the commands need their own module

    for handler in logging.getLogger().handlers:
        if handler.formatter is not None and getattr(handler.formatter, "_fmt", None) == LOGFORMAT:
            handler.setFormatter(JsonFormatter())
            logging.captureWarnings(capture=True)


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line, in ASCII::

        {"time": "2026-01-31T12:00:00.000000Z", "level": "WARNING", "logger": "switchboard.backoff",
         "message": "…", "process": 17, "thread": "…", "adapter": "deploys", "exception": "Traceback …"}

    ``time`` is RFC 3339 in UTC. The structured fields of the record follow (``adapter``, ``broker``, ``message_id``,
    ``queue``, ``todo_id`` of ours; of others' those that are text, numbers, true, false or null). Credentials are
    masked, and lone surrogates replaced, which many readers of JSON refuse.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="microseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _clean(record.getMessage()),
            "process": record.process,
            "thread": record.threadName,
        }
        for name, value in vars(record).items():
            if name not in _OWN and name not in _FIRST and isinstance(value, (str, int, float, bool, type(None))):
                line[_clean(name)] = _clean(value) if isinstance(value, str) else _finite(value)
        said = "\n".join(part for part in (self._exception(record), record.stack_info) if part)
        if said:
            line["exception"] = _clean(said)
        return json.dumps(line)

    def _exception(self, record: logging.LogRecord) -> str:
        if record.exc_info and record.exc_info[0] is not None:
            # Not by way of record.exc_text, which another handler's formatter would then show as ours.
            return self.formatException(record.exc_info)
        return record.exc_text or ""


def _clean(text: str) -> str:
    return redact(_SURROGATE.sub("\ufffd", text))


def _finite(value: float | None) -> object:
    """The value as JSON can say it: it has no infinity, and no NaN."""
    return value if not isinstance(value, float) or value - value == 0 else str(value)
