"""The prompts: from the Hub, from a file, or the built-in sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_stack import demo
from grpo_stack.errors import DescriptionError

DEFAULT = "trl-lib/DeepMath-103K"
"""With `accuracy_reward`, TRL's own example of server mode."""

FILE_FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
"""Suffix of a local file → the loader of `datasets` that reads it."""


@dataclass(frozen=True)
class Source:
    """Which rows to load."""

    name: str
    """Hub id, path of a file or folder, or `two-digit-sums`."""
    config: str | None = None
    """Configuration of a Hub dataset that has several."""
    split: str = "train"
    """Split, or a slice of one such as `train[:1000]`. A single file is all one split, called train."""
    revision: str | None = None
    """Commit, tag or branch of a Hub dataset; none for its newest."""

    @property
    def local(self) -> bool:
        """Whether nothing has to be fetched."""
        return self.name == demo.SUMS or Path(self.name).suffix in FILE_FORMATS or Path(self.name).exists()


def load(source: Source) -> Any:
    """The `datasets.Dataset`; raises DescriptionError for a local one that is missing, unreadable, or without prompts.

    What can go wrong with the Hub is raised as `datasets` and `huggingface_hub` raise it.
    """
    dataset = _load_local(source) if source.local else _load_hub(source)
    if problems := missing_prompt(source, dataset.column_names):
        raise DescriptionError(problems)
    return dataset


def missing_prompt(source: Source, columns: Iterable[str]) -> list[str]:
    """A problem line when there is no column of prompts, which GRPOTrainer takes by that name."""
    have = sorted(columns)
    if "prompt" in have:
        return []
    return [
        f"dataset: {source.name}: no column `prompt`; it has {', '.join(have) or 'no columns'}; "
        "rename the one to train on"
    ]


def _load_local(source: Source) -> Any:
    import datasets

    if source.name == demo.SUMS:
        return datasets.Dataset.from_list(demo.sums())
    path = Path(source.name)
    if not path.exists():
        raise DescriptionError(f"dataset: {path}: no such file; give an existing file or the id of a Hub dataset")
    try:
        if path.is_dir():
            return datasets.load_dataset(str(path), name=source.config, split=source.split)
        if path.stat().st_size == 0:
            raise DescriptionError(f"dataset: {path}: is empty; it needs a row for each prompt")
        return datasets.load_dataset(FILE_FORMATS[path.suffix], data_files=str(path), split=source.split)
    except PermissionError as error:
        raise DescriptionError(f"dataset: {path}: may not be read; make it readable for this user") from error
    except DescriptionError:
        raise
    except Exception as error:  # each loader has its own kinds for what a file can have wrong
        cause = error.__cause__ or error
        line = (str(cause).splitlines() or [type(cause).__name__])[0]
        raise DescriptionError(f"dataset: {path}: cannot be read as {path.suffix or 'a folder'}: {line}") from error


def _load_hub(source: Source) -> Any:
    import datasets

    return datasets.load_dataset(source.name, name=source.config, split=source.split, revision=source.revision)
