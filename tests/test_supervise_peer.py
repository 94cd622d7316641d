"""What each thing that a server may do over a real socket says about it."""

from __future__ import annotations

import socket

import pytest

from grpo_stack.supervise import peer
from grpo_stack.supervise.events import Events
from grpo_stack.supervise.watch import GONE, SILENT, UP
from tests.fakes import peers
from tests.fakes.supervised_vllm import SupervisedVllm
from tests.fakes.vllm_server import FakeVllm


def test_a_server_of_ours_tells_its_instance_and_whether_an_update_is_open() -> None:
    with SupervisedVllm() as vllm:
        idle = peer.ask(vllm.url)
        vllm.update_open = True
        pushing = peer.ask(vllm.url)

    assert (idle.state, idle.instance, idle.update_open) == (UP, "first-instance", False)
    assert (pushing.state, pushing.instance, pushing.update_open) == (UP, "first-instance", True)
    assert idle.text == "HTTP 200, instance first-in"


def test_an_update_that_is_already_given_up_needs_no_second_word() -> None:
    with SupervisedVllm() as vllm:
        vllm.update_open = vllm.is_abandoned = True

        assert not peer.ask(vllm.url).update_open


@pytest.mark.parametrize("status", [404, 500, 503])
def test_a_server_that_answers_something_else_is_there_and_no_more(status: int) -> None:
    with FakeVllm() as vllm:
        vllm.statuses["/grpo_stack/activity"] = status
        seen = peer.ask(vllm.url)

    assert (seen.state, seen.instance, seen.update_open, seen.text) == (UP, None, False, f"HTTP {status}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"instance": 3}'])
def test_a_server_that_talks_of_something_else_is_there_and_no_more(body: bytes) -> None:
    with FakeVllm() as vllm:
        vllm.bodies["/grpo_stack/activity"] = body
        seen = peer.ask(vllm.url)

    assert (seen.state, seen.instance, seen.update_open) == (UP, None, False)


def test_where_nobody_listens_the_server_is_gone() -> None:
    with peers.refusing() as url:
        seen = peer.ask(url)

    assert (seen.state, seen.text) == (GONE, "connection refused")


@pytest.mark.parametrize(
    "behaviour", [peers.says_nothing, peers.resets, peers.closes_before_headers, peers.sends_half_a_body]
)
def test_silence_and_broken_connections_say_nothing(behaviour: peers.Behaviour) -> None:
    with peers.peer(behaviour) as url:
        assert peer.ask(url, timeout_s=0.1).state == SILENT


@pytest.mark.parametrize(("names", "expected"), [(["lo", "eth0"], GONE), (["lo"], SILENT)])
def test_a_name_that_is_unknown_means_gone_unless_this_side_has_no_network(
    monkeypatch: pytest.MonkeyPatch, names: list[str], expected: str
) -> None:
    def unknown(*of: object, **and_of: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(names, 1)))

    seen = peer.ask("http://vllm-server:8000")

    assert (seen.state, seen.text) == (expected, "name vllm-server does not resolve")


def test_with_no_update_open_nothing_is_abandoned() -> None:
    with SupervisedVllm() as vllm:
        peer.report_orphan(vllm.url, Events(None))

    assert vllm.abandoned == []


def test_a_watcher_knows_the_newest_answer_and_stops_asking_when_told() -> None:
    with SupervisedVllm() as vllm:
        vllm.answers.clear()
        watcher = peer.Watcher(vllm.url, period_s=0.0, call_s=0.05)
        vllm.wait_until_asked_in_vain(2)
        assert watcher.newest is not None
        assert watcher.newest.state == SILENT
        watcher.stop()
