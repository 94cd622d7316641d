"""Plain data, as YAML gives it, into frozen dataclasses: unknown keys and wrong types refused, all of them at once."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

Scalar = str | int | float | bool

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping"}

_NUMBERS = 10**18
"""Whole numbers stay below it, and so short enough to be shown: Python prints none of more than 4300 digits."""


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 takes for a text unless they have both a point and a sign: `1e-3`."""


class Invalid(ValueError):  # noqa: N818  # a verdict on a value, not a fault of the program
    """What a parser of one value found wrong with it, without the key's name."""

    def __init__(self, text: str, inner: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.inner = inner
        """One line for each wrong item of the value, as it goes on after the value's key: `.max_steps: nothing found …`."""

    def under(self, where: str) -> tuple[str, ...]:
        """A line for each problem of the value that is called `where`."""
        return tuple(f"{where}{line}" for line in self.inner) or (f"{where}: {self}",)


def read(cls: type[Any], data: Any, path: str = "") -> tuple[dict[str, Any], list[str]]:
    """The field values of dataclass `cls` found in `data`, and every problem as `key.path: what is wrong; what to do`.

    Fields whose metadata holds `parse` go through it (it raises Invalid); nested dataclasses are read in turn. A field
    that is wrong is left out, so that its default lets further rules be checked.
    """
    if not isinstance(data, Mapping):
        return {}, [f"{path or 'the description'}: {show(data)} found where keys and values belong"]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    problems = [_unknown(join(path, key), _key(key), fields) for key in data if key not in fields]
    for name, field in fields.items():
        where = join(path, name)
        if name not in data:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                problems.append(f"{where}: missing, and it has no default")
            continue
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and "parse" not in field.metadata:
            found, inner = read(hint, {} if data[name] is None else data[name], where)
            problems += inner
            values[name] = hint(**found)
            continue
        try:
            parse = field.metadata.get("parse")
            values[name] = parse(data[name]) if parse else _convert(hint, data[name])
        except Invalid as fault:
            problems += fault.under(where)
    return values, problems


def _convert(hint: Any, value: Any) -> Any:
    """`value` as the type `hint` (scalars, optionals, tuples of texts, mappings to scalars); Invalid if it is not one."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(hint), value)
    if origin is tuple:
        return items(functools.partial(_convert, get_args(hint)[0]), value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise Invalid(f"{show(value)} found where keys and values belong")
        convert = functools.partial(_convert, get_args(hint)[1])
        keys = [(f".{_key(key)}", text, key) for key in value]
        found = _each([*keys, *((f".{_key(key)}", convert, item) for key, item in value.items())])
        return dict(zip(found[: len(keys)], found[len(keys) :], strict=True))
    return _convert_scalar(hint, value)


def items(parse: Callable[[Any], Any], value: object) -> tuple[Any, ...]:
    """Every item of the list `value` through `parse`; Invalid names each one that is wrong."""
    if not isinstance(value, (list, tuple)):
        raise Invalid(f"{show(value)} found where a list belongs")
    return tuple(_each((f"[{at}]", parse, item) for at, item in enumerate(value)))


def _each(places: Iterable[tuple[str, Callable[[Any], Any], Any]]) -> list[Any]:
    """The values of `(place, parser, value)`; Invalid names every place that holds a wrong one."""
    found: list[Any] = []
    problems: list[str] = []
    for place, parse, value in places:
        try:
            found.append(parse(value))
        except Invalid as fault:
            problems += fault.under(place)
    if problems:
        raise Invalid("\n".join(problems), tuple(problems))
    return found


def _convert_union(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    choices = [option for option in options if option is not type(None)]
    if type(value) in choices:
        return _convert(type(value), value)
    if len(choices) == 1:
        return _convert(choices[0], value)
    for choice in choices:
        if get_origin(choice) is tuple and isinstance(value, (list, tuple)):
            return _convert(choice, value)
    names = " or ".join(_NAMES.get(choice, "a list") for choice in choices)
    advice = _as_json(value) if isinstance(value, Mapping) and str in choices else ""
    raise Invalid(f"{show(value)} found where {names} belongs{advice}")


def text(value: object) -> str:
    """`value` if it is a text that a command line can carry; Invalid says what else it is."""
    found: str = _convert_scalar(str, value)
    return found


def _convert_scalar(hint: type[Any], value: Any) -> Any:
    if type(value) is int and abs(value) >= _NUMBERS:
        raise Invalid(f"{show(value)} is too large for any setting; use a number of at most 18 digits")
    if hint is float and (type(value) is int or (isinstance(value, str) and _EXPONENT.fullmatch(value))):
        return float(value)
    if type(value) is not hint:
        advice = _in_quotes(value) if hint is str else ""
        raise Invalid(f"{show(value)} found where {_NAMES[hint]} belongs{advice}")
    if hint is str and ("\0" in value or not _encodable(value)):
        raise Invalid("holds a NUL or half a surrogate pair, which no command line can carry")
    return value


def _in_quotes(value: object) -> str:
    """What to do where YAML made something else of a text that it holds without quotes.

    The text itself is lost: YAML reads yes, no, on and off as truths, 0123456 as 42798, 1.10 as 1.1.
    """
    if isinstance(value, bool):
        return "; put the word in quotes"
    if isinstance(value, (int, float)) or hasattr(value, "isoformat"):
        return "; put it in quotes, as it is written there"
    return ""


def _as_json(value: Mapping[Any, Any]) -> str:
    """How a mapping is written where it has to be a text: the trainer's command line reads it as JSON."""
    try:
        written = json.dumps(value, default=str, ensure_ascii=False).replace("'", "''")
    except (TypeError, ValueError):  # a date as a key, a number of thousands of digits
        written = ""
    shown = written if 0 < len(written) <= 100 else "{...}"
    return f"; write a mapping as JSON, in quotes: '{shown}'"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unknown(where: str, key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    advice = f"did you mean `{near[0]}`?" if near else f"known here: {', '.join(known)}"
    return f"{where}: unknown key; {advice}"


def join(path: str, key: object) -> str:
    """The name of `key` in the section `path`, in one line whatever the key holds."""
    return f"{path}.{_key(key)}" if path else _key(key)


def _key(key: object) -> str:
    return key if isinstance(key, str) and key and key.isprintable() else show(key)


def show(value: object) -> str:
    """`value` in one line of at most 60 characters."""
    try:
        text = "nothing" if value is None else repr(value)
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."
