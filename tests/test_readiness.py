from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from grpo_stack import http_call
from grpo_stack.errors import DescriptionError, NotReadyError
from grpo_stack.readiness import GENERATING, POLL_S, Expectation, Never, NotYet, check_once, wait_until_ready
from grpo_stack.vllm_api import FAIR_S
from tests.fakes import peers
from tests.fakes.clock import FakeClock
from tests.fakes.vllm_server import FakeVllm

MODEL = "org/model"
BUDGET_S = 0.6
"""Short, and long enough for a second try."""

AT_ONCE_S = 5.0
"""Far below the budget of a minute that a hopeless case is given here."""


@pytest.fixture
def vllm() -> Iterator[FakeVllm]:
    with FakeVllm(MODEL) as server:
        yield server


def expect(url: str) -> Expectation:
    return Expectation(url, MODEL, world_size=4)


@contextmanager
def no_longer_than(limit_s: float) -> Iterator[None]:
    start = time.monotonic()
    yield
    # The margin is for a busy machine; what is guarded against is a wait without an end.
    assert time.monotonic() - start < limit_s + 1.0


def failure_within_budget(expectation: Expectation) -> str:
    with no_longer_than(BUDGET_S), pytest.raises(NotReadyError) as caught:
        wait_until_ready(expectation, budget_s=BUDGET_S)
    assert not isinstance(caught.value, (Never, NotYet))
    return str(caught.value)


def gives_up_at_once(expectation: Expectation) -> str:
    with no_longer_than(AT_ONCE_S), pytest.raises(Never) as caught:
        wait_until_ready(expectation, budget_s=60)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_a_usable_server_passes_and_is_asked_all_five_questions(vllm: FakeVllm) -> None:
    vllm.has_identity = True

    wait_until_ready(expect(vllm.url), budget_s=10)

    assert vllm.requests == [
        "GET /health",
        "GET /v1/models",
        "GET /grpo_stack/identity",
        "GET /get_world_size",
        "POST /v1/completions",
    ]


def test_a_server_without_the_middleware_is_asked_for_its_own_slow_description(vllm: FakeVllm) -> None:
    wait_until_ready(expect(vllm.url), budget_s=10)

    assert vllm.requests[2:4] == ["GET /grpo_stack/identity", "GET /server_info?config_format=json"]


def test_an_identity_that_is_broken_is_not_passed_over(vllm: FakeVllm) -> None:
    vllm.statuses["/grpo_stack/identity"] = 401

    assert "HTTP 401 on /grpo_stack/identity" in gives_up_at_once(expect(vllm.url))
    assert not any("server_info" in request for request in vllm.requests)


def test_other_releases_on_the_other_side_are_given_up_at_once_and_the_same_ones_pass(vllm: FakeVllm) -> None:
    system = {"vllm_version": "0.28.0", "torch_version": "2.13.0+cu130", "pip_packages": None}
    show = {"vllm_config": vllm.vllm_config, "vllm_env": {}, "system_env": system}
    vllm.bodies["/server_info?config_format=json"] = json.dumps(show).encode()
    same = replace(expect(vllm.url), installed={"vllm": "0.28.0", "torch": "2.13.0"})

    wait_until_ready(same, budget_s=10)
    said = gives_up_at_once(replace(same, installed={"vllm": "0.27.1", "torch": "2.13.0"}))

    assert "vLLM 0.28.0 there, 0.27.1 here: build both images from the same pins" in said


def test_any_world_size_will_do_when_none_is_expected(vllm: FakeVllm) -> None:
    check_once(Expectation(vllm.url + "/", MODEL))

    assert "GET /get_world_size" in vllm.requests


def test_the_gloo_backend_passes_where_it_is_expected(vllm: FakeVllm) -> None:
    vllm.vllm_config["weight_transfer_config"] = {"backend": "gloo"}

    check_once(replace(expect(vllm.url), backend="gloo"))


def test_the_message_after_the_budget_holds_url_budget_and_last_answer(vllm: FakeVllm) -> None:
    vllm.statuses["/health"] = 503

    assert failure_within_budget(expect(vllm.url)) == (
        f"vLLM at {vllm.url} not ready after 0.6 s (last answer: HTTP 503 on /health)"
    )


def test_a_server_stuck_on_503_costs_no_more_than_the_budget(vllm: FakeVllm) -> None:
    vllm.statuses["/health"] = 503
    clock = FakeClock()

    with pytest.raises(NotReadyError, match=r"not ready after 20 s \(last answer: HTTP 503 on /health\)"):
        wait_until_ready(expect(vllm.url), budget_s=20, clock=clock, sleep=clock.sleep)

    assert 20 - 2 * POLL_S <= clock.now <= 20
    assert len(vllm.requests) == pytest.approx(20 / POLL_S, abs=2)


def test_a_port_that_refuses_is_asked_again_until_the_budget_ends() -> None:
    clock = FakeClock()
    heard: list[tuple[str, float]] = []

    with peers.refusing() as url, pytest.raises(NotReadyError, match=r"after 600 s \(last answer: conn.* refused"):
        wait_until_ready(
            expect(url),
            budget_s=600,
            clock=clock,
            sleep=clock.sleep,
            report=lambda phase, elapsed_s: heard.append((phase, elapsed_s)),
        )

    assert 600 - 2 * POLL_S <= clock.now <= 600
    assert {phase for phase, _ in heard} == {"connection refused on /health"}
    assert [elapsed_s for _, elapsed_s in heard[:3]] == [0, POLL_S, 2 * POLL_S]


@pytest.mark.parametrize(
    ("behaviour", "answer"),
    [
        (peers.resets, "connection reset on /health"),
        (peers.says_nothing, "no whole answer within"),
        (peers.closes_before_headers, "connection closed without an answer on /health"),
        (peers.sends_half_a_body, "connection closed in the middle of the answer on /health"),
        (peers.sends_half_a_chunk, "connection closed in the middle of the answer on /health"),
        (peers.speaks_something_else, "no HTTP answer on /health"),
        (peers.trickles_headers, "no whole answer within"),
        (peers.trickles_a_body, "no whole answer within"),
        (peers.floods, f"an answer of more than {http_call.BODY_LIMIT_BYTES} bytes on /health"),
    ],
)
def test_a_peer_that_misbehaves_for_ever_is_named_when_the_budget_ends(behaviour: peers.Behaviour, answer: str) -> None:
    with peers.peer(behaviour) as url:
        assert f"(last answer: {answer}" in failure_within_budget(expect(url))


@pytest.mark.parametrize("behaviour", [peers.says_nothing, peers.trickles_headers, peers.trickles_a_body])
def test_a_call_ends_at_its_own_limit_even_while_bytes_arrive(behaviour: peers.Behaviour) -> None:
    with peers.peer(behaviour) as url, no_longer_than(0.1), pytest.raises(NotYet, match=r"within 0\.1 s on /health"):
        check_once(replace(expect(url), call_timeout_s=0.1))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
@pytest.mark.parametrize("route", ["/health", "/v1/models", "/get_world_size", "/v1/completions"])
def test_a_status_that_can_heal_is_waited_for(vllm: FakeVllm, route: str, status: int) -> None:
    vllm.statuses[route] = status

    with pytest.raises(NotYet) as caught:
        check_once(expect(vllm.url))

    assert str(caught.value) == f"vLLM at {vllm.url} is not ready: HTTP {status} on {route}"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("status", "route", "said"),
    [
        (307, "/health", "HTTP 307 on /health: a redirect, which vLLM never sends; give the URL of vLLM itself"),
        (302, "/v1/completions", "HTTP 302 on /v1/completions: a redirect"),
        (401, "/v1/models", "HTTP 401 on /v1/models: it asks for a key; start vLLM without --api-key"),
        (403, "/health", "HTTP 403 on /health: it asks for a key"),
        (404, "/health", "HTTP 404 on /health: no vLLM server answers there; check host and port of the URL"),
        (404, "/v1/models", "HTTP 404 on /v1/models: no vLLM server answers there"),
        (404, "/get_world_size", "HTTP 404 on /get_world_size: this vLLM lacks the route"),
        (404, "/v1/completions", "HTTP 404 on /v1/completions: it cannot generate"),
        (400, "/v1/completions", "HTTP 400 on /v1/completions: it refuses the request; its log says why"),
        (204, "/v1/models", "HTTP 204 on /v1/models: it refuses the request"),
    ],
)
def test_a_status_that_cannot_heal_is_given_up_at_once(vllm: FakeVllm, status: int, route: str, said: str) -> None:
    vllm.statuses[route] = status

    assert f"vLLM at {vllm.url} cannot become ready: {said}" in gives_up_at_once(expect(vllm.url))


def test_a_redirect_is_not_followed(vllm: FakeVllm) -> None:
    vllm.statuses["/v1/models"] = 307

    gives_up_at_once(expect(vllm.url))

    assert vllm.requests == ["GET /health", "GET /v1/models"]


def without_transfer(vllm: FakeVllm) -> None:
    vllm.vllm_config["weight_transfer_config"] = None


def with_ipc(vllm: FakeVllm) -> None:
    vllm.vllm_config["weight_transfer_config"] = {"backend": "ipc"}


def with_raw_logprobs(vllm: FakeVllm) -> None:
    vllm.vllm_config["model_config"]["logprobs_mode"] = "raw_logprobs"


def with_capped_logprobs(vllm: FakeVllm) -> None:
    vllm.vllm_config["model_config"]["max_logprobs"] = 20


def with_config_as_text(vllm: FakeVllm) -> None:
    vllm.bodies["/server_info?config_format=json"] = b'{"vllm_config": "model=\'org/model\'"}'


def without_dev_mode(vllm: FakeVllm) -> None:
    vllm.dev_mode = False


def with_two_ranks(vllm: FakeVllm) -> None:
    vllm.world_size = 2


def with_another_model(vllm: FakeVllm) -> None:
    vllm.models = [{"id": "org/other", "root": "org/other", "parent": None}]


def with_another_name(vllm: FakeVllm) -> None:
    vllm.models = [{"id": "policy", "root": MODEL, "parent": None}]


def with_an_adapter_of_that_name(vllm: FakeVllm) -> None:
    vllm.models = [{"id": "org/base", "root": "b", "parent": None}, {"id": MODEL, "root": "x", "parent": "org/base"}]


def with_html(vllm: FakeVllm) -> None:
    vllm.bodies["/v1/models"] = b"<html><body>It works!</body></html>"


def with_a_json_list(vllm: FakeVllm) -> None:
    vllm.bodies["/v1/models"] = b"[]"


def without_a_model(vllm: FakeVllm) -> None:
    vllm.models = []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (
            without_transfer,
            """no weight transfer, not 'nccl': start vLLM with --weight-transfer-config '{"backend": "nc""",
        ),
        (with_ipc, "weight-transfer backend 'ipc', not 'nccl': start vLLM with --weight-transfer-config"),
        (with_raw_logprobs, "logprobs mode 'raw_logprobs': start vLLM with --logprobs-mode processed_logprobs"),
        (with_capped_logprobs, "log-probs capped at 20: start vLLM with --max-logprobs -1"),
        (with_config_as_text, "/server_info shows no model_config; use a version that `grpo-stack pins` shows"),
        (
            without_dev_mode,
            "HTTP 404 on /server_info: its development routes are off; start vLLM with VLLM_SERVER_DEV_MODE=1",
        ),
        (with_two_ranks, "world size 2, but the plan has 4; start vLLM with its parallel sizes"),
        (with_another_model, "it serves 'org/other', but 'org/model' will be trained; start vLLM with that model"),
        (with_another_name, "it serves 'org/model' under the name 'policy'; leave out --served-model-name"),
        (with_an_adapter_of_that_name, "it serves 'org/base', but 'org/model' will be trained"),
        (with_html, "no JSON on /v1/models but b'<html><body>It works!</body></html>': no vLLM server answers there"),
        (with_a_json_list, "no JSON object on /v1/models: no vLLM server answers there"),
        (without_a_model, "/v1/models names no model, but 'org/model' will be trained"),
    ],
)
def test_what_waiting_cannot_mend_is_given_up_at_once_with_the_way_out(
    vllm: FakeVllm, fault: Callable[[FakeVllm], None], said: str
) -> None:
    fault(vllm)

    assert f"vLLM at {vllm.url} cannot become ready: {said}" in gives_up_at_once(expect(vllm.url))


def test_all_wrong_settings_are_named_together(vllm: FakeVllm) -> None:
    for fault in (with_ipc, with_raw_logprobs, with_capped_logprobs):
        fault(vllm)

    said = gives_up_at_once(expect(vllm.url))

    assert all(flag in said for flag in ("--weight-transfer-config", "--logprobs-mode", "--max-logprobs"))


def test_half_of_a_json_object_is_waited_for(vllm: FakeVllm) -> None:
    vllm.bodies["/v1/models"] = b'{"object": "list", "da'

    assert "(last answer: broken JSON on /v1/models)" in failure_within_budget(expect(vllm.url))


def test_json_nested_without_end_is_waited_for(vllm: FakeVllm) -> None:
    vllm.bodies["/v1/models"] = b'{"a":' * 200_000

    with pytest.raises(NotYet, match="broken JSON on /v1/models"):
        check_once(expect(vllm.url))


def test_a_completion_without_a_choice_is_no_completion(vllm: FakeVllm) -> None:
    vllm.bodies["/v1/completions"] = b'{"choices": []}'

    assert "(last answer: a completion without a choice" in failure_within_budget(expect(vllm.url))


def test_health_is_not_enough_while_generation_hangs(vllm: FakeVllm) -> None:
    vllm.generates.clear()

    said = failure_within_budget(replace(expect(vllm.url), completion_timeout_s=0.1))

    assert "(last answer: no whole answer within 0.1 s on /v1/completions)" in said


def test_a_completion_deadline_beyond_the_budget_does_not_outlast_it(vllm: FakeVllm) -> None:
    vllm.generates.clear()

    assert "on /v1/completions)" in failure_within_budget(replace(expect(vllm.url), completion_timeout_s=3600))


def test_a_server_that_begins_to_generate_passes_at_once(vllm: FakeVllm) -> None:
    vllm.generates.clear()
    done = threading.Event()
    phases: list[str] = []

    def wait() -> None:
        wait_until_ready(expect(vllm.url), budget_s=60, report=lambda phase, elapsed_s: phases.append(phase))
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    assert vllm.generation_began.wait(5)
    assert not done.is_set()
    vllm.generates.set()

    assert done.wait(1.0), "more than a second from `can generate` to the end of the wait"
    assert phases == [GENERATING]


def test_a_call_that_the_budget_cut_short_does_not_hide_the_last_real_answer(vllm: FakeVllm) -> None:
    vllm.generates.clear()
    vllm.flap = lambda: 503 if len(vllm.requests) == 1 else None
    clock = FakeClock()

    def sleep_until_nearly_too_late(seconds: float) -> None:
        clock.now = 60 - FAIR_S / 10

    with pytest.raises(NotReadyError, match="last answer: HTTP 503 on /health"):
        wait_until_ready(expect(vllm.url), budget_s=60, clock=clock, sleep=sleep_until_nearly_too_late)

    assert len(vllm.requests) > 1, "there was no second try that could be cut short"


def test_a_server_that_flaps_on_each_request_is_not_usable(vllm: FakeVllm) -> None:
    vllm.flap = lambda: 503 if len(vllm.requests) % 2 == 0 else None

    assert "(last answer: HTTP 503 on /" in failure_within_budget(expect(vllm.url))
    assert "POST /v1/completions" not in vllm.requests


def test_a_server_that_stops_flapping_is_taken(vllm: FakeVllm) -> None:
    vllm.flap = lambda: 503 if len(vllm.requests) in (1, 3, 6, 10) else None
    clock = FakeClock()

    wait_until_ready(expect(vllm.url), budget_s=60, clock=clock, sleep=clock.sleep)

    assert clock.now == 4 * POLL_S
    assert vllm.requests[-1] == "POST /v1/completions"


def test_an_answer_of_the_largest_size_allowed_is_read_and_one_byte_more_is_not(
    vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_call, "BODY_LIMIT_BYTES", 1000)
    vllm.bodies["/health"] = b"x" * 1000
    check_once(expect(vllm.url))

    vllm.bodies["/health"] = b"x" * 1001
    with pytest.raises(NotYet, match="an answer of more than 1000 bytes on /health"):
        check_once(expect(vllm.url))


def test_proxies_of_the_environment_are_not_used(vllm: FakeVllm, monkeypatch: pytest.MonkeyPatch) -> None:
    with peers.refusing() as dead:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, dead)
            monkeypatch.setenv(name.upper(), dead)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)

        check_once(expect(vllm.url))


def test_a_name_that_does_not_resolve_is_waited_for() -> None:
    # .invalid never resolves (RFC 2606); a container's name does not while the container is down.
    said = failure_within_budget(expect("http://vllm-server.invalid:8000"))

    assert "vllm-server.invalid" in said


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("vllm-server:8000", "not a URL of the form http://HOST:PORT"),
        ("ftp://vllm-server", "not a URL of the form http://HOST:PORT"),
        ("http://", "not a URL of the form http://HOST:PORT"),
        ("http://user:secret@vllm-server:8000", "holds a user or a password; leave them out"),
        ("http://vllm-server:8000/?a=b", "holds a query or a fragment; leave them out"),
        ("http://vllm-server:99999", "Port out of range"),
        ("http://vllm-server:http", "Port could not be cast"),
        ("http://vllm-server:0", "port 0 cannot be called"),
        ("http://[::1", "Invalid IPv6 URL"),
    ],
)
def test_a_url_that_cannot_be_called_is_a_fault_of_usage(url: str, said: str) -> None:
    with pytest.raises(DescriptionError, match="server URL") as caught:
        wait_until_ready(expect(url), budget_s=60)

    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("budget_s", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_is_no_budget_is_a_fault_of_usage(budget_s: float) -> None:
    with pytest.raises(DescriptionError, match="give a positive number of seconds"):
        wait_until_ready(expect("http://vllm-server:8000"), budget_s=budget_s)
