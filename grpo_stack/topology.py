"""Which of a host's GPUs serve and which train, when only their numbers were asked for.

GPUs of one side exchange activations or gradients all the time, while the two sides meet only for a weight push, which
runs over the network. So each side's GPUs are chosen to be well linked with each other, and who lies across does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from grpo_stack.facts import Gpu
from grpo_stack.split import Split

PATHS = ("nvlink", "same-board", "pcie-switch", "pcie-switches", "host-bridge", "numa-node", "system")
"""Ways from one GPU to another, best first."""

BUSY_MIB = 1024
"""An idle GPU shows a few hundred MiB, the driver's own reserve; more than this is someone's."""

EVERY_CHOICE = 20_000
"""Up to so many ways to choose, all are compared: some tenths of a second. Beyond, each side grows GPU by GPU."""


@dataclass(frozen=True)
class Choice:
    """A split with ids, and what was weighed."""

    split: Split
    avoided: tuple[str, ...] = ()
    """`GPU 3 (41000 MiB in use, no process listed)`: those that were passed over, and why."""

    def __str__(self) -> str:
        text = f"GPU {','.join(self.split.server)} serve, {','.join(self.split.trainer)} train"
        return f"{text}; passed over: {', '.join(self.avoided)}" if self.avoided else text


def choose(split: Split, gpus: Sequence[Gpu]) -> Choice:
    """The best GPUs for a split that was given in counts; a host with too few leaves it as it is.

    GPUs in use, cut by MIG, or with memory errors are taken only where the others do not suffice, the least used first.
    Among equals the lowest ids serve.
    """
    wanted = len(split.server) + len(split.trainer)
    if not split.counted or wanted > len(gpus):
        return Choice(split)
    ranked = sorted(
        gpus, key=lambda gpu: (bool(unfit(gpu)), (gpu.memory_used_mib or 0) if unfit(gpu) else 0, gpu.index)
    )
    enough = max(wanted, sum(not unfit(gpu) for gpu in gpus))
    pool = sorted(ranked[:enough], key=lambda gpu: gpu.index)
    server, trainer = _best(pool, len(split.server), len(split.trainer))
    chosen = {*server, *trainer}
    avoided = tuple(f"GPU {gpu.index} ({unfit(gpu)})" for gpu in gpus if unfit(gpu) and gpu.index not in chosen)
    return Choice(Split(tuple(map(str, server)), tuple(map(str, trainer))), avoided)


def text(split: Split) -> str:
    """The split as a description writes it; a lone id becomes the range 3-3, since 3:5 would be two counts."""
    sides = [",".join(side) for side in (split.server, split.trainer)]
    if all(side.isdecimal() for side in sides):
        sides = [f"{side}-{side}" for side in sides]
    return ":".join(sides)


def unfit(gpu: Gpu) -> str:
    """Why a GPU should rather not be taken; empty when nothing speaks against it."""
    if reason := use(gpu):
        return reason
    if gpu.mig_enabled:
        return "cut into MIG slices"
    return f"{gpu.ecc_errors} uncorrected memory errors" if gpu.ecc_errors else ""


def use(gpu: Gpu) -> str:
    """Who seems to use a GPU; empty when it is free."""
    used = gpu.memory_used_mib or 0
    if not gpu.processes and used <= BUSY_MIB:
        return ""
    named = [process.name or f"process {process.pid}" for process in gpu.processes or ()]
    return f"{used} MiB in use, {', '.join(named) or 'no process listed'}"


def worst(side: Iterable[Gpu]) -> str | None:
    """The longest way between two GPUs of a side; None for a lone one, and where nothing is known."""
    side = tuple(side)
    ranks = [_rank(one, other) for one, other in combinations(side, 2)]
    known = [rank for rank in ranks if rank < len(PATHS)]
    return PATHS[max(known)] if known else None


def _best(pool: Sequence[Gpu], server: int, trainer: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    cost = {(one.index, other.index): _rank(one, other) for one, other in combinations(pool, 2)}
    ids = [gpu.index for gpu in pool]
    if len(set(cost.values())) <= 1:
        return tuple(ids[:server]), tuple(ids[server : server + trainer])
    if comb(len(ids), server) * comb(len(ids) - server, trainer) <= EVERY_CHOICE:
        return min(_choices(ids, server, trainer), key=lambda sides: (*_cost(cost, *sides), sides))
    first, second = sorted((server, trainer), reverse=True)
    larger = _grown(cost, ids, first)
    smaller = _grown(cost, [index for index in ids if index not in larger], second)
    return (larger, smaller) if server == first else (smaller, larger)


def _choices(ids: Sequence[int], server: int, trainer: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for serving in combinations(ids, server):
        rest = [index for index in ids if index not in serving]
        yield from ((serving, training) for training in combinations(rest, trainer))


def _cost(cost: dict[tuple[int, int], int], *sides: tuple[int, ...]) -> tuple[int, int]:
    """The worst link within any side, and the sum of all of them."""
    ranks = [cost[pair] for side in sides for pair in combinations(side, 2)]
    return max(ranks, default=0), sum(ranks)


def _grown(cost: dict[tuple[int, int], int], ids: Sequence[int], size: int) -> tuple[int, ...]:
    """A side of `size`, grown from each id in turn by the one that is linked best; the best of those."""
    found = []
    for seed in ids:
        side: tuple[int, ...] = (seed,)
        while len(side) < size:
            more = (tuple(sorted((*side, index))) for index in ids if index not in side)
            side = min(more, key=lambda grown: (_cost(cost, grown), grown))
        found.append(side)
    return min(found, key=lambda side: (_cost(cost, side), side))


def _rank(one: Gpu, other: Gpu) -> int:
    """Place of the way between two GPUs in PATHS; behind them all where it is not known."""
    path = next((link.path for link in one.links if link.peer == other.index), None)
    return PATHS.index(path) if path in PATHS else len(PATHS)
