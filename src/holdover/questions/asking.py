"""holdover qa ask: answer one question from one text of any length, and show where the answer is."""

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
class LocatedAnswer:
    """An answer, its probability, and its position in the text."""

    answer: str
    kind: Kind
    probability: float
    # [start, stop) characters of the text; for yes and no, those of the best span.
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
) -> LocatedAnswer:
    """Answer a question from a text."""
    pair = saved.tokenizer.encode([Question("asked", question.strip(), context)])
    device = device or next(saved.reader.parameters()).device
    pairs = Pairs(pair, saved.reader.to(device).layout(saved.tokenizer))
    (answer,) = answer_questions(saved.reader, pairs, rows=1, device=device, longest=longest_answer)
    first, last = max(0, answer.start - around), min(len(context), answer.stop + around)
    return LocatedAnswer(
        answer=answer.text,
        kind=answer.kind,
        probability=math.exp(answer.logp),
        start=answer.start,
        stop=answer.stop,
        before=_one_line("..." * (first > 0) + context[first : answer.start]),
        marked=_one_line(context[answer.start : answer.stop]),
        after=_one_line(context[answer.stop : last] + "..." * (last < len(context))),
        windows=int(pairs.counts[0]),
    )


def run_ask(options: AskOptions, console: Console | None = None) -> LocatedAnswer:
    """Answer a question, and print the answer."""
    console = console or Console(highlight=False)
    saved = open_reader(options.model, trust_remote_code=options.trust_remote_code)
    answer = ask(
        saved,
        options.question,
        _read(options.context),
        longest_answer=options.longest_answer,
        around=options.around,
        device=choose_device(options.device),
    )
    if options.json:
        # Not through the console, which would break lines.
        print(json.dumps(asdict(answer), ensure_ascii=False), file=console.file)
        return answer
    windows = f"{answer.windows} window{'' if answer.windows == 1 else 's'}"
    console.print(Text.assemble((answer.answer, "bold")), soft_wrap=True)
    console.print(f"probability {answer.probability:.3f}, read in {windows}", soft_wrap=True)
    if answer.kind != "span":
        console.print("The part of the text that answers best:", soft_wrap=True)
    marked = (f">>{answer.marked}<<", "bold green")
    console.print(Text.assemble(answer.before, marked, answer.after), soft_wrap=True)
    return answer


def _read(name: str) -> str:
    if name == "-":
        text, name = sys.stdin.read(), "the standard input"
    else:
        path = Path(name)
        if not path.is_file():
            raise FileNotFoundError(
                f"--context {name}: there is no such text file; give a file, or - for the standard "
                "input."
            )
        check_is_text(path, path.name)
        with opened(path) as file:
            content = file.read()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path.name} is not UTF-8 at byte {error.start}: save it as UTF-8."
            ) from error
    if not text.strip():
        raise ValueError(f"There is nothing to read in {name}: give a text with words in it.")
    return text


def _one_line(text: str) -> str:
    """The text with line ends and tabs as spaces; spaces at its ends stay, since parts are joined."""
    return "".join(" " if character in "\r\n\t" else character for character in text)
