"""A dataset file of this host, as far as it can be judged without `datasets`: its ending, its records, who may read it."""

from __future__ import annotations

import codecs
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_stack import paths
from grpo_stack.facts import DatasetFile

ENDINGS = (".jsonl", ".json", ".parquet")

LIMIT_CHARACTERS = 2**24
"""How much of a file of JSON lines is read: 0.3 s on 2 cores."""

_MAGIC = b"PAR1"
"""Both ends of a Parquet file (its specification: File format)."""


class _FaultError(Exception):
    """What makes the file no dataset, and what to do about it."""

    def __init__(self, found: str, fix: str = "write one JSON object a line") -> None:
        super().__init__(found)
        self.found, self.fix = found, fix


def read(path: str, uid: int) -> DatasetFile:
    """The dataset file at `path`, as the user `uid` of the containers will find it, and the columns of its first record."""
    hidden = paths.is_hidden(path)
    if not hidden and not paths.exists(path):
        return DatasetFile(path, exists=False)
    readable = hidden or paths.allows(path, uid, paths.READ)
    try:
        if hidden:
            raise _FaultError("a folder above it is closed to this user", "open that to it")
        columns = _columns(Path(path))
    except PermissionError:
        return DatasetFile(path, exists=True, readable=False)
    except OSError as fault:
        problem = (fault.strerror or str(fault)).lower()
        return DatasetFile(path, exists=True, problem=problem, fix="mind the disk that it is on", readable=readable)
    except _FaultError as fault:
        return DatasetFile(path, exists=True, problem=fault.found, fix=fault.fix, readable=readable)
    return DatasetFile(path, exists=True, columns=columns, readable=readable)


def _columns(file: Path) -> tuple[str, ...] | None:
    if not paths.is_file(file):
        raise _FaultError("it is no file", f"name one that ends in {_listed()}, or give a Hub id")
    if file.suffix not in ENDINGS:
        raise _FaultError(f"it does not end in {_listed()}", "convert or rename it, or give a Hub id")
    if file.suffix == ".parquet":
        _check_parquet(file)
        return None  # its columns stand in a footer that takes a library to read
    with file.open("rb") as stream:
        if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            raise _FaultError("it starts with a byte order mark", "save it as UTF-8 without one")
    try:
        return tuple(_of_lines(file))
    except UnicodeDecodeError as fault:
        raise _FaultError(f"it is no UTF-8: {fault.reason} at byte {fault.start}", "save it as UTF-8") from None


def _listed() -> str:
    return f"{', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}"


def _check_parquet(file: Path) -> None:
    with file.open("rb") as stream:
        head = stream.read(len(_MAGIC))
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - len(_MAGIC)))
        ends = (head, stream.read())
    if ends != (_MAGIC, _MAGIC) or size < 12:
        raise _FaultError("it is empty" if not size else "it is no Parquet file", "write it again, or copy all of it")


def _of_lines(file: Path) -> dict[str, Any]:
    """The first record of JSON lines, all of which are looked at up to the limit, or of a file that is one JSON value."""
    first: dict[str, Any] | None = None
    seen = 0
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as fault:
                if first is None and (whole := _whole(file)) is not None:
                    return whole
                raise _FaultError(f"line {number} is no JSON: {fault}") from None
            if first is None and isinstance(value, list):
                return _first(value)
            if not isinstance(value, dict):
                raise _FaultError(f"line {number} is {type(value).__name__}, not an object with columns")
            first = value if first is None else first
            seen += len(line)
            if seen > LIMIT_CHARACTERS:
                break
    if first is None:
        raise _FaultError("it is empty")
    return first


def _whole(file: Path) -> dict[str, Any] | None:
    """The first record of a file that is one JSON value of several lines; None if it is none."""
    with suppress(ValueError, RecursionError):
        value = json.loads(file.read_text(encoding="utf-8"))
        return _first(value) if isinstance(value, list) else _first([value])
    return None


def _first(records: list[Any]) -> dict[str, Any]:
    """The first of `records`, each of which must be an object."""
    if not records:
        raise _FaultError("it is an empty list")
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise _FaultError(f"record {number} is {type(record).__name__}, not an object with columns")
    first: dict[str, Any] = records[0]
    return first
