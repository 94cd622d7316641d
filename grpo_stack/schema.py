"""Plain data, as YAML gives it, into frozen dataclasses: unknown keys and wrong types refused, all of them at once."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

Scalar = str | int | float | bool

_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false", dict: "a mapping"}


class Invalid(ValueError):  # noqa: N818  # a verdict on a value, not a fault of the program
    """What a parser of one value found wrong with it, without the key's name."""


def read(cls: type[Any], data: Any, path: str = "") -> tuple[dict[str, Any], list[str]]:
    """The field values of dataclass `cls` found in `data`, and every problem as `key.path: what is wrong; what to do`.

    Fields whose metadata holds `parse` go through it (it raises Invalid); nested dataclasses are read in turn. A field
    that is wrong is left out, so that its default lets further rules be checked.
    """
    if not isinstance(data, Mapping):
        return {}, [f"{path or 'the description'}: {_show(data)} found where keys and values belong"]
    fields = {field.name: field for field in dataclasses.fields(cls)}
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    problems = [_unknown(_join(path, str(key)), str(key), fields) for key in data if key not in fields]
    for name, field in fields.items():
        where = _join(path, name)
        if name not in data:
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                problems.append(f"{where}: missing, and it has no default")
            continue
        hint = hints[name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type) and "parse" not in field.metadata:
            found, inner = read(hint, data[name] or {}, where)
            problems += inner
            values[name] = hint(**found)
            continue
        try:
            parse = field.metadata.get("parse")
            values[name] = parse(data[name]) if parse else _convert(hint, data[name])
        except Invalid as fault:
            problems.append(f"{where}: {fault}")
    return values, problems


def _convert(hint: Any, value: Any) -> Any:
    """`value` as the type `hint` (scalars, optionals, tuples of texts, mappings to scalars); Invalid if it is not one."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(get_args(hint), value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise Invalid(f"{_show(value)} found where a list belongs")
        return tuple(_convert(get_args(hint)[0], item) for item in value)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise Invalid(f"{_show(value)} found where keys and values belong")
        return {_convert(str, key): _convert(get_args(hint)[1], item) for key, item in value.items()}
    return _convert_scalar(hint, value)


def _convert_union(options: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in options:
        return None
    choices = [option for option in options if option is not type(None)]
    if type(value) in choices:
        return _convert(type(value), value)
    if len(choices) == 1:
        return _convert(choices[0], value)
    for choice in choices:
        if get_origin(choice) is not None:
            try:
                return _convert(choice, value)
            except Invalid:
                continue
    names = " or ".join(_NAMES.get(choice, "a list") for choice in choices)
    raise Invalid(f"{_show(value)} found where {names} belongs")


def _convert_scalar(hint: type[Any], value: Any) -> Any:
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        hint_text = f'; put it in quotes: "{value}"' if hint is str and isinstance(value, (int, float)) else ""
        raise Invalid(f"{_show(value)} found where {_NAMES[hint]} belongs{hint_text}")
    if hint is str and ("\0" in value or not _encodable(value)):
        raise Invalid("holds a NUL or half a surrogate pair, which no command line can carry")
    return value


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


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _show(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
