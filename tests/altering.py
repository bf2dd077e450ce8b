"""A line on which a server's words are changed: it says of itself, or of the time, what is not so."""

import contextlib
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self


class Altering:
    """`with Altering(port, {b"said": b"said else"}) as line:` clients connect to `line.port` of this host.

    Each replacement is as long as what it stands for, so that what the protocol counts stays right."""

    def __init__(self, server_port: int, words: Mapping[bytes, bytes]) -> None:
        assert all(len(said) == len(else_) for said, else_ in words.items())
        self._server_port = server_port
        self._words = words
        self._listener = socket.create_server(("0.0.0.0", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="altering")]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Wakes the threads; closing alone would not.
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listener, *self._sockets]:
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._sockets += [client, server]
                for source, target, words in ((client, server, {}), (server, client, self._words)):
                    thread = threading.Thread(target=self._pass_on, args=(source, target, words), name="altering")
                    self._threads.append(thread)
                    thread.start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, words: Mapping[bytes, bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 20):
                for said, else_ in words.items():
                    data = data.replace(said, else_)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
