"""The page of GPU figures is what its script makes of the measurements."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def gpu_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("gpu_page")


def test_the_page_of_gpu_figures_is_what_the_measurements_give(gpu_page):
    assert (ROOT / "docs" / "benchmarks-gpu.md").read_text() == gpu_page.page()


@pytest.fixture
def provenance(gpu_page):
    return importlib.import_module("gpu_provenance")


def test_the_page_says_where_its_packages_are_not_those_of_the_images(gpu_page, provenance):
    locked = {"vllm": "0.28.0", "trl": "1.16.0", "torch": "2.13.0", "transformers": "5.24.0"}
    here = {"machine": "one H200", "driver": "580"}
    same, other = ({**here, **locked, "file": "new"}, {**here, **locked, "vllm": "0.26.0", "file": "old"})

    assert provenance.versions([same]) == [
        "- one H200, driver 580; vLLM 0.28.0, TRL 1.16.0, torch 2.13.0, transformers 5.24.0",
        "",
    ]
    held = "The images hold the locked set, vLLM 0.28.0, TRL 1.16.0, torch 2.13.0, transformers 5.24.0"
    assert provenance.versions([same, other])[-2] == f"{held}; old was not measured with it."
    assert provenance.versions([other])[-2] == f"{held}; nothing here was measured with it."


def test_sockets_are_those_that_were_recorded_and_where_none_were_the_page_says_what_is_known(provenance):
    recorded = {"NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": "8", "NCCL_MIN_NCHANNELS": "2"}

    assert provenance.sockets_of({"file": "stack-half", "sockets of the stack": recorded}) == "1x8, 2 channels"
    assert provenance.sockets_of({"file": "stack-half"}) == "4x4, 8 channels"
    assert provenance.sockets_of({"file": "costs-half"}).startswith("not recorded: ")


def test_a_measurement_records_the_sockets_of_the_stack_and_reads_as_before(
    gpu_page, provenance, tmp_path, monkeypatch
):
    costs = json.loads((ROOT / "docs" / "gpu" / "costs-half.json").read_text())
    importlib.import_module("gpu_watch").save(tmp_path, "costs-half", costs)
    before = gpu_page.costs(gpu_page.load("costs-half.json"))

    monkeypatch.setattr(gpu_page, "RESULTS", tmp_path)
    (saved,) = gpu_page.load("costs-*.json")

    assert provenance.sockets_of(saved) == provenance.STACK
    assert gpu_page.costs([saved]) == before


def test_the_sweep_marks_the_settings_of_the_stack_on_any_number_of_cores(gpu_page, provenance):
    settings = [provenance.STACK, f"{provenance.STACK}, 8 cores", f"{provenance.STACK}, 8 MiB", "defaults"]
    lines = gpu_page.pushes([{"model": "seven", "network": "lo", "rows": [{"setting": one} for one in settings]}])

    marked = [line.split(" | ")[0] for line in lines if "the stack's" in line]
    assert marked == [f"| {one} (**the stack's**)" for one in settings[:2]]


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
