"""A TCP proxy that fails on command, to stand between a client and a real server."""

import select
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from switchboard.embedded import free_port

#: Bytes held for a receiver that does not read, before the sender is left waiting as well.
MOST_HELD = 65_536


@dataclass
class _Flow:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    held: bytearray = field(default_factory=bytearray)
    ended: bool = False  # the source has sent its FIN
    closed: bool = False  # the target has been sent one
    reset_after: int | None = None

    def wants(self) -> dict[socket.socket, int]:
        read = not self.ended and len(self.held) < MOST_HELD
        return {self.source: select.POLLIN * read, self.target: select.POLLOUT * bool(self.held)}

    def receive(self) -> bytes:
        if self.ended or len(self.held) >= MOST_HELD:
            return b""
        try:
            data = self.source.recv(MOST_HELD)
        except BlockingIOError:
            return b""
        self.ended = not data
        return data

    def hold(self, data: bytes) -> None:
        if self.closed:
            return
        if self.reset_after is not None:
            data = data[: self.reset_after]
            self.reset_after -= len(data)
        self.held += data

    def send(self) -> None:
        with suppress(BlockingIOError):
            while self.held:
                del self.held[: self.target.send(self.held)]
        if self.ended and not self.held:
            self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.held.clear()
            self.target.shutdown(socket.SHUT_WR)

    @property
    def due_for_reset(self) -> bool:
        return self.reset_after == 0 and not self.held


class _Connection:
    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.sockets = (client, server)
        for end in self.sockets:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = _Flow(client, server)
        self.reply = _Flow(server, client)

    def close(self, *, reset: bool) -> None:
        for end in self.sockets:
            if reset:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()


class Proxy:
    """`with Proxy(host, port) as proxy:` clients connect to `proxy.url_host` and `proxy.port`.

    Each method has taken effect when it returns. One thread does all the work, so that no socket is in
    use elsewhere when it is closed: only so does closing it send the reset at once."""

    url_host = "127.0.0.1"

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._server = (host, port)
        self._listener: socket.socket | None = None
        self._connections: list[_Connection] = []
        self._flowing = True
        self._armed: int | None = None
        self._ending = False
        self._orders: SimpleQueue[tuple[Callable[[], None], Future[None]]] = SimpleQueue()
        self._bell, self._ear = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"proxy {self.port}")

    def __enter__(self) -> Self:
        self._listen()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._order(self._end)
        self._thread.join()

    def cut(self) -> None:
        """Resets all present connections, at both ends."""
        self._order(lambda: self._drop(self._connections, reset=True))

    def refuse(self) -> None:
        """New connections are refused; present ones stay."""
        self._order(self._stop_listening)

    def accept(self) -> None:
        """Undoes refuse()."""
        self._order(self._listen)

    def stall(self) -> None:
        """Nothing passes either way; connections stay open, and new ones are accepted."""
        self._order(lambda: setattr(self, "_flowing", False))

    def flow(self) -> None:
        """Undoes stall(); what was sent meanwhile passes now."""
        self._order(lambda: setattr(self, "_flowing", True))

    def half_close(self) -> None:
        """A FIN to the clients of present connections; what they send still reaches the server."""

        def close_replies() -> None:
            for connection in self._connections:
                with suppress(OSError):
                    connection.reply.close()

        self._order(close_replies)

    def reset_in_reply(self, after_bytes: int) -> None:
        """The next reply on any connection passes up to this many bytes, then its connection is reset."""
        self._order(lambda: setattr(self, "_armed", after_bytes))

    def _order(self, action: Callable[[], None]) -> None:
        done: Future[None] = Future()
        self._orders.put((action, done))
        self._bell.send(b"!")
        done.result(timeout=10)

    def _run(self) -> None:
        while not self._ending:
            ready = self._wait()
            if self._ear in ready:
                self._obey()
                continue
            if self._listener in ready:
                self._connect()
            for connection in [c for c in self._connections if not ready.isdisjoint(c.sockets)]:
                self._move(connection)

    def _wait(self) -> set[socket.socket]:
        wanted = {self._ear: select.POLLIN}
        if self._listener:
            wanted[self._listener] = select.POLLIN
        for connection in self._connections if self._flowing else []:
            for flow in (connection.request, connection.reply):
                for end, events in flow.wants().items():
                    wanted[end] = wanted.get(end, 0) | events
        poll = select.poll()
        by_descriptor = {end.fileno(): end for end, events in wanted.items() if events}
        for descriptor, end in by_descriptor.items():
            poll.register(descriptor, wanted[end])
        return {by_descriptor[descriptor] for descriptor, _ in poll.poll()}

    def _obey(self) -> None:
        self._ear.recv(1)
        action, done = self._orders.get()
        try:
            done.set_result(action())
        except Exception as error:
            done.set_exception(error)

    def _connect(self) -> None:
        assert self._listener
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server, timeout=5)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            return
        self._connections.append(_Connection(client, server))

    def _move(self, connection: _Connection) -> None:
        request, reply = connection.request, connection.reply
        try:
            request.hold(request.receive())
            answer = reply.receive()
            if answer and self._armed is not None:
                reply.reset_after, self._armed = self._armed, None
            reply.hold(answer)
            request.send()
            reply.send()
        except OSError:  # one end was reset, so the other one is
            self._drop([connection], reset=True)
            return
        if reply.due_for_reset:
            self._drop([connection], reset=True)
        elif request.closed and reply.closed and reply.ended:
            self._drop([connection], reset=False)

    def _drop(self, connections: list[_Connection], *, reset: bool) -> None:
        for connection in list(connections):
            connection.close(reset=reset)
            self._connections.remove(connection)

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((self.url_host, self.port), backlog=128)

    def _stop_listening(self) -> None:
        if self._listener:
            self._listener.close()
            self._listener = None

    def _end(self) -> None:
        self._ending = True
        self._stop_listening()
        self._drop(self._connections, reset=True)
        self._ear.close()
        self._bell.close()
