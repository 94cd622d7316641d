"""One HTTP call with one time limit for all of it, and nothing taken from the environment.

Built on the standard library's http.client rather than on requests, for two reasons. A health check starts a process for
each probe, and http.client is imported in 0.05 s where requests takes 0.2 s (2 cores). And requests, like every client
with a time-out per read, lets a peer that sends a byte now and then go on for ever, as it does a slow name server.
http.client knows no proxies and follows no redirects, which is what a call to the stack's own server needs.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from grpo_stack import time_limit

BODY_LIMIT_BYTES = 4 * 2**20
"""vLLM's largest answer asked for, /server_info, is below 100 KiB."""


@dataclass(frozen=True)
class Answer:
    """A whole answer, whatever its status."""

    status: int
    """HTTP status; redirects are answers like any other."""

    body: bytes
    """At most BODY_LIMIT_BYTES."""


class CallError(Exception):
    """No whole answer came; the message says why in a few words, to be continued with `on /path`."""


def check_url(url: str) -> None:
    """Raise ValueError, with what is wrong, unless `url` is the base of an HTTP server: no user, query or fragment."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        raise ValueError("holds a blank, or other characters than those of ASCII; leave them out")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not a URL of the form http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ValueError("holds a user or a password; leave them out")
    if parts.query or parts.fragment:
        raise ValueError("holds a query or a fragment; leave them out")
    if parts.port == 0:
        raise ValueError("port 0 cannot be called")


def send(method: str, url: str, payload: Mapping[str, object] | None = None, *, timeout_s: float) -> Answer:
    """Send `payload` as JSON, or nothing, and return the answer.

    `timeout_s` covers the name look-up, connecting to every address of the name, the TLS handshake, sending and the
    answer's last byte. Raises CallError when no whole answer of at most BODY_LIMIT_BYTES came within it.
    """
    parts = urlsplit(url)
    try:
        connection = _connection(parts, timeout_s)
    except http.client.InvalidURL as error:
        raise CallError("no address of a server") from error
    lines: list[socket.socket] = []

    def exchange() -> Answer:
        connection.connect()
        lines.append(connection.sock)
        return _exchange(connection, method, parts, payload)

    try:
        return time_limit.call(exchange, timeout_s)
    except TimeoutError:
        raise CallError(f"no whole answer within {timeout_s:.3g} s") from None
    except UnicodeError as error:  # of the name's encoding for the look-up (IDNA)
        raise CallError(f"name {parts.hostname} does not resolve") from error
    except (OSError, http.client.HTTPException) as error:
        raise CallError(_reason(error, parts.hostname or "")) from error
    finally:
        # Shut down, not closed: that ends a read in the thread that outlived its limit, and the thread then closes.
        # Kept here, since http.client lets go of its socket once the answer's headers have come.
        for line in lines:
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def _connection(parts: SplitResult, timeout_s: float) -> http.client.HTTPConnection:
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=max(timeout_s, 0.001))


def _exchange(
    connection: http.client.HTTPConnection, method: str, parts: SplitResult, payload: Mapping[str, object] | None
) -> Answer:
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    body = None if payload is None else json.dumps(payload)
    headers = {"Connection": "close", "Accept": "application/json"}
    if body is not None:
        headers["Content-Type"] = "application/json"
    with closing(connection):
        connection.request(method, target or "/", body, headers)
        response = connection.getresponse()
        content = response.read(BODY_LIMIT_BYTES + 1)
    if len(content) > BODY_LIMIT_BYTES:
        raise CallError(f"an answer of more than {BODY_LIMIT_BYTES} bytes")
    # read(n) returns what there is when the peer closes early; `length` still counts what was announced.
    if response.length:
        raise http.client.IncompleteRead(content, response.length)
    return Answer(response.status, content)


def _reason(error: OSError | http.client.HTTPException, host: str) -> str:
    if isinstance(error, http.client.RemoteDisconnected):
        return "connection closed without an answer"
    if isinstance(error, http.client.IncompleteRead):
        return "connection closed in the middle of the answer"
    if isinstance(error, http.client.HTTPException):
        return "no HTTP answer"
    if isinstance(error, socket.gaierror):
        return f"name {host} does not resolve"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return "connection reset"
    return (error.strerror or str(error) or type(error).__name__).lower()
