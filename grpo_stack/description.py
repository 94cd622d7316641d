"""Where descriptions come from: a file, a preset, flags; read, merged, and their paths brought to one folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_stack import document, presets, rules, spec
from grpo_stack.errors import DescriptionError
from grpo_stack.render import yamltext
from grpo_stack.schema import Invalid, show
from grpo_stack.spec import StackSpec

FILE = "stack.yaml"
HEADER = "What to run. After a change: grpo-stack render --output .   (in this folder)"

_PATHS = ("model", "outputs", "source", "data.dataset", "data.rewards", "trainer.env_file")
"""Keys whose values are, or may be, paths of this host."""


@dataclass(frozen=True)
class Description:
    """A checked description, and the plain data that it was read from."""

    spec: StackSpec
    data: Mapping[str, Any]
    """As it would stand in stack.yaml, flags merged in. A `~` stays one here; the spec holds whose home it is."""
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
    if file is not None and preset is not None:
        raise DescriptionError("--file and --preset exclude each other; give one of them")
    if file == "":
        raise DescriptionError("--file: '' names no file; leave it out for ./stack.yaml")
    path = Path(FILE if file is None else file)
    # A link to nothing is there, too: it must not pass for a folder without a description.
    found = path if file or (preset is None and os.path.lexists(path)) else None
    directory = found.parent if found else Path()
    overrides = {**{key: _from_here(key, value, directory) for key, value in flags.items()}, **_settings(settings)}
    default = "cpu" if overrides.get("accelerator") == "cpu" else presets.DEFAULT
    base = _read(found) if found else presets.find(default if preset is None else preset)
    data = rules.merge(base, overrides)
    checked = rules.read(_at_home(data), where=_shown(str(found)) if found else "description")
    return Description(checked, data, directory, found, preset, overrides)


def changed(
    description: Description, overrides: Mapping[str, Any], base: Mapping[str, Any] | None = None
) -> Description:
    """The same description with more overrides, or with all of its overrides over another base."""
    every = {**description.overrides, **overrides}
    data = rules.merge(base, every) if base is not None else rules.merge(description.data, overrides)
    return dataclasses.replace(
        description, spec=rules.read(_at_home(data), where="description"), data=data, overrides=every
    )


def moved(description: Description, target: Path) -> Description:
    """The same description with its relative paths as they must read from the folder `target`."""
    changes = {
        key: _as_written(_moved(value, description.directory, target), _value(description.data, key))
        for key, value in paths(description.spec).items()
    }
    return dataclasses.replace(changed(description, changes), directory=target)


def dump(description: Description) -> str:
    """The description as the text of a stack.yaml."""
    return yamltext.dump(description.data, (HEADER,))


def is_as_dumped(text: str) -> bool:
    """Whether a readable stack.yaml is as `dump` writes it, so that nothing but its data would be lost with it."""
    data, _ = document.read(text)
    return isinstance(data, Mapping) and yamltext.dump(data, (HEADER,)) == text


def paths(described: StackSpec) -> dict[str, Any]:
    """The keys of `described` whose values hold paths of this host, and those values."""
    found: dict[str, Any] = {"outputs": described.outputs, "source": described.source}
    if spec.is_path(described.model):
        found["model"] = described.model
    if spec.is_file(described.data.dataset):
        found["data.dataset"] = described.data.dataset
    if any(map(spec.is_reward_file, described.data.rewards)):
        found["data.rewards"] = list(described.data.rewards)
    if described.trainer.env_file:
        found["trainer.env_file"] = described.trainer.env_file
    return found


def absolute(path: str, directory: Path) -> str:
    """`path`, as the description in `directory` means it, from the root of the file system."""
    return os.path.realpath(directory / path)  # Path.resolve raises for links in a circle before Python 3.13


def _moved(value: Any, old: Path, new: Path) -> Any:
    if isinstance(value, list):
        return [_moved(item, old, new) if spec.is_reward_file(item) else item for item in value]
    if Path(value).is_absolute():
        return value
    relative = os.path.relpath((old / value).absolute(), new.absolute())
    return relative if relative in (".", "..") or relative.startswith("../") else f"./{relative}"


def _at_home(data: Any) -> Any:
    """`data` with the home folder for each `~` that starts a path."""
    given = {key: _value(data, key) for key in _PATHS}
    homes = {key: _expanded(value) for key, value in given.items()}
    return rules.merge(data, {key: value for key, value in homes.items() if value != given[key]})


def _expanded(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_expanded(item) for item in value]
    return os.path.expanduser(value) if _has_home(value) else value  # noqa: PTH111  # Path raises for an unknown user


def _has_home(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("~") and "\0" not in value


def _as_written(path: Any, written: Any) -> Any:
    """`path`, or the `~` that it was written with, which is right from every folder."""
    if isinstance(path, list) and isinstance(written, (list, tuple)):
        return [_as_written(item, before) for item, before in zip(path, written, strict=True)]
    return written if _has_home(written) else path


def _value(data: Any, path: str) -> Any:
    """What `data` holds at `path` (`data.dataset`); None for nothing."""
    for key in path.split("."):
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _from_here(key: str, value: Any, directory: Path) -> Any:
    """A flag's value; what names a file or folder of the current folder is made to mean the same from `directory`."""
    if key == "data.rewards":
        return [_from_here("", item, directory) if spec.is_reward_file(item) else item for item in value]
    if key not in ("", "model", "data.dataset", "outputs", "trainer.env_file") or not value or _has_home(value):
        return value
    # os.path.isdir: Path raises for a name that is too long.
    if key == "model" and not spec.is_path(value) and os.path.isdir(value):  # noqa: PTH112
        value = f"./{value}"
    is_path = (
        key in ("", "outputs", "trainer.env_file")
        or spec.is_path(value)
        or (key == "data.dataset" and spec.is_file(value))
    )
    return _moved(value, Path(), directory) if is_path else value


def _read(file: Path) -> Any:
    where = _shown(str(file))
    try:
        data, problems = document.read(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file.is_symlink():
            raise DescriptionError(f"{where}: is a link to nothing; mend it or remove it") from None
        raise DescriptionError(f"{where}: there is no such file; presets need none: --preset 4-4") from None
    except OSError as fault:
        reason = f"cannot be read: {fault.strerror}; mend that, or name another: --file FILE"
        raise DescriptionError(f"{where}: {reason}") from None
    except UnicodeDecodeError as fault:
        raise DescriptionError(f"{where}: cannot be read: byte {fault.start} is no UTF-8; save it as UTF-8") from None
    except Invalid as fault:
        raise DescriptionError(f"{where}: {fault}") from None
    if problems:
        raise DescriptionError(f"{where}: {problem}" for problem in problems)
    return data


def _settings(settings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    problems: list[str] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not all(key.split(".")):
            problems.append(f"--set {_shown(setting)}: write KEY=VALUE, trainer.args.max_steps=100 for example")
            continue
        try:
            found[key], repeated = document.read(value)
        except Invalid:
            found[key] = value
        else:
            problems += [f"--set {_shown(key)}: {line}" for line in repeated]
    if problems:
        raise DescriptionError(problems)
    return found


def _shown(text: str) -> str:
    """`text` in one line."""
    return text if text.isprintable() else show(text)
