"""The verb lens: a text coloured by what the carried state saved or cost."""

import argparse
from pathlib import Path
from typing import Any

from .verb import Parser, Verb

VERBS = (
    Verb(
        name="lens",
        help="colour a text by what the carried state saved or cost at every token",
        description="Read a text with its carried state, without it and with another document's, and "
        "write a page that shows where the memory helped and where it hurt. The page is one file and "
        "works offline.",
        arguments="cli.lens:add_lens_flags",
        run="cli.lens:run_lens",
    ),
)


def add_lens_flags(parser: Parser) -> None:
    parser.add_argument(
        "text", metavar="TEXT", help="text file, folder or named corpus, as for holdover eval"
    )
    parser.add_argument("--model", required=True, metavar="DIR", help="model with a recurrence")
    parser.add_argument("--tokenizer", metavar="DIR", help="default: the model's own")
    parser.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="execute Python code that comes with the tokenizer; read that code first",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/lens.html"),
        metavar="PAGE",
        help="the page (default: runs/lens.html)",
    )
    parser.add_argument(
        "--against",
        choices=["without", "other"],
        default="without",
        help="compare tokens with no state, or with another document's (default: without)",
    )
    parser.add_argument(
        "--document-tokens",
        type=int,
        metavar="N",
        help="read at most this many tokens of each document",
    )
    parser.add_argument("--rows", type=int, default=16, metavar="N", help="windows in a batch")
    parser.add_argument("--data-dir", metavar="DIR", help="folder with the named corpora")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="S", help="seed for choosing the other document"
    )


def run_lens(parsed: argparse.Namespace) -> None:
    from rich.console import Console

    from ..evaluation.driver import progress
    from ..evaluation.token_lens import lens
    from ..language.eval_options import EvalOptions
    from ..pages.lens import summary, write_lens_page
    from ..recurrent.checks import check_vocabulary
    from ..runs.models import model_folder, open_model, recurrence_of
    from ..runs.provenance import choose_device, make_folder, provenance
    from ..text.splits import read_text
    from ..tokenization.encoders import encoder_of

    console = Console(highlight=False)
    options = EvalOptions.of(
        model=parsed.model,
        data=parsed.text,
        tokenizer=parsed.tokenizer,
        data_dir=parsed.data_dir,
        document_tokens=parsed.document_tokens,
        rows=parsed.rows,
        seed=parsed.seed,
    )
    if recurrence_of(parsed.model) is None:
        raise ValueError(
            f"{parsed.model} has no recurrence, so it carries no state: give a model that holdover "
            "trained or saved."
        )
    if parsed.output.is_dir():
        raise ValueError(
            f"-o {parsed.output} is a folder: give the name of the page, as in page.html."
        )
    make_folder(parsed.output.parent, "-o")
    model: Any = open_model(parsed.model)
    model.to(choose_device(parsed.device)).eval()
    encoder = encoder_of(
        model_folder(parsed.model),
        parsed.tokenizer,
        trust_remote_code=parsed.trust_remote_code,
    )
    check_vocabulary(model, encoder)
    window = model.settings.window
    tokens = read_text(options, encoder, "test", window=window, console=console)
    if options.document_tokens is not None:
        tokens = tokens.truncated(options.document_tokens)
    total = 3 * -(-len(tokens) // (window - model.settings.overlap))
    with progress(console, "reading", total) as advance:
        losses = lens(model, tokens, rows=options.rows, seed=options.seed, advance=advance)
    record = {
        "text": tokens.about["source"],
        "model": Path(parsed.model).name,
        "window": window,
        "provenance": provenance(model.device),
    }
    write_lens_page(parsed.output, record, losses, encoder, parsed.against)
    bits = summary(losses)
    other = "; there is no other state to compare with"
    if bits["other_is"] is not None:
        other = f", {bits['other']:.4f} with another's ({bits['other_is']})"
    console.print(
        f"{bits['predicted']:,} tokens: {bits['own']:.4f} bits each with the state, "
        f"{bits['without']:.4f} without{other}.\nPage: {parsed.output}",
        soft_wrap=True,
    )
