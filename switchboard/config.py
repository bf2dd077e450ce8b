"""``switchboard.toml`` and the environment, as typed settings.

Reading them does no I/O but the file's own, and every wrong thing is a ``ConfigError`` that names its key.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from .errors import ConfigError
from .normalize import resolve_provider
from .pull import TRANSPORTS, PullAdapter

#: Where the configuration is looked for when ``SWITCHBOARD_CONFIG`` does not say.
DEFAULT_CONFIG = "switchboard.toml"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_KEY = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
# Not by parsing the address: what a password's own / or [ makes of it must be refused as well.
_LITERAL_PASSWORD = re.compile(r"://[^\s@]*:[^\s@]+@|[?&]password=[^&\s]")
_TOP_LEVEL = ("adapters",)


def required(name: str) -> str:
    """The environment variable's value; ``ConfigError`` naming it where it is unset or empty."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{name} is not set")
    return value


def load_adapters() -> list[PullAdapter]:
    """The adapters of the file that ``SWITCHBOARD_CONFIG`` names; none where the default file is not there."""
    return _all_of(load_each())


def load_each() -> list[PullAdapter | ConfigError]:
    """The same, with what is wrong with an adapter in its place; raises ``ConfigError`` for what concerns them all."""
    named = os.environ.get("SWITCHBOARD_CONFIG", "").strip()
    path = Path(named or DEFAULT_CONFIG)
    if not named and not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"SWITCHBOARD_CONFIG: cannot read {path}: {error}") from error
    return _read_each(text, str(path))


def read_adapters(text: str, where: str = DEFAULT_CONFIG) -> list[PullAdapter]:
    """The adapters that a configuration's text describes, in its order; ``where`` opens each error."""
    return _all_of(_read_each(text, where))


def _all_of(found: Iterable[PullAdapter | ConfigError]) -> list[PullAdapter]:
    adapters = []
    for each in found:
        if isinstance(each, ConfigError):
            raise each
        adapters.append(each)
    return adapters


def _read_each(text: str, where: str) -> list[PullAdapter | ConfigError]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error
    _known_keys(document, _TOP_LEVEL, where)
    tables = document.get("adapters", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{where}: adapters: expected one table an adapter, [adapters.NAME]")
    return [_adapter_or_error(name, table, f"{where}: adapters.{name}") for name, table in tables.items()]


def _adapter_or_error(name: str, table: object, where: str) -> PullAdapter | ConfigError:
    try:
        return _adapter(name, table, where)
    except ConfigError as error:
        return error


def _adapter(name: str, table: object, where: str) -> PullAdapter:
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table, [adapters.{name}]")
    options = {key: _expand(key, value, f"{where}.{key}") for key, value in table.items()}
    kind = options.pop("type", None)
    if not isinstance(kind, str) or kind not in TRANSPORTS:
        what = "is missing" if kind is None else f"unknown type {kind!r}{_nearest(str(kind), TRANSPORTS)}"
        raise ConfigError(f"{where}.type: {what} (expected one of {', '.join(TRANSPORTS)})")
    transport = TRANSPORTS[kind]
    _known_keys(options, transport.options_class.model_fields, where)
    try:
        adapter = transport(name, **options)
        resolve_provider(adapter.options.provider)
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(item, where) for item in error.errors())) from None
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from error
    return adapter


def _expand(key: str, value: object, where: str) -> object:
    if not isinstance(value, str):
        return value
    _refuse_literal_secret(key, value, where)

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], "")
        if not found:
            raise ConfigError(f"{where}: environment variable {match[1]} is not set")
        return found

    return _REFERENCE.sub(replace, value)


def _refuse_literal_secret(key: str, value: str, where: str) -> None:
    literal = _REFERENCE.sub("", value)
    if _LITERAL_PASSWORD.search(literal) or (_SECRET_KEY.search(key) and literal):
        raise ConfigError(f"{where}: a literal password; put it in the environment and write ${{NAME}} here")


def _problem(item: Mapping[str, Any], where: str) -> str:
    key = ".".join([where, *(str(part) for part in item["loc"])])
    message = "is missing" if item["type"] == "missing" else str(item["msg"]).removeprefix("Value error, ")
    return f"{key}: {message}"


def _known_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            raise ConfigError(f"{where}: unknown key {key!r}{_nearest(key, names)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
