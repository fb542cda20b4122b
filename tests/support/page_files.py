"""The files that the pages' commands name, small: books, a series, an encoder, questions."""

from pathlib import Path

import holdover
from forecasts import seasonal_csv
from holdover.bundled import bundled_model
from holdover.runs.models import open_model, quietly
from holdover.tokenization.encoders import open_encoder
from readers import save_encoder, sweet_or_hard, write_questions

NOVEL = Path(holdover.__file__).parent / "bundled" / "the_time_machine.txt"


def write_files(folder: Path) -> None:
    novel = NOVEL.read_text()
    (folder / "my-books").mkdir()
    for number in range(2):
        (folder / "my-books" / f"{number}.txt").write_text(novel[number * 60_000 :][:60_000])
    for name in ("book.txt", "long-book.txt"):
        (folder / name).write_text(novel[:2500])
    seasonal_csv(folder / "power.csv", rows=360)
    save_encoder(folder / "my-encoder")
    write_questions(folder / "questions.json", sweet_or_hard(20))
    save_stock(folder / "stock-model")
    (folder / "long-text.txt").write_text("it is sweet , " + "w1 w2 w3 " * 40 + "apple stone")


def save_stock(folder: Path) -> None:
    """A model as it lies on the hub, with its tokenizer: the bundled one without its recurrence."""
    stock = holdover.remove_recurrence(open_model("books-plain"))
    with quietly():
        stock.save_pretrained(folder)
    open_encoder(bundled_model("books-plain")).tokenizer.save_pretrained(folder)
