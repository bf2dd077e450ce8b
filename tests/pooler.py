"""A pooler before a PostgreSQL that trusts, as PgBouncer is one: the session that was given back last is lent first."""

import select
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

_SSL, _GSS, _CANCEL = 80877103, 80877104, 80877102

#: What a client is told, as no server has been asked when it connects; its backend's number is nobody's.
_PARAMETERS = {
    "client_encoding": "UTF8",
    "server_encoding": "UTF8",
    "server_version": "18.0",
    "standard_conforming_strings": "on",
    "integer_datetimes": "on",
}
_REFUSAL = b"SERROR\0VERROR\0C08P01\0Mtransaction blocks not allowed in statement pooling mode\0\0"
_BACKEND = struct.pack("!II", 4_000_000, 1)


class Pooler:
    """Listens on `port` of 127.0.0.1 and lends sessions of the server on `server_port` there.

    As to `mode`: for a `transaction`, for as long as the client stays (`session`), or for a `statement`, which is no
    transaction."""

    def __init__(self, server_port: int, mode: str = "transaction") -> None:
        self._server_port = server_port
        self._mode = mode
        self._free: list[socket.socket] = []
        self._all: list[socket.socket] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, name="pooler")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Wakes the thread that accepts; closing alone would not.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        with self._lock:
            for each in self._all:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
        for each in [*self._all, self._listener]:
            each.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._all.append(client)
            thread = threading.Thread(target=self._serve, args=(client,), name="pooler client")
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError):
            startup = self._welcome(client)
            server = self._lend(startup) if startup and self._mode == "session" else None
            while startup and select.select([client], [], []):
                kind, message = _read(client)
                if kind == b"X":
                    break
                if self._mode == "statement" and b"BEGIN" in message:
                    client.sendall(_message(b"E", _REFUSAL) + _message(b"Z", b"I"))
                    continue
                if self._mode == "session" and server is not None:
                    self._transaction(client, server, message)
                    continue
                server = self._lend(startup)
                self._transaction(client, server, message)
                with self._lock:
                    self._free.append(server)
        client.close()

    def _transaction(self, client: socket.socket, server: socket.socket, message: bytes) -> None:
        server.sendall(message)
        while True:
            for ready in select.select([client, server], [], [])[0]:
                kind, message = _read(ready)
                (server if ready is client else client).sendall(message)
                if ready is server and kind == b"Z" and message.endswith(b"I"):
                    return

    def _welcome(self, client: socket.socket) -> bytes:
        """The client's startup packet; empty where it wants something else."""
        while True:
            head = _exactly(client, 8)
            length, code = struct.unpack("!II", head)
            rest = _exactly(client, length - 8)
            if code in (_SSL, _GSS):
                client.sendall(b"N")
                continue
            if code == _CANCEL:
                return b""
            client.sendall(_message(b"R", struct.pack("!I", 0)))
            for name, value in _PARAMETERS.items():
                client.sendall(_message(b"S", f"{name}\0{value}\0".encode()))
            client.sendall(_message(b"K", _BACKEND) + _message(b"Z", b"I"))
            return head + rest

    def _lend(self, startup: bytes) -> socket.socket:
        with self._lock:
            if self._free:
                return self._free.pop()
        server = socket.create_connection(("127.0.0.1", self._server_port), timeout=10)
        server.settimeout(None)
        with self._lock:
            self._all.append(server)
        server.sendall(startup)
        while _read(server)[0] != b"Z":
            pass
        return server


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _read(source: socket.socket) -> tuple[bytes, bytes]:
    """The next message's kind, and all of it."""
    head = _exactly(source, 5)
    return head[:1], head + _exactly(source, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
