"""A Hugging Face Hub on a real socket that knows one route, config.json of a revision, and refuses everything else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What it answers with, and what it was asked."""

    answers: Mapping[str, tuple[int, dict[str, str], bytes]]
    """By path: status, headers, body. Another path ends the test's wait with 418."""

    url: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and Authorization of each request."""


@contextmanager
def serving(answers: Mapping[str, tuple[int, dict[str, str], bytes]]) -> Iterator[Hub]:
    hub = Hub(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append((self.path, self.headers.get("Authorization")))
            status, headers, body = hub.answers.get(self.path, (418, {}, b"the fake Hub knows no such path"))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may leave in the middle of an answer
                super().handle_error(request, client_address)  # type: ignore[arg-type]

    server = Server(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
