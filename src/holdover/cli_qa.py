"""The verb qa: train a reader of long contexts, score it, ask it something."""

import argparse
from typing import Any, TypeAlias

from .launch import is_to_start
from .qa import (
    AskOptions,
    QAEvalOptions,
    QAOptions,
    evaluate_reader,
    run_ask,
    train_reader,
)
from .settings import add_flags, add_resume, build, given_settings
from .train.begin import read_about
from .train.launched import start_processes
from .train.options import ALIASES, for_plain_twin

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_qa(verbs: Verbs) -> None:
    about = "train, score and ask readers that answer questions over long contexts"
    group = verbs.add_parser("qa", help=about, description=f"{about.capitalize()}.")
    actions = group.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_train(actions)
    _add_eval(actions)
    _add_ask(actions)


def _add_train(actions: Verbs) -> None:
    verb = actions.add_parser(
        "train",
        help="train a reader on HotpotQA or a file in its format",
        description="Train a pretrained encoder to answer questions over contexts of many windows, the "
        "question in front of each. With --recurrence none every window is read alone: the plain twin.",
        allow_abbrev=False,
    )
    add_resume(verb)
    add_flags(verb, QAOptions, ALIASES)
    verb.set_defaults(run=run_train, verb=verb, shares_work=True)


def run_train(parsed: argparse.Namespace) -> int:
    given = given_settings(QAOptions, parsed, ALIASES)
    before: dict[str, Any] = {}
    if parsed.resume:
        # A run knows its settings: only what is to change needs saying again.
        before = read_about(given.get("output", QAOptions.output))["options"]
    options = build(QAOptions, before, for_plain_twin(given))
    if is_to_start(options.processes):
        return start_processes(options, parsed.arguments)
    train_reader(options, resume=parsed.resume)
    return 0


def _add_eval(actions: Verbs) -> None:
    verb = actions.add_parser(
        "eval",
        help="exact match and F1 of a reader's answers, and whether its state is used",
        description="Score a reader's answers, beside other readers': one table, one JSON record, and "
        "the answers as HotpotQA's own script takes them.",
        allow_abbrev=False,
    )
    add_flags(verb, QAEvalOptions)
    verb.set_defaults(
        run=lambda parsed: evaluate_reader(
            build(QAEvalOptions, given_settings(QAEvalOptions, parsed))
        ),
        verb=verb,
    )


def _add_ask(actions: Verbs) -> None:
    verb = actions.add_parser(
        "ask",
        help="ask a reader one question about a text of any length",
        description="Print a reader's answer to a question about a text, its probability, and where in "
        "the text it stands.",
        allow_abbrev=False,
    )
    add_flags(verb, AskOptions)
    verb.set_defaults(
        run=lambda parsed: run_ask(build(AskOptions, given_settings(AskOptions, parsed))),
        verb=verb,
    )
