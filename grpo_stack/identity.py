"""What the server is, told at once: an ASGI middleware, loaded by `--middleware grpo_stack.identity.Identity`.

The first /server_info makes vLLM describe its whole machine with some thirty commands, `pip list` among them: 2 s on an H200's
16 cores, 4 s on two, at every start, and TRL asks for it as well. Of all that the gate needs three settings and four releases.

    GET  /grpo_stack/identity   those, in the shape of /server_info?config_format=json

vLLM's description is begun as the server starts, in a thread, and a /server_info that comes before its end waits for it: asked
twice at once, vLLM would make it twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any

from grpo_stack import releases, versions
from grpo_stack.activity_api import IDENTITY
from grpo_stack.asgi import App, Receive, Scope, Send, answer

SETTINGS = {"model_config": ("logprobs_mode", "max_logprobs"), "weight_transfer_config": ("backend",)}
"""What is told of vLLM's VllmConfig, by its parts."""

DESCRIBES = ("vllm.entrypoints.serve.dev.server_info.api_router", "_get_system_env_info_cached")
"""What makes vLLM's description, and keeps it (0.26 to 0.28)."""


def describe() -> None:
    """Have vLLM describe its machine, if this release does it as the known ones do."""
    module, name = DESCRIBES
    try:
        getattr(import_module(module), name)()
    except Exception as fault:  # whoever asks /server_info hears what is wrong from vLLM itself
        logging.getLogger(__name__).warning("vLLM's description of its machine was not made ahead: %r", fault)


class Identity:
    """The middleware; `describing` is what takes long."""

    def __init__(self, app: App, describing: Callable[[], None] = describe) -> None:
        self._app = app
        self._describing = threading.Thread(target=describing, name="describe", daemon=True)
        self._describing.start()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"] if scope["type"] == "http" else ""
        if path == IDENTITY and scope["method"] == "GET":
            await answer(send, 200, json.dumps(identity(scope["app"].state.vllm_config)).encode())
            return
        if path == "/server_info" and self._describing.is_alive():
            await asyncio.to_thread(self._describing.join)
        await self._app(scope, receive, send)


def identity(config: Any) -> dict[str, Any]:
    """Of vLLM's VllmConfig what SETTINGS names, and the releases that both sides must have alike, where /server_info has them."""
    found = {name: getattr(config, name, None) for name in SETTINGS}
    shown = {
        name: part and {field: getattr(part, field, None) for field in SETTINGS[name]} for name, part in found.items()
    }
    listed = [f"{package}=={release}" for package, release in releases.installed(versions.PACKAGES).items()]
    return {"vllm_config": shown, "system_env": {"pip_packages": "\n".join(listed)}}
