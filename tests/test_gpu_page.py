"""The page of GPU figures is what its script makes of the measurements."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("gpu_page")


def test_the_page_of_gpu_figures_is_what_the_measurements_give(gpu_page):
    assert (ROOT / "docs" / "benchmarks-gpu.md").read_text() == gpu_page.page()


def test_a_way_between_two_gpus_is_shown_with_what_nccl_said_also_where_it_failed(gpu_page):
    went = {"path": "nvlink", "network": "bridge", "GB/s": 101.5, "pushes s": [0.4, 0.15, 0.16, 0.15]}
    failed = {"path": "half-way", "network": "bridge", "failed": "timed out"}
    rows = [
        went | {"transports": ["P2P/CUMEM"], "warnings": []},
        failed | {"transports": [], "warnings": ["Cuda failure 101 'invalid device ordinal'"]},
    ]

    lines = gpu_page.paths([{"model": "seven", "rows": rows}])

    assert "| nvlink | bridge | 101.50 | 0.15 | P2P/CUMEM | - |" in lines
    assert "| half-way | bridge | - | - |  | Cuda failure 101 'invalid device ordinal' |" in lines


def test_what_a_push_leaves_behind_is_told_by_what_is_given_back(gpu_page):
    said = [
        *("server: reserved 100 after push 1, all", "server: reserved 130 after push 2, nothing"),
        *("trainer: reserved 7 after push 2, all", "server: reserved 160 after push 3, nothing"),
        *("server: reserved 160 after push 4, its own",),
    ]

    assert gpu_page._grown(said) == {"nothing": 30, "its own": 0}
