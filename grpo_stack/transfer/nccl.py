"""vLLM's NCCL weight transfer, with the memory of each push given back to the GPU afterwards.

`packed_nccl_broadcast_consumer` and `…_producer` (vLLM 0.28, distributed/weight_transfer/packed_tensor.py) make two CUDA
streams at every push, and torch's allocator keeps what is freed for the stream that it was allocated on. torch hands out
32 streams in turn, so each of the first 16 pushes keeps its buffers on both sides: 0.99 GB a push made 16 GiB of it.
What is kept so lies outside `--gpu-memory-utilization`, and no other process on the GPU can have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine


class ReleasingNcclEngine(NCCLWeightTransferEngine):
    """The server's half."""

    def finish_weight_update(self) -> None:
        """Put the new weights in place, and let go of what they were received in."""
        super().finish_weight_update()
        torch.accelerator.synchronize()
        torch.cuda.empty_cache()


def releasing(push: Callable[..., Any]) -> Callable[..., Any]:
    """The trainer's half: `push`, and what it packed is let go of."""

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return push(*args, **kwargs)
        finally:
            torch.cuda.empty_cache()

    return call
