"""Which GPUs serve and which train: `4:4`, `0-3:4-7`, `0,2:1,3`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grpo_stack.schema import Invalid

_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class Split:
    """GPU ids of each side, as NVML counts them; none of them on both sides."""

    server: tuple[int, ...]
    """GPUs that serve; their number is the server's tensor-parallel size."""
    trainer: tuple[int, ...]
    """GPUs that train, one process each."""

    def __str__(self) -> str:
        return f"{_show(self.server)}:{_show(self.trainer)}"

    @property
    def gpus(self) -> tuple[int, ...]:
        return self.server + self.trainer


def parse(value: object) -> Split:
    """`SERVER:TRAINER`, each side a count (`4:4`) or ids and ranges (`0,1:2-7`); Invalid says what is wrong.

    With two counts the server gets the first GPUs and the trainer those after them. A side with a comma or a range makes
    both sides lists of ids: `0,1:2` is GPUs 0 and 1 against GPU 2.
    """
    example = "write SERVER:TRAINER, as in 4:4 (counts) or 0-3:4-7 (GPU ids)"
    if not isinstance(value, str):
        # YAML 1.1 reads an unquoted 4:4 as the base-60 number 244.
        raise Invalid(f"{value!r} is no split; {example}, in quotes")
    sides = value.replace(" ", "").split(":")
    if len(sides) != 2 or not all(sides):
        raise Invalid(f"{value!r} does not name two sides; {example}")
    if all(side.isdigit() for side in sides):
        return _by_count(*(int(side) for side in sides))
    server, trainer = (_ids(side) for side in sides)
    for gpu in server:
        if gpu in trainer:
            raise Invalid(f"GPU {gpu} would serve and train; give each side its own")
    return Split(server, trainer)


def _by_count(server: int, trainer: int) -> Split:
    if server == 0 or trainer == 0:
        raise Invalid(f"{server}:{trainer} leaves one side without a GPU; each needs at least one")
    return Split(tuple(range(server)), tuple(range(server, server + trainer)))


def _ids(side: str) -> tuple[int, ...]:
    ids: list[int] = []
    for item in side.split(","):
        if match := _RANGE.fullmatch(item):
            first, last = int(match[1]), int(match[2])
            if last < first:
                raise Invalid(f"range {item} runs backwards; write {last}-{first}")
            ids += range(first, last + 1)
        elif item.isdigit():
            ids.append(int(item))
        else:
            raise Invalid(f"{item!r} is no GPU id; write ids and ranges, as in 0,2-3:4-7")
    for gpu in ids:
        if ids.count(gpu) > 1:
            raise Invalid(f"GPU {gpu} is named twice on one side; name each once")
    return tuple(ids)


def _show(ids: tuple[int, ...]) -> str:
    if len(ids) > 1 and ids == tuple(range(ids[0], ids[-1] + 1)):
        return f"{ids[0]}-{ids[-1]}"
    return ",".join(str(gpu) for gpu in ids)
