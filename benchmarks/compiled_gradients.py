"""Errors of compiled gradients during training, compared with those of the uncompiled step.

    python benchmarks/compiled_gradients.py --output results/compiled_gradients

Trains XLNet from scratch on enwik8 in bfloat16, once with the compiler's defaults and once with
holdover's rounding option (recurrent/compile_options.py). After some steps it compares gradients
with those in float32 and records the worst relative error of the compiled step, and that of the
uncompiled step. A wrong step does not end the training here; the final loss shows the consequences.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdover.config import RecurrenceConfig
from holdover.language.options import TrainOptions
from holdover.language.training import train
from holdover.recurrent import compile as compiling
from holdover.runs.provenance import choose_device, provenance, write_record
from holdover.training import loop
from holdover.training import setup as run
from holdover.training.compile_checks import COUNTS, GradientComparison, compare_gradients
from holdover.training.log import LOG, read_log

CASES = {"as-it-comes": False, "rounded": True}
LOOKS = (0, 40, 80, 100, 120, 160)
STEPS = 165


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder for the records")
    parser.add_argument(
        "--report", action="store_true", help="print the table of the records and stop"
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--toy", action="store_true", help="a few steps of a tiny model")
    options = parser.parse_args()
    if options.report:
        print(report(options.output))
        return
    for case in options.cases:
        record = measure(case, options.data_dir, options.toy)
        write_record(options.output / f"{case}.json", record)


def measure(case: str, data_dir: Path | None, toy: bool) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp())
    looks: list[dict[str, Any]] = []
    due = [0, 2] if toy else LOOKS
    try:
        with recorded_checks(looks, due, rounded=CASES[case]):
            train(settings(toy, folder / "run", data_dir))
        losses = [line for line in read_log(folder / "run" / LOG) if "valid_loss" in line]
    finally:
        shutil.rmtree(folder)
    for look in looks:
        print(case, look, flush=True)
    return {
        "benchmark": "compiled_gradients",
        "case": case,
        "looks": looks,
        "validations": [[line["step"], line["valid_loss"]] for line in losses],
        "provenance": provenance(choose_device("auto")),
    }


def settings(toy: bool, output: Path, data_dir: Path | None) -> TrainOptions:
    width = {"d_model": 32, "d_inner": 64} if toy else {"d_model": 256, "d_inner": 1024}
    window, rows, windows = (16, 2, 2) if toy else (256, 16, 6)
    return TrainOptions(
        model="xlnet",
        from_scratch=True,
        tokenizer="bytes",
        shape={"n_layer": 4, "n_head": 4, **width},
        data="time-machine" if toy else "enwik8",
        data_dir=data_dir,
        recurrence=RecurrenceConfig(carry="none", window=window),
        rows=rows,
        windows=windows,
        schedule="cosine",
        learning_rate=1e-3,
        added_learning_rate=1e-3,
        warm_up=100,
        max_tokens=(3 if toy else STEPS) * rows * windows * window,
        epochs=1000,
        patience=None,
        bf16=True,
        compile=True,
        validation_tokens=1000,
        seed=2,
        output=output,
    )


@contextmanager
def recorded_checks(
    looks: list[dict[str, Any]], due: tuple[int, ...] | list[int], rounded: bool
) -> Iterator[None]:
    """Inside, training compares its gradients after the steps in `due`, records them, and continues."""
    kept = run.check_gradients, loop.check_is_due, compiling.compiler_options
    steps = iter(due)

    def record(*values: Any, **options: Any) -> None:
        looks.append({"step": next(steps), **worst(compare_gradients(*values, **options))})

    run.check_gradients = record
    loop.check_is_due = lambda step: step in due
    if not rounded:
        compiling.compiler_options = dict
    try:
        yield
    finally:
        run.check_gradients, loop.check_is_due, compiling.compiler_options = kept


def worst(looked: GradientComparison) -> dict[str, Any]:
    """The gradient with the largest relative error, among those that are not negligible."""
    least = COUNTS * max(looked.sizes.values())
    shares = {name: looked.away[name] / size for name, size in looked.sizes.items() if size > least}
    name = max(shares, key=lambda one: shares[one])
    return {
        "gradient": name,
        "away": shares[name],
        "rounding": looked.rounding[name] / looked.sizes[name],
        "wrong": len(looked.wrong),
        "of": len(looked.sizes),
    }


def report(folder: Path) -> str:
    """The largest relative error of a gradient after each step, compiled and uncompiled."""
    paths = [path for case in CASES if (path := folder / f"{case}.json").exists()]
    records = [json.loads(path.read_text()) for path in paths]
    names = [f"{record['case']}{part}" for record in records for part in ("", ", uncompiled")]
    lines = ["| step | " + " | ".join(names) + " |", "|---" * (1 + len(names)) + "|"]
    for looks in zip(*(record["looks"] for record in records), strict=True):
        cells = [share(look[part]) for look in looks for part in ("away", "rounding")]
        lines.append(f"| {looks[0]['step']} | {' | '.join(cells)} |")
    losses = [cell for record in records for cell in (f"{record['validations'][-1][1]:.2f}", "")]
    lines.append("| loss at the end | " + " | ".join(losses) + " |")
    return "\n".join(lines)


def share(away: float) -> str:
    return f"{away:.1%}" if away < 1 else f"{away:,.0f} times"


if __name__ == "__main__":
    main()
