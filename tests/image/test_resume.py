"""Training without a server: what is saved, what a run goes on with, and how it ends. All in this process, for its speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState

from grpo_stack import checkpoints, demo, heartbeat, manifest, metrics, resuming, train
from grpo_stack.heartbeat import Heart
from tests.image import recording

ROWS, A_GENERATION = 6, 2
"""Rows of the dataset, and how many of them one generation takes: an epoch has 3 generations, and so 6 steps."""


@dataclass(frozen=True)
class Program:
    """The training program, with a tiny model, its own generation, and two steps to a generation."""

    model: Path
    rows: Path
    heart: Path

    def __call__(self, output: Path, steps: int, *more: str) -> int:
        argv = ["--model_name_or_path", str(self.model), "--output_dir", str(output), "--dataset", str(self.rows)]
        argv += ["--rewards", "tests.image.recording:reward", "--use_vllm", "false", "--max_completion_length", "4"]
        argv += ["--per_device_train_batch_size", "4", "--num_generations", "4", "--steps_per_generation", "2"]
        argv += ["--gradient_accumulation_steps", "1", "--learning_rate", "5e-3", "--max_steps", str(steps), *more]
        return train.main(argv)

    def beat(self) -> heartbeat.Beat:
        found = heartbeat.read(self.heart)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    demo.write_tiny_model(folder)
    return folder


@pytest.fixture
def program(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    heart = tmp_path / "heart"
    heart.mkdir()
    heartbeat.go(heart)
    monkeypatch.setenv(heartbeat.FOLDER, str(heart))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in demo.sums(ROWS)))
    recording.SEEN.clear()
    recording.AT.clear()
    yield Program(model, rows, heart)
    assert recording.AT == {}, "the run ended before what was to happen in it"


def steps(output: Path) -> list[int]:
    return [line["step"] for line in metrics.read(output / metrics.FILE)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_a_run_that_is_stopped_and_resumed_is_the_run_that_was_not(program: Program, tmp_path: Path) -> None:
    """Stopped in its second epoch, between the two steps of a generation. Its generation is sampled from torch's random
    numbers, so that equal weights at the end show that everything went on: prompts, completions, optimizer, schedule, RNG."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    assert program(whole, 11) == 0
    in_one_go = recording.SEEN.copy()
    recording.SEEN.clear()

    recording.AT[6] = lambda: heartbeat.ask_to_stop(program.heart)
    assert program(halves, 11) == 0
    assert (program.beat().phase, program.beat().step) == ("stopped", 7)
    assert [path.name for path in halves.glob("checkpoint-*")] == ["checkpoint-7"]
    assert not (halves / "model").exists()
    (program.heart / "stop").unlink()
    assert program(halves, 11) == 0

    assert (program.beat().phase, program.beat().step, program.beat().max_steps) == ("done", 11, 11)
    assert in_one_go == recording.SEEN
    assert [step for step, _ in in_one_go] == [0, 2, 4, 6, 8, 10]
    epochs = [{prompt for _, prompts in in_one_go[at : at + 3] for prompt in prompts} for at in (0, 3)]
    assert [len(epoch) for epoch in epochs] == [ROWS, ROWS]
    assert steps(halves) == list(range(1, 12))
    times = [line["time"] for line in metrics.read(halves / metrics.FILE)]
    assert times == sorted(times)
    ends = [weights(folder / "model") for folder in (whole, halves)]
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_finished_run_that_is_started_again_makes_no_further_step(program: Program, tmp_path: Path) -> None:
    assert program(tmp_path / "run", 2) == 0
    before = weights(tmp_path / "run" / "model")
    (tmp_path / "run" / "summary.txt").unlink()
    recording.SEEN.clear()

    assert program(tmp_path / "run", 2) == 0

    assert recording.SEEN == []
    assert program.beat().phase == "done"
    assert steps(tmp_path / "run") == [1, 2]
    assert all(torch.equal(value, before[name]) for name, value in weights(tmp_path / "run" / "model").items())
    assert (tmp_path / "run" / "summary.txt").exists()


def test_a_run_that_is_to_stop_before_its_first_step_makes_none(program: Program, tmp_path: Path) -> None:
    heartbeat.ask_to_stop(program.heart)

    assert program(tmp_path / "run", 2) == 0

    assert recording.SEEN == []
    assert (program.beat().phase, program.beat().step) == ("stopped", 0)


def test_what_trl_alone_saved_inside_a_generation_goes_on_in_step_with_the_dataset(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording.AT[2] = lambda: heartbeat.ask_to_stop(program.heart)
    assert program(tmp_path / "run", 6) == 0
    folder = tmp_path / "run" / "checkpoint-3"
    (folder / "generation_0.pt").unlink()
    (folder / manifest.MANIFEST).unlink()
    (program.heart / "stop").unlink()

    assert program(tmp_path / "run", 6, "--save_steps", "5", "--save_total_limit", "9") == 0

    made = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    assert made == ["checkpoint-3", "checkpoint-5", "checkpoint-6"], "--save_steps given now counts, not the old one"
    assert "checkpoint-3: lies inside a generation and does not hold it" in capsys.readouterr().out
    assert [step for step, _ in recording.SEEN] == [0, 2, 3, 4]
    assert sorted(recording.SEEN[1][1]) == sorted(recording.SEEN[2][1])
    assert len({prompt for _, prompts in recording.SEEN for prompt in prompts}) == ROWS


def test_one_that_does_not_load_is_set_aside_and_the_next_start_takes_the_one_before(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert program(output, 4, "--save_steps", "2") == 0
    (output / "checkpoint-4" / "optimizer.pt").write_bytes(b"written so, and no optimizer")
    manifest.write(output / "checkpoint-4", None)

    assert program(output, 6, "--save_steps", "2") == 5

    (line,) = [line for line in capsys.readouterr().err.splitlines() if "cannot be loaded" in line]
    assert line.startswith(f"{output / 'checkpoint-4'}: cannot be loaded (")
    assert line.endswith("it is now checkpoint-4.unreadable, and the next start takes the one before")
    assert program.beat().phase != "failed", "starting again mends it"

    assert program(output, 6, "--save_steps", "2") == 0

    assert f"resuming from {output / 'checkpoint-2'}" in capsys.readouterr().out
    assert steps(output) == [1, 2, 3, 4, 5, 6]


def test_a_checkpoint_of_another_model_is_refused_and_stays(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"
    assert program(output, 2) == 0
    state = weights(output / "checkpoint-2")
    from safetensors.torch import save_file

    grown = {name: torch.cat([value, value]) for name, value in state.items()}
    save_file(grown, output / "checkpoint-2" / "model.safetensors", metadata={"format": "pt"})
    manifest.write(output / "checkpoint-2", None)

    assert program(output, 4) == 2

    assert f"{output / 'checkpoint-2'}: is not of this model" in capsys.readouterr().err
    assert (program.beat().phase, program.beat().exit_code) == ("failed", 2)
    assert (output / "checkpoint-2").exists()


def test_a_full_disk_ends_the_run_with_the_older_checkpoints_as_they_were(
    program: Program, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "run"

    def fill() -> None:
        folder = output / checkpoints.ASIDE / "checkpoint-4"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").symlink_to("/dev/full")

    recording.AT[2] = fill

    assert program(output, 6, "--save_steps", "2") == 3

    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("outputs:")]
    assert line.startswith("outputs: no space left for checkpoint-4 (needs about ")
    assert (program.beat().phase, program.beat().exit_code, program.beat().message) == ("failed", 3, line)
    assert checkpoints.newest(output, pytest.fail) == output / "checkpoint-2"
    assert not (output / checkpoints.ASIDE).exists()


@pytest.mark.parametrize(("ranks", "held"), [(2, True), (1, False), (3, False)])
def test_a_rank_takes_up_its_own_part_of_a_generation_and_none_when_there_were_more_or_fewer_ranks(
    tmp_path: Path, ranks: int, held: bool
) -> None:
    for rank in (0, 1):
        torch.save({"step": 1, "inputs": [{"ids": torch.tensor([rank])}]}, tmp_path / f"generation_{rank}.pt")
    last = SimpleNamespace(
        world_size=ranks, process_index=ranks - 1, device=torch.device("cpu:0"), steps_per_generation=2
    )
    trainer = SimpleNamespace(args=last, num_iterations=1, _step=0, _buffered_inputs=None)
    said: list[str] = []

    resuming._restore_generation(trainer, tmp_path, 1, said.append)

    assert trainer._step == 1
    assert trainer._buffered_inputs == ([{"ids": torch.tensor([1])}] if held else None)
    assert len(said) == (0 if held else 1)


class NeverGo(Heart):
    """A supervisor whose server does not come up; looks at what the process has set up by then."""

    group: object = None
    cuda = True

    def wait_for_go(self, poll_s: float = 0, limit_s: float = 0) -> bool:
        self.group = dict(PartialState._shared_state)
        self.cuda = torch.cuda.is_initialized()
        return False


def test_before_go_no_device_and_no_process_group_is_set_up(program: Program, tmp_path: Path) -> None:
    PartialState._reset_state()
    heart = NeverGo(program.heart)
    argv = ["--model_name_or_path", str(program.model), "--output_dir", str(tmp_path / "run")]
    argv += ["--dataset", str(program.rows), "--rewards", "digit_share_reward", "--vllm_server_base_url", "http://none"]

    train.train(argv, heart)

    assert (heart.group, heart.cuda) == ({}, False)
    assert program.beat().phase == "stopped"
    assert not (tmp_path / "run").exists()
