"""``switchboard asyncapi``: the contract of a user's own adapters."""

from __future__ import annotations

import json
import os
import re
import textwrap

import click

from ..config import DEFAULT_CONFIG, load_adapters
from ..contract import contract_of
from ..errors import ConfigError
from .output import redacted

#: Characters of a line of YAML, at most, where its words allow it.
WIDTH = 120

#: What needs no quotes: a word, less those that YAML takes for something else.
_PLAIN = re.compile(r"(?!(?:y|n|yes|no|on|off|true|false|null)\Z)[A-Za-z$][\w./-]*", re.ASCII | re.IGNORECASE)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Write it as one JSON object instead.")
def asyncapi(as_json: bool) -> None:
    """Print the AsyncAPI 3 document of the adapters in switchboard.toml.

    A channel each, with its address, its delivery semantics in its own numbers, and every way it can fail. Nothing
    is connected to, and no credential is in it. Adapters that are added in code are not known here.

    \b
    Examples:
      switchboard asyncapi > asyncapi.yaml
      switchboard asyncapi --json
    """
    adapters = load_adapters()
    if not adapters:
        where = os.environ.get("SWITCHBOARD_CONFIG", "").strip() or DEFAULT_CONFIG
        raise ConfigError(f"no adapters in {where}: there is nothing to describe")
    document = redacted(contract_of(adapters))
    click.echo((json.dumps(document, indent=2) + "\n" if as_json else _yaml(document)).encode(), nl=False)


def _yaml(node: object, indent: str = "") -> str:
    """A JSON value as YAML in blocks. By hand: a library for one command would be everybody's dependency."""
    inner = indent + "  "
    if isinstance(node, dict) and node:
        return "".join(
            f"{indent}{_scalar(key)}:"
            + (f"\n{_yaml(value, inner)}" if _is_block(value) else f" {_scalar(value, inner, len(key))}\n")
            for key, value in node.items()
        )
    if isinstance(node, list) and node:
        return "".join(
            f"{indent}- " + (_yaml(value, inner).lstrip() if _is_block(value) else f"{_scalar(value, inner)}\n")
            for value in node
        )
    return f"{indent}{_scalar(node)}\n"


def _is_block(node: object) -> bool:
    return isinstance(node, (dict, list)) and bool(node)


def _scalar(node: object, indent: str = "", taken: int = 0) -> str:
    """A value that fits behind ``taken`` characters; the lines after its first are indented."""
    if not isinstance(node, str):
        return json.dumps(node)
    if _PLAIN.fullmatch(node):
        return node
    quoted = json.dumps(node, ensure_ascii=False)
    # YAML refuses raw what JSON allows, and reads no surrogate pairs.
    quoted = "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in quoted)
    if "  " in quoted:
        # A line may end at a single space alone.
        return quoted
    width, before = WIDTH - len(indent), " " * taken
    lines = textwrap.wrap(quoted, width, initial_indent=before, break_long_words=False, break_on_hyphens=False)
    return f"\n{indent}".join(lines).removeprefix(before)
