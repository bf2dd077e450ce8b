"""One pool of connections to the ledger, opened lazily, and its transactions."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolTimeout

from ..errors import ConfigError, LedgerError, LedgerUnavailable
from ..redact import safe_text
from .connection import STATEMENT_TIMEOUT, Connection, Stop, within
from .failures import translate
from .wire import register_arrays

#: How long a new connection may take.
CONNECT_TIMEOUT = timedelta(seconds=5)

#: How long a caller waits for one of the pool's connections: an outage is noticed within it.
POOL_TIMEOUT = timedelta(seconds=3)

#: How long the end waits for the pool's own threads: one may be in an attempt to connect that nobody answers.
CLOSE_TIMEOUT = timedelta(seconds=2)

_ANSWER = sql.SQL("SELECT set_config('statement_timeout', %s, true), set_config('lock_timeout', %s, true)")


class Transaction:
    """An open transaction of the ledger, and what is to happen once it has committed."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._on_commit: list[Callable[[], None]] = []

    def on_commit(self, callback: Callable[[], None]) -> None:
        """Calls ``callback`` after the commit; never, when the transaction is rolled back."""
        self._on_commit.append(callback)

    def committed(self) -> None:
        """Runs the callbacks."""
        for callback in self._on_commit:
            callback()


_current: ContextVar[Transaction | None] = ContextVar("switchboard_transaction", default=None)


def current_transaction() -> Transaction:
    """The transaction this actor runs in; ``LedgerError`` outside of a ``store_then_ack`` actor."""
    transaction = _current.get()
    if transaction is None:
        raise LedgerError("no transaction is open here: give the actor the option store_then_ack=True")
    return transaction


def transaction() -> Connection:
    """The connection of the transaction that a ``store_then_ack=True`` actor runs in.

    What is written through it commits with the actor's acknowledgement or not at all. It is a psycopg
    connection: do not commit, roll back or close it. Raises ``LedgerError`` outside of such an actor.
    """
    return current_transaction().connection


class PoolUse(NamedTuple):
    """Connections to the ledger: how many there are, are in use and can be; and the threads that wait for one."""

    size: int = 0
    in_use: int = 0
    max_size: int = 0
    waiting: int = 0


class Ledger:
    """PostgreSQL as the system of record: one pool a process (SPEC-0004).

    Nothing connects before the first use, and a pool never crosses a fork: a child opens its own.
    """

    def __init__(
        self,
        url: str,
        *,
        max_size: int = 10,
        statement_timeout: timedelta = STATEMENT_TIMEOUT,
        notify: bool = True,
        listen_url: str = "",
    ) -> None:
        self._url = url
        self.max_size = max_size
        #: Whether new todos are announced, and listened for.
        self.notify = notify
        self._listen_url = listen_url
        #: The monotonic second at which it last answered a transaction of this process; None: not yet.
        self.answered_at: float | None = None
        self.statement_timeout = statement_timeout
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Connection] | None = None
        self._pid = 0
        self._stop = Stop()

    @classmethod
    def from_environment(cls) -> Ledger:
        """The ledger at ``DATABASE_URL``; ``ConfigError`` where that is unset or empty.

        ``SWITCHBOARD_NOTIFY=off`` turns notifications off; ``SWITCHBOARD_LISTEN_URL`` is an address to listen at where
        ``DATABASE_URL`` is a pooler's.
        """
        url = os.environ.get("DATABASE_URL", "").strip()
        if not url:
            raise ConfigError("db: empty DATABASE_URL")
        notify = os.environ.get("SWITCHBOARD_NOTIFY", "").strip().lower() or "on"
        if notify not in ("on", "off"):
            raise ConfigError(f"SWITCHBOARD_NOTIFY: expected on or off, got {notify!r}")
        return cls(url, notify=notify == "on", listen_url=os.environ.get("SWITCHBOARD_LISTEN_URL", "").strip())

    def __repr__(self) -> str:
        return f"<Ledger {'open' if self._pool else 'closed'}, at most {self.max_size} connections>"

    def open(self) -> None:
        """Connects, pings and opens the pool; does nothing when it is open.

        Raises ``ConfigError`` for an address that cannot be read and ``LedgerUnavailable`` ("db: connect: …",
        "db: ping: …") where the server cannot be reached or does not serve.
        """
        with self._lock:
            if self._pool is not None and self._pid == os.getpid():
                return
            conninfo = self._conninfo()
            if self._listen_url:
                # What is wrong with it stops the start, not the thread that would listen.
                self._conninfo(self._listen_url)
            self._ping(conninfo)
            self._stop = Stop()
            pool: ConnectionPool[Connection] = ConnectionPool(
                conninfo,
                connection_class=Connection,
                # No server-side prepared statements: they do not survive a pooler in transaction mode.
                kwargs={"prepare_threshold": None},
                configure=self._configure,
                min_size=0,
                max_size=self.max_size,
                max_idle=300,
                timeout=POOL_TIMEOUT.total_seconds(),
                # A connection attempt that backs off longer would hold up the recovery from an outage.
                reconnect_timeout=POOL_TIMEOUT.total_seconds(),
                name="switchboard",
                open=False,
            )
            pool.open()
            _quiet_pool_log()
            self._pool, self._pid = pool, os.getpid()

    def _conninfo(self, url: str = "") -> str:
        variable = "SWITCHBOARD_LISTEN_URL" if url else "DATABASE_URL"
        url = url or self._url
        try:
            given = conninfo_to_dict(url)
        except psycopg.ProgrammingError:
            # The parser's message can quote the part that holds the password.
            raise ConfigError(f"db: connect: {variable} is not a PostgreSQL address") from None
        if "@" in str(given.get("host", "")):
            # A password with an @ of its own: what follows would be shown as the host.
            raise ConfigError(f"db: connect: {variable}: special characters in a password must be percent-encoded")
        defaults: dict[str, str | int] = {
            "connect_timeout": int(CONNECT_TIMEOUT.total_seconds()),
            "application_name": "switchboard",
            "keepalives_idle": 30,
        }
        return make_conninfo(url, **{key: value for key, value in defaults.items() if key not in given})

    def _ping(self, conninfo: str) -> None:
        try:
            connection = Connection.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise LedgerUnavailable(f"db: connect: {_one_line(error)}") from None
        with contextlib.closing(connection):
            connection.patience = CONNECT_TIMEOUT
            try:
                row = connection.execute("SELECT current_setting('server_encoding')").fetchone()
            except (psycopg.Error, LedgerError) as error:
                raise LedgerUnavailable(f"db: ping: {_one_line(error)}") from None
        if row is None or row[0] != "UTF8":
            raise ConfigError(f"db: ping: the database's encoding is {row and row[0]}, expected UTF8")

    def _configure(self, connection: Connection) -> None:
        connection.stop = self._stop
        connection.patience = self.statement_timeout
        connection.notify = self.notify
        register_arrays(connection)

    @contextmanager
    def transaction(
        self, *, timeout: timedelta | None = None, doing: str = "ledger", dry_run: bool = False
    ) -> Iterator[Transaction]:
        """One transaction: committed when the block ends, rolled back when it raises, or where it is a ``dry_run``.

        It begins with an answer from the server, which sets ``timeout`` (a statement; None: the ledger's own)
        there too. Raises ``LedgerUnavailable`` where no connection is to be had or the server gives no answer.
        """
        self.open()
        pool = self._pool
        if pool is None:
            raise LedgerUnavailable(f"{doing}: the ledger is closed")
        timeout = timeout or self.statement_timeout
        try:
            connection = pool.getconn()
        except (PoolTimeout, psycopg.OperationalError) as error:
            raise translate(error, f"{doing}: connect") from error
        try:
            milliseconds = str(max(1, int(timeout.total_seconds() * 1000)))
            connection.patience = timeout
            with within(connection, timeout, doing):
                connection.execute(_ANSWER, (milliseconds, milliseconds))
            self.answered_at = time.monotonic()
            open_transaction = Transaction(connection)
            token = _current.set(open_transaction)
            try:
                yield open_transaction
            finally:
                _current.reset(token)
            if connection.info.transaction_status == TransactionStatus.INERROR:
                # PostgreSQL would answer COMMIT with a rollback, and no error.
                raise LedgerError(f"{doing}: a statement of this transaction failed, so that nothing of it is stored")
            with within(connection, timeout, f"{doing}: commit"):
                if dry_run:
                    connection.rollback()
                else:
                    connection.commit()
        except BaseException:
            with contextlib.suppress(psycopg.Error, LedgerError):
                connection.rollback()
            raise
        finally:
            connection.patience = self.statement_timeout
            pool.putconn(connection)
        if not dry_run:
            open_transaction.committed()

    def connect(self, *, direct: bool = False) -> Connection:
        """A connection beside the pool, for what holds one long; the caller closes it.

        A ``direct`` one commits by itself, and goes past a pooler where there is an address for it. Raises
        ``LedgerUnavailable`` where there is none to be had.
        """
        conninfo = self._conninfo(self._listen_url if direct else "")
        try:
            connection = Connection.connect(conninfo, prepare_threshold=None, autocommit=direct)
        except psycopg.Error as error:
            raise LedgerUnavailable(f"connect: {_one_line(error)}") from error
        self._configure(connection)
        return connection

    def pool_use(self) -> PoolUse:
        """How much of the pool is in use at this moment; nothing where it is closed."""
        with self._lock:
            pool = self._pool
        if pool is None:
            return PoolUse()
        stats = pool.get_stats()
        size = stats["pool_size"]
        return PoolUse(size, size - stats["pool_available"], stats["pool_max"], stats.get("requests_waiting", 0))

    def probe(self) -> None:
        """Asks a connection of the pool for an answer; raises ``LedgerUnavailable`` where there is none."""
        with self.transaction(timeout=POOL_TIMEOUT, doing="probe"):
            pass

    @property
    def stopping(self) -> bool:
        """Whether the process has been told to stop."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Lets every statement, running or to come, take ``STOP_GRACE`` at most."""
        self._stop.set()

    def close(self) -> None:
        """Closes the pool and ends its threads; the next use opens it again."""
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is not None and self._pid == os.getpid():
                pool.close(timeout=CLOSE_TIMEOUT.total_seconds())


def _one_line(error: BaseException) -> str:
    text = str(error).strip()
    return safe_text(" ".join(text.split()) or type(error).__name__)


class _NotConnectionErrors(logging.Filter):
    """Drops the pool's lines about failed attempts: whoever probes the ledger says once that it is away."""

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "error connecting" not in message and "reconnection attempt" not in message


def _quiet_pool_log() -> None:
    logger = logging.getLogger("psycopg.pool")
    if not any(isinstance(present, _NotConnectionErrors) for present in logger.filters):
        logger.addFilter(_NotConnectionErrors())
