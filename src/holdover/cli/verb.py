"""A verb of the command line: its flags, and the function that does its work.

A verb names its options and its work as "module:name" below holdover, and imports them when it is
used. So help and error messages for mistyped commands appear without importing torch.
"""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from ..runs.launch import is_to_start
from ..runs.settings import (
    SettingError,
    add_flags,
    add_resume,
    build,
    given_settings,
    named_as_typed,
    parse_words,
)


class Parser(argparse.ArgumentParser):
    """A parser that reports errors as one sentence."""

    def error(self, message: str) -> NoReturn:
        raise SettingError(f"{message.rstrip('.')}; see {self.prog} --help.")


@dataclass(frozen=True, kw_only=True)
class Verb:
    """A verb with flags of its own; its work is called with the parsed flags."""

    name: str
    """As typed: "train", or "qa train"."""
    help: str
    """One line for the list of verbs."""
    description: str = ""
    """A paragraph for the verb's own help; defaults to the line above."""
    run: str
    """The function that does the work."""
    arguments: str | None = None
    """The function that adds the flags to a parser."""
    epilog: str | None = None
    usage: str | None = None
    several_processes: bool = False
    """Whether processes that a launcher starts can share the work."""

    def parser(self) -> Parser:
        parser = Parser(
            prog=f"holdover {self.name}",
            usage=self.usage,
            description=self.description or f"{self.help[0].upper()}{self.help[1:]}.",
            epilog=self.epilog,
            allow_abbrev=False,
        )
        self.add_flags(parser)
        return parser

    def add_flags(self, parser: Parser) -> None:
        if self.arguments is not None:
            named(self.arguments)(parser)

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        return parse_words(self.parser(), words)

    def settings(self, parsed: argparse.Namespace) -> Any:
        """The checked settings, as `holdover submit` reads them before it sends a command."""
        raise ValueError(f"holdover {self.name} cannot be submitted.")

    def carry_out(self, parsed: argparse.Namespace) -> Any:
        """Do the work; the result is the exit code if it is a number."""
        with named_as_typed(parsed):
            return named(self.run)(parsed)


@dataclass(frozen=True, kw_only=True)
class OptionsVerb(Verb):
    """A verb with a flag for every field of an options dataclass, which its work is called with."""

    options: str
    given_as: str | None = None
    """A function that changes the given settings (dotted keys) before the options are built."""

    def add_flags(self, parser: Parser) -> None:
        super().add_flags(parser)
        add_flags(parser, named(self.options))

    def settings(self, parsed: argparse.Namespace) -> Any:
        options = named(self.options)
        with named_as_typed(parsed):
            return build(options, self._changed(given_settings(options, parsed)))

    def _changed(self, given: dict[str, Any]) -> dict[str, Any]:
        return given if self.given_as is None else named(self.given_as)(given)

    def carry_out(self, parsed: argparse.Namespace) -> Any:
        with named_as_typed(parsed):
            return named(self.run)(self.settings(parsed))


@dataclass(frozen=True, kw_only=True)
class TrainingVerb(OptionsVerb):
    """A verb that trains: it continues runs, and starts several processes."""

    defaults: str | None = None
    """A function of the given settings that returns settings for a new run, below the given ones."""
    several_processes: bool = True

    def add_flags(self, parser: Parser) -> None:
        add_resume(parser)
        super().add_flags(parser)

    def settings(self, parsed: argparse.Namespace) -> Any:
        return self._settings(parsed)[0]

    def _settings(self, parsed: argparse.Namespace) -> tuple[Any, bool]:
        """The settings, and whether they continue a run."""
        options = named(self.options)
        with named_as_typed(parsed):
            given = given_settings(options, parsed)
            before = None
            if parsed.resume or parsed.resume_if_begun:
                from ..training.setup import settings_before

                # A run knows its settings: only changes need to be given again.
                output = Path(given.get("output", options.output))
                before = settings_before(output, parsed.resume, parsed.resume_if_begun)
            resume = before is not None
            below: Mapping[str, Any] = before or {}
            if not resume and self.defaults is not None:
                below = named(self.defaults)(given)
            return build(options, below, self._changed(given)), resume

    def carry_out(self, parsed: argparse.Namespace) -> Any:
        with named_as_typed(parsed):
            options, resume = self._settings(parsed)
            if is_to_start(options.processes):
                from ..training.launch_checks import start_processes

                return start_processes(options, [*self.name.split(), *parsed.words])
            named(self.run)(options, resume=resume)
            return 0


def named(path: str) -> Any:
    """The function or class that "module:name" stands for, below holdover."""
    module, _, name = path.partition(":")
    return getattr(import_module(f"holdover.{module}"), name)


def find_verb(verbs: Sequence[Verb], words: Sequence[str]) -> tuple[Verb, list[str]]:
    """The verb that a command line begins with, and the words after it."""
    by_name = {verb.name: verb for verb in verbs}
    for count in (1, 2):
        verb = by_name.get(" ".join(words[:count]))
        if verb is not None:
            return verb, list(words[count:])
    first = {name.split()[0] for name in by_name}
    if words[0] in first:
        known = [name for name in by_name if name.split()[0] == words[0]]
        typed = " ".join(words[:2])
    else:
        known, typed = sorted(first), words[0]
    near = difflib.get_close_matches(typed, known, n=3)
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known)}."
    raise ValueError(f"{typed!r} is not a command of holdover; {hint}")
