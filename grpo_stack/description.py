"""Where descriptions come from: a file, a preset, flags; read, merged, and their paths brought to one folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from grpo_stack import presets, spec
from grpo_stack.errors import DescriptionError
from grpo_stack.render import yamltext
from grpo_stack.spec import StackSpec

FILE = "stack.yaml"


@dataclass(frozen=True)
class Description:
    """A checked description, and the plain data that it was read from."""

    spec: StackSpec
    data: Mapping[str, Any]
    """As it would stand in stack.yaml, flags merged in."""
    directory: Path
    """What relative paths in it are relative to."""
    file: Path | None = None
    """The file that it came from, if any."""
    preset: str | None = None
    """The preset that was asked for, if any."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """What flags said over file or preset: `data.dataset` → value."""


def load(file: str | None, preset: str | None, flags: Mapping[str, Any], settings: list[str]) -> Description:
    """The description in `file` (or ./stack.yaml, or `preset`), with `flags` and `settings` (`key=yaml`) over it.

    DescriptionError names every problem, with file and key.
    """
    if file and preset:
        raise DescriptionError("--file and --preset exclude each other; give one of them")
    path = Path(file) if file else Path(FILE)
    found = path if file or (not preset and path.exists()) else None
    default = "cpu" if flags.get("accelerator") == "cpu" else presets.DEFAULT
    base = _read(found) if found else presets.find(preset or default)
    directory = found.parent if found else Path()
    overrides = {**{key: _from_here(key, value, directory) for key, value in flags.items()}, **_settings(settings)}
    checked = spec.read(base, overrides, str(found) if found else "description")
    return Description(checked, spec.merge(base, overrides), directory, found, preset, overrides)


def changed(
    description: Description, overrides: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> Description:
    """The same description with more overrides, or with all of its overrides over another base."""
    every = {**description.overrides, **overrides}
    data = spec.merge(base, every) if base is not None else spec.merge(description.data, overrides)
    return dataclasses.replace(description, spec=spec.read(data, where="description"), data=data, overrides=every)


def moved(description: Description, target: Path) -> Description:
    """The same description with its relative paths as they must read from the folder `target`."""
    changes = {key: _moved(value, description.directory, target) for key, value in paths(description.spec).items()}
    return dataclasses.replace(changed(description, changes), directory=target)


def dump(description: Description) -> str:
    """The description as the text of a stack.yaml."""
    header = ("What to run. After a change: grpo-stack render --output .   (in this folder)",)
    return yamltext.dump(description.data, header)


def paths(described: StackSpec) -> dict[str, Any]:
    """The keys of `described` whose values hold paths of this host, and those values."""
    found: dict[str, Any] = {"outputs": described.outputs, "source": described.source}
    if spec.is_path(described.model):
        found["model"] = described.model
    if spec.is_file(described.data.dataset):
        found["data.dataset"] = described.data.dataset
    if any(map(spec.is_reward_file, described.data.rewards)):
        found["data.rewards"] = list(described.data.rewards)
    return found


def absolute(path: str, directory: Path) -> str:
    """`path`, as the description in `directory` means it, from the root of the file system."""
    return str((directory / path).resolve())


def _moved(value: Any, old: Path, new: Path) -> Any:
    if isinstance(value, list):
        return [_moved(item, old, new) if spec.is_reward_file(item) else item for item in value]
    if Path(value).is_absolute():
        return value
    relative = os.path.relpath((old / value).absolute(), new.absolute())
    return relative if relative.startswith(".") else f"./{relative}"


def _from_here(key: str, value: Any, directory: Path) -> Any:
    """A flag's value; what names a file or folder of the current folder is made to mean the same from `directory`."""
    if key == "data.rewards":
        return [_from_here("", item, directory) if spec.is_reward_file(item) else item for item in value]
    if key not in ("", "model", "data.dataset", "outputs"):
        return value
    text = os.path.expanduser(value)  # noqa: PTH111  # keeps a leading ./, which marks a path
    if key == "model" and not spec.is_path(text) and Path(text).is_dir():
        text = f"./{text}"
    is_path = key in ("", "outputs") or spec.is_path(text) or (key == "data.dataset" and spec.is_file(text))
    return _moved(text, Path(), directory) if is_path else text


def _read(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DescriptionError(f"{file}: there is no such file; presets need none: --preset 4-4") from None
    except (OSError, UnicodeDecodeError) as fault:
        raise DescriptionError(f"{file}: cannot be read: {fault}") from None
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise DescriptionError(f"{file}:{where} is no YAML: {getattr(fault, 'problem', fault)}") from None


def _settings(settings: list[str]) -> dict[str, Any]:
    found = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise DescriptionError(f"--set {setting}: write KEY=VALUE, trainer.args.max_steps=100 for example")
        try:
            found[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[key] = value
    return found
