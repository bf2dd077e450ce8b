"""The AsyncAPI contract that is shipped, and what it says of one installation's own adapters.

Nothing here connects to anything: addresses, options and names are the configuration's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from ..pull import PullAdapter

#: An AsyncAPI document, or a part of one. ``Any``: its shape is that of AsyncAPI's own schema.
Document = dict[str, Any]

_OPTION = re.compile(r"\{(\w+)\}")
_ADDRESS_EXPRESSION = re.compile(r"\{([^{}]*)\}")
_PARAMETER_NAME = re.compile(r"[\w-]+", re.ASCII)


def shipped_contract() -> Document:
    """``asyncapi.yaml`` as the wheel has it: JSON, so that reading it needs no library."""
    document: Document = json.loads(files(__name__).joinpath("asyncapi.json").read_text(encoding="utf-8"))
    return document


def contract_of(adapters: Sequence[PullAdapter]) -> Document:
    """The AsyncAPI 3 document of these adapters: a channel each, under its name, with its own address and numbers.

    How a channel delivers, and every way it can fail, is the shipped contract's word. No credential is in it.
    """
    contract = shipped_contract()
    by_transport = {channel["x-transport"]: key for key, channel in contract["channels"].items()}
    servers = {broker: f"server{n}" for n, broker in enumerate(dict.fromkeys(a.broker for a in adapters), start=1)}
    document: Document = {
        "asyncapi": contract["asyncapi"],
        "info": contract["info"],
        "defaultContentType": contract["defaultContentType"],
        "servers": {name: _server(contract, broker) for broker, name in servers.items()},
        "channels": {},
        "operations": {},
    }
    for adapter in adapters:
        channel, operations = _line(contract, by_transport[adapter.transport], adapter, servers[adapter.broker])
        document["channels"][adapter.name] = channel
        document["operations"] |= operations
    return document | {"components": _used_components(contract, document)}


def _server(contract: Document, broker: str) -> Document:
    address = urlsplit(broker)
    server = dict(contract["servers"][address.scheme])
    variables = server.pop("variables")
    host = address.netloc or "localhost"
    if "port" in variables and address.port is None:
        host = f"{host}:{variables['port']['default']}"
    path = {"pathname": address.path} if address.path.strip("/") else {}
    return server | {"host": host} | path


def _line(contract: Document, key: str, adapter: PullAdapter, server: str) -> tuple[Document, Document]:
    """One adapter's channel and its operations, made from the contract's channel ``key``."""
    template: Document = contract["channels"][key]
    options = {name: value for name, value in adapter.describe().items() if name not in ("type", "broker")}
    names = {
        name: f"{adapter.name}.{operation['action']}"
        for name, operation in contract["operations"].items()
        if operation["channel"]["$ref"] == f"#/channels/{key}"
    }
    messages = {
        name: message
        for name, message in template["messages"].items()
        if _is_taken(contract["components"]["messages"][message["$ref"].rpartition("/")[2]], options)
    }
    address, parameters = _address(_filled(template["address"], options))
    delivery = _filled(template["x-delivery"], options)
    delivery["idempotency"]["namespace"] = adapter.namespace
    delivery["acknowledge"] = {options["ack"]: delivery["acknowledge"][options["ack"]]}
    own: Document = {
        "title": f"{template['title']}, adapter {adapter.name}",
        "address": address,
        "servers": [{"$ref": f"#/servers/{server}"}],
        "messages": messages,
        "x-options": options,
        "x-delivery": delivery,
        "x-successes": _renamed(template["x-successes"], names),
        "x-failures": _renamed(template["x-failures"], names),
    } | ({"parameters": parameters} if parameters else {})
    channel = {name: own.get(name, value) for name, value in template.items() if name != "parameters"} | own
    operations = {
        own_name: _filled(contract["operations"][name], options)
        | {
            "channel": {"$ref": f"#/channels/{adapter.name}"},
            "messages": [{"$ref": f"#/channels/{adapter.name}/messages/{message}"} for message in messages],
        }
        for name, own_name in names.items()
    }
    return channel, operations


def _is_taken(message: Document, options: Mapping[str, object]) -> bool:
    return all(bool(options[name]) is (wanted == "set") for name, wanted in message.get("x-taken-when", {}).items())


def _address(name: str) -> tuple[str, Document]:
    """The address, and the parameters it needs: braces, as of a Redis hash tag, are AsyncAPI's for a parameter.

    Each such parameter has one value, the text that stands there.
    """
    parameters: Document = {}

    def parameter(match: re.Match[str]) -> str:
        known = match[1] if _PARAMETER_NAME.fullmatch(match[1]) else f"part{match.start()}"
        parameters[known] = {"enum": [match[0]], "default": match[0]}
        return f"{{{known}}}"

    return _ADDRESS_EXPRESSION.sub(parameter, name), parameters


def _filled(node: Any, options: Mapping[str, object]) -> Any:
    """The node, ``{name}`` of an option replaced by its value in every text."""
    if isinstance(node, str):
        return _OPTION.sub(lambda match: str(options.get(match[1], match[0])), node)
    if isinstance(node, dict):
        return {key: _filled(value, options) for key, value in node.items()}
    return [_filled(value, options) for value in node] if isinstance(node, list) else node


def _renamed(branches: Iterable[Document], names: Mapping[str, str]) -> list[Document]:
    return [branch | {"operations": [names[name] for name in branch["operations"]]} for branch in branches]


def _used_components(contract: Document, document: Document) -> Document:
    """The contract's components that the document refers to, directly or not."""
    used: set[str] = set()
    left = list(_references(document))
    while left:
        reference = left.pop()
        if reference.startswith("#/components/") and reference not in used:
            used.add(reference)
            _, _, section, name = reference.split("/")
            left += _references(contract["components"][section][name])
    return {
        section: kept
        for section, components in contract["components"].items()
        if (kept := {name: part for name, part in components.items() if f"#/components/{section}/{name}" in used})
    }


def _references(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "$ref":
                yield value
            else:
                yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)
