"""The verb qa: train a reader of long contexts, score it, ask it something."""

import argparse
from typing import TypeAlias

from ..language.options import for_plain_twin
from ..questions.asking import run_ask
from ..questions.eval_options import AskOptions, QAEvalOptions
from ..questions.evaluation import evaluate_reader
from ..questions.options import QAOptions
from ..questions.training import train_reader
from ..runs.settings import add_flags, build, given_settings
from ..training.options import ALIASES
from .training import make_trainer

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
    make_trainer(verb, QAOptions, ALIASES, train_reader, given_as=for_plain_twin)


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
        run=lambda parsed: evaluate_reader(eval_options(parsed)), asked=eval_options, verb=verb
    )


def eval_options(parsed: argparse.Namespace) -> QAEvalOptions:
    return build(QAEvalOptions, given_settings(QAEvalOptions, parsed))


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
