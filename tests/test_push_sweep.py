"""Which settings of the weight push are swept, and in which groups."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def push_sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return importlib.import_module("push_sweep")


def test_all_settings_are_swept_once_and_never_more_at_a_time_than_the_gpu_holds(push_sweep):
    waves = push_sweep.waves([])

    assert [setting for wave in waves for setting in wave] == list(push_sweep.SETTINGS)
    assert len(set(map(str, push_sweep.SETTINGS))) == len(push_sweep.SETTINGS)
    assert {len(wave) for wave in waves[:-1]} == {push_sweep.AT_ONCE}


def test_settings_are_chosen_by_the_names_that_the_page_shows(push_sweep):
    (wave,) = push_sweep.waves(["2x4, 8 channels", "defaults, 8 cores"])

    assert wave == (push_sweep.Setting(2, 4, 8), push_sweep.Setting(cores=8))


def test_a_setting_that_is_not_there_is_refused_with_those_that_are(push_sweep):
    with pytest.raises(SystemExit, match=r"^no such setting: '2x5'; known: defaults; 4x4, 8 channels;"):
        push_sweep.waves(["2x4, 8 channels", "2x5"])
