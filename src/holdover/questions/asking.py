"""holdover qa ask: one question, one text of any length, the answer and where it stands."""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from ..runs.provenance import choose_device
from ..tokenization.files import check_is_text, opened
from .answering import answer_questions
from .batches import Pairs
from .eval_options import AskOptions
from .folder import SavedReader, open_reader
from .question import Kind, Question


@dataclass(frozen=True)
class Asked:
    """An answer, its probability, and its place in the text."""

    answer: str
    kind: Kind
    probability: float
    # [start, stop) characters of the text; of yes and no those of the best span beside them.
    start: int
    stop: int
    before: str
    marked: str
    after: str
    windows: int


def ask(
    saved: SavedReader,
    question: str,
    context: str,
    *,
    longest_answer: int = 30,
    around: int = 150,
    device: Any = None,
) -> Asked:
    """What a reader answers."""
    pair = saved.tokenizer.encode([Question("asked", question.strip(), context)])
    device = device or next(saved.reader.parameters()).device
    pairs = Pairs(pair, saved.reader.to(device).layout(saved.tokenizer))
    (found,) = answer_questions(saved.reader, pairs, rows=1, device=device, longest=longest_answer)
    first, last = max(0, found.start - around), min(len(context), found.stop + around)
    return Asked(
        answer=found.text,
        kind=found.kind,
        probability=math.exp(found.logp),
        start=found.start,
        stop=found.stop,
        before=_one_line("..." * (first > 0) + context[first : found.start]),
        marked=_one_line(context[found.start : found.stop]),
        after=_one_line(context[found.stop : last] + "..." * (last < len(context))),
        windows=int(pairs.counts[0]),
    )


def run_ask(options: AskOptions, console: Console | None = None) -> Asked:
    """Ask, and print the answer."""
    console = console or Console(highlight=False)
    saved = open_reader(options.model, trust_remote_code=options.trust_remote_code)
    found = ask(
        saved,
        options.question,
        _read(options.context),
        longest_answer=options.longest_answer,
        around=options.around,
        device=choose_device(options.device),
    )
    if options.json:
        # Not through the console, which would break lines.
        print(json.dumps(asdict(found), ensure_ascii=False), file=console.file)
        return found
    windows = f"{found.windows} window{'' if found.windows == 1 else 's'}"
    console.print(Text.assemble((found.answer, "bold")), soft_wrap=True)
    console.print(f"probability {found.probability:.3f}, read in {windows}", soft_wrap=True)
    if found.kind != "span":
        console.print("The part of the text that answers best:", soft_wrap=True)
    console.print(
        Text.assemble(found.before, (f">>{found.marked}<<", "bold green"), found.after),
        soft_wrap=True,
    )
    return found


def _read(name: str) -> str:
    if name == "-":
        text, name = sys.stdin.read(), "what was piped in"
    else:
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(
                f"There is no text file {name}: give a file, or - for what is piped in."
            )
        check_is_text(path, path.name)
        with opened(path) as file:
            content = file.read()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} is no UTF-8 at byte {error.start}: write it as UTF-8 again."
            ) from error
    if not text.strip():
        raise ValueError(f"There is nothing to read in {name}: give a text with words in it.")
    return text


def _one_line(text: str) -> str:
    """Line ends as spaces; white space at the ends stays, words are put together there."""
    return "".join(" " if character in "\r\n\t" else character for character in text)
