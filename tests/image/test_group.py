"""The gloo group alone: two ranks in two threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_stack.errors import NotReadyError, RunError
from grpo_stack.transfer import client
from grpo_stack.transfer.group import GlooGroup, Rendezvous
from tests.image.conftest import free_port


def aside(work: Callable[[], Any]) -> Future[Any]:
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


def pair(broadcast_timeout_s: float = 30) -> tuple[GlooGroup, GlooGroup]:
    port = free_port()
    first = aside(lambda: GlooGroup(Rendezvous("127.0.0.1", port, 0, 2), 30, broadcast_timeout_s))
    second = aside(lambda: GlooGroup(Rendezvous("127.0.0.1", port, 1, 2), 30, broadcast_timeout_s))
    return first.result(30), second.result(30)


def test_what_rank_0_sends_is_what_rank_1_gets() -> None:
    sender, receiver = pair()
    sent = torch.arange(1000, dtype=torch.int64).view(torch.uint8)
    got = torch.zeros_like(sent)
    receiving = aside(lambda: receiver.broadcast(got))

    sender.broadcast(sent)
    receiving.result(30)

    assert torch.equal(sent, got)


def test_a_second_group_on_the_same_port_works_at_once() -> None:
    port = free_port()
    for _ in range(2):
        first = aside(lambda: GlooGroup(Rendezvous("127.0.0.1", port, 0, 2), 30, 30))
        second = aside(lambda: GlooGroup(Rendezvous("127.0.0.1", port, 1, 2), 30, 30))
        for member in (first.result(30), second.result(30)):
            member.close()


def test_a_peer_that_never_comes_costs_no_more_than_the_limit() -> None:
    started = time.monotonic()

    with pytest.raises(RuntimeError):
        GlooGroup(Rendezvous("127.0.0.1", free_port(), 0, 2), join_timeout_s=1, broadcast_timeout_s=1)

    assert time.monotonic() - started < 15


def test_a_silent_peer_costs_no_more_than_the_limit() -> None:
    sender, receiver = pair(broadcast_timeout_s=1)
    started = time.monotonic()

    with pytest.raises(RuntimeError):
        receiver.broadcast(torch.zeros(8, dtype=torch.uint8))

    assert time.monotonic() - started < 15
    sender.close()


def test_a_peer_that_leaves_is_noticed_at_once() -> None:
    sender, receiver = pair(broadcast_timeout_s=60)
    receiving = aside(lambda: receiver.broadcast(torch.zeros(8, dtype=torch.uint8)))

    sender.close()

    assert isinstance(receiving.exception(20), RuntimeError)


def test_a_server_that_refuses_the_request_ends_the_send_with_its_reason() -> None:
    sender, receiver = pair(broadcast_timeout_s=60)
    large = torch.zeros(256 * 1024 * 1024, dtype=torch.uint8)  # more than the sockets' buffers hold
    refusal: Future[None] = Future()
    sending = aside(lambda: client._send(sender, large, refusal))

    refusal.set_exception(RunError("HTTP 500, no update is active"))

    with pytest.raises(RunError, match="no update is active"):
        sending.result(20)
    receiver.close()  # lets the sender's thread end


@pytest.mark.parametrize(
    ("status", "kind"), [(500, NotReadyError), (503, NotReadyError), (400, RunError), (404, RunError)]
)
def test_only_a_server_that_fails_is_one_that_starting_again_mends(status: int, kind: type[Exception]) -> None:
    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"EngineCore encountered an issue")

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        asked = SimpleNamespace(base_url=f"http://127.0.0.1:{server.server_port}")

        fault = client._post_aside(asked, "/update_weights", {}).exception(20)

    assert type(fault) is kind
    assert f"/update_weights: HTTP {status}, EngineCore encountered an issue" in str(fault)


def test_a_closed_group_refuses_to_send() -> None:
    sender, receiver = pair()
    sender.close()
    receiver.close()

    with pytest.raises(RuntimeError, match="closed"):
        sender.broadcast(torch.zeros(8, dtype=torch.uint8))
