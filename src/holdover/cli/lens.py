"""The verb lens: a text coloured by what the carried state saved or cost."""

import argparse
from pathlib import Path
from typing import Any, TypeAlias

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

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_lens(verbs: Verbs) -> None:
    verb = verbs.add_parser(
        "lens",
        help="a text, coloured by what the carried state saved or cost at every token",
        description="Read a text with its carried state, without it and with another's, and write a "
        "page that shows where the memory helped and where it hurt. The page is one file and works "
        "offline.",
        allow_abbrev=False,
    )
    verb.add_argument(
        "text", metavar="TEXT", help="text file, folder or named corpus, as for holdover eval"
    )
    verb.add_argument("--model", required=True, metavar="DIR", help="model with a recurrence")
    verb.add_argument("--tokenizer", metavar="DIR", help="default: the model's own")
    verb.add_argument(
        "--trust-remote-code",
        action="store_true",
        help="execute Python code that comes with the tokenizer; read that code first",
    )
    verb.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("runs/lens.html"),
        metavar="PAGE",
        help="the page (default: runs/lens.html)",
    )
    verb.add_argument(
        "--against",
        choices=["without", "other"],
        default="without",
        help="what tokens are compared with: no state, or another's (default: without)",
    )
    verb.add_argument(
        "--document-tokens",
        type=int,
        metavar="N",
        help="read no more than so many tokens of each document",
    )
    verb.add_argument("--rows", type=int, default=16, metavar="N", help="windows side by side")
    verb.add_argument("--data-dir", metavar="DIR", help="folder that holds the named corpora")
    verb.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    verb.add_argument("--seed", type=int, default=0, metavar="S", help="of whose state is whose")
    verb.set_defaults(run=run_lens, verb=verb)


def run_lens(parsed: argparse.Namespace) -> None:
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
            f"{parsed.model} has no recurrence, so there is no state to look at: give a model that "
            "holdover trained or saved."
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
        seen = lens(model, tokens, rows=options.rows, seed=options.seed, advance=advance)
    record = {
        "text": tokens.about["source"],
        "model": Path(parsed.model).name,
        "window": window,
        "provenance": provenance(model.device),
    }
    write_lens_page(parsed.output, record, seen, encoder, parsed.against)
    found = summary(seen)
    other = "; there is no other state to compare with"
    if found["other_is"] is not None:
        other = f", {found['other']:.4f} with another's ({found['other_is']})"
    console.print(
        f"{found['predicted']:,} tokens: {found['own']:.4f} bits each with the state, "
        f"{found['without']:.4f} without{other}.\nPage: {parsed.output}",
        soft_wrap=True,
    )
