from __future__ import annotations

import http.client
import json
import socket
import threading

import pytest

from grpo_stack.http_call import Answer, CallError, send
from tests.fakes import peers


def test_a_payload_arrives_as_json_and_the_answer_comes_back_whole() -> None:
    seen: list[bytes] = []

    def answers(connection: socket.socket, over: threading.Event) -> None:
        received = b""
        while not received.endswith(b"}"):
            received += connection.recv(65536)
        seen.append(received)
        connection.sendall(b"HTTP/1.1 418 I'm a teapot\r\nContent-Length: 5\r\n\r\nshort")

    with peers.peer(answers) as url:
        answer = send("POST", f"{url}/base/path?a=1", {"name": "ü $x"}, timeout_s=5)

    assert answer == Answer(418, b"short")
    head, _, body = seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/path?a=1 HTTP/1.1\r\n")
    assert b"content-type: application/json" in head.lower()
    assert json.loads(body) == {"name": "ü $x"}


def test_a_base_url_without_a_path_asks_for_the_root() -> None:
    seen: list[bytes] = []

    def answers(connection: socket.socket, over: threading.Event) -> None:
        seen.append(connection.recv(65536))
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nto the end of the connection")

    with peers.peer(answers) as url:
        assert send("GET", url, timeout_s=5).body == b"to the end of the connection"

    assert seen[0].startswith(b"GET / HTTP/1.1\r\n")


def test_a_tls_call_to_a_plain_server_fails_in_one_line() -> None:
    def answers(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with peers.peer(answers) as url, pytest.raises(CallError) as caught:
        send("GET", url.replace("http://", "https://"), timeout_s=5)

    assert "ssl" in str(caught.value).lower()
    assert "\n" not in str(caught.value)


def trickles_to_the_end_of_the_connection(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while not over.wait(peers.TRICKLE_S):
        connection.sendall(b" ")


@pytest.mark.parametrize(
    "behaviour",
    [peers.says_nothing, peers.trickles_headers, peers.trickles_a_body, trickles_to_the_end_of_the_connection],
)
def test_a_call_that_was_given_up_leaves_no_thread_behind(
    behaviour: peers.Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    callers: list[threading.Thread] = []
    connect = http.client.HTTPConnection.connect

    def noted(connection: http.client.HTTPConnection) -> None:
        callers.append(threading.current_thread())
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", noted)
    with peers.peer(behaviour) as url:
        with pytest.raises(CallError, match=r"no whole answer within 0\.2 s"):
            send("GET", url, timeout_s=0.2)
        callers[0].join(5)
        assert not callers[0].is_alive()


@pytest.mark.parametrize("url", ["http://a b/", "http://a..b/", "http://" + "x" * 70 + "/"])
def test_a_name_that_no_server_can_have_is_a_call_that_fails(url: str) -> None:
    with pytest.raises(CallError):
        send("GET", url, timeout_s=5)
