"""Which of a container's networks the two sides share, where it has one more: to publish a port, or to let trackers out.

Programs take the first interface that they find (NCCL's bootstrap) or the first address of this host's own name (vLLM's
rendezvous, gloo), and Docker numbers interfaces and addresses as it likes: often those of a network that the other side is not on.
The shared network is internal, so it is the one without a default route.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from grpo_stack.errors import HostError

ASKED = "GRPO_STACK_PRIVATE_NETWORK"
"""The environment variable that a container with a second network carries."""

ROUTES = Path("/proc/net/route")


def environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a program of this container needs to stay on the shared network; nothing unless `own` environment asks for it.

    Raises HostError where no such network is found.
    """
    if ASKED not in own or "NCCL_SOCKET_IFNAME" in own:
        return {}
    return choose(ROUTES.read_text(), addresses())


def addresses() -> list[str]:
    """The IPv4 addresses of this host's own name: Docker writes one for each network into /etc/hosts."""
    found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET, socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def choose(routes: str, own_addresses: Iterable[str]) -> dict[str, str]:
    """Variables for NCCL, gloo and vLLM that name the interface and the address on the network without a way out.

    routes: the text of /proc/net/route, whose addresses are hexadecimal in the host's order of bytes.
    """
    rows = [line.split() for line in routes.splitlines()[1:]]
    networks = [(row[0], ipaddress.IPv4Network((_address(row[1]), _address(row[7])))) for row in rows]
    ways_out = {interface for interface, network in networks if network.prefixlen == 0}
    for interface, network in networks:
        for address in own_addresses:
            if interface not in ways_out and ipaddress.IPv4Address(address) in network:
                return {"NCCL_SOCKET_IFNAME": f"={interface}", "GLOO_SOCKET_IFNAME": interface, "VLLM_HOST_IP": address}
    raise HostError(
        f"network: none without a default route among {', '.join(sorted({name for name, _ in networks})) or 'no interface'}; "
        "the two sides meet on the Compose file's network `stack`, which must stay internal"
    )


def _address(text: str) -> str:
    return socket.inet_ntoa(bytes.fromhex(text)[::-1])
