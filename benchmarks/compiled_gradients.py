"""Gradients of a compiled step while a model trains, beside those of the step as it was written.

    python benchmarks/compiled_gradients.py --output results/compiled_gradients

XLNet from scratch on enwik8, in bfloat16, once as the compiler comes and once as holdover tells it to
round (src/holdover/compiling.py). Behind some steps: how far the worst gradient of the compiled step is
from that in float32, as a share of its size, and that of the step as it was written. Nothing is refused
here: a wrong step trains on, and its loss says what comes of it.
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
from holdover.recurrent import hf_compat as manners
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
    parser.add_argument("--output", type=Path, required=True, help="folder of the records")
    parser.add_argument("--report", action="store_true", help="print the table of the records")
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
        with looking(looks, due, told=CASES[case]):
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
def looking(
    looks: list[dict[str, Any]], due: tuple[int, ...] | list[int], told: bool
) -> Iterator[None]:
    """Inside, a training looks at its gradients behind these steps, writes it down, and goes on."""
    kept = run.check_gradients, loop.check_is_due, manners.compiler_options
    steps = iter(due)

    def look(*given: Any, **how: Any) -> None:
        looks.append({"step": next(steps), **worst(compare_gradients(*given, **how))})

    run.check_gradients = look
    loop.check_is_due = lambda step: step in due
    if not told:
        manners.compiler_options = dict
    try:
        yield
    finally:
        run.check_gradients, loop.check_is_due, manners.compiler_options = kept


def worst(looked: GradientComparison) -> dict[str, Any]:
    """The gradient that is farthest away, of those that count."""
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
    """Behind each step, how far the worst gradient was, compiled and as it was written."""
    found = [path for case in CASES if (path := folder / f"{case}.json").exists()]
    records = [json.loads(path.read_text()) for path in found]
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
