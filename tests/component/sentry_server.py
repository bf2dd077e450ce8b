"""As much of Sentry as takes envelopes over HTTP, and keeps them as they came."""

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SentryServer:
    """`dsn` is where it is; `envelopes` is all that it was sent, decompressed."""

    def __init__(self) -> None:
        self.envelopes: list[bytes] = []
        us = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                    body = b""
                    while size := int(self.rfile.readline().strip() or b"0", 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                us.envelopes.append(_decompressed(body, self.headers.get("Content-Encoding", "")))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    @property
    def dsn(self) -> str:
        return f"http://public@127.0.0.1:{self.server.server_port}/7"

    def close(self) -> None:
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def events(self, reason: str = "") -> list[dict[str, Any]]:
        """The events, or those with that reason of ours."""
        return [
            event for event in self._events() if not reason or event.get("tags", {}).get("switchboard.reason") == reason
        ]

    def _events(self) -> Iterator[dict[str, Any]]:
        for envelope in list(self.envelopes):
            _, _, rest = envelope.partition(b"\n")
            while rest:
                header, _, rest = rest.partition(b"\n")
                about = json.loads(header)
                length = about.get("length", len(rest.partition(b"\n")[0]))
                payload, rest = rest[:length], rest[length + 1 :]
                if about["type"] == "event":
                    yield json.loads(payload)


def _decompressed(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "deflate":
        return zlib.decompress(body)
    if encoding == "br":
        import brotli  # type: ignore[import-not-found,unused-ignore]

        plain: bytes = brotli.decompress(body)
        return plain
    assert encoding in ("", "identity"), encoding
    return body
