"""Converts words and values of files to the types of settings, and names these types in messages."""

import ast
import dataclasses
import inspect
import textwrap
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin


def as_annotated(annotation: Any, value: Any) -> Any:
    """The value converted to the annotated type; ValueError if that is impossible."""
    # None first: otherwise the word none would become a name or a path.
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
        pairs = _read_pairs(value) if isinstance(value, str) else value
        if isinstance(pairs, Mapping):
            return {str(key): _as_number(inner) for key, inner in pairs.items()}
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
    """YAML reads 1e-5 as a string; make it a number."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


METAVARS = {int: "N", float: "X", str: "NAME", Path: "PATH", bool: "YES|NO"}
WORDS = {
    int: "a whole number",
    float: "a number",
    str: "a name",
    Path: "a path",
    bool: "true or false",
    types.NoneType: "none",
}


def metavar(annotation: Any) -> str:
    """The placeholder of a value in a help text."""
    kinds = [kind for kind in _kinds(annotation) if kind is not types.NoneType]
    return "|".join(_called(kinds, METAVARS, str, "{},...", "KEY=VALUE,..."))


def expected(annotation: Any) -> str:
    """A description of the expected value, for a sentence."""
    several, pairs = "{} or several with commas between", "KEY=VALUE with commas between"
    return " or ".join(_called(_kinds(annotation), WORDS, repr, several, pairs))


def _called(
    kinds: list[Any], names: Mapping[Any, str], choice: Any, several: str, pairs: str
) -> list[str]:
    parts = []
    for kind in kinds:
        if get_origin(kind) is Literal:
            parts += [choice(value) for value in get_args(kind)]
        elif get_origin(kind) is tuple:
            parts.append(several.format(names[get_args(kind)[0]]))
        else:
            parts.append(pairs if get_origin(kind) is dict else names[kind])
    return parts


def field_helps(options: type) -> dict[str, str]:
    """The strings below the fields, of the class and of its bases."""
    helps: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        try:
            source = inspect.getsource(cls)
        except (OSError, TypeError):
            # A class that was typed into a notebook or a shell has no source, and no help texts.
            continue
        (body,) = ast.parse(textwrap.dedent(source)).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                helps[field.target.id] = " ".join(str(below.value.value).split()).rstrip(".")
    return helps
