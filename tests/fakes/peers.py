"""TCP peers that misbehave in one way each, over real sockets."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

Behaviour = Callable[[socket.socket, threading.Event], None]
"""Treats one connection; the event is set when the test is over."""

TRICKLE_S = 0.02
"""Seconds between two bytes of a peer that trickles."""


@contextmanager
def peer(behaviour: Behaviour) -> Iterator[str]:
    """Listen on a free port, treat each connection with `behaviour`, and give the base URL."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while not over.is_set():
                with suppress(OSError):
                    connection, _ = listener.accept()
                    threading.Thread(target=treat, args=(connection,), daemon=True).start()

        def treat(connection: socket.socket) -> None:
            with suppress(OSError), connection:
                behaviour(connection, over)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            over.set()
            listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def refusing() -> Iterator[str]:
    """A port that is taken, so that nobody else gets it, but on which nothing listens."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


def resets(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def says_nothing(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    over.wait()


def closes_before_headers(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)


def sends_half_a_body(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"object": "list", "da')


def sends_half_a_chunk(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\n{"object": "list", "da')


def speaks_something_else(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")


def trickles_headers(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while not over.wait(TRICKLE_S):
        connection.sendall(b"x")


def trickles_a_body(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while not over.wait(TRICKLE_S):
        connection.sendall(b" ")


def floods(connection: socket.socket, over: threading.Event) -> None:
    _request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while not over.is_set():
        connection.sendall(b" " * 65536)


def _request(connection: socket.socket) -> None:
    """Read to the end of the request's headers."""
    seen = b""
    while b"\r\n\r\n" not in seen:
        received = connection.recv(65536)
        if not received:
            return
        seen += received
