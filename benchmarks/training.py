"""Speed of `holdover train`, with data loading and logging, compared with the bare training step.

    python benchmarks/training.py --data TEXTS --output results/training

Bare: forward, backward, clipping and the optimiser on one batch that stays on the device. Train: the
same model and settings in `holdover.language.train` on real documents, which may end inside
windows. Both run in one process, one after the other.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from holdover.config import RecurrenceConfig
from holdover.language.options import TrainOptions
from holdover.language.training import build_model, train
from holdover.runs.provenance import provenance, write_record
from holdover.text.splits import read_text
from holdover.text.window_loader import Walk, training_rows
from holdover.tokenization.encoders import open_encoder
from holdover.training.log import LOG, read_log
from holdover.training.optimizer import build_optimizer
from holdover.training.setup import make_accelerator

# Steps at the beginning that do not count: they compile and fill caches.
FIRST = 10


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--data", required=True, help="text file, folder or corpus to read as bytes"
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--windows", type=int, default=20)
    parser.add_argument("--window", type=int, default=300)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--recurrence", default="pooled")
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--output", type=Path, required=True)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        options = settings(given, Path(scratch))
        trained = through_training(options)
        print(f"holdover train: {trained['tokens_per_second']:,.0f} tokens/s", flush=True)
        bare = bare_steps(replace(options, output=Path(scratch) / "bare"))
        print(f"bare step:      {bare['tokens_per_second']:,.0f} tokens/s", flush=True)
    record = {
        "benchmark": "training",
        "model": f"GPT-2 shape, {given.layers} layers x {given.width}, random weights",
        "rows": given.rows,
        "windows": given.windows,
        "window": given.window,
        "recurrence": given.recurrence,
        "recompute": given.recompute,
        "precision": "bfloat16 autocast, float32 weights" if options.bf16 else "float32",
        "compiled": options.compile,
        "bare": bare,
        "train": trained,
        "train_over_bare": trained["tokens_per_second"] / bare["tokens_per_second"],
        "provenance": provenance(),
    }
    name = f"{given.recurrence}-{given.recompute}-{given.rows}.json"
    write_record(given.output / name, record)
    print(f"ratio {record['train_over_bare']:.3f}", flush=True)


def settings(given: argparse.Namespace, scratch: Path) -> TrainOptions:
    return TrainOptions(
        model="gpt2",
        from_scratch=True,
        shape={
            "vocab_size": given.vocabulary,
            "n_layer": given.layers,
            "n_embd": given.width,
            "n_head": given.width // 64,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        },
        data=given.data,
        data_dir=given.data_dir,
        cache_dir=scratch / "cache",
        tokenizer="bytes",
        recurrence=RecurrenceConfig(
            window=given.window, carry=given.recurrence, recompute=given.recompute
        ),
        windows=given.windows,
        rows=given.rows,
        max_steps=given.steps,
        epochs=1000,
        # Leave out validations and checkpoints, except for the first ones.
        validate_every=10**12,
        validation_tokens=given.window,
        save_every=10**9,
        patience=None,
        bf16=torch.cuda.is_available(),
        compile=not given.eager,
        output=scratch / "run",
    )


def through_training(options: TrainOptions) -> dict[str, Any]:
    torch._dynamo.reset()
    train(options, console=Console(highlight=False))
    lines = [line for line in read_log(options.output / LOG) if "loss" in line][FIRST:]
    seconds = [b["seconds"] - a["seconds"] for a, b in pairwise(lines)]
    tokens = [b["tokens"] - a["tokens"] for a, b in pairwise(lines)]
    release()
    return {
        # Totals, not medians: steps in which documents end are slower, and they should count.
        "tokens_per_second": sum(tokens) / sum(seconds),
        "steps": len(seconds),
        "seconds": seconds,
        "peak_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0,
        "losses": [round(line["loss"], 4) for line in lines[:3]],
    }


def bare_steps(options: TrainOptions) -> dict[str, Any]:
    torch._dynamo.reset()
    encoder = open_encoder("bytes")
    accelerator = make_accelerator(options)
    model = build_model(options, encoder, None).to(accelerator.device)
    if options.compile:
        model.compile_step()
    model, optimizer = accelerator.prepare(model, build_optimizer(model, options))
    tokens = read_text(options, encoder, "train", window=options.recurrence.window)
    rows = training_rows(tokens, options.rows, 0, 0)
    # Only the longest segment of each row: full windows, no document ends.
    longest = [[max(row, key=lambda segment: segment.length)] for row in rows]
    walk = Walk(tokens, longest, options.recurrence.window, full_width=options.compile)
    batch = walk.batch(1, options.windows).to(accelerator.device)
    state, seconds = None, []
    model.train()
    for _ in range(FIRST + 30):
        wait()
        started = time.perf_counter()
        output = model(windows=batch.windows(), state=state, num_items_in_batch=batch.scored)
        accelerator.backward(output.loss)
        accelerator.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        optimizer.zero_grad()
        state = output.state.detach()
        wait()
        seconds.append(time.perf_counter() - started)
    seconds = seconds[FIRST:]
    return {
        "tokens_per_second": batch.tokens / statistics.median(seconds),
        "padded_windows": sum(batch.padded),
        "seconds": seconds,
    }


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def report(folder: Path) -> str:
    """The table for a folder of records."""
    lines = [
        "| recurrence | recompute | rows | bare tokens/s | holdover train tokens/s | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        lines.append(
            f"| {record['recurrence']} | {record['recompute']} | {record['rows']} | "
            f"{record['bare']['tokens_per_second']:,.0f} | "
            f"{record['train']['tokens_per_second']:,.0f} | {record['train_over_bare']:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
