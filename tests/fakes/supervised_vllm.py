"""A vLLM server with our middleware and a supervisor of its own, as far as the trainer's supervisor can tell."""

from __future__ import annotations

import threading
from typing import Any

from grpo_stack import activity_api
from tests.fakes.vllm_server import FakeVllm


class SupervisedVllm(FakeVllm):
    """Its instance changes when it is restarted; told that an update is abandoned, it restarts by itself."""

    def __init__(self, model: str = "org/model") -> None:
        super().__init__(model)
        self.instance = "first-instance"
        self.update_open = False
        self.is_abandoned = False
        self.abandoned: list[bool] = []
        """What each POST to abandon was answered."""
        self.answers = threading.Event()
        """While cleared, nothing about the activity is answered."""
        self.answers.set()
        self._in_vain = threading.Semaphore(0)

    def restart(self) -> None:
        self.update_open = False
        self.instance = f"{len(self.requests)}-later-instance"

    def come_back(self, update_open: bool = False) -> None:
        self.restart()
        self.update_open = update_open
        super().come_back()

    def wait_until_asked_in_vain(self, times: int) -> None:
        for _ in range(times):
            assert self._in_vain.acquire(timeout=20)

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        if (method, target) == ("GET", activity_api.REPORT):
            if not self.answers.is_set():
                self._in_vain.release()
                self.answers.wait()
            return 200, activity_api.write(self.report())
        if (method, target) == ("POST", activity_api.ABANDON):
            self.abandoned.append(self.update_open)
            self.restart()
            return 200, b'{"abandoned": true}'
        if self.update_open and target == "/v1/completions":
            self.strange.append("a completion while an update is open")
        return super().answer(method, target, body)

    def report(self) -> activity_api.Report:
        known: dict[str, Any] = {"generating": 0, "oldest_s": 0.0, "held": 0, "generated": 0, "updates": 0}
        open_s = 1.0 if self.update_open else None
        return activity_api.Report(
            self.instance, **known, update_open_s=open_s, longest_update_s=0.0, abandoned=self.is_abandoned
        )

    def __exit__(self, *words: Any) -> None:
        self.answers.set()
        super().__exit__(*words)
