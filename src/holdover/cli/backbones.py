"""The verb backbones: the architectures and model classes that holdover supports."""

import argparse

from .verb import Verb

VERBS = (
    Verb(
        name="backbones",
        help="list the architectures and the model classes holdover runs",
        run="cli.backbones:show_backbones",
    ),
)


def show_backbones(parsed: argparse.Namespace) -> None:
    from rich.console import Console
    from rich.table import Table

    from ..backbones.heads import head_classes
    from ..backbones.registry import BACKBONES

    table = Table(title="Architectures and the classes holdover runs", title_justify="left")
    table.add_column("architecture", no_wrap=True)
    table.add_column("classes (transformers)")
    for model_type, spec in BACKBONES.items():
        table.add_row(model_type, ", ".join(head_classes(model_type, spec).values()))
    Console().print(table)
