"""What a GPU holds, share by share, and what that means."""

from __future__ import annotations

from dataclasses import dataclass

GIB = 2**30

WARN_ABOVE = 0.95
"""Share of a GPU's memory: estimates of activations are no better than a few percent of it."""

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one number."""

RUNTIME_GIB = 1.2
"""CUDA's context and kernels, and NCCL's buffers of the push's group, neither of which torch's allocator sees. On one H200
the context took 0.51 GiB, and the trainer 1.13 GiB outside torch's allocator, its group included."""

RESERVE = 0.02
"""Share of a GPU's memory that fragmentation and the driver may take. A guess, kept free on both sides."""


@dataclass(frozen=True)
class Share:
    """One thing that takes memory on each GPU of a side."""

    label: str

    gib: float
    """GiB on the GPU that holds most of it."""

    note: str = ""
    """Where the number comes from, when it is not exact, or what it is made of."""


@dataclass(frozen=True)
class KvCache:
    """What the server's memory leaves for the keys and values of the tokens in flight."""

    gib: float
    """On each GPU."""

    bytes_per_token: int
    """On each GPU, for a token that every layer keeps."""

    tokens: int
    """That fit at the wanted length, over all copies of the model."""

    sequences: float
    """Of the wanted length that run at once, over all copies of the model; below 1 the server does not start."""


@dataclass(frozen=True)
class Side:
    """One role's GPUs; they all hold the same, but for the trainer's first, which is the one described."""

    role: str
    """`vllm-server` or `trainer`."""

    gpus: int

    capacity_gib: float
    """Memory of the smallest of them."""

    shares: tuple[Share, ...]

    needed_gib: float
    """The least it can run with; for the server that is a KV cache of one sequence."""

    load: float
    """1.0: no byte is left. How full the tightest part is: the GPU, or what `utilization` gives of it."""

    remedies: tuple[str, ...] = ()
    """What makes it need less, the gentlest first."""

    kv: KvCache | None = None
    """The server's."""

    utilization: float | None = None
    """The server's --gpu-memory-utilization: the one given, else the one proposed."""

    @property
    def free_gib(self) -> float:
        """What no share takes; below 0 when it does not fit."""
        return self.capacity_gib - sum(share.gib for share in self.shares)


def severity(side: Side) -> str:
    """`ok`, `warning` above WARN_ABOVE, `problem` above all of it."""
    if side.load > 1:
        return "problem"
    return "warning" if side.load > WARN_ABOVE else "ok"


def problem(side: Side) -> str | None:
    """One line for a side that is tight or does not fit, with what to change; None when it fits."""
    if severity(side) == "ok":
        return None
    largest = max(side.shares, key=lambda share: share.gib)
    verdict = "does not fit" if side.load > 1 else "is tight"
    advice = f"; {', or '.join(side.remedies)}" if side.remedies else ""
    return (
        f"{side.role}: {verdict}: about {side.needed_gib:.1f} GiB needed on each GPU of {side.capacity_gib:.1f} GiB, "
        f"most of it {largest.label} ({largest.gib:.1f} GiB){advice}"
    )


def rows(side: Side) -> tuple[tuple[str, str, str], ...]:
    """Label, GiB and note of each share, and of what stays free."""
    free = Share("free", side.free_gib)
    return tuple((share.label, f"{share.gib:.2f}", share.note) for share in (*side.shares, free))
