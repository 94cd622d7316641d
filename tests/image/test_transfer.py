"""Weights pushed over gloo into a real server: what it samples with is what the trainer has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grpo_stack import checkpoints, metrics
from tests.image.conftest import Pair, Server, free_port, joined, serving, vllm_serve, write_model

EQUAL = 1e-4
"""Largest gap between log-probs in float32 that counts as the same weights."""

KINDS = (
    "embed_tokens.weight",
    "q_proj.weight",
    "q_proj.bias",
    "k_proj.weight",
    "k_proj.bias",
    "v_proj.weight",
    "v_proj.bias",
    "o_proj.weight",
    "gate_proj.weight",
    "up_proj.weight",
    "down_proj.weight",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "model.norm.weight",
    "lm_head.weight",  # with tied embeddings another name for embed_tokens
)


@pytest.fixture(scope="module", params=["tied", "untied"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One server for all tests of a kind of model: pytest runs those of "tied" first, then those of "untied"."""
    folder = tmp_path_factory.mktemp(request.param)
    write_model(folder, tied=request.param == "tied")
    with serving(folder) as joined:
        yield joined


@pytest.fixture(scope="module")
def stale_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A tied model whose packed lm_head is left as it was."""
    server = Server(tmp_path_factory.mktemp("stale"), free_port())
    write_model(server.model, tied=True)
    with vllm_serve(server.model, server.port, {"GRPO_STACK_SKIP_EMBEDDING_REFRESH": "1"}):
        yield server


@pytest.fixture
def without_refresh(stale_server: Server) -> Iterator[Pair]:
    with joined(stale_server.model, stale_server.port) as pair:
        yield pair


def change(pair: Pair, kind: str = "", by: float = 0.3) -> None:
    """Add noise to each parameter whose name ends with `kind`."""
    with torch.no_grad():
        parameters = pair.model.named_parameters(remove_duplicate=kind == "")
        changed = [parameter for name, parameter in parameters if name.endswith(kind)]
        for parameter in changed:
            parameter.add_(torch.randn_like(parameter) * by)
    assert changed, f"the model has no {kind}"


def test_three_pushes_in_a_row_leave_the_server_with_the_trainers_weights(pair: Pair) -> None:
    pair.reset()

    for _ in range(3):
        change(pair, by=0.05)
        pair.push()

        assert pair.difference() <= EQUAL


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_weight_arrives_when_it_alone_has_changed(pair: Pair, kind: str) -> None:
    for push in (pair.push, pair.push_one_by_one):
        pair.reset()
        change(pair, kind)
        assert pair.difference() > 10 * EQUAL, "the change must show, or its arrival proves nothing"

        push()

        assert pair.difference() <= EQUAL


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="nothing is pushed, so the server must differ")
def test_without_a_push_the_server_keeps_the_old_weights(pair: Pair) -> None:
    pair.reset()
    change(pair, by=0.05)

    assert pair.difference() <= EQUAL


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the packed lm_head of tied embeddings is not refreshed")
def test_without_the_refresh_tied_embeddings_keep_the_old_lm_head(without_refresh: Pair) -> None:
    change(without_refresh, by=0.05)
    without_refresh.push()

    assert without_refresh.difference() <= EQUAL


def test_training_without_the_refresh_trips_the_mismatch_guard(stale_server: Server, tmp_path: Path) -> None:
    done = stale_server.train(tmp_path, 12, "--mismatch", "stop", "--save_strategy", "no")

    assert done.returncode == 5, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("mismatch:")]
    assert re.search(r"at step [345]: .* is above the limit of 0.001 for 3 lines in a row; likely causes: ", line)
    steps = [line["step"] for line in metrics.read(tmp_path / "metrics.jsonl")]
    assert line.endswith(f"; stopped after step {steps[-1]}, with a checkpoint")
    assert steps[-1] <= 6
    assert checkpoints.newest(tmp_path, pytest.fail) == tmp_path / f"checkpoint-{steps[-1]}"
    assert not (tmp_path / "model").exists()


def test_a_part_of_a_fused_layer_is_refused_with_the_layers_name(without_refresh: Pair) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    weight = without_refresh.model.get_parameter(name).data
    client = without_refresh.client
    client._start_weight_update()
    client._updating_weights = True
    client.update_named_param(name, weight)

    answer = client.session.__class__().post(f"{client.base_url}/finish_weight_update", json={}, timeout=60)

    assert answer.status_code == 500
    assert "qkv_proj" in answer.text
