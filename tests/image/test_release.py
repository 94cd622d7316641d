"""What a push over NCCL allocated is given back; no GPU is needed to see that it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine

from grpo_stack.transfer import nccl, plugin


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch is asked for, in its order."""
    events: list[str] = []

    class Pool:
        def __init__(self) -> None:
            events.append("made")

        def __del__(self) -> None:
            events.append("gone")

    @contextmanager
    def use(pool: Pool) -> Iterator[None]:
        events.append("in use")
        yield
        events.append("no longer in use")

    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("waited"))
    return events


def test_the_server_takes_our_nccl_engine_however_often_the_plugin_runs() -> None:
    plugin.register()
    plugin.register()

    assert WeightTransferEngineFactory._registry["nccl"]() is nccl.ReleasingNcclEngine


def test_a_push_has_memory_of_its_own_that_goes_once_its_kernels_are_done(happened: list[str]) -> None:
    push = nccl.releasing(lambda value: happened.append("pushed") or value + 1)

    assert push(1) == 2
    assert happened == (once := ["made", "in use", "pushed", "no longer in use", "waited", "gone"])
    assert push(2) == 3
    assert happened == once * 2


def test_after_a_push_that_failed_nobody_waits_for_kernels_that_may_never_end(happened: list[str]) -> None:
    def broken() -> None:
        raise ConnectionError("gone")

    with pytest.raises(ConnectionError):
        nccl.releasing(broken)()

    assert "waited" not in happened


def test_the_server_keeps_what_it_received_until_the_update_is_finished(
    happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def received(self: Any, update_info: Any) -> None:
        happened.append(f"received {update_info}")

    monkeypatch.setattr(NCCLWeightTransferEngine, "receive_weights", received)
    monkeypatch.setattr(NCCLWeightTransferEngine, "finish_weight_update", lambda self: happened.append("finished"))
    engine = object.__new__(nccl.ReleasingNcclEngine)

    engine.receive_weights(1)
    engine.receive_weights(2)
    engine.finish_weight_update()
    engine.finish_weight_update()

    assert happened == [
        *("made", "in use", "received 1", "no longer in use", "in use", "received 2", "no longer in use"),
        *("finished", "waited", "gone", "finished"),
    ]
