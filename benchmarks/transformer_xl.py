"""Speed of training Transformer-XL: fused attention compared with the original's two matrices.

    python benchmarks/transformer_xl.py --output results/transformer_xl

Every case trains the 12 layers of the original (random weights, 204 symbols) on windows of 512
tokens after a memory of 512, which passes from window to window without gradients, as in `holdover
train --windows 1`:
 two-matrix   scores by content and by position as two matrices, which are padded, reshaped, added,
              masked and put through a softmax one after the other, as in the original code
 fused        holdover.models: one fused call that reads scores by position directly from their product
              (our kernel on a GPU; elsewhere torch's, with a bias)
Each case also runs compiled, and the fused one also compiled and replayed (`holdover train --compile
--replay`: a CUDA graph). Before it measures a case, the benchmark compares loss and gradients with
those of the two matrices in float32, uncompiled.
"""

import argparse
import gc
import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stopwatch import parser_of, timed
from torch import Tensor, nn

import holdover
from holdover.language.replay import ReplayedSegments
from holdover.models.transformer_xl import TransformerXLForCausalLM
from holdover.models.transformer_xl_config import TransformerXLConfig
from holdover.models.transformer_xl_layer import Places, RelativeAttention
from holdover.runs.provenance import choose_device, device_name, provenance, write_record

CASES = ("two-matrix", "two-matrix-compiled", "fused", "fused-compiled", "fused-replayed")
# The largest allowed relative difference between a gradient and the float32 one.
AGREES = {torch.float32: 1e-4, torch.bfloat16: 0.05}
# The first step has no memory; the next two compile.
WARM_UP = 3

# Returns the loss of a window and the state after it.
Read = Callable[[Any, holdover.Window, Any, torch.dtype], tuple[Tensor, Any]]


class TwoMatrixAttention(RelativeAttention):
    """The original formula, with its `_rel_shift`."""

    def forward(
        self,
        hidden_states: Tensor,
        places: Places,
        memory: Tensor | None = None,
        past_key_values: Any = None,
    ) -> Tensor:
        both = hidden_states if memory is None else torch.cat([memory, hidden_states], 1)
        keys = both.shape[1]
        query = self._heads(self.query(hidden_states))
        key, value = (self._heads(part) for part in self.key_value(both).chunk(2, -1))
        # The original's columns: distances keys - 1 ... 0.
        place = self._heads(self.position(places.columns[1 : keys + 1]))
        by_content = torch.einsum("bind,bjnd->bnij", query + places.content_bias, key)
        by_position = torch.einsum("bind,jnd->bnij", query + places.position_bias, place)
        scores = (by_content + rel_shift(by_position)) * self.scale
        scores = scores.float().masked_fill(places.hidden, -math.inf)
        weights = scores.softmax(-1).type_as(value)
        weights = nn.functional.dropout(weights, self.attend.dropout, self.training)
        read = torch.einsum("bnij,bjnd->bind", weights, value)
        return self.output(read.reshape(*read.shape[:2], -1))


def rel_shift(scores: Tensor) -> Tensor:
    """Pad a column of zeros, reshape, drop the first row."""
    rows, columns = scores.shape[-2:]
    padded = nn.functional.pad(scores, (1, 0)).reshape(*scores.shape[:-2], columns + 1, rows)
    return padded[..., 1:, :].reshape(scores.shape)


def main() -> None:
    parser = parser_of(__doc__, CASES, repeats=9)
    parser.add_argument("--rows", type=int, default=22)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    if options.report:
        print(report(options.output))
        return
    device = choose_device(options.device)
    precision = torch.bfloat16 if device.type == "cuda" else torch.float32
    exact = first_step(build("two-matrix", options, device), options, torch.float32)
    for case in options.cases:
        torch._dynamo.reset()
        model = build(case, options, device)
        differs = compare(first_step(model, options, precision), exact, AGREES[precision])
        read = replayed(model, options, precision) if case.endswith("replayed") else as_written
        timing = measure(model, options, precision, read)
        if case.endswith("replayed"):
            # torch does not count the memory of a CUDA graph as allocated.
            timing["peak_bytes"] = None
        record = {
            "benchmark": "transformer_xl",
            "case": case,
            "model": f"Transformer-XL, {options.layers} layers x 512, 8 heads x 64, random weights",
            "rows": options.rows,
            "window": options.window,
            "memory": options.memory,
            "dtype": str(precision).removeprefix("torch."),
            "dropout": 0.1,
            "gradients_minus_two_matrix_fp32": differs,
            **timing,
            "device": device_name(),
            "provenance": provenance(),
        }
        write_record(options.output / f"{case}.json", record)
        print(
            f"{case:20} {timing['tokens_per_second']:12,.0f} tokens/s {gibibytes(timing)} GiB  "
            f"gradients differ by {differs:.1e}",
            flush=True,
        )
        del model
        gc.collect()


def build(case: str, options: argparse.Namespace, device: torch.device) -> holdover.RecurrentModel:
    torch.manual_seed(0)
    base = TransformerXLForCausalLM(TransformerXLConfig(n_layer=options.layers)).to(device)
    if case.startswith("two-matrix"):
        for layer in base.transformer.layers:
            layer.attention.__class__ = TwoMatrixAttention
    recurrence = holdover.RecurrenceConfig(
        carry="memory", window=options.window, memory_length=options.memory, detach_state=True
    )
    model = holdover.add_recurrence(base, recurrence)
    if case.endswith(("compiled", "replayed")):
        model.compile_step()
    return model


def windows(options: argparse.Namespace, count: int, device: torch.device) -> list[holdover.Window]:
    generator = torch.Generator().manual_seed(1)
    shape = (count, options.rows, options.window + 1)
    ids = torch.randint(204, shape, generator=generator).to(device)
    return [holdover.Window(part[:, :-1], targets=part[:, 1:]) for part in ids]


def as_written(
    model: Any, window: holdover.Window, state: Any, precision: torch.dtype
) -> tuple[Tensor, Any]:
    """The loss of one window, and the state after it."""
    device = window.input_ids.device.type
    with torch.autocast(device, precision, enabled=precision != torch.float32):
        out = model(windows=[window], state=state)
    return out.loss, out.state


def replayed(model: Any, options: argparse.Namespace, precision: torch.dtype) -> Read:
    """The same from a CUDA graph, after comparing its gradients with those of the normal step."""
    first, second, *_ = windows(options, 2, model.device)
    model.forward = torch.autocast(model.device.type, precision)(model.forward)
    with torch.no_grad():
        state = model(windows=[first]).state
    segments = ReplayedSegments(model, [second], state)

    def read(model: Any, window: holdover.Window, state: Any, precision: torch.dtype) -> Any:
        return segments([window], state, window.input_ids.numel())

    return read


def step(
    model: Any, window: holdover.Window, state: Any, precision: torch.dtype, read: Read = as_written
) -> tuple[Tensor, Any]:
    """Forward and backward of one window; returns its loss and the state after it."""
    loss, next_state = read(model, window, state, precision)
    loss.backward()
    return loss.detach(), next_state


def first_step(
    model: Any, options: argparse.Namespace, precision: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of a window after a full memory, without dropout."""
    model.eval()
    first, second, *_ = windows(options, 2, model.device)
    with torch.no_grad():
        _, state = model.step(first)
    loss, _ = step(model, second, state, precision)
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    return loss, gradients


def compare(result: Any, exact: Any, limit: float) -> float:
    """The largest relative difference of a gradient; ends the benchmark if it exceeds the limit."""
    worst = max(
        float((gradient - exact[1][name]).norm() / exact[1][name].norm().clamp(min=1e-12))
        for name, gradient in result[1].items()
    )
    if worst > limit or abs(float(result[0] - exact[0])) > limit:
        raise SystemExit(f"The step is wrong: a gradient differs by {worst:.1%} of its norm.")
    return worst


def measure(
    model: Any, options: argparse.Namespace, precision: torch.dtype, read: Read
) -> dict[str, Any]:
    model.train()
    given = windows(options, options.repeats + WARM_UP, model.device)
    state = None

    def one(number: int) -> None:
        nonlocal state
        _, state = step(model, given[number], state, precision, read)
        model.zero_grad()

    timing = timed(one, WARM_UP, options.repeats, model.device)
    tokens = options.rows * options.window
    return {"tokens_per_second": tokens / statistics.median(timing["seconds"]), **timing}


def gibibytes(record: dict[str, Any]) -> str:
    peak = record["peak_bytes"]
    return "" if peak is None else f"{peak / 2**30:.1f}"


def report(folder: Path) -> str:
    records = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    base = next(one["tokens_per_second"] for one in records if one["case"] == "two-matrix")
    lines = ["| case | device | tokens/s | times two-matrix | peak GiB |", "|---|---|---|---|---|"]
    for record in sorted(records, key=lambda one: one["tokens_per_second"]):
        speed = record["tokens_per_second"]
        cells = [record["case"], record["device"], f"{speed:,.0f}"]
        lines.append(f"| {' | '.join(cells)} | {speed / base:.2f} | {gibibytes(record)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
