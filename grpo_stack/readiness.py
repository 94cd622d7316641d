"""Is that vLLM server usable by this trainer? The one contract that the gate and the health check both ask.

HTTP answers; /v1/models names the model; /server_info shows the settings that TRL needs, and the versions that this side
has; the world size is the plan's; one one-token completion comes back. /health alone proves nothing: vLLM answers 200 there
while it is asleep, paused, or stuck in a weight update for ever.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from grpo_stack import versions
from grpo_stack.activity_api import IDENTITY
from grpo_stack.errors import DescriptionError, NotReadyError
from grpo_stack.vllm_api import OTHER_PROGRAM, Never, NotYet, Server

__all__ = ["GENERATING", "POLL_S", "Expectation", "Never", "NotYet", "check_once", "wait_until_ready"]

POLL_S = 0.25
"""Seconds between two tries; a part of the second that may pass between `can generate` and `training starts`."""

GENERATING = "asking for one token"
"""The phase in which the server has answered everything else."""


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

    installed: Mapping[str, str] = field(default_factory=dict)
    """Releases on this side, by distribution; what is not in here is not compared."""

    completion_timeout_s: float = 60.0
    """For one one-token completion; the first one of a cold server compiles kernels."""

    call_timeout_s: float = 30.0
    """For any other call. The first /server_info runs some thirty commands to describe the machine: 4 s on 2 cores."""


def check_once(
    expectation: Expectation,
    *,
    remaining_s: Callable[[], float] = lambda: math.inf,
    entering: Callable[[str], None] = lambda phase: None,
    generate: bool = True,
) -> None:
    """Return if the server meets the whole contract now; else raise NotYet or Never.

    Without `generate` no completion is asked for: while weights are being pushed it would end the engine ("Cannot copy out
    of meta tensor", vLLM 0.28), so whoever keeps asking beside a training run must leave it out.

    No call may take longer than `remaining_s()`. `entering` hears GENERATING before the one call that may take long.
    Raises DescriptionError for a URL that cannot be called.
    """
    server = Server(
        expectation.url,
        call_timeout_s=expectation.call_timeout_s,
        completion_timeout_s=expectation.completion_timeout_s,
        remaining_s=remaining_s,
    )
    server.answer("/health")
    _check_model(server, expectation.model)
    _check_settings(server, expectation.backend, expectation.installed)
    _check_world_size(server, expectation.world_size)
    if generate:
        entering(GENERATING)
        _check_completion(server, expectation.model)


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


def _check_model(server: Server, wanted: str) -> None:
    listed = server.json("/v1/models").get("data")
    cards = [card for card in listed if isinstance(card, dict)] if isinstance(listed, list) else []
    # A card with a parent is a LoRA adapter: its name says nothing about the base weights.
    cards = [card for card in cards if card.get("parent") is None]
    names = [card.get("id") for card in cards]
    if wanted in names:
        return
    if not names:
        raise server.never(f"/v1/models names no model, but {wanted!r} will be trained: {OTHER_PROGRAM}")
    found = ", ".join(repr(name) for name in names)
    if any(card.get("root") == wanted for card in cards):
        raise server.never(f"it serves {wanted!r} under the name {found}; leave out --served-model-name")
    raise server.never(f"it serves {found}, but {wanted!r} will be trained; start vLLM with that model")


def _check_settings(server: Server, wanted: str, installed: Mapping[str, str]) -> None:
    # Pydantic's dump of VllmConfig (vLLM: entrypoints/serve/dev/server_info/api_router.py), which a server without the
    # middleware takes seconds to answer with.
    info = server.find(IDENTITY) or server.json("/server_info?config_format=json")
    config = info.get("vllm_config")
    model = config.get("model_config") if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(model, dict):
        raise server.never("/server_info shows no model_config; use a version that `grpo-stack pins` shows")
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
    system = info.get("system_env")
    differ = versions.differences(versions.of_server(system), installed) if isinstance(system, dict) else []
    if differ:
        findings.append(f"{', '.join(differ)}: build both images from the same pins")
    if findings:
        raise server.never("; ".join(findings))


def _check_world_size(server: Server, wanted: int | None) -> None:
    found = server.json("/get_world_size").get("world_size")
    if wanted is not None and found != wanted:
        raise server.never(f"world size {found!r}, but the plan has {wanted}; start vLLM with its parallel sizes")


def _check_completion(server: Server, model: str) -> None:
    # A token id instead of text: it also works for a server without a tokenizer. Sampled and with its log-prob, as TRL asks
    # for it: what compiles at the first such request then does so here, and not in the first training step.
    request = {"model": model, "prompt": [1], "max_tokens": 1, "temperature": 1.0, "logprobs": 0}
    choices = server.json("/v1/completions", request).get("choices")
    if not isinstance(choices, list) or not choices:
        raise server.not_yet("a completion without a choice on /v1/completions")
