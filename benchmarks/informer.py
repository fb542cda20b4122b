"""Time of a training step of Informer and RSA-Informer: precision, compiling, replaying.

    python benchmarks/informer.py --output results/informer

A step is forward and backward of 32 windows with the published sizes and dropout, in cells of the
forecasting experiment. Values are random, because no kernel's time depends on them. Before it
measures a case, the benchmark compares its gradients with those of the normal step, as `holdover
forecast train` does:
 float32, tf32, bf16   the normal step
 ...-replayed          from a CUDA graph, as in the command
 ...-compiled          with `--compile`
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from stopwatch import parser_of, timed
from torch import Tensor

from holdover.forecasting.data.windows import ForecastBatch
from holdover.forecasting.models.informer import Informer
from holdover.forecasting.models.informer_config import InformerConfig
from holdover.forecasting.task import record
from holdover.runs.provenance import choose_device, provenance, write_record
from holdover.training.compile_checks import distances, gradients_of, untouched, wrong_gradients

CASES = (
    "float32",
    "tf32",
    "tf32-replayed",
    "bf16",
    "bf16-replayed",
    "bf16-compiled",
    "bf16-compiled-replayed",
)
MODELS = ("informer", "rsa-informer")
SEVEN, TWELVE = ({"enc_in": n, "dec_in": n, "c_out": n} for n in (7, 12))
DEEP = {"e_layers": 3, "d_layers": 2}
# Sizes by the name of a cell of the experiment; cells here use the same sizes.
SIZES: dict[str, dict[str, Any]] = {
    "ETTh1-24": {"seq_len": 48, "label_len": 48, "pred_len": 24, "factor": 3, **SEVEN},
    "WTH-168": {"seq_len": 336, "label_len": 168, "pred_len": 168, **TWELVE, **DEEP},
    "ETTm1-288": {"seq_len": 672, "label_len": 288, "pred_len": 288, **SEVEN},
    "WTH-336": {"seq_len": 720, "label_len": 168, "pred_len": 336, **TWELVE, **DEEP},
}
WARM_UP = 5


def main() -> None:
    parser = parser_of(__doc__, CASES, repeats=30)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--cells", nargs="+", default=tuple(SIZES), choices=SIZES)
    parser.add_argument("--rows", type=int, default=32)
    options = parser.parse_args()
    if not options.report:
        device = choose_device(options.device)
        for cell in options.cells:
            for model in options.models:
                for case in options.cases:
                    if device.type != "cuda" and ("replayed" in case or "tf32" in case):
                        print(f"{case}: skipped, because it needs a GPU.")
                        continue
                    result = run(cell, model, case, options, device)
                    write_record(options.output / f"{cell}-{model}-{case}.json", result)
                    gc.collect()
    print(report(options.output))


def run(
    cell: str, name: str, case: str, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    precision, *ways = case.split("-")
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    config = InformerConfig(**SIZES[cell], rsa=name == "rsa-informer")
    model: Any = Informer(config).to(device).train()
    batch = random_numbers(config, options.rows).to(device)
    given = batch.values, batch.marks, batch.future_marks

    def loss(forecast: Callable[..., Tensor]) -> Tensor:
        return (forecast(*given).float() - batch.future).square().mean()

    with untouched(model):
        exact = gradients_of(model, lambda: loss(model.forecast))
    if precision == "bf16":
        # Around the model's forward, where accelerate puts autocast in training.
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
    if "compiled" in ways:
        with untouched(model):
            written = gradients_of(model, lambda: loss(model.forecast))
            model.compile_reading()
            compiled = gradients_of(model, lambda: loss(model.forecast))
        for wrong in wrong_gradients(compiled, exact, distances(written, exact)):
            raise SystemExit(f"The compiled step is wrong: {wrong}.")
    # `record` compares gradients itself.
    forecast = record(model, batch) if "replayed" in ways else model.forecast

    def step(_: int) -> None:
        loss(forecast).backward()
        model.zero_grad()

    timing = timed(step, WARM_UP, options.repeats, device)
    timing["seconds_a_step"] = statistics.median(timing["seconds"])
    if "replayed" in ways:
        # torch does not count the memory of a CUDA graph as allocated.
        timing["peak_bytes"] = None
    print(f"{cell:10} {name:12} {case:24} {1e3 * timing['seconds_a_step']:8.2f} ms", flush=True)
    return {
        "benchmark": "informer",
        "cell": cell,
        "model": name,
        "case": case,
        "sizes": {**SIZES[cell], "rows": options.rows},
        **timing,
        "provenance": provenance(device),
    }


def random_numbers(config: InformerConfig, rows: int) -> ForecastBatch:
    past, steps = config.seq_len, config.seq_len + config.pred_len
    values = torch.randn(rows, steps, config.enc_in)
    marks = torch.rand(rows, steps, config.time_features) - 0.5
    windows = np.arange(rows)
    return ForecastBatch(
        values=values[:, :past],
        marks=marks[:, :past],
        future=values[:, past:],
        future_marks=marks[:, past:],
        numbers=windows,
        series=np.zeros_like(windows),
        together=rows,
    )


def report(folder: Path) -> str:
    """Milliseconds per step, and the speed relative to the normal step in TF32."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    by_cell: dict[tuple[str, str], dict[str, float]] = {}
    for one in records:
        by_cell.setdefault((one["cell"], one["model"]), {})[one["case"]] = one["seconds_a_step"]
    cases = [case for case in CASES if any(case in row for row in by_cell.values())]
    lines = ["| cell | model | " + " | ".join(cases) + " |", "|---|---|" + "---|" * len(cases)]
    for (cell, model), row in by_cell.items():
        base = row.get("tf32", row.get("float32"))
        cells = [
            f"{1e3 * row[case]:.1f} ms" + (f" ({base / row[case]:.2f} x)" if base else "")
            if case in row
            else ""
            for case in cases
        ]
        lines.append(f"| {cell} | {model} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
