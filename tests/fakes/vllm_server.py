"""A vLLM 0.28 server over a real socket, as far as the readiness contract asks it. It refuses what it does not know."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeVar

from grpo_stack.activity_api import IDENTITY

Own = TypeVar("Own", bound="FakeVllm")
DEV_ROUTES = ("/server_info?config_format=json", "/get_world_size")


class FakeVllm:
    """Healthy unless told otherwise; use as a context manager.

    `statuses` maps a route to an HTTP status that it answers instead; `bodies` maps one to what it answers with 200;
    `flap` is asked before each request and may return a status.
    """

    def __init__(self, model: str = "org/model") -> None:
        self.models: list[dict[str, Any]] = [{"id": model, "root": model, "parent": None, "object": "model"}]
        self.vllm_config: dict[str, Any] = {
            "model_config": {"model": model, "logprobs_mode": "processed_logprobs", "max_logprobs": -1},
            "weight_transfer_config": {"backend": "nccl"},
        }
        self.world_size = 4
        self.dev_mode = True
        self.has_identity = False
        """Whether grpo_stack.identity is in front of it."""
        self.statuses: dict[str, int] = {}
        self.bodies: dict[str, bytes] = {}
        self.flap: Callable[[], int | None] = lambda: None
        self.generates = threading.Event()
        """While cleared, a completion does not come back."""
        self.generates.set()
        self.generation_began = threading.Event()
        self.requests: list[str] = []
        self.strange: list[str] = []
        self._http = _Http(self)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self: Own) -> Own:
        self._serve()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.generates.set()
        self.leave()
        assert not self.strange, self.strange

    def leave(self) -> None:
        """Nobody listens any more."""
        self._http.shutdown()
        self._http.server_close()

    def come_back(self) -> None:
        """Listen again, on the same port."""
        self._http = _Http(self, self._http.server_address[1])
        self._serve()

    def _serve(self) -> None:
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        self.requests.append(f"{method} {target}")
        status = self.flap() or self.statuses.get(target)
        if status is not None:
            return status, b'{"error": "as told"}'
        if target in self.bodies:
            return 200, self.bodies[target]
        if (target in DEV_ROUTES and not self.dev_mode) or (target == IDENTITY and not self.has_identity):
            return 404, b'{"detail": "Not Found"}'
        known = {
            "GET /health": lambda: b"",
            "GET /v1/models": lambda: _json({"object": "list", "data": self.models}),
            "GET /server_info?config_format=json": lambda: _json(
                {"vllm_config": self.vllm_config, "vllm_env": {}, "system_env": {}}
            ),
            f"GET {IDENTITY}": lambda: _json({"vllm_config": self.vllm_config, "system_env": {}}),
            "GET /get_world_size": lambda: _json({"world_size": self.world_size}),
            "POST /v1/completions": lambda: self._complete(body),
        }.get(f"{method} {target}")
        if known is None:
            self.strange.append(f"{method} {target}")
            return 404, b""
        return 200, known()

    def _complete(self, body: bytes) -> bytes:
        asked = json.loads(body)
        if set(asked) != {"model", "prompt", "max_tokens", "temperature", "logprobs"} or asked["max_tokens"] != 1:
            self.strange.append(f"completion {asked}")
        if asked["model"] not in [card["id"] for card in self.models]:
            self.strange.append(f"completion of {asked['model']}")
        self.generation_began.set()
        self.generates.wait()
        return _json({"object": "text_completion", "choices": [{"index": 0, "text": "", "finish_reason": "length"}]})


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, vllm: FakeVllm, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.vllm = vllm

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what several tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http

    def do_GET(self) -> None:
        self._answer(b"")

    def do_POST(self) -> None:
        self._answer(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, body: bytes) -> None:
        status, content = self.server.vllm.answer(self.command, self.path, body)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if 300 <= status < 400:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_address[1]}/health")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


def _json(content: object) -> bytes:
    return json.dumps(content).encode()
