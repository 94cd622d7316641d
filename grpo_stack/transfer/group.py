"""A gloo group of the trainer (rank 0) and the server's workers, apart from any other group in the process.

`torch.distributed.init_process_group` would claim the one default group that accelerate or vLLM own already, and its
rendezvous has no way to say which address to listen on. So the store and the backend are made directly, as vLLM does
for its own side groups (vLLM 0.28, `distributed/utils.py`).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

JOIN_TIMEOUT_S = 120.0
"""For meeting in the store and connecting; both ends are up by then, so it only has to outlast a slow machine."""

BROADCAST_TIMEOUT_S = 120.0
"""For each buffer. Long enough for a peer that is stopped for a moment, and the end of waiting for one that is dead."""


@dataclass(frozen=True)
class Rendezvous:
    """Where the group meets. `address` and `port` are the trainer's, where it opens the store."""

    address: str
    port: int
    rank: int
    world_size: int


class GlooGroup:
    """A group whose rank 0 sends buffers to all others. Every wait in it ends, with an exception, within its limit."""

    def __init__(self, where: Rendezvous, join_timeout_s: float, broadcast_timeout_s: float) -> None:
        """Meet the others; raises `RuntimeError` of torch when they do not come within `join_timeout_s`."""
        from torch.distributed import PrefixStore, ProcessGroupGloo

        self._store: Any = _open_store(where, join_timeout_s)
        options = ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=join_timeout_s)
        # gloo by itself listens on whatever this host's name resolves to; in a container with two networks that can be
        # the one the other side is not on.
        options._devices = [ProcessGroupGloo.create_device(hostname=_own_address(where))]
        self._group: Any = ProcessGroupGloo(PrefixStore("weights", self._store), where.rank, where.world_size, options)
        self._timeout = timedelta(seconds=broadcast_timeout_s)

    def broadcast(self, buffer: Any) -> None:
        """Send `buffer` (one-dimensional, uint8) from rank 0, or fill it with what rank 0 sends.

        Raises `RuntimeError` when the group is closed, or the peer is gone or silent for longer than the limit.
        """
        from torch.distributed import BroadcastOptions

        group = self._group
        if group is None:
            raise RuntimeError("the weight-transfer group is closed")
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        options.timeout = self._timeout
        group.broadcast([buffer], options).wait()

    def close(self) -> None:
        """Drop the connections, at which a peer that waits on them fails at once instead of at its limit."""
        group, self._group = self._group, None
        if group is not None:
            group.abort()
        self._store = None


def _open_store(where: Rendezvous, timeout_s: float) -> Any:
    from torch.distributed import TCPStore

    listener = None
    if where.rank == 0:
        # Bound here for SO_REUSEADDR (a trainer that restarts must get its port back while old connections time out),
        # and to every address: a service name can resolve to more than one.
        listener = socket.create_server(("", where.port))
    timeout = timedelta(seconds=timeout_s)
    fd = None if listener is None else listener.detach()
    # Waiting for the workers here would hold up rank 0 before it can ask the server to connect; gloo waits for all
    # anyway.
    return TCPStore(
        where.address,
        where.port,
        where.world_size,
        is_master=where.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=fd,
        use_libuv=False,  # with libuv a listening socket of our own is refused
    )


def _own_address(where: Rendezvous) -> str:
    """The address of this host on the network that the group uses."""
    if where.rank == 0:
        return where.address
    family, kind, protocol, _, target = socket.getaddrinfo(where.address, where.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # a datagram socket sends nothing here; the kernel only picks the route
        address: str = probe.getsockname()[0]
    return address
