"""The table of docs/scaling.md: plans for one training on few and many GPUs, side by side.

    python benchmarks/worked_plan.py

The commands are those of the page, each with a name behind #; nothing is measured.
"""

import argparse
import re
import shlex
from pathlib import Path

from holdover.planning.options import PlanOptions
from holdover.planning.predict import plan
from holdover.planning.show import table_rows
from holdover.runs.settings import add_flags, build, given_settings, parse_words

PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"


def commands(page: str) -> dict[str, list[str]]:
    """Name and words of every `holdover plan` line of the page that has a name."""
    found = re.findall(r"^holdover plan (.*?) +# (.*)$", page, re.M)
    return {name: shlex.split(words) for words, name in found}


def options_of(words: list[str]) -> PlanOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser, PlanOptions)
    return build(PlanOptions, given_settings(PlanOptions, parse_words(parser, words)))


def report(page: str) -> str:
    """One column a command."""
    columns = {name: _values(words) for name, words in commands(page).items()}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        cells = [column.get(key, "") for column in columns.values()]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _values(words: list[str]) -> dict[str, str]:
    found = plan(options_of(words))
    values: dict[str, str] = {}
    heading = ""
    for part, what, much in table_rows(found):
        heading = part or heading
        values[f"{heading}: {what}"] = much
    values["fits"] = "yes" if found.misfit is None else "no"
    return values


if __name__ == "__main__":
    print(report(PAGE.read_text()))
