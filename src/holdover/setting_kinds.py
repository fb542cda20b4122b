"""Kinds of settings: what a word or a value of a file becomes for an annotation, and its name."""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


def as_annotated(annotation: Any, value: Any) -> Any:
    """The value as the annotation wants it; ValueError where it cannot be that."""
    # None first: the word none would be a name or a path like any other.
    for kind in sorted(_kinds(annotation), key=lambda kind: kind is not types.NoneType):
        try:
            return _as_kind(kind, value)
        except (ValueError, TypeError):
            continue
    raise ValueError


def _kinds(kind: Any) -> list[Any]:
    return list(get_args(kind)) if get_origin(kind) in (Union, types.UnionType) else [kind]


def _as_kind(kind: Any, value: Any) -> Any:
    if kind is types.NoneType:
        if value is None or value in ("none", "null", ""):
            return None
    elif get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
    elif get_origin(kind) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        parts = [parts] if isinstance(parts, (int, float)) else parts
        inner = get_args(kind)[0]
        return tuple(_as_kind(inner, part) for part in parts if part != "")
    elif kind is bool:
        words = {True: True, False: False, "true": True, "false": False, "yes": True, "no": False}
        if isinstance(value, (bool, str)) and value in words:
            return words[value]
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, (str, float)) and float(value).is_integer():
            # A float would round large numbers.
            return int(value) if str(value).replace("_", "").isdigit() else int(float(value))
    elif kind is float:
        if not isinstance(value, bool):
            return float(value)
    elif kind is Path:
        return Path(value).expanduser()
    elif kind is str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    elif get_origin(kind) is dict:
        found = _read_pairs(value) if isinstance(value, str) else value
        if isinstance(found, Mapping):
            return {str(key): _as_number(inner) for key, inner in found.items()}
    raise ValueError


def _read_pairs(text: str) -> Any:
    import yaml

    if text and "=" not in text:
        raise ValueError
    try:
        return yaml.safe_load("{" + text.replace("=", ": ") + "}")
    except yaml.YAMLError as error:
        raise ValueError from error


def _as_number(value: Any) -> Any:
    """YAML takes 1e-5 for a word."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def metavar(kind: Any) -> str:
    names = {
        int: "N",
        float: "X",
        str: "NAME",
        Path: "PATH",
        bool: "YES|NO",
    }
    parts = []
    for one in [one for one in _kinds(kind) if one is not types.NoneType]:
        if get_origin(one) is Literal:
            parts += [str(choice) for choice in get_args(one)]
        elif get_origin(one) is tuple:
            parts.append(f"{names[get_args(one)[0]]},...")
        elif get_origin(one) is dict:
            parts.append("KEY=VALUE,...")
        else:
            parts.append(names[one])
    return "|".join(parts)


def expected(kind: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a name", Path: "a path"}
    words |= {bool: "true or false", types.NoneType: "none"}
    parts = []
    for one in _kinds(kind):
        if get_origin(one) is Literal:
            parts += [repr(choice) for choice in get_args(one)]
        elif get_origin(one) is tuple:
            parts.append(f"{words[get_args(one)[0]]} or several with commas between")
        elif get_origin(one) is dict:
            parts.append("KEY=VALUE with commas between")
        else:
            parts.append(words[one])
    return " or ".join(parts)
