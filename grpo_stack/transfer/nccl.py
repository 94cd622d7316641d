"""vLLM's NCCL weight transfer, with the memory of each push given back to the GPU afterwards, and no other.

`packed_nccl_broadcast_consumer` and `…_producer` (vLLM 0.28, distributed/weight_transfer/packed_tensor.py) make two CUDA
streams at every push, and torch's allocator keeps what is freed for the stream that it was allocated on. torch hands out
32 streams in turn, so each of the first 16 pushes keeps its buffers on both sides: 0.99 GB a push made 16 GiB of it.
What is kept so lies outside `--gpu-memory-utilization`, and no other process on the GPU can have it.

A push therefore allocates in a pool of its own, which ends with it. `torch.cuda.empty_cache()` would give back all that
training and generation have cached as well, and both would have to ask the driver for it again in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine


class OwnMemory:
    """What is allocated on the GPU within `used()` goes back to it at `release()`, once nothing refers to it any more."""

    def __init__(self) -> None:
        self._pool: Any = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Allocate in the pool, in this thread."""
        if self._pool is None:
            self._pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self._pool):
            yield

    def release(self) -> None:
        """Give it all back; kernels that still use it are waited for."""
        if self._pool is not None:
            torch.cuda.synchronize()
            self._pool = None


class ReleasingNcclEngine(NCCLWeightTransferEngine):
    """The server's half."""

    _memory: OwnMemory | None = None

    def receive_weights(self, update_info: Any) -> None:
        """Receive one announced list of tensors; layers that are not complete yet refer to them until `finish_weight_update`."""
        if self._memory is None:
            self._memory = OwnMemory()
        with self._memory.used():
            super().receive_weights(update_info)

    def finish_weight_update(self) -> None:
        """Put the new weights in place, and let go of what they were received in."""
        super().finish_weight_update()
        if self._memory is not None:
            self._memory.release()


def releasing(push: Callable[..., Any]) -> Callable[..., Any]:
    """The trainer's half: `push`, and what it packed is let go of.

    Not after a push that failed: its kernels may wait for the other side for ever, and the process is about to end.
    """
    memory = OwnMemory()

    def call(*args: Any, **kwargs: Any) -> Any:
        with memory.used():
            result = push(*args, **kwargs)
        memory.release()
        return result

    return call
