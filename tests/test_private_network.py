"""Which network the two sides share, from a container's routes and addresses."""

from __future__ import annotations

import pytest

from grpo_stack import private_network
from grpo_stack.errors import HostError

HEAD = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"

OUT = "eth0\t00000000\t01001CAC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
WIDE = "eth0\t00001CAC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
PRIVATE = "eth1\t00001AAC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
"""As in a container of Engine 26.1 that is on an internal network, 172.26.0.0/16, and on one that leads out."""

OWN = ["172.28.0.2", "172.26.0.4"]


@pytest.mark.parametrize("rows", [OUT + PRIVATE + WIDE, PRIVATE + OUT + WIDE, OUT + WIDE + PRIVATE])
@pytest.mark.parametrize("own", [OWN, OWN[::-1]])
def test_it_is_the_one_without_a_default_route_in_whatever_order(rows, own):
    assert private_network.choose(HEAD + rows, own) == {
        "NCCL_SOCKET_IFNAME": "=eth1",
        "GLOO_SOCKET_IFNAME": "eth1",
        "VLLM_HOST_IP": "172.26.0.4",
    }


@pytest.mark.parametrize(("rows", "found"), [(OUT + WIDE, "among eth0;"), ("", "among no interface;")])
def test_a_container_that_only_leads_out_is_refused(rows, found):
    with pytest.raises(HostError, match=found):
        private_network.choose(HEAD + rows, OWN)


def test_nothing_is_looked_for_where_there_is_one_network_or_somebody_has_chosen(monkeypatch):
    monkeypatch.setattr(private_network, "ROUTES", None)

    assert private_network.environment({}) == {}
    assert private_network.environment({private_network.ASKED: "1", "NCCL_SOCKET_IFNAME": "lo"}) == {}


def test_the_routes_of_this_host_are_read(monkeypatch, tmp_path):
    routes = tmp_path / "route"
    routes.write_text(HEAD + OUT + WIDE + PRIVATE)
    monkeypatch.setattr(private_network, "ROUTES", routes)
    monkeypatch.setattr(private_network, "addresses", lambda: OWN)

    assert private_network.environment({private_network.ASKED: "1"})["VLLM_HOST_IP"] == "172.26.0.4"


def test_this_host_has_addresses():
    assert all(address.count(".") == 3 for address in private_network.addresses())
