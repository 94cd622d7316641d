"""The page of GPU figures is what its script makes of the measurements."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_of_gpu_figures_is_what_the_measurements_give():
    spec = importlib.util.spec_from_file_location("gpu_page", ROOT / "bench" / "gpu_page.py")
    gpu_page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gpu_page)

    assert (ROOT / "docs" / "benchmarks-gpu.md").read_text() == gpu_page.page()
