"""What a real vLLM is said to be is what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from grpo_stack import versions
from grpo_stack.activity_api import IDENTITY
from grpo_stack.identity import SETTINGS
from tests.image.conftest import Server, free_port, vllm_serve, write_model


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("model"), free_port())
    write_model(server.model, tied=True)
    with vllm_serve(server.model, server.port, {}):
        yield server


def test_the_identity_is_what_vllm_says_of_itself_and_it_says_it_at_once(server: Server) -> None:
    base = f"http://127.0.0.1:{server.port}"

    told = requests.get(base + IDENTITY, timeout=5)
    itself = requests.get(f"{base}/server_info?config_format=json", timeout=60)
    again = requests.get(f"{base}/server_info?config_format=json", timeout=60)

    def settings(info: dict) -> dict:
        return {part: {name: info["vllm_config"][part][name] for name in names} for part, names in SETTINGS.items()}

    assert settings(told.json()) == settings(itself.json())
    mine, its = (versions.of_server(answer.json()["system_env"]) for answer in (told, itself))
    assert versions.differences(mine, its) == []
    assert set(mine) >= set(its) >= {"vllm", "torch", "transformers"}
    assert told.elapsed.total_seconds() < 0.5
    assert again.elapsed.total_seconds() < 0.5


def test_vllm_is_made_to_describe_its_machine_ahead(server: Server) -> None:
    assert "was not made ahead" not in (server.model / "server.log").read_text(errors="replace")
