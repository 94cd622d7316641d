"""What the middleware says of the server, and that nobody makes vLLM describe its machine twice."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from grpo_stack import identity
from grpo_stack.activity_api import IDENTITY
from grpo_stack.identity import Identity

CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(logprobs_mode="processed_logprobs", max_logprobs=-1, hf_config=object()),
    weight_transfer_config=SimpleNamespace(backend="nccl"),
)


async def ask(middleware: Identity, path: str, method: str = "GET", config: Any = CONFIG) -> list[Any]:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "app": SimpleNamespace(state=SimpleNamespace(vllm_config=config)),
    }

    async def receive() -> Any:
        raise AssertionError("no body is needed")

    async def send(message: Any) -> None:
        sent.append(message)

    await middleware(scope, receive, send)
    return sent


async def vllm(scope: Any, receive: Any, send: Any) -> None:
    await send(f"vLLM on {scope['path']}")


def test_it_tells_settings_and_releases_in_the_shape_of_server_info(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity.releases, "installed", lambda names: {"vllm": "0.28.0", "torch": "2.13.0"})

    start, body = asyncio.run(ask(Identity(vllm, lambda: None), IDENTITY))

    assert start["status"] == 200
    assert json.loads(body["body"]) == {
        "vllm_config": {
            "model_config": {"logprobs_mode": "processed_logprobs", "max_logprobs": -1},
            "weight_transfer_config": {"backend": "nccl"},
        },
        "system_env": {"pip_packages": "vllm==0.28.0\ntorch==2.13.0"},
    }


def test_a_server_without_weight_transfer_is_told_as_one() -> None:
    config = SimpleNamespace(model_config=CONFIG.model_config, weight_transfer_config=None)

    _, body = asyncio.run(ask(Identity(vllm, lambda: None), IDENTITY, config=config))

    assert json.loads(body["body"])["vllm_config"]["weight_transfer_config"] is None


def test_all_else_is_vllms_at_once_and_server_info_once_the_description_is_made() -> None:
    made = threading.Event()

    async def both() -> tuple[list[Any], bool, list[Any]]:
        middleware = Identity(vllm, lambda: bool(made.wait(20)) and None)
        info = asyncio.ensure_future(ask(middleware, "/server_info"))
        health = await ask(middleware, "/health")
        await asyncio.sleep(0.1)
        early = info.done()
        made.set()
        return health, early, await info

    assert asyncio.run(both()) == (["vLLM on /health"], False, ["vLLM on /server_info"])


def test_a_vllm_that_describes_itself_otherwise_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(identity, "DESCRIBES", ("grpo_stack.identity", "no_such_function"))

    identity.describe()

    assert "description of its machine was not made ahead" in caplog.text
