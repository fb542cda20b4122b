"""Settings: a dataclass that is filled from a file, from flags and from KEY=VALUE words.

* A field is written once: its name is the key and the flag, the string below it the help text.
* A field that is itself a dataclass is a section; its keys are dotted, as in `recurrence.slots`.
* Strict: an unknown key is refused with its nearest neighbours, a value with what it should have been.
"""

import argparse
import ast
import dataclasses
import difflib
import inspect
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from .setting_parsing import as_annotated, expected, metavar

Options = TypeVar("Options")


@dataclass(frozen=True)
class Setting:
    key: str
    kind: Any  # its annotation
    default: Any
    help: str


def settings_of(options: type) -> dict[str, Setting]:
    """All keys of a dataclass, sections included."""
    hints, helps = get_type_hints(options), _helps(options)
    found: dict[str, Setting] = {}
    for field in dataclasses.fields(options):
        if field.name in getattr(options, "NOT_SETTINGS", ()):
            continue
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            for inner in settings_of(kind).values():
                key = f"{field.name}.{inner.key}"
                found[key] = dataclasses.replace(inner, key=key)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Setting(field.name, kind, default, helps.get(field.name, ""))
    for part in getattr(options, "further_settings", tuple)():
        for setting in settings_of(part).values():
            found.setdefault(setting.key, setting)
    return found


def add_flags(
    parser: argparse.ArgumentParser, options: type, aliases: Mapping[str, str] = {}
) -> None:
    """A flag for every key, --config, and KEY=VALUE words."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML or JSON file of these settings"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="settings that win over file and flags"
    )
    short = {key: alias for alias, key in aliases.items()}
    groups = _groups(parser, options)
    for setting in settings_of(options).values():
        group = groups[setting.key.partition(".")[0]]
        names = [f"--{setting.key.replace('_', '-')}"]
        if setting.key in short:
            names.insert(0, f"--{short[setting.key].replace('_', '-')}")
        shown = (
            "" if setting.default in (None, "", ()) else f" (default: {_shown(setting.default)})"
        )
        about: dict[str, Any] = {
            "dest": setting.key,
            "default": argparse.SUPPRESS,
            "help": (setting.help + shown).replace("%", "%%"),
        }
        if setting.kind is bool:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, **about)
        else:
            group.add_argument(*names, metavar=metavar(setting.kind), **about)


def _groups(parser: argparse.ArgumentParser, options: type) -> dict[str, Any]:
    """For each field the group of flags it is shown in: its class's, or that of its section."""
    hints, groups = get_type_hints(options), {}
    classes = [cls for cls in options.__mro__ if dataclasses.is_dataclass(cls)]
    for cls in classes:
        fields = [name for name in cls.__annotations__ if not dataclasses.is_dataclass(hints[name])]
        groups |= dict.fromkeys(fields, parser.add_argument_group(_first_sentence(cls)))
    for name, kind in hints.items():
        if dataclasses.is_dataclass(kind):
            groups[name] = parser.add_argument_group(_first_sentence(kind))
    return groups


def _first_sentence(cls: Any) -> str:
    return " ".join((cls.__doc__ or "").split()).partition(".")[0]


def check_flags(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Refuse flags that a verb does not have, naming those that it has."""
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    known = [name for action in parser._actions for name in action.option_strings]
    near = difflib.get_close_matches(flag, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"see {parser.prog} --help."
    raise ValueError(f"{flag} is not a flag of {parser.prog}; {hint}")


def parse_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """What a command line asks for; flags that its verb does not have are refused."""
    parsed, unknown = parser.parse_known_args(words)
    if hasattr(parsed, "overrides"):
        # argparse takes words once: those behind a second row of flags are left over.
        parsed.overrides += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    check_flags(parsed.verb, unknown)
    return parsed


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The flags of every verb that trains."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --output where it stopped, with its settings",
    )
    parser.add_argument(
        "--resume-if-begun",
        action="store_true",
        help="as --resume where --output holds a run, and begin one where it does not",
    )


def given_settings(
    options: type, parsed: argparse.Namespace, aliases: Mapping[str, str] = {}
) -> dict[str, Any]:
    """What was asked for: the file, then flags, then KEY=VALUE words; dotted keys."""
    known = settings_of(options)
    flags = {key: value for key, value in vars(parsed).items() if key in known}
    words = {}
    for word in parsed.overrides:
        key, equals, value = word.partition("=")
        if not equals:
            raise ValueError(
                f"{word!r} is neither a flag nor KEY=VALUE: write for example recurrence.slots=4."
            )
        words[key] = value
    in_file = {} if parsed.config is None else read_file(parsed.config)
    return _chosen(options, (in_file, flags, words), aliases)


def build(
    options: type[Options], *layers: Mapping[str, Any], aliases: Mapping[str, str] = {}
) -> Options:
    """The dataclass from dotted or nested keys; later layers win."""
    return _construct(options, _chosen(options, layers, aliases))


def _chosen(
    options: type, layers: Sequence[Mapping[str, Any]], aliases: Mapping[str, str]
) -> dict[str, Any]:
    known = settings_of(options)
    chosen: dict[str, Any] = {}
    for layer in layers:
        for key, value in _flat(layer, known).items():
            key = key.replace("-", "_")
            key = aliases.get(key, key)
            chosen[key] = _convert(_known(key, known, aliases), value)
    return chosen


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a YAML or JSON file."""
    import yaml

    if not path.is_file():
        raise FileNotFoundError(f"There is no settings file at {path}.")
    try:
        # JSON is YAML too, but for its tabs.
        read = json.loads if path.suffix == ".json" else yaml.safe_load
        found = read(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        told = " ".join(str(error).split())
        raise ValueError(f"{path} is no YAML or JSON that can be read: {told}.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold settings as KEY: VALUE lines.")
    return found


def as_dict(options: Any) -> dict[str, Any]:
    """Nested plain values, as they are written to JSON."""
    if hasattr(options, "to_dict"):
        return options.to_dict()
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    nested = {
        name: as_dict(value) if dataclasses.is_dataclass(value) else value
        for name, value in values.items()
    }
    return json.loads(json.dumps(nested, default=str))


def _flat(
    layer: Mapping[str, Any], known: Mapping[str, Setting], prefix: str = ""
) -> dict[str, Any]:
    flat = {}
    for key, value in layer.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in known:
            flat |= _flat(value, known, f"{name}.")
        else:
            flat[name] = value
    return flat


def _known(key: str, known: Mapping[str, Setting], aliases: Mapping[str, str]) -> Setting:
    if key in known:
        return known[key]
    names = [*known, *aliases]
    # The last part alone too: `slot` is near `recurrence.slots`.
    leaves = {name.rpartition(".")[2]: name for name in names}
    near = difflib.get_close_matches(key, names, n=3)
    near += [
        leaves[leaf] for leaf in difflib.get_close_matches(key.rpartition(".")[2], leaves, n=3)
    ]
    told = ", ".join(dict.fromkeys(near)) or "one of " + ", ".join(sorted(known))
    raise ValueError(f"{key!r} is not a setting; did you mean {told}?")


def _convert(setting: Setting, value: Any) -> Any:
    try:
        return as_annotated(setting.kind, value)
    except ValueError:
        raise ValueError(
            f"{setting.key}={value!r} was given where {expected(setting.kind)} was expected."
        ) from None


def _construct(options: type[Options], chosen: Mapping[str, Any]) -> Options:
    hints = get_type_hints(options)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):  # pyright: ignore[reportArgumentType]
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind):
            assert isinstance(kind, type)
            prefix = f"{field.name}."
            inner = {
                key.removeprefix(prefix): v for key, v in chosen.items() if key.startswith(prefix)
            }
            values[field.name] = _construct(kind, inner)
        elif field.name in chosen:
            values[field.name] = chosen[field.name]
    if hasattr(options, "further_settings"):
        values |= chosen
    return options(**values)


def _helps(options: type) -> dict[str, str]:
    """The strings below the fields, of the class and of those it inherits from."""
    found: dict[str, str] = {}
    for cls in reversed(options.__mro__):
        if not dataclasses.is_dataclass(cls):
            continue
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(body, ast.ClassDef)
        for field, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
            ):
                found[field.target.id] = " ".join(str(below.value.value).split()).rstrip(".")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:_}" if isinstance(value, int) and value >= 100_000 else str(value)
