"""The line `deploys`: a stream's messages, with headers, become todos of one queue, in real workers."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis
from waiting import eventually
from worker import Worker

CONFIG = """
[adapters.deploys]
type = "redis-stream"
url = "${DEPLOYS_URL}"
stream = "deploys"
queue = "deploys"
body = "data"
max_body = 1000
claim_idle = "1s"
"""


@dataclass
class Deploys:
    """`modules` are the worker's; those of a team's own are files in `folder`, which `write` puts there."""

    folder: Path
    database_url: str
    redis_url: str
    client: Any
    env: dict[str, str] = field(default_factory=dict)
    modules: Sequence[str] = ("switchboard.actors",)
    config: str = CONFIG

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def environment(self) -> dict[str, str]:
        return {
            "DATABASE_URL": self.database_url,
            "SWITCHBOARD_BROKER_URL": self.redis_url,
            "DEPLOYS_URL": self.redis_url,
            "SWITCHBOARD_CONFIG": "",
            "SENTRY_DSN": "",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        } | self.env

    def worker(self, processes: int = 1) -> Worker:
        self.write("switchboard.toml", self.config)
        return Worker(self.modules, cwd=self.folder, env=self.environment(), processes=processes)

    @contextmanager
    def running(self, processes: int = 1) -> Iterator[Worker]:
        with self.worker(processes) as worker:
            worker.wait_ready()
            yield worker

    def publish(self, *bodies: str, **headers: str) -> list[str]:
        return [self.client.xadd("deploys", {"data": body, **headers}).decode() for body in bodies]

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def settle(self, **tables: int) -> None:
        """Returns when these tables have so many rows, and the source has been told of all it delivered."""

        def done() -> bool:
            try:
                pending = self.client.xpending("deploys", "switchboard")["pending"]
            except redis.ResponseError:  # nobody has read yet
                return False
            counted = {table: self.rows(f"SELECT count(*) FROM {table}")[0][0] for table in tables}
            return counted == tables and pending == 0

        eventually(done, within=30, what="all is stored and acknowledged")

    def ended(self, count: int) -> None:
        """Returns when so many todos are done or failed."""
        query = "SELECT count(*) FROM todos WHERE state IN ('done', 'failed')"
        eventually(lambda: self.rows(query)[0][0] == count, within=30, what=f"{count} todos have ended")
