"""Tells vLLM that there is a weight-transfer backend called "gloo", and puts ours in the place of its "nccl"."""

from __future__ import annotations

from grpo_stack.transfer import BACKEND


def register() -> None:
    """Add the backend to vLLM's registry; vLLM calls this in each of its processes, some of them more than once.

    Only names are registered: an engine's module is imported when a server was started with that backend.
    `WeightTransferConfig.backend` is typed as free text beside the built-in names and checked against this registry only
    (vLLM 0.28, `config/weight_transfer.py`).
    """
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, "grpo_stack.transfer.engine", "GlooWeightTransferEngine")
    WeightTransferEngineFactory._registry.pop("nccl", None)  # register_engine refuses a name that it has
    WeightTransferEngineFactory.register_engine("nccl", "grpo_stack.transfer.nccl", "ReleasingNcclEngine")
