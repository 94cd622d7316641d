"""The training program, its model shared out by FSDP2 as on GPUs, but on the CPU.

accelerate 1.15 shares a model by FSDP between accelerators only (state.py, `AcceleratorState`: `MULTI_CPU` never becomes `FSDP`),
though torch can do it between CPUs, over gloo. Here its state is told that it does; all else is what runs on GPUs.
"""

from __future__ import annotations

import sys
from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

made = AcceleratorState.__init__


def share_by_fsdp(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
    made(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
    if fsdp_plugin is None or self.distributed_type is DistributedType.FSDP:
        return
    self.fsdp_plugin = fsdp_plugin
    self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP


if __name__ == "__main__":
    from grpo_stack.train import main

    AcceleratorState.__init__ = share_by_fsdp
    sys.exit(main())
