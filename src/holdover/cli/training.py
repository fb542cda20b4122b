"""What the verbs that train share: their flags, a run that is continued, and several processes."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from ..runs.launch import is_to_start
from ..runs.settings import add_flags, add_resume, build, given_settings
from ..training.launch_checks import start_processes
from ..training.setup import settings_before

Settings = dict[str, Any]


def make_trainer(
    verb: argparse.ArgumentParser,
    options: Any,
    aliases: Mapping[str, str],
    train: Callable[..., Any],
    *,
    begin_with: Callable[[Settings], Settings] = lambda given: {},
    given_as: Callable[[Settings], Settings] = lambda given: given,
) -> None:
    """Make a verb train what its options say.

    train: is called with the options and whether a run is continued. begin_with: settings under those
    that are given, where a run begins. given_as: what becomes of those that are given.
    """

    def asked(parsed: argparse.Namespace) -> tuple[Any, bool]:
        given = given_settings(options, parsed, aliases)
        output = given.get("output", options.output)
        # A run knows its settings: only what is to change needs saying again.
        before = settings_before(output, parsed.resume, parsed.resume_if_begun)
        resume = before is not None
        under = before if before is not None else begin_with(given)
        return build(options, under, given_as(given)), resume

    def run(parsed: argparse.Namespace) -> int:
        found, resume = asked(parsed)
        if is_to_start(found.processes):
            return start_processes(found, parsed.arguments)
        train(found, resume=resume)
        return 0

    add_resume(verb)
    add_flags(verb, options, aliases)
    verb.set_defaults(run=run, asked=lambda parsed: asked(parsed)[0], verb=verb, shares_work=True)
