"""What ``dramatiq switchboard.actors`` and ``periodiq switchboard.actors`` run.

Importing it declares Switchboard's actors on the broker in force (``brokers.in_force``), with the adapters of
``switchboard.toml``. It is a program's module: what is wrong with its configuration ends the process with one line.
"""

from ..brokers import broker_in_force
from ..config import load_adapters, load_upkeep
from ..create_todo_actor import create_todo_actor
from ..errors import ConfigError
from ..telemetry.logs import set_up_logs
from .ingest import declare_ingest
from .upkeep import declare_upkeep

try:
    set_up_logs()
    broker = broker_in_force()
    for _adapter in load_adapters():
        broker.add_adapter(_adapter)
    broker.each_adapter(lambda adapter: declare_ingest(broker, adapter))
    create_todo = create_todo_actor(broker)
    prune, reap = declare_upkeep(broker, load_upkeep())
except ConfigError as error:
    raise SystemExit(f"switchboard: {error}") from None

__all__ = ["broker", "create_todo", "prune", "reap"]
