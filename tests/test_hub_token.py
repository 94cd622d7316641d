"""Whose token a download uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_stack import hub_token
from grpo_stack.hub_token import HubToken


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / ".cache" / "huggingface"
    folder.mkdir(parents=True)
    (folder / "token").write_text("hf_login\n")
    return tmp_path


def test_a_process_uses_what_huggingface_hub_would(home: Path) -> None:
    login, own = home / ".cache" / "huggingface" / "token", home / "own"
    cache = {"XDG_CACHE_HOME": str(home / ".cache")}
    every = {**cache, "HF_TOKEN": "hf_a\n", "HUGGING_FACE_HUB_TOKEN": "hf_b", "HF_TOKEN_PATH": str(own)}

    def without(*names: str) -> HubToken:
        return hub_token.of_processes({name: value for name, value in every.items() if name not in names})

    assert without() == HubToken(text="hf_a")
    assert without("HF_TOKEN") == HubToken(text="hf_b")
    assert without("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") == HubToken(file=own)
    assert hub_token.of_processes(cache) == HubToken(file=login)
    assert hub_token.of_processes({"HF_HOME": str(login.parent), "HF_TOKEN": " ", "HF_TOKEN_PATH": ""}).file == login
    assert hub_token.of_processes({**cache, "HF_TOKEN_PATH": "/dev/null"}) == HubToken()


def test_where_nobody_has_logged_in_there_is_no_token(tmp_path: Path) -> None:
    assert hub_token.of_processes({"HF_HOME": str(tmp_path)}) == HubToken()
    (tmp_path / "token").touch()
    assert hub_token.of_processes({"HF_HOME": str(tmp_path)}) == HubToken()


def test_a_container_is_given_the_named_file_alone(home: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(home / ".cache"), "HF_TOKEN": "hf_a"}

    assert hub_token.of_containers(cache) == HubToken()
    assert hub_token.of_containers({**cache, "HF_TOKEN_PATH": "/dev/null"}) == HubToken()
    assert hub_token.of_containers({**cache, "HF_TOKEN_PATH": "own"}) == HubToken(file=Path("own"))


def test_a_token_is_not_shown() -> None:
    assert "hf_secret" not in repr(HubToken(text="hf_secret"))
