"""One HTTP request as an ASGI middleware sees it (asgi.readthedocs.io): what the client sends, and plain answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Client:
    """What the client sends: read ahead while its request is held, to notice that it has gone, and handed on in order."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._ahead: deque[Message] = deque()
        self._reading: asyncio.Future[Message] | None = None
        self.gone = False

    async def receive(self) -> Message:
        """For the app, in place of the server's own."""
        if self._ahead:
            return self._ahead.popleft()
        return self._noted(await self._receive()) if self._reading is None else await self._read()

    async def until_gone(self) -> None:
        while not self.gone:
            self._ahead.append(await self._read())

    async def _read(self) -> Message:
        # Whoever waits here may be cancelled, and the message that then comes must not be lost.
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._receive())
        message = await asyncio.shield(self._reading)
        self._reading = None
        return self._noted(message)

    def _noted(self, message: Message) -> Message:
        self.gone = self.gone or message["type"] == "http.disconnect"
        return message

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def on_success(send: Send, act: Callable[[], None]) -> Send:
    """`send`, which also does `act` when the answer turns out to be a 200, just before the client learns of it."""

    async def watched(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 200:
            act()
        await send(message)

    return watched


async def answer(send: Send, status: int, body: bytes) -> None:
    """A whole answer; `body` is JSON."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
