"""Time and memory of an attention layer with a recurrence (RSA), compared with plain attention.

    python benchmarks/rsa.py --output results/rsa

Forward and backward of 8 heads of 64, half of them with a recurrence, in bfloat16:
 plain    fused causal softmax attention
 linear   RSA as a scan of its recurrence and fused attention; the scan makes nothing of size T x T
 split    RSA as the product with its matrices and fused attention
 dense    RSA as one mixed matrix, like the formula
Before it measures, the benchmark compares output and gradients of each computation with those of
the dense one in float32. It measures each eager and compiled; the faster one counts. Memory is the
whole peak on a GPU, as a user sees it: inputs, output, their gradients and everything between. A
computation that does not fit into memory has no line.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdover.ops.rem import RecurrenceEncoding
from holdover.ops.rsa import RSA, SoftmaxAttention
from holdover.runs.provenance import choose_device, provenance, write_record

HEADS, WIDTH = 8, 64
COUNTS, DILATIONS = (0, 0, 0, 0, 2, 2), (3, 6, 9, 12)
COMPUTATIONS = ("plain", "linear", "split", "dense")
# Length for the comparison of outputs and gradients, and their largest allowed relative difference.
CHECKED_LENGTH = 1000
AGREES = {torch.float32: 1e-4, torch.bfloat16: 0.03}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--float32", action="store_true", help="use float32 instead of bfloat16")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--report", action="store_true", help="print the table of --output and stop"
    )
    options = parser.parse_args()
    if not options.report:
        run(options)
    print(report(options.output))


def run(options: argparse.Namespace) -> None:
    device = choose_device(options.device)
    dtype = torch.float32 if options.float32 else torch.bfloat16
    record: dict[str, Any] = {
        "benchmark": "rsa",
        "heads": [HEADS, WIDTH],
        "rem_counts": COUNTS,
        "rows": options.rows,
        "dtype": str(dtype).removeprefix("torch."),
        "disagreement": {name: check(name, device, dtype) for name in COMPUTATIONS[1:]},
        "cases": [],
        "provenance": provenance(device),
    }
    for length in options.lengths:
        for name in COMPUTATIONS:
            case = measured(name, length, options, device, dtype)
            if case is not None:
                record["cases"].append(case)
                print(case, flush=True)
                write_record(options.output / f"{device.type}.json", record)


def attention(name: str, device: torch.device) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    plain = SoftmaxAttention(causal=True)
    if name == "plain":
        return plain
    torch.manual_seed(0)
    rsa = RSA(RecurrenceEncoding(COUNTS, DILATIONS, gate=0.0), name).to(device)
    return lambda query, key, value: rsa(query, key, value, plain)


def inputs(rows: int, length: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    torch.manual_seed(1)
    shape = (rows, HEADS, length, WIDTH)
    return [torch.randn(shape, device=device).to(dtype).requires_grad_() for _ in range(3)]


def check(name: str, device: torch.device, dtype: torch.dtype) -> float:
    """The largest relative difference from the dense computation in float32."""
    results = [
        outcome(attention(way, device), inputs(2, CHECKED_LENGTH, device, precision))
        for way, precision in (("dense", torch.float32), (name, dtype))
    ]
    worst = max(
        float((ours.float() - theirs).norm() / theirs.norm())
        for theirs, ours in zip(*results, strict=True)
    )
    if not worst < AGREES[dtype]:
        raise SystemExit(f"{name} is wrong: it differs by {worst:.1%} from the dense computation.")
    return worst


def outcome(attend: Callable[..., Tensor], values: list[Tensor]) -> list[Tensor]:
    output = attend(*values)
    output.float().square().sum().backward()
    return [output.detach(), *(value.grad for value in values if value.grad is not None)]


def measured(
    name: str, length: int, options: argparse.Namespace, device: torch.device, dtype: torch.dtype
) -> dict[str, Any] | None:
    """Milliseconds and peak memory; None if it does not fit into memory."""
    case: dict[str, Any] = {"computation": name, "length": length}
    try:
        for way in ("eager", "compiled"):
            torch._dynamo.reset()
            attend = attention(name, device)
            if way == "compiled":
                attend = torch.compile(attend, dynamic=False)
            case[way] = timed(attend, inputs(options.rows, length, device, dtype), options.repeats)
    except torch.OutOfMemoryError:
        return None
    finally:
        gc.collect()
    faster = min((case["eager"], case["compiled"]), key=lambda timing: timing["milliseconds"])
    return {**case, **faster}


def timed(attend: Callable[..., Tensor], values: list[Tensor], repeats: int) -> dict[str, float]:
    gradient = torch.randn_like(values[0])
    cuda = gradient.is_cuda

    def step() -> None:
        for value in values:
            value.grad = None
        attend(*values).backward(gradient)

    for _ in range(3):
        step()
    if cuda:
        torch.cuda.synchronize()
        # Matrix products of the previous computation leave a workspace allocated.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    timing = {"milliseconds": 1000 * statistics.median(times)}
    if cuda:
        timing["peak_bytes"] = torch.cuda.max_memory_allocated()
    return timing


def report(folder: Path) -> str:
    lines = [
        "| device | length | computation | ms | times plain | dense / this | both eager | MiB "
        "| times plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        cases = {(case["computation"], case["length"]): case for case in record["cases"]}
        for (name, length), case in cases.items():
            plain, dense = (cases.get((other, length)) for other in ("plain", "dense"))
            cells = [record["provenance"]["device"], f"{length:,}", name]
            cells += [f"{case['milliseconds']:.2f}", times(case, plain, "milliseconds")]
            cells += [times(dense, case, "milliseconds")]
            cells += [times(*(one and one["eager"] for one in (dense, case)), "milliseconds")]
            mib = case.get("peak_bytes", 0) / 2**20
            cells += [f"{mib:,.0f}" if mib else "", times(case, plain, "peak_bytes")]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def times(case: dict[str, Any] | None, base: dict[str, Any] | None, measure: str) -> str:
    """The ratio of case to base; empty if one of them was not measured."""
    if case is None or base is None or measure not in case or measure not in base:
        return ""
    return f"{case[measure] / base[measure]:.2f}"


if __name__ == "__main__":
    main()
