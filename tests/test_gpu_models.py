"""What is kept of the models that the GPU measurements take, without torch."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu_models(monkeypatch):
    torch, transformers = ModuleType("torch"), ModuleType("transformers")
    torch.no_grad = lambda: lambda function: function
    torch.cuda = SimpleNamespace(empty_cache=lambda: None)
    transformers.Qwen2Config = transformers.Qwen2ForCausalLM = object
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "grpo_stack.demo", ModuleType("grpo_stack.demo"))
    monkeypatch.delitem(sys.modules, "gpu_models", raising=False)
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    module = importlib.import_module("gpu_models")
    monkeypatch.setattr(module, "write", lambda name, folder: SimpleNamespace(num_parameters=lambda: len(name)))
    monkeypatch.setattr(module, "noise", lambda model: 0.25)
    monkeypatch.setattr(module, "Gpu", lambda: SimpleNamespace(machine=lambda: {"machine": "one H200"}))
    yield module
    sys.modules.pop("gpu_models")


def run(gpu_models, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gpu_models.py", *map(str, words)])
    gpu_models.main()


def test_what_the_models_are_is_kept_where_a_folder_for_it_is_named(gpu_models, monkeypatch, tmp_path):
    run(gpu_models, monkeypatch, tmp_path / "models", tmp_path / "gpu", "--noise")

    kept = json.loads((tmp_path / "gpu" / "models.json").read_text())
    key = "log-prob difference of bfloat16 and float32"
    assert kept["machine"] == "one H200"
    assert [(model["model"], model["parameters"], model[key]) for model in kept["models"]] == [
        ("half", 4, 0.25),
        ("seven", 5, 0.25),
    ]


def test_without_one_nothing_is_kept(gpu_models, monkeypatch, tmp_path):
    run(gpu_models, monkeypatch, tmp_path)

    assert list(tmp_path.rglob("models.json")) == []
