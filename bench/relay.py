"""A TCP relay that counts round trips: how often a client spoke after its server had answered."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import Self

from switchboard.embedded import free_port


class Relay:
    """Listens at ``port`` and passes everything on to 127.0.0.1:``target``, while it is entered."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        #: Since the start, of all connections.
        self.round_trips = 0
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _start(self, function: object, *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        self._listening.settimeout(0.1)
        while not self._ended.is_set():
            with suppress(TimeoutError):
                client, _ = self._listening.accept()
                self._start(self._pass_on, client)

    def _pass_on(self, client: socket.socket) -> None:
        server = socket.create_connection(("127.0.0.1", self._target))
        server_spoke = True
        with client, server, selectors.DefaultSelector() as waiting:
            for one, other in ((client, server), (server, client)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting.register(one, selectors.EVENT_READ, other)
            while not self._ended.is_set():
                for key, _ in waiting.select(0.1):
                    speaking, listening = key.fileobj, key.data
                    data = speaking.recv(1 << 18)  # type: ignore[union-attr]
                    if not data:
                        return
                    if speaking is client and server_spoke:
                        self.round_trips += 1
                    server_spoke = speaking is server
                    listening.sendall(data)
