"""Settings: dataclasses that are filled from a file, from flags and from KEY=VALUE words.

* A field is written once: its name is the key and the flag, the string below it the help text.
* A field that is itself a dataclass is a section; its keys are dotted, as in `recurrence.slots`.
* Strict: the error for an unknown key suggests the nearest ones, that for a wrong value says what a
  valid one is.
* Importing this module, or a module with options, does not import torch.
"""

import argparse
import dataclasses
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from .setting_parsing import as_annotated, expected, field_helps, metavar

T = TypeVar("T")


class SettingError(ValueError):
    """A wrong key, word or value; the message quotes it as it was written."""


class Settings:
    """Base of all options dataclasses."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Short names of keys, as in lr for learning_rate."""

    @classmethod
    def of(cls, **settings: Any) -> Self:
        """From values as a settings file has them: paths as text, short names, sections."""
        return build(cls, settings)

    def check_at_least(self, **smallest: int) -> None:
        """Refuse values below these; None passes."""
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}.")

    def check_given(self, **examples: str) -> None:
        """Refuse empty settings that are required; the message shows an example for each."""
        for name, example in examples.items():
            if not getattr(self, name):
                raise ValueError(f"Say which {name}: for example --{name} {example}.")


@dataclass(frozen=True)
class Setting:
    """One key of an options dataclass."""

    key: str
    annotation: Any
    default: Any
    help: str


def settings_of(options: type) -> dict[str, Setting]:
    """All keys of a dataclass, sections included."""
    hints, helps = get_type_hints(options), field_helps(options)
    settings: dict[str, Setting] = {}
    for field in dataclasses.fields(options):
        if field.name in getattr(options, "NOT_SETTINGS", ()):
            continue
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            for inner in settings_of(annotation).values():
                key = f"{field.name}.{inner.key}"
                settings[key] = dataclasses.replace(inner, key=key)
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        help_text = helps.get(field.name, "")
        settings[field.name] = Setting(field.name, annotation, default, help_text)
    for part in getattr(options, "further_settings", tuple)():
        for setting in settings_of(part).values():
            settings.setdefault(setting.key, setting)
    return settings


def add_flags(parser: argparse.ArgumentParser, options: type) -> None:
    """A flag for every key, --config, and KEY=VALUE words."""
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="YAML or JSON file of these settings"
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="settings that override the file and the flags",
    )
    short = {key: alias for alias, key in _aliases(options).items()}
    groups = _groups(parser, options)
    for setting in settings_of(options).values():
        group = groups[setting.key.partition(".")[0]]
        names = [_flag(setting.key)]
        if setting.key in short:
            names.insert(0, _flag(short[setting.key]))
        default = (
            "" if setting.default in (None, "", ()) else f" (default: {_as_text(setting.default)})"
        )
        about: dict[str, Any] = {
            "dest": setting.key,
            "default": argparse.SUPPRESS,
            "help": (setting.help + default).replace("%", "%%"),
        }
        if setting.annotation is bool:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, **about)
        else:
            group.add_argument(*names, metavar=metavar(setting.annotation), **about)


def add_resume(parser: argparse.ArgumentParser) -> None:
    """The flags that continue a run, for every verb that trains."""
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the run in --output where it stopped, with its settings",
    )
    parser.add_argument(
        "--resume-if-begun",
        action="store_true",
        help="like --resume if --output holds a run; otherwise begin one",
    )


def _groups(parser: argparse.ArgumentParser, options: type) -> dict[str, Any]:
    """For each field the group of flags that help shows it in: its class's, or its section's."""
    hints, groups = get_type_hints(options), {}
    classes = [cls for cls in options.__mro__ if dataclasses.is_dataclass(cls)]
    for cls in classes:
        fields = [name for name in cls.__annotations__ if not dataclasses.is_dataclass(hints[name])]
        groups |= dict.fromkeys(fields, parser.add_argument_group(_first_sentence(cls)))
    for name, annotation in hints.items():
        if dataclasses.is_dataclass(annotation):
            groups[name] = parser.add_argument_group(_first_sentence(annotation))
    return groups


def _first_sentence(cls: Any) -> str:
    return " ".join((cls.__doc__ or "").split()).partition(".")[0]


def parse_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; refuse flags that the parser does not have."""
    parsed, unknown = parser.parse_known_args(words)
    if hasattr(parsed, "overrides"):
        # argparse reads positional words once and leaves those after further flags over.
        parsed.overrides += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    check_flags(parser, unknown)
    parsed.parser, parsed.words = parser, list(words)
    return parsed


def flags_of(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in parser._actions for flag in action.option_strings]


def check_flags(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> None:
    """Refuse unknown flags with the nearest known ones."""
    if not unknown:
        return
    flag = unknown[0].partition("=")[0]
    known = flags_of(parser)
    near = difflib.get_close_matches(flag, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"see {parser.prog} --help."
    raise SettingError(f"{flag} is not a flag of {parser.prog}; {hint}")


def given_settings(options: type, parsed: argparse.Namespace) -> dict[str, Any]:
    """The given settings with dotted keys: from the file, then flags, then KEY=VALUE words."""
    known = settings_of(options)
    flags = {key: value for key, value in vars(parsed).items() if key in known}
    words = {}
    for word in parsed.overrides:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingError(
                f"{word!r} is neither a flag nor KEY=VALUE: write for example recurrence.slots=4."
            )
        words[key] = value
    in_file = {} if parsed.config is None else read_file(parsed.config)
    # For error messages: the keys as written, for values that do not come from a flag.
    in_file = _flat(in_file, known)
    written = {_canonical(key, options): key for key in in_file}
    written = {key: name for key, name in written.items() if key not in flags}
    parsed.written_keys = written | {_canonical(key, options): key for key in words}
    return {
        **_merge(options, [in_file], SettingError),
        **_merge(options, [flags]),
        **_merge(options, [words], SettingError),
    }


def build(options: type[T], *layers: Mapping[str, Any]) -> T:
    """The dataclass from dotted or nested keys; later layers win."""
    return _construct(options, _merge(options, layers))


def _merge(
    options: type, layers: Sequence[Mapping[str, Any]], error: type[ValueError] = ValueError
) -> dict[str, Any]:
    known = settings_of(options)
    merged: dict[str, Any] = {}
    for layer in layers:
        for key, value in _flat(layer, known).items():
            canonical = _canonical(key, options)
            annotation = _known(canonical, known, _aliases(options)).annotation
            try:
                merged[canonical] = as_annotated(annotation, value)
            except ValueError:
                raise error(
                    f"{key}={value!r} is not valid: expected {expected(annotation)}."
                ) from None
    return merged


def _canonical(key: str, options: type) -> str:
    key = key.replace("-", "_")
    return _aliases(options).get(key, key)


def _aliases(options: type) -> Mapping[str, str]:
    return options.aliases if issubclass(options, Settings) else {}


def read_file(path: Path) -> dict[str, Any]:
    """The settings of a YAML or JSON file."""
    import yaml

    if not path.is_file():
        raise FileNotFoundError(f"There is no settings file at {path}.")
    try:
        # JSON is YAML too, except that YAML refuses tabs.
        read = json.loads if path.suffix == ".json" else yaml.safe_load
        content = read(path.read_text())
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is not valid YAML or JSON: {reason}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold settings as KEY: VALUE lines.")
    return content


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
    suggestions = ", ".join(dict.fromkeys(near)) or "one of " + ", ".join(sorted(known))
    raise SettingError(f"{key!r} is not a setting; did you mean {suggestions}?")


def _construct(options: type[T], chosen: Mapping[str, Any]) -> T:
    hints = get_type_hints(options)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(options):  # pyright: ignore[reportArgumentType]
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            prefix = f"{field.name}."
            inner = {
                key.removeprefix(prefix): v for key, v in chosen.items() if key.startswith(prefix)
            }
            values[field.name] = _construct(annotation, inner)
        elif field.name in chosen:
            values[field.name] = chosen[field.name]
    if hasattr(options, "further_settings"):
        values |= chosen
    return options(**values)


@contextmanager
def named_as_typed(parsed: argparse.Namespace) -> Iterator[None]:
    """ValueErrors raised inside name settings as the user typed them.

    Options do not know where their values come from, so their messages name fields. On the command
    line `max_steps=0` becomes `--max-steps 0`, or stays a KEY=VALUE pair if it was typed as one.
    """
    try:
        yield
    except ValueError as error:
        if type(error) is not ValueError:
            raise
        message = _rename(str(error), _typed_names(parsed))
        if message == str(error):
            raise
        raise ValueError(message) from error


def _typed_names(parsed: argparse.Namespace) -> dict[str, str]:
    """Each key of a command, and each last part of a key, as typed: a flag or a KEY=VALUE key."""
    typed = {}
    for action in parsed.parser._actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        flags = [flag for flag in flags if not flag.startswith("--no-") or flag == flags[0]]
        given = [flag for flag in flags if any(_is_flag(flag, word) for word in parsed.words)]
        if flags and action.dest != "help":
            typed[action.dest] = (given or flags)[0]
    typed |= getattr(parsed, "written_keys", {})
    leaves = {key.rpartition(".")[2]: name for key, name in typed.items()}
    return leaves | typed


def _is_flag(flag: str, word: str) -> bool:
    return word == flag or word.startswith(f"{flag}=")


def _rename(message: str, typed: Mapping[str, str]) -> str:
    names = "|".join(re.escape(name) for name in sorted(typed, key=len, reverse=True))

    def as_typed(match: re.Match[str]) -> str:
        name, end = match[1], match[2]
        new = typed[name]
        if not end:
            # Only where the word can be nothing else: `rows` alone is an English word.
            begins = match.start() == 0 and message[match.end() :].startswith(":")
            return new if "_" in name or "." in name or begins else name
        if not new.startswith("--"):
            return new + end
        if end == "=True":
            return new
        return f"--no-{new[2:]}" if end == "=False" else f"{new} "

    # Not in quotes, paths or calls, and not as a part of a longer name.
    pattern = rf"(?<![\w./=\-'\"])(?<!\w\()({names})(=(?:True|False)\b|=|(?![\w.=\-'\"/]|\.\w))"
    return re.sub(pattern, as_typed, message) if names else message


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _as_text(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return f"{value:_}" if isinstance(value, int) and value >= 100_000 else str(value)
