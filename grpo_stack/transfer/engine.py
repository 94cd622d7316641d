"""The server's half: receives weights over gloo and loads them as vLLM's own NCCL engine does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from grpo_stack.transfer import wire
from grpo_stack.transfer.group import BROADCAST_TIMEOUT_S, JOIN_TIMEOUT_S, GlooGroup, Rendezvous

SKIP_EMBEDDING_REFRESH = "GRPO_STACK_SKIP_EMBEDDING_REFRESH"
"""Set to 1, it leaves the packed `lm_head` of a model with tied embeddings as it was. Only for the test that shows why
the refresh is needed."""


@dataclass
class GlooInitInfo(WeightTransferInitInfo):
    """What `/init_weight_transfer_engine` carries; the trainer decides the wire's geometry and both time limits."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    chunk_bytes: int = wire.DEFAULT_CHUNK_BYTES
    join_timeout_s: float = JOIN_TIMEOUT_S
    broadcast_timeout_s: float = BROADCAST_TIMEOUT_S


@dataclass
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """What `/update_weights` carries: the tensors to come, in their order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    def tensors(self) -> list[wire.TensorSpec]:
        """The three lists as one; raises ValueError when their lengths differ."""
        rows = zip(self.names, self.dtype_names, self.shapes, strict=True)
        return [wire.TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in rows]


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    """Lives in each of the server's workers, one for the life of the server; a new trainer simply joins again."""

    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    _group: GlooGroup | None = None
    _chunk_bytes = wire.DEFAULT_CHUNK_BYTES

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        """Join the trainer's group; a group with an earlier trainer is dropped first."""
        self.shutdown()
        parallel = self.parallel_config
        worker = parallel.data_parallel_index * parallel.world_size + parallel.rank
        where = Rendezvous(
            init_info.master_address, init_info.master_port, worker + init_info.rank_offset, init_info.world_size
        )
        self._chunk_bytes = init_info.chunk_bytes
        self._group = GlooGroup(where, init_info.join_timeout_s, init_info.broadcast_timeout_s)

    def start_weight_update(self) -> None:
        """Make the model ready to take checkpoint weights, layer by layer."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive one announced list of tensors. The base class would wait for an accelerator after it."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        """Load the announced tensors as they arrive; on any fault the group is dropped, so that the trainer hears of
        it."""
        if self._group is None:
            raise RuntimeError("no trainer has joined: /init_weight_transfer_engine comes before /update_weights")
        try:
            for chunk in wire.cut(update_info.tensors(), self._chunk_bytes):
                # A buffer of its own for every chunk: a layer that is not complete yet keeps views of it.
                buffer = torch.empty(chunk.nbytes, dtype=torch.uint8)
                self._group.broadcast(buffer)
                self.model.load_weights(list(_views(chunk, buffer)))
        except BaseException:
            self.shutdown()
            raise

    def finish_weight_update(self) -> None:
        """Put the new weights in place."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        _refuse_torn_layers(self.model)
        finalize_layerwise_reload(self.model, self.model_config)
        if os.environ.get(SKIP_EMBEDDING_REFRESH) != "1":
            _refresh_embeddings(self.model)

    def shutdown(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
        self._group = None


def _views(chunk: wire.Chunk, buffer: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    for tensor, offset in zip(chunk.tensors, chunk.offsets, strict=True):
        flat = buffer[offset : offset + tensor.nbytes].view(getattr(torch, tensor.dtype))
        yield tensor.name, flat.view(tensor.shape)


def _refuse_torn_layers(model: torch.nn.Module) -> None:
    """Raise ValueError where only a part of a fused layer was pushed, say q without k and v.

    Layerwise reloading builds each touched layer afresh, and what was not pushed would be whatever lay in that memory.
    Only linear layers are judged: embeddings are padded, and so never complete by count.
    """
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        if isinstance(layer, LinearBase) and info.load_numel_total and 0 < info.load_numel < info.load_numel_total:
            raise ValueError(
                f"{name}: {info.load_numel} of {info.load_numel_total} elements were pushed; push all tensors of "
                "a fused layer (q, k and v; gate and up; weight and bias) in one weight update"
            )


def _refresh_embeddings(model: torch.nn.Module) -> None:
    """Repack the matrices that CPU embeddings multiply with.

    With tied embeddings `lm_head` shares the parameter of `embed_tokens`, but on the CPU it multiplies with a packed
    copy made when the model was loaded. Reloading replaces the parameter's values and repacks only for the module
    whose weight the checkpoint names (vLLM 0.28, `model_loader/reload`, limitation 2), so the logits would stay those
    of the old weights.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for layer in model.modules():
        if isinstance(layer, VocabParallelEmbedding):
            layer.quant_method.process_weights_after_loading(layer)
