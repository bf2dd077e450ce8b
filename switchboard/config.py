"""``switchboard.toml`` and the environment, as typed settings.

Reading them does no I/O but the file's own, and every wrong thing is a ``ConfigError`` that names its key. Each
process reads the references of its own family alone: a worker needs no webhook's secret, the web no broker's address.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from .adapter import Adapter, Duration
from .errors import ConfigError
from .normalize import resolve_provider
from .pull import TRANSPORTS, PullAdapter
from .push import SENDERS, PushAdapter
from .schedules import UpkeepOptions

#: Where the configuration is looked for when ``SWITCHBOARD_CONFIG`` does not say.
DEFAULT_CONFIG = "switchboard.toml"

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_KEY = re.compile(r"password|passwd|secret|token", re.IGNORECASE)
# Not by parsing the address: what a password's own / or [ makes of it must be refused as well.
_LITERAL_PASSWORD = re.compile(r"://[^\s@]*:[^\s@]+@|[?&]password=[^&\s]")
_TOP_LEVEL = ("adapters", "upkeep", "web")
_TYPES: dict[str, type[Adapter]] = {**TRANSPORTS, **SENDERS}

AdapterType = TypeVar("AdapterType", bound=Adapter)
OptionsType = TypeVar("OptionsType", bound=BaseModel)


class WebOptions(BaseModel):
    """The table ``[web]``: what holds for every request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Whose ``X-Forwarded-For`` is believed: addresses and networks, such as "10.0.0.0/8".
    trusted_proxies: tuple[str, ...] = ()
    #: Requests worked on at once; the next is told to come again, 503.
    max_in_progress: int = Field(default=100, ge=1, le=10_000, strict=True)
    #: How long a request may take to arrive, its headers and its body each.
    read_timeout: Duration = Field(default=timedelta(seconds=20), ge=timedelta(milliseconds=100))

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ValueError(f"expected addresses and networks: {error}") from None
        return proxies


def required(name: str) -> str:
    """The environment variable's value; ``ConfigError`` naming it where it is unset or empty."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{name} is not set")
    return value


def load_adapters() -> list[PullAdapter]:
    """The pull adapters of the file that ``SWITCHBOARD_CONFIG`` names; none where the default file is not there."""
    return read_adapters(*_configuration())


def load_each() -> list[Adapter | ConfigError]:
    """The adapters of both families, with what is wrong with one in its place.

    Raises ``ConfigError`` for what concerns them all.
    """
    return list(_each(*_configuration(), _TYPES))


def unset_variables(adapter: str) -> list[str]:
    """The environment variables that the adapter's table refers to, and that are unset or empty, in its order."""
    table = _document(*_configuration()).get("adapters", {}).get(adapter, {})
    return [name for name in _REFERENCE.findall(str(table)) if not os.environ.get(name, "").strip()]


def load_webhooks() -> list[PushAdapter]:
    """The webhook adapters of that file; none where the default file is not there."""
    return read_webhooks(*_configuration())


def load_web() -> WebOptions:
    """The table ``[web]`` of that file, or its defaults."""
    return read_web(*_configuration())


def load_upkeep() -> UpkeepOptions:
    """The table ``[upkeep]`` of that file, or its defaults."""
    return read_upkeep(*_configuration())


def read_adapters(text: str, where: str = DEFAULT_CONFIG) -> list[PullAdapter]:
    """The pull adapters that a configuration's text describes, in its order; ``where`` opens each error."""
    return _all_of(_each(text, where, TRANSPORTS))


def read_webhooks(text: str, where: str = DEFAULT_CONFIG) -> list[PushAdapter]:
    """The webhook adapters that a configuration's text describes, in its order; ``where`` opens each error."""
    return _all_of(_each(text, where, SENDERS))


def read_web(text: str, where: str = DEFAULT_CONFIG) -> WebOptions:
    """The table ``[web]`` that a configuration's text has; ``where`` opens each error."""
    return _options(text, where, "web", WebOptions)


def read_upkeep(text: str, where: str = DEFAULT_CONFIG) -> UpkeepOptions:
    """The table ``[upkeep]`` that a configuration's text has; ``where`` opens each error."""
    return _options(text, where, "upkeep", UpkeepOptions)


def _configuration() -> tuple[str, str]:
    """The configuration's text, and where it is from."""
    named = os.environ.get("SWITCHBOARD_CONFIG", "").strip()
    path = Path(named or DEFAULT_CONFIG)
    if not named and not path.is_file():
        return "", DEFAULT_CONFIG
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"SWITCHBOARD_CONFIG: cannot read {path}: {error}") from error


def _document(text: str, where: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where}: not TOML: {error}") from error
    _known_keys(document, _TOP_LEVEL, where)
    return document


def _options(text: str, where: str, key: str, options_class: type[OptionsType]) -> OptionsType:
    """The table of that name as its options; their defaults where there is none."""
    table = _document(text, where).get(key, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: {key}: expected a table, [{key}]")
    _known_keys(table, options_class.model_fields, f"{where}: {key}")
    with _named(f"{where}: {key}"):
        return options_class(**table)


def _all_of(found: Iterable[AdapterType | ConfigError]) -> list[AdapterType]:
    adapters = []
    for each in found:
        if isinstance(each, ConfigError):
            raise each
        adapters.append(each)
    return adapters


def _each(text: str, where: str, types: Mapping[str, type[AdapterType]]) -> Iterator[AdapterType | ConfigError]:
    """The adapters whose type is one of these, or what is wrong with one in its place; ``where`` opens each error."""
    tables = _document(text, where).get("adapters", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{where}: adapters: expected one table an adapter, [adapters.NAME]")
    for name, table in tables.items():
        try:
            found = _adapter_of(types, name, table, f"{where}: adapters.{name}")
        except ConfigError as error:
            yield error
        else:
            if found is not None:
                yield found


def _adapter_of(types: Mapping[str, type[AdapterType]], name: str, table: object, where: str) -> AdapterType | None:
    """The adapter that the table describes; None where it is of the other family."""
    if not isinstance(table, dict):
        raise ConfigError(f"{where}: expected a table, [adapters.{name}]")
    kind = table.get("type")
    if not isinstance(kind, str) or kind not in _TYPES:
        what = "is missing" if kind is None else f"unknown type {kind!r}{_nearest(str(kind), _TYPES)}"
        raise ConfigError(f"{where}.type: {what} (expected one of {', '.join(_TYPES)})")
    return _adapter(types[kind], name, table, where) if kind in types else None


def _adapter(adapter_class: type[AdapterType], name: str, table: Mapping[str, object], where: str) -> AdapterType:
    fields = adapter_class.options_class.model_fields
    options = {
        key: _expand(key, value, f"{where}.{key}", may_be_unset=key in fields and fields[key].exclude is True)
        for key, value in table.items()
        if key != "type"
    }
    _known_keys(options, fields, where)
    with _named(where):
        adapter = adapter_class(name, **options)
        resolve_provider(adapter.options.provider)
    return adapter


@contextmanager
def _named(where: str) -> Iterator[None]:
    """What is wrong inside is a ``ConfigError`` that names the table and its key."""
    try:
        yield
    except ValidationError as error:
        raise ConfigError("; ".join(_problem(item, where) for item in error.errors())) from None
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _expand(key: str, value: object, where: str, *, may_be_unset: bool) -> object:
    """The value with its references replaced. A webhook's secret ``may_be_unset``: its adapter is off then."""
    if isinstance(value, list):
        return [_expand(key, item, where, may_be_unset=may_be_unset) for item in value]
    if not isinstance(value, str):
        return value
    _refuse_literal_secret(key, value, where)

    def replace(match: re.Match[str]) -> str:
        found = os.environ.get(match[1], "")
        if may_be_unset:
            return found.strip()
        if not found:
            raise ConfigError(f"{where}: environment variable {match[1]} is not set")
        return found

    return _REFERENCE.sub(replace, value)


def _refuse_literal_secret(key: str, value: str, where: str) -> None:
    literal = _REFERENCE.sub("", value)
    if _LITERAL_PASSWORD.search(literal) or (_SECRET_KEY.search(key) and literal):
        raise ConfigError(f"{_opening(where)}: a literal password; put it in the environment and write ${{NAME}} here")


def _problem(item: Mapping[str, Any], where: str) -> str:
    key = ".".join([where, *(str(part) for part in item["loc"])])
    message = "is missing" if item["type"] == "missing" else str(item["msg"]).removeprefix("Value error, ")
    return f"{_opening(key)}: {message}"


def _opening(key: str) -> str:
    # Not "secret: …": what is shown of an error is redacted, and its next word would be masked.
    return f"{key} is wrong" if _SECRET_KEY.search(key.rpartition(".")[2]) else key


def _known_keys(table: Mapping[str, object], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            raise ConfigError(f"{where}: unknown key {key!r}{_nearest(key, names)}")


def _nearest(word: str, known: Iterable[str]) -> str:
    matches = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {matches[0]!r}?" if matches else ""
