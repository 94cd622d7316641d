"""How a list of tensors is cut into the buffers that travel; both ends compute the same cut from the same list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

ALIGNMENT = 64
"""Bytes. Each tensor starts at a multiple of this, so that any dtype can be viewed in place in a buffer of bytes."""

DEFAULT_CHUNK_BYTES = 64 * 1024 * 1024
"""Size of a buffer. Larger ones do not make the push faster; a tensor that is larger still travels as one."""

ITEM_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4, "int8": 1, "uint8": 1}
"""Bytes an element, by torch's name of the dtype."""


@dataclass(frozen=True)
class TensorSpec:
    """One tensor on the wire."""

    name: str
    dtype: str
    """torch's name without the prefix, such as "float32"."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes; raises ValueError for a dtype that is not known here."""
        if self.dtype not in ITEM_BYTES:
            raise ValueError(f"{self.name}: dtype {self.dtype} cannot be pushed; known are {', '.join(ITEM_BYTES)}")
        elements = 1
        for size in self.shape:
            elements *= size
        return elements * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Chunk:
    """Tensors that share a buffer: `offsets` are their first bytes in it, `nbytes` is its size."""

    tensors: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    nbytes: int


def cut(tensors: Iterable[TensorSpec], chunk_bytes: int = DEFAULT_CHUNK_BYTES) -> Iterator[Chunk]:
    """Group consecutive tensors into buffers of at most `chunk_bytes`, or of one tensor where that alone is larger."""
    taken: list[TensorSpec] = []
    offsets: list[int] = []
    end = 0
    for tensor in tensors:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if taken and start + tensor.nbytes > chunk_bytes:
            yield Chunk(tuple(taken), tuple(offsets), end)
            taken, offsets, start = [], [], 0
        taken.append(tensor)
        offsets.append(start)
        end = start + tensor.nbytes
    if taken:
        yield Chunk(tuple(taken), tuple(offsets), end)
