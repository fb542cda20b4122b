"""The models that come with the package: names for `--model` and where they lie.

Small GPT-2s pretrained on PG-19 books, in half precision, each with a card of its own; made by
`experiments/bundled_model.py`.
"""

import json
from pathlib import Path
from typing import Any

PLAIN = "books-plain"
RECURRENT = "books-recurrent"


def bundled_model(name: str) -> Path | None:
    """The folder of a model of that name, if the package holds one."""
    if name not in (PLAIN, RECURRENT):
        return None
    folder = Path(__file__).parent / name
    return folder if (folder / "config.json").is_file() else None


def scores_on_books() -> dict[str, Any]:
    """What both models came to on the PG-19 test books, from the record named in it."""
    return json.loads((Path(__file__).parent / "books.json").read_text())
