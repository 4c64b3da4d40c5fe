"""A proxy that fails on purpose: some requests get a 503, a closed connection or a cut answer instead."""

from __future__ import annotations

import collections
import http.client
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ("503", "close", "cut", "500")


class FlakyServer(ThreadingHTTPServer):
    """Every `every`th request meets the next of FAULTS; the others are passed on.

    Requests come in any order where several are under way. One that had two faults in a row is passed on, so that none
    has as many as a client has tries; where every request is to fail, all do.
    """

    daemon_threads = True

    def __init__(self, target: str, every: int, host: str) -> None:
        super().__init__((host, 0), _Handler)
        self._host = host
        self.target = urlsplit(target).netloc
        self.every = every
        self.faults = 0
        self._requests = itertools.count(1)
        self._met: collections.Counter[tuple[str, ...]] = collections.Counter()
        self._lock = threading.Lock()

    def next_fault(self, *request: str) -> str | None:
        with self._lock:
            if next(self._requests) % self.every or (self.every > 1 and self._met[request] == 2):
                del self._met[request]
                return None
            self._met[request] += 1
            self.faults += 1
            return FAULTS[self.faults % len(FAULTS)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone before its answer is no fault here."""

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FlakyServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.server.next_fault(self.command, self.path, self.headers.get("Range", ""))
        if fault == "close":
            self.close_connection = True
            return
        if fault in ("500", "503"):
            self._answer(int(fault), {}, b"<Error><Code>SlowDown</Code><Message>slow down</Message></Error>")
            return
        status, headers, data = self._pass_on(body)
        self._answer(status, headers, data, is_cut=fault == "cut" and len(data) > 1)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def _pass_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(self.server.target, timeout=60)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], data: bytes, *, is_cut: bool = False) -> None:
        self.send_response_only(status)
        dropped = {"content-length", "transfer-encoding", "connection"}
        for name, value in headers.items():
            if name.lower() not in dropped:
                self.send_header(name, value)
        length = headers.get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if is_cut else data)
        if is_cut:
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Nothing is written about single requests."""


@contextmanager
def start_flaky_proxy(target: str, every: int, host: str = "127.0.0.1") -> Iterator[FlakyServer]:
    """A proxy before the server at `target`, in a thread of this process."""
    server = FlakyServer(target, every, host)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
