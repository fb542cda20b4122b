"""The verbs that read and write texts: generate, read, session."""

import argparse
import json
from pathlib import Path

from .verb import Parser, Verb

VERBS = (
    Verb(
        name="generate",
        help="continue a text token by token, past any position limit",
        description="Continue a text, or a saved session. Standard output is the text alone.",
        arguments="cli.text:add_generate_flags",
        run="cli.sessions:generate",
    ),
    Verb(
        name="read",
        help="read a text into a session; can be interrupted and continued",
        description="Read a text file of any length into a session. The session is saved regularly, at "
        "the end, and on an interruption. The same command continues in the file where it stopped; "
        "another file is read after the first.",
        arguments="cli.text:add_read_flags",
        run="cli.sessions:read",
    ),
    Verb(
        name="session info",
        help="show what a saved session holds",
        description="Show what a saved session holds; the model is not needed.",
        arguments="cli.text:add_info_flags",
        run="cli.text:show_info",
    ),
)


def add_generate_flags(parser: Parser) -> None:
    _add_model(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="text to continue")
    prompt.add_argument("--prompt-file", type=Path, metavar="FILE", help="file to continue")
    # Outside the group: it would take the value of a mistyped flag, and get the blame for it.
    parser.add_argument(
        "standard_input", nargs="?", metavar="-", help="read the text from standard input"
    )
    parser.add_argument("--max-new-tokens", type=int, default=200, metavar="N", help="default: 200")
    parser.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="0 takes the most probable token (default: 1)",
    )
    parser.add_argument(
        "--top-k",
        type=int,
        metavar="N",
        help="choose among the N most probable tokens; 0 removes this limit",
    )
    parser.add_argument(
        "--top-p",
        type=float,
        metavar="X",
        help="choose among the most probable tokens with this total probability; 1 removes this limit",
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="S",
        help="seed for sampling (default: 0, or continue the session's random numbers)",
    )
    parser.add_argument(
        "--session",
        type=Path,
        metavar="FILE",
        help="session to continue (or begin), saved afterwards",
    )
    parser.add_argument("--no-save", action="store_true", help="leave the session's file as it is")


def add_read_flags(parser: Parser) -> None:
    parser.add_argument("book", type=Path, metavar="BOOK", help="text file, plain, .gz or .xz")
    parser.add_argument(
        "--session", type=Path, required=True, metavar="FILE", help="session to continue, or begin"
    )
    _add_model(parser)
    parser.add_argument(
        "--errors",
        choices=["strict", "replace"],
        default="strict",
        help="what to do with bytes that are not UTF-8 (default: strict, report their position; a model "
        "of bytes reads every byte)",
    )


def _add_model(parser: Parser) -> None:
    parser.add_argument(
        "--model", metavar="DIR", help="folder or name of a model; a session knows its own"
    )
    parser.add_argument(
        "--tokenizer", metavar="DIR", help="its tokenizer, or the word bytes (default: the model's)"
    )
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="execute Python code that comes with the model or its tokenizer; read that code first",
    )
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")


def add_info_flags(parser: Parser) -> None:
    parser.add_argument("session", type=Path, metavar="FILE", help="file of a session")
    parser.add_argument("--json", action="store_true", help="as JSON")


def show_info(parsed: argparse.Namespace) -> None:
    from ..generation.session_info import describe, read_header

    info = describe(read_header(parsed.session))
    if parsed.json:
        print(json.dumps(info, indent=2))
        return
    files = info.pop("files")
    for name, value in info.items():
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        print(
            f"{name.replace('_', ' '):12} {value:,}" if type(value) is int else f"{name:12} {value}"
        )
    for file in files:
        extent = "whole" if file["finished"] else f"to byte {file['bytes']:,} of {file['size']:,}"
        print(f"{'read':12} {file['name']}, {extent}, {file['tokens']:,} tokens")
