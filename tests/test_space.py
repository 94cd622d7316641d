"""A full disk, in what the libraries raise for it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from grpo_stack import space
from grpo_stack.space import NoSpaceError


class SafetensorError(Exception):
    """As safetensors' own, which says the cause in its text only."""


TORCH = "[enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        Exception("No space left on device (os error 28)"),
    ],
    ids=repr,
)
def test_a_full_disk_is_recognised(tmp_path: Path, error: Exception) -> None:
    assert space.is_full(error, tmp_path)


def test_it_is_recognised_behind_another_error(tmp_path: Path) -> None:
    error = RuntimeError("writing shards")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")

    assert space.is_full(error, tmp_path)


@pytest.mark.parametrize("room", [True, False])
def test_where_torch_does_not_say_why_the_disk_is_asked(tmp_path: Path, room: bool) -> None:
    assert space.is_full(RuntimeError(TORCH), tmp_path, has_room=lambda folder: room) is not room


def test_a_disk_with_room_takes_the_probe_and_keeps_nothing_of_it(tmp_path: Path) -> None:
    assert not space.is_full(RuntimeError(TORCH), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), RuntimeError("shapes"), KeyError("x")])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: Exception) -> None:
    undone: list[str] = []

    with pytest.raises(type(error)) as caught, space.guarding("x", tmp_path, undo=lambda: undone.append("x")):
        raise error

    assert caught.value is error
    assert undone == []


def test_the_line_says_what_was_to_be_written_how_much_it_takes_and_where(tmp_path: Path) -> None:
    undone: list[str] = []

    with (
        pytest.raises(NoSpaceError) as caught,
        space.guarding("checkpoint-20", tmp_path, undo=lambda: undone.append("x"), need=lambda: 3 << 29),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")

    assert caught.value.exit_code == 3
    assert undone == ["x"]
    (line,) = caught.value.problems
    start, _, end = line.partition("needs about 1.5 GiB, ")
    assert start == "outputs: no space left for checkpoint-20 ("
    assert end.endswith(f" free in {tmp_path}); free some and run again")


def test_what_an_inner_guard_has_said_is_not_said_again(tmp_path: Path) -> None:
    with (
        pytest.raises(NoSpaceError, match="left for inner"),
        space.guarding("outer", tmp_path),
        space.guarding("inner", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
