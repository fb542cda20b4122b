"""Prints the table of plans in docs/scaling.md: one training on few and on many GPUs, side by side.

    python benchmarks/worked_plan.py

The commands come from that page, where each has a name after #. Nothing is measured.
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
    """Name and arguments of every `holdover plan` line on the page that has a name."""
    lines = re.findall(r"^holdover plan (.*?) +# (.*)$", page, re.M)
    return {name: shlex.split(words) for words, name in lines}


def options_of(words: list[str]) -> PlanOptions:
    parser = argparse.ArgumentParser()
    add_flags(parser, PlanOptions)
    return build(PlanOptions, given_settings(PlanOptions, parse_words(parser, words)))


def report(page: str) -> str:
    """One column per command."""
    columns = {name: _values(words) for name, words in commands(page).items()}
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for key in dict.fromkeys(key for column in columns.values() for key in column):
        cells = [column.get(key, "") for column in columns.values()]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _values(words: list[str]) -> dict[str, str]:
    planned = plan(options_of(words))
    values: dict[str, str] = {}
    heading = ""
    for section, name, value in table_rows(planned):
        heading = section or heading
        values[f"{heading}: {name}"] = value
    values["fits"] = "yes" if planned.misfit is None else "no"
    return values


if __name__ == "__main__":
    print(report(PAGE.read_text()))
