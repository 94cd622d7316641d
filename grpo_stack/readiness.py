"""Is that vLLM server usable by this trainer? The one contract that the gate and the health check both ask.

HTTP answers; /v1/models names the model; /server_info shows the settings that TRL needs; the world size is the plan's;
one one-token completion comes back. /health alone proves nothing: vLLM answers 200 there while it is asleep, paused,
or stuck in a weight update for ever.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_stack import http_call
from grpo_stack.errors import DescriptionError, NotReadyError

POLL_S = 0.25
"""Seconds between two tries; a part of the second that may pass between `can generate` and `training starts`."""

FAIR_S = 0.25
"""Seconds that a call must have been given before its silence says something about the server."""

GENERATING = "asking for one token"
"""The phase in which the server has answered everything else."""

_OTHER_PROGRAM = "no vLLM server answers there; check host and port of the URL"
_GONE = {
    "/server_info": "its development routes are off; start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment",
    "/get_world_size": "this vLLM lacks the route; use a version that `grpo-stack pins` shows",
    "/v1/completions": "it cannot generate; serve a text-generation model",
}
_MAY_HEAL = (408, 425, 429)


@dataclass(frozen=True)
class Expectation:
    """What the trainer needs of the server."""

    url: str
    """Base URL, `http://vllm-server:8000` for example."""

    model: str
    """The name that /v1/models must list: the model as it was given to `vllm serve`, or its --served-model-name."""

    backend: str = "nccl"
    """Weight-transfer backend: `nccl`, or `gloo` on the CPU."""

    world_size: int | None = None
    """Ranks of the plan: tensor times pipeline times data parallel; None: any."""

    completion_timeout_s: float = 60.0
    """For one one-token completion; the first one of a cold server compiles kernels."""

    call_timeout_s: float = 30.0
    """For any other call; the first /server_info inspects the machine (nvidia-smi, lscpu) before it answers."""


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
    """Waiting cannot help: the message says what was found and what to do."""

    def __init__(self, url: str, finding: str) -> None:
        super().__init__(f"vLLM at {url} cannot become ready: {finding}")


def check_once(
    expectation: Expectation,
    *,
    remaining_s: Callable[[], float] = lambda: math.inf,
    entering: Callable[[str], None] = lambda phase: None,
) -> None:
    """Return if the server meets the whole contract now; else raise NotYet or Never.

    No call may take longer than `remaining_s()`. `entering` hears GENERATING before the one call that may take long.
    Raises DescriptionError for a URL that cannot be called.
    """
    try:
        http_call.check_url(expectation.url)
    except ValueError as error:
        shown = "" if "@" in expectation.url else f" {expectation.url!r}"  # a password stays unseen
        raise DescriptionError(f"server URL{shown}: {error}") from None
    server = _Server(expectation, remaining_s)
    server.answer("/health")
    _check_model(server)
    _check_settings(server)
    _check_world_size(server)
    entering(GENERATING)
    _check_completion(server)


def wait_until_ready(
    expectation: Expectation,
    *,
    budget_s: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    report: Callable[[str, float], None] = lambda phase, elapsed_s: None,
) -> None:
    """Return as soon as the server is usable, within `budget_s` seconds in all.

    `report(phase, elapsed_s)` hears after each try what the server said, and GENERATING before each completion.
    Raises Never at once for what waiting cannot heal, NotReadyError with the last answer at the budget's end, and
    DescriptionError for a budget or a URL that cannot be used.
    """
    import tenacity

    if not 0 < budget_s < math.inf:
        raise DescriptionError(f"time-out {budget_s:g} s: give a positive number of seconds")
    start = clock()

    def remaining_s() -> float:
        return start + budget_s - clock()

    def entering(phase: str) -> None:
        report(phase, clock() - start)

    last_answer = ""

    def try_once() -> None:
        nonlocal last_answer
        try:
            check_once(expectation, remaining_s=remaining_s, entering=entering)
        except NotYet as error:
            if not (error.cut and last_answer):
                last_answer = error.answer
            entering(last_answer)
            raise

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(NotYet),
        stop=lambda state: remaining_s() <= POLL_S,
        wait=tenacity.wait_fixed(POLL_S),
        sleep=sleep,
        reraise=True,
    )
    try:
        retrying(try_once)
    except NotYet as last:
        raise NotReadyError(
            f"vLLM at {expectation.url} not ready after {budget_s:g} s (last answer: {last_answer})"
        ) from last


class _Server:
    """Asks one server, each call within its own limit and the time that remains."""

    def __init__(self, expectation: Expectation, remaining_s: Callable[[], float]) -> None:
        self.expectation = expectation
        self.remaining_s = remaining_s

    def not_yet(self, answer: str, *, cut: bool = False) -> NotYet:
        return NotYet(self.expectation.url, answer, cut=cut)

    def never(self, finding: str) -> Never:
        return Never(self.expectation.url, finding)

    def answer(self, path: str, payload: Mapping[str, object] | None = None) -> bytes:
        """The body of a 200 answer; POST with a payload, GET without."""
        own_s = self.expectation.call_timeout_s if payload is None else self.expectation.completion_timeout_s
        route = path.partition("?")[0]
        limit_s = min(own_s, self.remaining_s())
        if limit_s <= 0:
            raise self.not_yet(f"no time was left to ask {route}", cut=True)
        try:
            answer = http_call.send(
                "GET" if payload is None else "POST",
                self.expectation.url.rstrip("/") + path,
                payload,
                timeout_s=limit_s,
            )
        except http_call.CallError as error:
            raise self.not_yet(f"{error} on {route}", cut=limit_s < min(own_s, FAIR_S)) from error
        if answer.status == 200:
            return answer.body
        if answer.status >= 500 or answer.status in _MAY_HEAL:
            raise self.not_yet(f"HTTP {answer.status} on {route}")
        raise self.never(f"HTTP {answer.status} on {route}: {_way_out(answer.status, route)}")

    def json(self, path: str, payload: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The JSON object of a 200 answer."""
        body = self.answer(path, payload)
        route = path.partition("?")[0]
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{"):
                raise self.not_yet(f"broken JSON on {route}") from None
            raise self.never(f"no JSON on {route} but {body[:40]!r}: {_OTHER_PROGRAM}") from None
        if not isinstance(content, dict):
            raise self.never(f"no JSON object on {route}: {_OTHER_PROGRAM}")
        return content


def _way_out(status: int, route: str) -> str:
    if status in (401, 403):
        return "it asks for a key; start vLLM without --api-key, on a network of its own"
    if 300 <= status < 400:
        return "a redirect, which vLLM never sends; give the URL of vLLM itself"
    if status == 404:
        return _GONE.get(route, _OTHER_PROGRAM)
    return "it refuses the request; its log says why"


def _check_model(server: _Server) -> None:
    wanted = server.expectation.model
    listed = server.json("/v1/models").get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    # A card with a parent is a LoRA adapter: its name says nothing about the base weights.
    cards = [card for card in cards if card.get("parent") is None]
    names = [card.get("id") for card in cards]
    if wanted in names:
        return
    if not names:
        raise server.never(f"/v1/models names no model, but {wanted!r} will be trained: {_OTHER_PROGRAM}")
    found = ", ".join(repr(name) for name in names)
    if any(card.get("root") == wanted for card in cards):
        raise server.never(f"it serves {wanted!r} under the name {found}; leave out --served-model-name")
    raise server.never(f"it serves {found}, but {wanted!r} will be trained; start vLLM with that model")


def _check_settings(server: _Server) -> None:
    # Pydantic's dump of VllmConfig (vLLM: entrypoints/serve/dev/server_info/api_router.py).
    config = server.json("/server_info?config_format=json").get("vllm_config")
    model = config.get("model_config") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(model, dict):
        raise server.never("/server_info shows no model_config; use a version that `grpo-stack pins` shows")
    wanted = server.expectation.backend
    transfer = config.get("weight_transfer_config")
    backend = transfer.get("backend") if isinstance(transfer, dict) else None
    mode, limit = model.get("logprobs_mode"), model.get("max_logprobs")
    findings = []
    if backend != wanted:
        found = "no weight transfer" if backend is None else f"weight-transfer backend {backend!r}"
        flag = f"""--weight-transfer-config '{{"backend": "{wanted}"}}'"""
        findings.append(f"{found}, not {wanted!r}: start vLLM with {flag}")
    if mode != "processed_logprobs":
        findings.append(f"logprobs mode {mode!r}: start vLLM with --logprobs-mode processed_logprobs")
    if limit != -1:
        findings.append(f"log-probs capped at {limit!r}: start vLLM with --max-logprobs -1")
    if findings:
        raise server.never("; ".join(findings))


def _check_world_size(server: _Server) -> None:
    wanted = server.expectation.world_size
    found = server.json("/get_world_size").get("world_size")
    if wanted is not None and found != wanted:
        raise server.never(f"world size {found!r}, but the plan has {wanted}; start vLLM with its parallel sizes")


def _check_completion(server: _Server) -> None:
    # A token id instead of text: it also works for a server without a tokenizer.
    request = {"model": server.expectation.model, "prompt": [1], "max_tokens": 1, "temperature": 0}
    choices = server.json("/v1/completions", request).get("choices")
    if not isinstance(choices, list) or not choices:
        raise server.not_yet("a completion without a choice on /v1/completions")
