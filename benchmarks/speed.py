"""Speed of recurrent training and evaluation, compared with the stock model on the same windows.

    python benchmarks/speed.py --output results/speed

Every case runs GPT-2 small's shape (random weights) over the same documents, window by window:
 stock       transformers' own model and loss, one batch of windows after another
 none        holdover's plain twin: the same loop without a state
 pooled ...  the recurrent model, with and without recomputing windows
 tokens ...  the same with memory tokens
Before it measures a case, the benchmark compares its loss with an eager float32 run of the same model.
Each case writes one JSON record; `--report` prints the table for a folder of records.
"""

import argparse
import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import holdover
from holdover.runs.provenance import device_name, provenance, write_record

CASES: dict[str, dict[str, Any] | None] = {
    "stock": None,
    "none": {"carry": "none"},
    "pooled": {},
    "pooled-batched-lower": {"lower_layers": "batched"},
    "pooled-recompute": {"recompute": "window"},
    "tokens": {"carry": "tokens", "slots": 16},
    "tokens-recompute": {"carry": "tokens", "slots": 16, "recompute": "window"},
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--documents", type=int, nargs="+", default=[32, 8])
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--evaluate-only", action="store_true")
    parser.add_argument(
        "--profile", action="store_true", help="print the most expensive GPU kernels"
    )
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--report", action="store_true", help="print the table of --output and stop"
    )
    options = parser.parse_args()
    if not options.report:
        for documents in options.documents:
            for case in options.cases:
                run_case(case, documents, options)
    print(report(options.output))


def run_case(case: str, documents: int, options: argparse.Namespace) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    torch._dynamo.reset()
    base = GPT2LMHeadModel(gpt2(options)).to(device=device, dtype=torch.bfloat16)
    ids = torch.randint(0, options.vocabulary, (documents, options.windows * options.window))
    ids = ids.to(device)
    settings = CASES[case]
    if settings is None:
        job: Any = Stock(base, options)
    else:
        job = Recurrent(base, settings, options)
    agreement = job.check(ids[:, : 3 * options.window])
    record = {
        "benchmark": "speed",
        "case": case,
        "documents": documents,
        "windows": options.windows,
        "window": options.window,
        "model": f"GPT-2 shape, {options.layers} layers x {options.width}, random weights",
        "dtype": "bfloat16",
        "dropout": 0.0,
        "compiled": not options.eager,
        "settings": settings,
        "loss_compiled_bf16_minus_eager_fp32": agreement,
        "provenance": provenance(),
    }
    modes = ["evaluate"] if options.evaluate_only else ["train", "evaluate"]
    for mode in modes:
        record[mode] = measure(getattr(job, mode), ids, options.repeats)
        print(
            f"{case:22} {documents:3} documents  {mode:8} "
            f"{record[mode]['tokens_per_second']:12,.0f} tokens/s  "
            f"{record[mode]['peak_bytes'] / 2**30:6.2f} GiB  "
            f"first {record[mode]['first_seconds']:.0f} s",
            flush=True,
        )
        if options.profile:
            print(profile(getattr(job, mode), ids), flush=True)
    write_record(options.output / f"{case}-{documents}.json", record)
    del job, base
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def gpt2(options: argparse.Namespace) -> GPT2Config:
    return GPT2Config(
        vocab_size=options.vocabulary,
        n_layer=options.layers,
        n_embd=options.width,
        n_head=options.width // 64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )


class Stock:
    """Plain fine-tuning: one forward and backward of the stock model per window of the batch."""

    def __init__(self, base: GPT2LMHeadModel, options: argparse.Namespace) -> None:
        self.base = base
        self.window = options.window
        self.call = base if options.eager else torch.compile(base, dynamic=False)

    def windows(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ids.split(self.window, 1)

    def train(self, ids: torch.Tensor) -> None:
        self.base.train()
        for window in self.windows(ids):
            self.call(input_ids=window, labels=window, use_cache=False).loss.backward()
        self.base.zero_grad()

    def evaluate(self, ids: torch.Tensor) -> None:
        self.base.eval()
        with torch.no_grad():
            for window in self.windows(ids):
                _ = self.call(input_ids=window, labels=window, use_cache=False).loss

    def check(self, ids: torch.Tensor) -> float:
        return 0.0


class Recurrent:
    """holdover's own loop over all windows of the documents."""

    def __init__(self, base: Any, settings: dict[str, Any], options: argparse.Namespace) -> None:
        config = holdover.RecurrenceConfig(window=options.window, **settings)
        self.model = holdover.add_recurrence(base, config)
        self.eager = options.eager

    def train(self, ids: torch.Tensor) -> None:
        self.model.train()
        self.model(ids, labels=ids).loss.backward()
        self.model.zero_grad()

    def evaluate(self, ids: torch.Tensor) -> None:
        self.model.eval()
        with torch.no_grad():
            self.model(ids, labels=ids)

    def check(self, ids: torch.Tensor) -> float:
        self.model.train()
        self.model.float()
        with torch.no_grad():
            exact = self.model(ids, labels=ids).loss.item()
        self.model.bfloat16()
        if not self.eager:
            self.model.compile_step()
        fast = self.model(ids, labels=ids).loss.item()
        if abs(fast - exact) > 0.05:
            raise SystemExit(f"The step is wrong: its loss is {fast}, eager float32 gives {exact}.")
        return fast - exact


def measure(run: Any, ids: torch.Tensor, repeats: int) -> dict[str, Any]:
    cuda = ids.is_cuda
    start = time.perf_counter()
    run(ids)
    _wait(cuda)
    first = time.perf_counter() - start
    run(ids)
    _wait(cuda)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run(ids)
        _wait(cuda)
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds)
    kernels = sum(event.self_device_time_total for event in kernel_times(run, ids)) / 1e6
    return {
        "tokens_per_second": ids.numel() / median,
        "seconds": seconds,
        "kernel_seconds": kernels,
        "device_busy": kernels / median,
        "first_seconds": first,
        "peak_bytes": torch.cuda.max_memory_allocated() if cuda else 0,
        "device": device_name(),
    }


def kernel_times(run: Any, ids: torch.Tensor) -> list[Any]:
    """GPU kernels of one run, the most expensive first."""
    if not ids.is_cuda:
        return []
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as trace:
        run(ids)
        _wait(True)
    return sorted(trace.key_averages(), key=lambda event: -event.self_device_time_total)


def profile(run: Any, ids: torch.Tensor) -> str:
    """The time of one run by kernel."""
    return "\n".join(
        f"{event.self_device_time_total / 1e3:9.2f} ms {event.count:6} x  {event.key[:110]}"
        for event in kernel_times(run, ids)[:28]
    )


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def report(folder: Path) -> str:
    """The table for a folder of records; each ratio compares with the stock model's speed."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    stock = {r["documents"]: r for r in records if r["case"] == "stock"}
    lines = [
        "| documents | case | train tokens/s | ratio | GPU busy | peak GiB | eval tokens/s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    order = {case: number for number, case in enumerate(CASES)}
    for record in sorted(records, key=lambda r: (-r["documents"], order[r["case"]])):
        cells = [str(record["documents"]), record["case"]]
        for mode in ("train", "evaluate"):
            timing = record.get(mode)
            base = stock.get(record["documents"], {}).get(mode)
            speed = timing["tokens_per_second"] if timing else None
            cells.append(f"{speed:,.0f}" if speed else "")
            cells.append(f"{speed / base['tokens_per_second']:.2f}" if speed and base else "")
            if mode == "train":
                busy = timing.get("device_busy") if timing else None
                cells.append(f"{100 * busy:.0f} %" if busy else "")
                cells.append(f"{timing['peak_bytes'] / 2**30:.1f}" if timing else "")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
