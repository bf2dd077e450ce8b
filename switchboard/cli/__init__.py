"""The ``switchboard`` command: one file a group of commands."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import click

from ..errors import SwitchboardError
from .output import as_one_line

#: Each is in the file of its name.
_COMMANDS = (
    "adapters",
    "agents",
    "asyncapi",
    "dead-letters",
    "demo",
    "doctor",
    "endpoints",
    "health",
    "humans",
    "migrate",
    "prune",
    "publish",
    "reap",
    "serve",
    "settings",
    "todos",
    "top",
)

#: What a shell expects of a program that Ctrl-C ended: 128 and SIGINT's number.
INTERRUPTED = 130


class _Switchboard(click.Group):
    """Ends every command the same way: one line on standard error, and an exit status that says what it was.

    A command is imported when it is called: `health` is, every few seconds, and needs little of the rest.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(import_module(f".{name}", __name__), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwitchboardError as error:
            click.echo(f"switchboard: {as_one_line(str(error))}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(cls=_Switchboard, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="dramatiq-switchboard", prog_name="switchboard")
def cli() -> None:
    """Look after the ledger of todos, and the lines that feed it.

    The ledger is the PostgreSQL database at DATABASE_URL; adapters are those of switchboard.toml, or of the file
    that SWITCHBOARD_CONFIG names. Exit status: 0 done, 1 it failed, 2 wrong use.

    \b
    Examples:
      switchboard demo
      switchboard migrate
      switchboard todos list --queue deploys --state pending
      switchboard publish deploys message.json
    """
    # A team's own provider is found as `dramatiq` finds its modules: from here. Last, so as to be in no other's way.
    sys.path.append("")


def main() -> None:
    """The command's entry point."""
    cli(prog_name="switchboard")
