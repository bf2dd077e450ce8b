"""The ``switchboard`` command: one file a group of commands."""

from __future__ import annotations

from typing import Any

import click

from ..errors import SwitchboardError
from .output import as_one_line

#: What a shell expects of a program that Ctrl-C ended: 128 and SIGINT's number.
INTERRUPTED = 130


class _Switchboard(click.Group):
    """Ends every command the same way: one line on standard error, and an exit status that says what it was."""

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


def main() -> None:
    """The command's entry point."""
    cli(prog_name="switchboard")


from .adapters import adapters  # noqa: E402 - the commands hang on the group above
from .agents import agents  # noqa: E402
from .asyncapi import asyncapi  # noqa: E402
from .dead_letters import dead_letters  # noqa: E402
from .demo import demo  # noqa: E402
from .endpoints import endpoints  # noqa: E402
from .humans import humans  # noqa: E402
from .migrate import migrate  # noqa: E402
from .prune import prune  # noqa: E402
from .publish import publish  # noqa: E402
from .reap import reap  # noqa: E402
from .serve import serve  # noqa: E402
from .settings import settings  # noqa: E402
from .todos import todos  # noqa: E402

for _command in (
    adapters,
    agents,
    asyncapi,
    dead_letters,
    demo,
    endpoints,
    humans,
    migrate,
    prune,
    publish,
    reap,
    serve,
    settings,
    todos,
):
    cli.add_command(_command)
