"""Which GPUs serve and which train: `4:4`, `0-3:4-7`, `0,GPU-8a1c…:1-3`, `shared`, `colocate`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpo_stack.schema import Invalid, show

SEPARATE, SHARED, COLOCATE = "separate", "shared", "colocate"

EXAMPLE = "write SERVER:TRAINER, as in 4:4 (counts) or 0-3:4-7 (GPU ids), or shared, or colocate"

GPUS = 1024
"""More than any host has. Ids and counts stay below it, so that a slip of the keyboard makes no list of millions."""

_RANGE = re.compile(r"(\d+)-(\d+)")
_UUID = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Split:
    """GPU ids of each side: NVML indices or UUIDs, as `device_ids` of Compose takes them."""

    server: tuple[str, ...]
    """GPUs that serve; their number is the server's tensor-parallel size. Empty for `colocate`."""
    trainer: tuple[str, ...]
    """GPUs that train, one process each."""
    mode: str = SEPARATE
    """`separate`: no GPU on both sides. `shared`: one GPU with both roles, for development. `colocate`: vLLM inside the
    training processes, no server."""
    counted: bool = False
    """Only numbers were given; the ids are the first ones, and may be exchanged for better placed ones."""

    def __str__(self) -> str:
        if self.mode == SHARED:
            return f"shared:{self.server[0]}"
        sides = (self.trainer,) if self.mode == COLOCATE else (self.server, self.trainer)
        text = ":".join(_show(side) for side in sides)
        return f"colocate:{text}" if self.mode == COLOCATE else text

    @property
    def gpus(self) -> tuple[str, ...]:
        """Every GPU of it, once."""
        return tuple(dict.fromkeys(self.server + self.trainer))


def parse(value: object) -> Split:
    """The split that a text describes; Invalid says what is wrong with it.

    With two counts the server gets the first GPUs and the trainer those after them. A side with a comma, a range or a UUID
    makes both sides lists of ids: `0,1:2` is GPUs 0 and 1 against GPU 2. `shared` and `colocate` take GPU 0, or the ids
    after a colon.
    """
    if not isinstance(value, str):
        # YAML 1.1 reads an unquoted 4:4 as the base-60 number 244.
        raise Invalid(f"{show(value)} is no split; {EXAMPLE}, in quotes")
    text = re.sub(r" *([:,]) *", r"\1", value.strip(" "))
    mode, _, rest = text.partition(":")
    if mode in (SHARED, COLOCATE):
        return _one_side(mode, _ids(rest) if rest else ("0",))
    sides = text.split(":")
    if len(sides) != 2 or not all(sides):
        raise Invalid(f"{show(value)} does not name two sides; {EXAMPLE}")
    if all(side.isdecimal() for side in sides):
        return by_count(*(_number(side) for side in sides))
    server, trainer = (_ids(side) for side in sides)
    for gpu in server:
        if gpu in trainer:
            raise Invalid(f"GPU {gpu} would serve and train; give each side its own, or write shared:{gpu}")
    return Split(server, trainer)


def by_count(server: int, trainer: int) -> Split:
    """The first `server` GPUs against the `trainer` ones after them."""
    if server == 0 or trainer == 0:
        raise Invalid(f"{server}:{trainer} leaves one side without a GPU; each needs at least one")
    ids = tuple(str(gpu) for gpu in range(server + trainer))
    return Split(ids[:server], ids[server:], counted=True)


def _one_side(mode: str, ids: tuple[str, ...]) -> Split:
    if mode == COLOCATE:
        return Split((), ids, COLOCATE)
    if len(ids) > 1:
        raise Invalid(f"shared takes one GPU, {len(ids)} are named; with more, give each side its own: SERVER:TRAINER")
    return Split(ids, ids, SHARED)


def _ids(side: str) -> tuple[str, ...]:
    ids: list[str] = []
    for item in side.split(","):
        if match := _RANGE.fullmatch(item):
            first, last = _number(match[1]), _number(match[2])
            if last < first:
                raise Invalid(f"range {item} runs backwards; write {last}-{first}")
            ids += (str(gpu) for gpu in range(first, last + 1))
        elif item.isdecimal():
            ids.append(str(_number(item)))
        elif _UUID.fullmatch(item):
            ids.append(f"GPU-{item[4:].lower()}")  # as the driver writes it, so that two spellings are one GPU
        elif item.startswith("MIG-"):
            raise Invalid(f"{show(item)} is a MIG slice, which NCCL cannot use for a weight push; name whole GPUs")
        else:
            raise Invalid(f"{show(item)} is no GPU id; write ids, ranges and UUIDs, as in 0,2-3:4-7")
    for gpu in ids:
        if ids.count(gpu) > 1:
            raise Invalid(f"GPU {gpu} is named twice on one side; name each once")
    return tuple(ids)


def _number(digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(GPUS)) or int(digits) >= GPUS:
        raise Invalid(f"{digits[:20]}{'…' * (len(digits) > 20)} is beyond the GPUs of any host; stay below {GPUS}")
    return int(digits)


def _show(ids: tuple[str, ...]) -> str:
    if len(ids) > 1 and all(gpu.isdecimal() for gpu in ids):
        numbers = tuple(int(gpu) for gpu in ids)
        if numbers == tuple(range(numbers[0], numbers[-1] + 1)):
            return f"{ids[0]}-{ids[-1]}"
    return ",".join(ids)
