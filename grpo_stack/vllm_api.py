"""One vLLM server over HTTP: what it answers, sorted into fine, wait, and hopeless."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from grpo_stack import http_call
from grpo_stack.errors import DescriptionError, NotReadyError

FAIR_S = 0.25
"""Seconds that a call must have been given before its silence says something about the server."""

OTHER_PROGRAM = "no vLLM server answers there; check host and port of the URL"
_GONE = {
    "/server_info": "its development routes are off; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
    "/get_world_size": "this vLLM lacks the route; use a version that `grpo-stack pins` shows",
    "/v1/completions": "it cannot generate; serve a text-generation model",
}
_MAY_HEAL = (408, 425, 429)


class NotYet(NotReadyError):  # noqa: N818  # a state, not a fault: waiting heals it
    """The server is not usable now.

    `answer` is what it said, `HTTP 503 on /health` for example; `cut` means that it said nothing, because the budget
    ended before it had a fair chance to.
    """

    def __init__(self, url: str, answer: str, *, cut: bool = False) -> None:
        super().__init__(f"vLLM at {url} is not ready: {answer}")
        self.answer = answer
        self.cut = cut


class Never(NotReadyError):  # noqa: N818  # the counterpart of NotYet
    """Waiting cannot help: the message says what was found and what to do; `status` is that of the answer which says so."""

    def __init__(self, url: str, finding: str, status: int = 200) -> None:
        super().__init__(f"vLLM at {url} cannot become ready: {finding}")
        self.status = status


class Server:
    """Asks one server, each call within its own limit and the time that remains; raises NotYet or Never."""

    def __init__(
        self, url: str, *, call_timeout_s: float, completion_timeout_s: float, remaining_s: Callable[[], float]
    ) -> None:
        """GETs have `call_timeout_s`, POSTs `completion_timeout_s`, and neither more than `remaining_s()`.

        Raises DescriptionError for a URL that cannot be called.
        """
        try:
            http_call.check_url(url)
        except ValueError as error:
            shown = "" if "@" in url else f" {url!r}"  # a password stays unseen
            raise DescriptionError(f"server URL{shown}: {error}") from None
        self.url = url
        self.call_timeout_s = call_timeout_s
        self.completion_timeout_s = completion_timeout_s
        self.remaining_s = remaining_s

    def not_yet(self, answer: str, *, cut: bool = False) -> NotYet:
        return NotYet(self.url, answer, cut=cut)

    def never(self, finding: str, status: int = 200) -> Never:
        return Never(self.url, finding, status)

    def answer(self, path: str, payload: Mapping[str, object] | None = None) -> bytes:
        """The body of a 200 answer; POST with a payload, GET without."""
        own_s = self.call_timeout_s if payload is None else self.completion_timeout_s
        route = path.partition("?")[0]
        limit_s = min(own_s, self.remaining_s())
        if limit_s <= 0:
            raise self.not_yet(f"no time was left to ask {route}", cut=True)
        try:
            method = "GET" if payload is None else "POST"
            answer = http_call.send(method, self.url.rstrip("/") + path, payload, timeout_s=limit_s)
        except http_call.CallError as error:
            raise self.not_yet(f"{error} on {route}", cut=limit_s < min(own_s, FAIR_S)) from error
        if answer.status == 200:
            return answer.body
        if answer.status >= 500 or answer.status in _MAY_HEAL:
            raise self.not_yet(f"HTTP {answer.status} on {route}")
        finding = f"HTTP {answer.status} on {route}: {_way_out(answer.status, route)}"
        raise self.never(finding, answer.status)

    def find(self, path: str) -> dict[str, Any] | None:
        """The JSON object of a 200 answer; None where the route is not there."""
        try:
            return self.json(path)
        except Never as never:
            if never.status != 404:
                raise
            return None

    def json(self, path: str, payload: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The JSON object of a 200 answer."""
        body = self.answer(path, payload)
        route = path.partition("?")[0]
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{"):
                raise self.not_yet(f"broken JSON on {route}") from None
            raise self.never(f"no JSON on {route} but {body[:40]!r}: {OTHER_PROGRAM}") from None
        if not isinstance(content, dict):
            raise self.never(f"no JSON object on {route}: {OTHER_PROGRAM}")
        return content


def _way_out(status: int, route: str) -> str:
    if status in (401, 403):
        return "it asks for a key; start vLLM without --api-key, on a network of its own"
    if 300 <= status < 400:
        return "a redirect, which vLLM never sends; give the URL of vLLM itself"
    if status == 404:
        return _GONE.get(route, OTHER_PROGRAM)
    return "it refuses the request; its log says why"
