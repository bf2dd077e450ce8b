"""`switchboard serve` as a real process, to send to, watch, kill and end."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx
import psutil
import psycopg
from senders import Sent
from waiting import eventually

#: The references in a configuration's secrets and tokens.
_SECRET_LINE = re.compile(r"^(?:secret|token)\s*=(.*)$", re.MULTILINE)
_REFERENCE = re.compile(r"\$\{(\w+)\}")

#: A credential of Switchboard's own, whole.
_CREDENTIAL = re.compile(r"swbs?_[0-9A-Za-z]{43}")

LISTENING = re.compile(r"Uvicorn running on http://127\.0\.0\.1:(\d+)")


class Served:
    """Serves the adapters of `config`; `env` is added to this process's own environment, `options` to the command.

    `open_files` is how many files and sockets it may have open, where that is to be few.
    """

    def __init__(
        self,
        folder: Path,
        database_url: str,
        config: str,
        env: Mapping[str, str] = {},
        options: Sequence[str] = (),
        open_files: int | None = None,
    ) -> None:
        self._options = options
        self._open_files = open_files
        self.database_url = database_url
        self._folder = folder
        self._config = config
        self._env = {**os.environ, "DATABASE_URL": database_url, "SWITCHBOARD_CONFIG": "", **env}
        # A connection a request: none is closed by the server just when it is to be used.
        self.client = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
        self._log: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        self.wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._leaves_no_secret()
        finally:
            self.kill()

    def _leaves_no_secret(self) -> None:
        """Neither the whole database nor anything that was logged holds what a sender or an agent is known by."""
        logs = [log.read_text(errors="replace") for log in self._folder.glob("serve-*.log")]
        everything = "\n".join([json.dumps(self.contents()), *logs])
        assert not _CREDENTIAL.search(everything)
        for secret in self._secrets():
            for form in (secret, secret.removeprefix("whsec_"), quote(secret), json.dumps(secret)[1:-1]):
                assert form not in everything

    def _secrets(self) -> set[str]:
        names = [name for line in _SECRET_LINE.findall(self._config) for name in _REFERENCE.findall(line)]
        return {self._env[name] for name in names if self._env.get(name)}

    def start(self) -> None:
        (self._folder / "switchboard.toml").write_text(self._config, encoding="utf-8")
        descriptor, name = tempfile.mkstemp(prefix="serve-", suffix=".log", dir=self._folder)
        self._log = Path(name)
        with open(descriptor, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "switchboard.cli", "serve", "--port", "0", *self._options],
                cwd=self._folder,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=None if self._open_files is None else self._limit_files,
            )

    def _limit_files(self) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._open_files or 0,) * 2)

    def wait_ready(self, *, within: float = 60) -> None:
        """Returns when it has said where it listens."""

        def ready() -> bool:
            assert self.process.poll() is None, f"it ended with status {self.process.returncode}:\n{self.output}"
            return LISTENING.search(self.output) is not None

        eventually(ready, within=within, what="switchboard serve listens")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace") if self._log else ""

    @property
    def port(self) -> int:
        found = LISTENING.search(self.output)
        assert found, self.output
        return int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def post(self, path: str, body: bytes = b"", headers: Any = None, **others: Any) -> httpx.Response:
        return self.client.post(f"{self.url}{path}", content=body, headers=headers, **others)

    def get(self, path: str) -> httpx.Response:
        return self.client.get(f"{self.url}{path}")

    def send(self, adapter: str, sent: Sent) -> httpx.Response:
        return self.post(f"/webhooks/{adapter}", sent.body, dict(sent.headers))

    def established(self) -> int:
        """How many connections its senders have with it."""
        connections = psutil.Process(self.process.pid).net_connections("tcp")
        return sum(one.status == psutil.CONN_ESTABLISHED and one.laddr.port == self.port for one in connections)

    def kill(self) -> None:
        self.client.close()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, *, within: float = 60) -> int:
        """Its exit status, once it has ended by itself."""
        try:
            return self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {within:g} s:\n{self.output}") from None

    # The ledger, from outside

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def value(self, query: str, *values: object) -> Any:
        return self.rows(query, *values)[0][0]

    def contents(self) -> dict[str, list[str]]:
        """Every row of every table as text, bytes as the text they are."""
        tables = [name for (name,) in self.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")]
        return {table: sorted(map(_readable, self.rows(f"SELECT * FROM {table}"))) for table in tables}


def _readable(row: tuple[Any, ...]) -> str:
    cells = (cell.decode("latin-1") if isinstance(cell, bytes) else cell for cell in row)
    return "\t".join(map(str, cells))
