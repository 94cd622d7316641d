"""YAML text into plain data; what PyYAML passes over in silence or trips on is named with its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from grpo_stack.schema import Invalid, show

LIMIT = 100_000
"""Values that a text may stand for, each use of an alias counted: ten lines of YAML can stand for 10^10 of them."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe one, with a line for each value that its own constructors have no error for."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ArithmeticError, AttributeError, LookupError, ValueError):
            found = f"{show(node.value)} is no {node.tag.rpartition(':')[2]}; put a text in quotes"
            raise yaml.constructor.ConstructorError(None, None, found, node.start_mark) from None


def read(text: str) -> tuple[Any, list[str]]:
    """The data in `text`, and a line for each key that a mapping holds twice, where PyYAML takes the last one.

    Invalid, with the place, says why a text is no YAML or stands for no data.
    """
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        if root is None:
            return None, []
        if _size(root, {}) > LIMIT:
            raise Invalid(f"its aliases stand for more than {LIMIT} values, or for themselves; write it out")
        return loader.construct_document(root), list(_repeated(root))
    except yaml.reader.ReaderError as fault:
        line = text.count("\n", 0, fault.position) + 1
        raise Invalid(
            f"line {line}: is no YAML: it holds the character {ord(text[fault.position]):#x}; remove it"
        ) from None
    except yaml.YAMLError as fault:
        raise Invalid(_with_place(fault)) from None
    except RecursionError:
        raise Invalid("is nested too deeply for any description; see docs/description.md") from None


def _with_place(fault: yaml.YAMLError) -> str:
    mark = getattr(fault, "problem_mark", None)
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return f"{where}is no YAML: {' '.join(str(getattr(fault, 'problem', fault)).split())}"


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """How many values `node` stands for; more than LIMIT for one inside of itself."""
    if id(node) not in known:
        known[id(node)] = LIMIT + 1
        known[id(node)] = 1 + sum(_size(child, known) for child in _children(node))
    return known[id(node)]


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


def _repeated(root: yaml.Node) -> Iterator[str]:
    waiting, seen = [root], set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        waiting += reversed(list(_children(node)))
        if isinstance(node, yaml.MappingNode):
            yield from _repeated_in(node)


def _repeated_in(mapping: yaml.MappingNode) -> Iterator[str]:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            name, line = (key.tag, key.value), key.start_mark.line + 1
            if name in lines:
                yield f"line {line}: {show(key.value)} stands in line {lines[name]} already; keep one of the two"
            lines.setdefault(name, line)
