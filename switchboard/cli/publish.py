"""``switchboard publish``: puts messages on an adapter's source."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import BinaryIO

import click

from ..config import DEFAULT_CONFIG, load_adapters
from ..errors import SwitchboardError
from ..pull import Outgoing, Publisher, PullAdapter
from .options import nearest
from .output import json_option, write, write_json


def _headers(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for header in given:
        # The value may be a credential: no message quotes it.
        name, equals, value = header.partition("=")
        if not equals or not name:
            raise click.BadParameter("expected NAME=VALUE")
        if name in headers:
            raise click.BadParameter(f"{name!r} is given twice")
        try:
            header.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{name!r}: not UTF-8") from None
        headers[name] = value
    return headers


@click.command()
@click.argument("adapter_name", metavar="ADAPTER")
@click.argument("file", metavar="[FILE|-]", type=click.File("rb"), default="-")
@click.option("--lines", is_flag=True, help="Each line is a message; empty ones are skipped.")
@click.option(
    "--header", "headers", metavar="NAME=VALUE", multiple=True, callback=_headers, help="A header; repeatable."
)
@click.option("--key", metavar="KEY", help="A key of your own: publishing it again makes no second todo.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="How long to try again while the broker is away.",
)
@json_option
def publish(
    adapter_name: str,
    file: BinaryIO,
    lines: bool,
    headers: dict[str, str],
    key: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Put messages on an adapter's source.

    The file, or standard input, is one message; with --lines each of its lines is. ADAPTER is one of
    switchboard.toml. The ledger takes no part: a worker reads what is published as it reads any message. With
    --json the ids that the source gave are written, those before a failure, too.

    \b
    Examples:
      switchboard publish deploys message.json
      echo '{"service": "api"}' | switchboard publish deploys
      switchboard publish deploys --lines messages.ndjson --header content-type=application/json
    """
    if key is not None and lines:
        raise click.UsageError("--key is of one message: with --lines all of them would be the same todo")
    adapter = _adapter(adapter_name)
    _refuse_lost_headers(adapter, headers)
    publisher = Publisher(adapter, timeout=timedelta(seconds=timeout))
    published: list[str] = []
    try:
        for message_id in publisher.publish_many(Outgoing(body, headers, key) for body in _bodies(file, lines)):
            published.append(message_id)
    except SwitchboardError as error:
        if lines:
            raise type(error)(f"{error} ({len(published)} published, none of the lines after them)") from error
        raise
    finally:
        adapter.close()
        if as_json:
            write_json([{"adapter": adapter_name, "id": message_id} for message_id in published])
    if not as_json:
        write(f"published {len(published)} message{'' if len(published) == 1 else 's'} to {adapter_name}\n")


def _adapter(name: str) -> PullAdapter:
    adapters = {adapter.name: adapter for adapter in load_adapters()}
    if name not in adapters:
        where = os.environ.get("SWITCHBOARD_CONFIG", "").strip() or DEFAULT_CONFIG
        hint = nearest(name, adapters) or (f" (it has {', '.join(adapters)})" if adapters else "")
        raise click.BadParameter(f"no adapter {name!r} in {where}{hint}", param_hint="ADAPTER")
    return adapters[name]


def _refuse_lost_headers(adapter: PullAdapter, headers: dict[str, str]) -> None:
    body_field = getattr(adapter.options, "body", None)
    if headers and body_field == "":
        raise click.UsageError(f"adapter {adapter.name} has no body field: its messages have no headers")
    if body_field in headers:
        raise click.UsageError(f"--header {body_field}=…: that field of adapter {adapter.name} holds the body")


def _bodies(file: BinaryIO, lines: bool) -> Iterator[bytes]:
    try:
        if not lines:
            yield file.read()
            return
        for line in file:
            body = line.removesuffix(b"\n").removesuffix(b"\r")
            if body.strip():
                yield body
    except OSError as error:
        raise SwitchboardError(f"cannot read {file.name}: {error.strerror}") from error
