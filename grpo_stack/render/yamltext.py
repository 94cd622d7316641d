"""YAML text from plain data: the same data gives the same bytes, and every parser reads the same strings back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_PLAIN = re.compile(r"(?:--?[A-Za-z]|[A-Za-z_/$])[A-Za-z0-9_/.${}:@+=-]*(?<!:)|--")
"""Strings that need no quotes in YAML 1.1 or 1.2; everything else gets double quotes."""

_LINES = re.compile(r"[!-~]([ -~]*[!-~])?\n(\n* *[!-~]([ -~]*[!-~])?\n)+")
"""Several plain lines: they read best as a block."""

_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    plain = _PLAIN.fullmatch(text) and text.lower().strip("-") not in _WORDS
    style = None if plain else "|" if _LINES.fullmatch(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(data: Mapping[str, Any], header: tuple[str, ...] = ()) -> str:
    """`data` in its own order, `header` as comment lines on top, and a blank line around each section of several lines."""
    comments = [part for line in header for part in line.splitlines() or [""]]
    text = "".join(f"# {line}".rstrip() + "\n" for line in comments)
    short = True
    for key, value in data.items():
        section = _dump({key: value})
        was_short, short = short, section.count("\n") == 1
        text += section if was_short and short else f"\n{section}"
    return text


def _dump(data: dict[str, Any]) -> str:
    text: str = yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=float("inf")
    )
    return text
