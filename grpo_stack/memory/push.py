"""What a weight push takes on both sides while it runs: chunks of tensors, packed, broadcast and unpacked.

vLLM 0.28, distributed/weight_transfer/packed_tensor.py, with its defaults, which TRL 1.16 leaves as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

CHUNK_BYTES = 2**30
"""`DEFAULT_PACKED_BUFFER_SIZE_BYTES`: a chunk is closed once it is larger, so it ends up to one tensor above."""


def chunks(sizes: Iterable[int]) -> list[int]:
    """Bytes of each chunk for tensors of `sizes` bytes in this order (`pack_tensors`)."""
    found, filling = [], 0
    for size in sizes:
        filling += size
        if filling > CHUNK_BYTES:
            found.append(filling)
            filling = 0
    return [*found, filling] if filling else found


def sender_bytes(sizes: list[int], gathered: bool) -> int:
    """Most bytes that the first process holds for it (`packed_nccl_broadcast_producer`).

    The chunk on its way and the one being packed; where parameters are `gathered` (FSDP2, ZeRO-3), also the whole
    tensors that the second is packed from. Elsewhere those are the parameters themselves.
    """
    packed = chunks(sizes)
    pairs = zip([0, *packed], packed, strict=False)
    return max((before + now * (2 if gathered else 1) for before, now in pairs), default=0)


def receiver_bytes(sizes: list[int]) -> int:
    """Most bytes that each server GPU holds for it (`packed_nccl_broadcast_consumer`).

    There are two buffers, but the new one is made before the name of the one it replaces is let go of: three chunks.
    """
    packed = chunks(sizes)
    return max((sum(packed[max(0, end - 3) : end]) for end in range(1, len(packed) + 1)), default=0)
