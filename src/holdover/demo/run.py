"""holdover demo: two small pretrained models, twins, read a novel; one of them has a memory."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from ..bundled import PLAIN, RECURRENT, bundled_model, scores_on_books
from ..demo import show
from ..evaluation.token_lens import Lens
from ..language.eval_options import EvalOptions
from ..language.evaluation import open_to_read
from ..pages.demo import write_demo_page
from ..pages.lens import AGAINST, heat_of, summary
from ..recurrent.attach import remove_recurrence
from ..runs.models import model_folder, open_model
from ..runs.provenance import choose_device, make_folder, provenance, write_record
from ..runs.settings import as_dict
from ..text.splits import read_text
from ..text.tokens import Tokens
from ..tokenization.encoders import encoder_of
from .learning import held_out_of, learn
from .options import DemoOptions
from .reading import as_rows, difference, examine_state, read_twins
from .writing import write_on

RECORD = "demo.json"
PAGE = "demo.html"
NOVEL = "The Time Machine"
# Tokens of the novel that are read before the writing begins.
PROMPT = 6000


def run(options: DemoOptions, console: Console | None = None) -> dict[str, Any]:
    """Run the stages, show their results, write the record and the page; returns the record."""
    return Demo(options, console or Console(highlight=False)).run()


class Demo:
    def __init__(self, options: DemoOptions, console: Console) -> None:
        self.options, self.console = options, console
        for name in (options.plain, options.recurrent):
            if name in (PLAIN, RECURRENT) and bundled_model(name) is None:
                raise ValueError(
                    f"This copy of holdover does not include the model {name}: give your own "
                    "models with --plain and --recurrent."
                )
        if options.text is not None and not options.text.is_file():
            raise FileNotFoundError(f"--text: there is no text file at {options.text}.")
        make_folder(options.output)
        self.device = choose_device(options.device)
        self.model: Any = open_model(options.recurrent)
        self.model.to(self.device).eval()
        if self.model.settings.carry == "none":
            raise ValueError(
                f"--recurrent {options.recurrent} carries no state: give another model."
            )
        if "learn" in options.stages:
            # An unsuitable text is refused before the novel is read.
            held_out_of(options, model_folder(options.plain))
        self.encoder = encoder_of(model_folder(options.recurrent))
        self.tokens = self._novel()
        self.seen: Lens | None = None
        self.record: dict[str, Any] = {
            "record": "demo",
            "text": NOVEL,
            "tokens": len(self.tokens),
            "window": self.model.settings.window,
            "positions": self.model.spec.positions(self.model.backbone.config),
            "options": _redact_paths(as_dict(options)),
            "seconds": {},
            **dict.fromkeys(("rows", "difference", "state", "writing", "learning", "books")),
            "provenance": provenance(self.device),
        }
        if (options.plain, options.recurrent) == (PLAIN, RECURRENT):
            self.record["books"] = scores_on_books()

    def run(self) -> dict[str, Any]:
        # A page from an earlier demo would not match the new record.
        (self.options.output / PAGE).unlink(missing_ok=True)
        show.welcome(self.console, self.record, self.options)
        stages = {
            "read": ("The novel, with and without memory", self.read),
            "state": ("Is the state used?", self.examine_state),
            "write": ("Writing past the last position", self.write),
            "learn": ("A minute of training", self.learn),
            "page": ("The page", self.write_page),
        }
        for name, (heading, stage) in stages.items():
            if name in self.options.stages:
                with self._timed(name, heading):
                    stage()
                # After every stage, so that an error in a later one loses nothing.
                write_record(self.options.output / RECORD, self.record)
        show.farewell(self.console, self.record, self.options.output / RECORD)
        return self.record

    def read(self) -> None:
        records = read_twins(self.options, self.record["window"], self.console)
        self.record["rows"] = as_rows(records)
        self.record["difference"] = difference(records)
        self.record["loss_by_position"] = {
            twin: record["rows"][0]["loss_by_position"] for twin, record in records.items()
        }
        show.reading(self.console, self.record)

    def examine_state(self) -> None:
        self.seen, self.record["state"] = examine_state(
            self.model, self.tokens, self.device, self.console, self.options.seed
        )
        self.record["heat"] = summary(self.seen)
        show.state(self.console, self.record)

    def write(self) -> None:
        stock = remove_recurrence(open_to_read(self.options.plain).eval())
        self.record["writing"] = write_on(
            self.model,
            stock,
            self.encoder,
            self.tokens.ids[:PROMPT].tolist(),
            tokens=self.options.new_tokens,
            seed=self.options.seed,
            show=lambda piece: self.console.out(piece, end="", style="dim", highlight=False),
        )
        show.writing(self.console, self.record)

    def learn(self) -> None:
        folder = model_folder(self.options.plain)
        self.record["learning"] = learn(self.options, folder, self.device, self.console)
        show.learning(self.console, self.record)

    def write_page(self) -> None:
        assert self.seen is not None
        path = self.options.output / PAGE
        shown = {**self.record, "saved_against": AGAINST["without"]}
        write_demo_page(path, shown, heat_of(self.seen, self.encoder))
        self.console.print(f"Open in a browser: {path.resolve()}", soft_wrap=True)

    @contextmanager
    def _timed(self, name: str, heading: str) -> Iterator[None]:
        self.console.rule(f"[bold]{heading}", align="left")
        started = time.perf_counter()
        yield
        self.record["seconds"][name] = round(time.perf_counter() - started, 1)

    def _novel(self) -> Tokens:
        text = EvalOptions.of(model=self.options.recurrent, data="time-machine")
        tokens = read_text(text, self.encoder, "all", window=self.model.settings.window)
        limit = self.options.novel_tokens
        return tokens if limit is None else tokens.truncated(limit)


def _redact_paths(options: dict[str, Any]) -> dict[str, Any]:
    """Settings with only the names of files and folders of this machine."""
    paths = ("text", "output", "plain", "recurrent")
    return {
        key: Path(value).name if key in paths and value is not None else value
        for key, value in options.items()
    }
