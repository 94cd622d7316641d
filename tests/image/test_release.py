"""What a push over NCCL allocated is given back; no GPU is needed to see that it is asked for."""

from __future__ import annotations

import pytest
import torch
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

from grpo_stack.transfer import nccl, plugin


def test_the_server_takes_our_nccl_engine_however_often_the_plugin_runs() -> None:
    plugin.register()
    plugin.register()

    assert WeightTransferEngineFactory._registry["nccl"]() is nccl.ReleasingNcclEngine


def test_a_push_that_fails_is_released_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    released = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: released.append(True))

    def broken() -> None:
        raise ConnectionError("gone")

    assert nccl.releasing(lambda value: value + 1)(1) == 2
    with pytest.raises(ConnectionError):
        nccl.releasing(broken)()
    assert released == [True, True]
