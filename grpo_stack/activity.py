"""What the API server is doing, from inside it: an ASGI middleware, loaded by `--middleware grpo_stack.activity.Activity`.

vLLM adds the middlewares of its command line last, so this one is outside all of its own, the check of the API key included
(vllm.entrypoints.openai.api_server.build_app): every request passes here first, whatever becomes of it. It counts real
generations, so that nobody needs to send one of their own to know whether the server works; and it keeps generations and
weight updates apart, since a generation that meets an update ends vLLM's engine ("Cannot copy out of meta tensor", 0.28).

    GET  /grpo_stack/activity   what goes on (activity_api.Report)
    POST /grpo_stack/abandon    says that nobody will finish the update that is open

Where vLLM runs several API servers (`--api-server-count`), each has its own count, so leave that at one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
import uuid
from collections.abc import Callable

from grpo_stack.activity_api import ABANDON, INSTANCE, REPORT, Report, write
from grpo_stack.asgi import App, Client, Message, Receive, Scope, Send, answer, on_success

GENERATIONS = ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate")
"""What TRL generates with: vLLM's OpenAI routes, and tokens in, tokens out."""

START, FINISH = "/start_weight_update", "/finish_weight_update"

POLLED = (REPORT, "/metrics")
"""What the supervisor asks for twice a second: kept out of the access log, where nobody would find anything else."""

DRAIN_S = 60.0
"""How long a weight update waits for the generations in flight before it is refused with 503, which TRL tries again."""


class Activity:
    """The middleware. All of it runs on the one event loop of the API server, so no lock is needed."""

    def __init__(self, app: App, clock: Callable[[], float] = time.monotonic, drain_s: float = DRAIN_S) -> None:
        logging.getLogger("uvicorn.access").addFilter(_worth_logging)
        self._app = app
        self._clock = clock
        self._drain_s = drain_s
        self._instance = os.environ.get(INSTANCE) or uuid.uuid4().hex
        self._begun: dict[object, float] = {}
        self._generated = 0
        self._held = 0
        self._starting = 0
        self._opened_at: float | None = None
        self._updates = 0
        self._longest_update_s = 0.0
        self._abandoned = False
        self._changed = asyncio.Event()
        """Set, and replaced, whenever something has ended."""

    def report(self) -> Report:
        """What goes on now."""
        now = self._clock()
        return Report(
            instance=self._instance,
            generating=len(self._begun),
            oldest_s=max((now - begun for begun in self._begun.values()), default=0.0),
            held=self._held,
            generated=self._generated,
            update_open_s=None if self._opened_at is None else now - self._opened_at,
            updates=self._updates,
            longest_update_s=self._longest_update_s,
            abandoned=self._abandoned,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path == REPORT:
            await self._own("GET", scope, send, lambda: write(self.report()))
        elif path == ABANDON:
            await self._own("POST", scope, send, self._abandon)
        elif path in GENERATIONS and scope["method"] == "POST":
            await self._generate(scope, Client(receive), send)
        elif path == START:
            await self._start(scope, Client(receive), send)
        elif path == FINISH:
            await self._app(scope, receive, on_success(send, self._finished))
        else:
            await self._app(scope, receive, send)

    async def _generate(self, scope: Scope, client: Client, send: Send) -> None:
        try:
            if self._closed():
                self._held += 1
                try:
                    if not await self._when(lambda: not self._closed(), client):
                        return
                finally:
                    self._held -= 1
            await self._counted(scope, client, send)
        finally:
            client.close()

    async def _counted(self, scope: Scope, client: Client, send: Send) -> None:
        key = object()
        self._begun[key] = self._clock()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body" and not message.get("more_body", False):
                # To a client that has gone vLLM still answers, 200 and `null`: that is no generation.
                self._ended(key, answered=status == 200 and not client.gone)
            await send(message)

        try:
            await self._app(scope, client.receive, watched)
        finally:
            self._ended(key, answered=False)

    async def _start(self, scope: Scope, client: Client, send: Send) -> None:
        self._starting += 1
        try:
            if await self._when(lambda: not self._begun, client, self._drain_s):
                await self._app(scope, client.receive, on_success(send, self._opened))
            elif not client.gone:
                text = (
                    f"generations are still in flight after {self._drain_s:g} s; a weight update would end the engine"
                )
                await answer(send, 503, json.dumps({"error": text}).encode())
        finally:
            self._starting -= 1
            self._wake()
            client.close()

    async def _when(self, free: Callable[[], bool], client: Client, limit_s: float | None = None) -> bool:
        """Wait until `free()`; False once the client has gone, or after `limit_s` seconds."""
        loop = asyncio.get_running_loop()
        until = None if limit_s is None else loop.time() + limit_s
        gone = asyncio.ensure_future(client.until_gone())
        try:
            while not free():
                rest_s = None if until is None else until - loop.time()
                if client.gone or (rest_s is not None and rest_s <= 0):
                    return False
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((gone, changed), timeout=rest_s, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            return not client.gone
        finally:
            gone.cancel()

    def _closed(self) -> bool:
        return self._starting > 0 or self._opened_at is not None

    def _ended(self, key: object, answered: bool) -> None:
        if self._begun.pop(key, None) is not None:
            self._generated += answered
            self._wake()

    def _opened(self) -> None:
        # vLLM refuses a second start, so a success can only be the first; a proxy that repeats one changes nothing.
        if self._opened_at is None:
            self._opened_at = self._clock()

    def _finished(self) -> None:
        if self._opened_at is not None:
            self._longest_update_s = max(self._longest_update_s, self._clock() - self._opened_at)
            self._updates += 1
            self._opened_at = None
            self._abandoned = False
            self._wake()

    def _abandon(self) -> bytes:
        self._abandoned = self._opened_at is not None
        return json.dumps({"abandoned": self._abandoned}).encode()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _own(self, method: str, scope: Scope, send: Send, content: Callable[[], bytes]) -> None:
        if scope["method"] != method:
            await answer(send, 405, json.dumps({"error": f"use {method}"}).encode())
        else:
            await answer(send, 200, content())


def _worth_logging(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's access log is about more than the supervisor's own polling.

    Its arguments are client, method, path, HTTP version and status (uvicorn.logging.AccessFormatter).
    """
    args = record.args
    return not (isinstance(args, tuple) and len(args) == 5 and args[2] in POLLED)
