"""Checkpoints on disk: complete or not there, the newest good one taken, and never fewer than one."""

from __future__ import annotations

import json
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_stack import checkpoints, manifest
from grpo_stack.errors import DescriptionError

LARGE = 3 * manifest.END_BYTES


def written(folder: Path, step: int) -> Path:
    """The files of a checkpoint, as transformers writes them."""
    folder.mkdir(parents=True)
    header = json.dumps({"w": {"dtype": "F32", "shape": [LARGE // 4], "data_offsets": [0, LARGE]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(LARGE))
    with zipfile.ZipFile(folder / "optimizer.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"state")
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return folder


def complete(output: Path, step: int, origin: str | None = None) -> Path:
    """One that went the whole way."""
    name = f"checkpoint-{step}"
    checkpoints.publish(written(output / checkpoints.ASIDE / name, step), output / name, origin)
    return output / name


def newest(output: Path) -> tuple[Path | None, list[str]]:
    said: list[str] = []
    return checkpoints.newest(output, said.append), said


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing file": (lambda folder: (folder / "optimizer.pt").unlink(), "optimizer.pt is missing"),
    "a shorter file": (
        lambda folder: cut(folder / "model.safetensors"),
        r"model.safetensors has \d+ bytes where \d+ were written",
    ),
    "a changed byte in a small file": (
        lambda folder: flip(folder / "optimizer.pt", 9),
        "optimizer.pt is not what was written",
    ),
    "a changed byte near the start of a large one": (
        lambda folder: flip(folder / "model.safetensors", 200),
        "model.safetensors is not what was written",
    ),
    "a changed byte near the end of a large one": (
        lambda folder: flip(folder / "model.safetensors", -200),
        "model.safetensors is not what was written",
    ),
    "an emptied manifest": (lambda folder: (folder / "manifest.json").write_text(""), "its manifest.json is torn"),
    "half a manifest": (lambda folder: cut(folder / "manifest.json"), "its manifest.json is torn"),
    "a manifest of another shape": (
        lambda folder: (folder / "manifest.json").write_text('{"files": {"optimizer.pt": 3}}'),
        r"a part of it is torn \(TypeError\)",
    ),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_one_is_skipped_with_its_reason_and_the_one_before_is_taken(tmp_path: Path, kind: str) -> None:
    harm, reason = DAMAGE[kind]
    before, damaged = complete(tmp_path, 10), complete(tmp_path, 20)
    harm(damaged)

    found, said = newest(tmp_path)

    assert found == before
    assert len(said) == 1
    assert re.fullmatch(f"checkpoint-20: skipped, {reason}", said[0])


def test_what_the_manifest_does_not_catch_is_the_middle_of_a_large_file(tmp_path: Path) -> None:
    folder = complete(tmp_path, 10)

    flip(folder / "model.safetensors", LARGE // 2)

    assert manifest.problem(folder) is None


def test_steps_are_compared_as_numbers(tmp_path: Path) -> None:
    complete(tmp_path, 9)
    tenth = complete(tmp_path, 10)

    assert newest(tmp_path) == (tenth, [])


def test_where_there_is_none_a_run_starts_from_the_beginning(tmp_path: Path) -> None:
    assert newest(tmp_path / "not there") == (None, [])
    (tmp_path / "checkpoint-5.unreadable").mkdir()
    (tmp_path / "checkpoint-last").mkdir()
    assert newest(tmp_path) == (None, [])


def test_one_that_trl_alone_wrote_is_taken_when_its_parts_are_whole(tmp_path: Path) -> None:
    plain = written(tmp_path / "checkpoint-7", 7)

    assert newest(tmp_path) == (plain, [])


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: cut(folder / "model.safetensors"), "model.safetensors is torn"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 100), "model.safetensors is torn"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 100), "model.safetensors is torn"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "model.safetensors is torn"),
        (lambda folder: (folder / "model.safetensors").unlink(), "it has no weights"),
        (lambda folder: (folder / "optimizer.pt").write_bytes(b"PK\3\4 and no more"), "optimizer.pt is torn"),
        (lambda folder: cut(folder / "trainer_state.json"), "trainer_state.json is missing or torn"),
        (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing or torn"),
    ],
)
def test_one_that_trl_alone_wrote_and_that_is_torn_is_skipped(
    tmp_path: Path, harm: Callable[[Path], object], reason: str
) -> None:
    harm(written(tmp_path / "checkpoint-7", 7))

    assert newest(tmp_path) == (None, [f"checkpoint-7: skipped, {reason}"])


def test_nothing_has_the_name_of_a_checkpoint_before_all_of_it_is_written(tmp_path: Path) -> None:
    aside = written(tmp_path / checkpoints.ASIDE / "checkpoint-10", 10)
    assert newest(tmp_path) == (None, [])

    checkpoints.publish(aside, tmp_path / "checkpoint-10")

    assert newest(tmp_path) == (tmp_path / "checkpoint-10", [])
    assert list((tmp_path / checkpoints.ASIDE).iterdir()) == []


def test_a_torn_one_of_the_same_step_gives_way(tmp_path: Path) -> None:
    cut(complete(tmp_path, 10) / "model.safetensors")

    complete(tmp_path, 10)

    assert newest(tmp_path) == (tmp_path / "checkpoint-10", [])


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir() if path.name != checkpoints.ASIDE)


def test_only_the_newest_complete_ones_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        complete(tmp_path, step)

    checkpoints.rotate(tmp_path, 2, newest_step=30)

    assert names(tmp_path) == ["checkpoint-20", "checkpoint-30"]
    assert list((tmp_path / checkpoints.ASIDE).iterdir()) == []


def test_a_torn_one_does_not_count_and_the_only_complete_one_stays(tmp_path: Path) -> None:
    complete(tmp_path, 10)
    for step in (20, 30):
        cut(complete(tmp_path, step) / "model.safetensors")

    checkpoints.rotate(tmp_path, 1, newest_step=30)

    assert names(tmp_path) == ["checkpoint-10"]


def test_where_none_is_complete_none_is_removed(tmp_path: Path) -> None:
    cut(complete(tmp_path, 10) / "model.safetensors")

    checkpoints.rotate(tmp_path, 1, newest_step=10)

    assert names(tmp_path) == ["checkpoint-10"]


def test_those_beyond_the_step_that_was_just_saved_are_left_alone(tmp_path: Path) -> None:
    for step in (10, 15, 30):
        complete(tmp_path, step)

    checkpoints.rotate(tmp_path, 2, newest_step=15)

    assert names(tmp_path) == ["checkpoint-10", "checkpoint-15", "checkpoint-30"]


@pytest.mark.parametrize("limit", [None, 0])
def test_without_a_limit_all_stay(tmp_path: Path, limit: int | None) -> None:
    for step in (1, 2, 3):
        complete(tmp_path, step)

    checkpoints.rotate(tmp_path, limit, newest_step=3)

    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2", "checkpoint-3"]


def test_what_a_crash_left_unfinished_is_removed(tmp_path: Path) -> None:
    written(tmp_path / checkpoints.ASIDE / "checkpoint-10", 10)
    (tmp_path / checkpoints.ASIDE / "removed-checkpoint-2").mkdir()

    checkpoints.tidy(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_one_that_was_finished_and_not_yet_renamed_takes_its_place(tmp_path: Path) -> None:
    folder = written(tmp_path / checkpoints.ASIDE / "checkpoint-10", 10)
    manifest.write(folder, None)

    checkpoints.tidy(tmp_path)

    assert newest(tmp_path) == (tmp_path / "checkpoint-10", [])
    assert names(tmp_path) == ["checkpoint-10"]


def test_one_that_does_not_load_is_out_of_the_way_and_not_lost(tmp_path: Path) -> None:
    before, bad = complete(tmp_path, 10), complete(tmp_path, 20)

    place = checkpoints.set_aside(bad)
    again = checkpoints.set_aside(bad)  # another rank

    assert (place.name, again) == ("checkpoint-20.unreadable", place)
    assert (place / "optimizer.pt").exists()
    assert newest(tmp_path) == (before, [])


def say_nothing(line: str) -> None:
    pytest.fail(f"said {line}")


def test_an_explicit_one_is_taken_whatever_the_folder_holds(tmp_path: Path) -> None:
    complete(tmp_path / "run", 50)
    elsewhere = written(tmp_path / "other" / "checkpoint-20", 20)

    assert checkpoints.chosen(tmp_path / "run", str(elsewhere), say_nothing) == elsewhere


def test_a_restart_goes_on_from_what_came_of_the_explicit_one(tmp_path: Path) -> None:
    complete(tmp_path / "run", 50)
    elsewhere = written(tmp_path / "other" / "checkpoint-20", 20)
    later = complete(tmp_path / "run", 30, origin=str(elsewhere))

    assert checkpoints.chosen(tmp_path / "run", str(elsewhere), say_nothing) == later


def test_an_explicit_one_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    torn = complete(tmp_path, 20)
    cut(torn / "optimizer.pt")

    with pytest.raises(DescriptionError, match=r"--resume_from_checkpoint .*checkpoint-20: optimizer.pt has .* bytes"):
        checkpoints.chosen(tmp_path, str(torn), say_nothing)
    with pytest.raises(DescriptionError, match="there is no such folder"):
        checkpoints.chosen(tmp_path, str(tmp_path / "gone"), say_nothing)
