"""Tells vLLM that there is a weight-transfer backend called "gloo"."""

from __future__ import annotations

from grpo_stack.transfer import BACKEND


def register() -> None:
    """Add the backend to vLLM's registry; vLLM calls this in each of its processes, some of them more than once.

    Only a name is registered: the engine's module is imported when a server was started with that backend, and so
    nothing changes for a server that uses NCCL. `WeightTransferConfig.backend` is typed as free text beside the
    built-in names and checked against this registry only (vLLM 0.28, `config/weight_transfer.py`).
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "grpo_stack.transfer.engine", "GlooWeightTransferEngine")
