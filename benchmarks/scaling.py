"""The cost of communication between two CPU processes (gloo), with copies and with shards.

    python benchmarks/scaling.py --output results/scaling

Steps of a small recurrent GPT-2 (forward, backward, Adam) in two processes with one thread each, in
turns:
 side by side  both compute their rows and send nothing
 copies        DDP: gradients are summed
 shards        FSDP2: weights are gathered, gradients are split
The benchmark also measures the collectives that these use, on buffers of the model's size, and the
step of one process with all rows. `holdover plan --check results/scaling` predicts the steps from
the collectives.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import multiprocessing
from transformers import GPT2Config, GPT2LMHeadModel

import holdover
from holdover.runs.processes import close_talk, open_talk, own_share
from holdover.runs.provenance import provenance, write_record
from holdover.training.parallel import parallelize
from holdover.windows import Window

PROCESSES = 2
# Warm-up steps.
FIRST = 3
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2, help="total over both processes")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--port", default="29655")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": options.port}
    alone = Trainer(options, options.rows, shard=None)
    one = [alone.step() for _ in range(FIRST + options.repeats)][FIRST:]
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    multiprocessing.spawn(in_one_process, (options, queue), nprocs=PROCESSES)
    timings = queue.get()
    record = {
        "benchmark": "scaling",
        "model": f"GPT-2 shape, {options.layers} layers x {options.width}, random weights",
        "vocabulary": options.vocabulary,
        "rows": options.rows,
        "windows": options.windows,
        "window": options.window,
        "processes": PROCESSES,
        "backend": "gloo, one machine, one thread a process",
        "parameters": alone.model.parameter_counts()["all"],
        "one_process": measured(one),
        **timings,
        "provenance": provenance(),
    }
    write_record(options.output / "gloo-2.json", record)


class Trainer:
    """The model in one process, and its steps on that process's rows."""

    def __init__(self, options: argparse.Namespace, rows: int, shard: bool | None) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config = GPT2Config(
            vocab_size=options.vocabulary,
            n_layer=options.layers,
            n_embd=options.width,
            n_head=options.width // 64,
            n_positions=options.window,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        settings = holdover.RecurrenceConfig(window=options.window)
        self.model = holdover.add_recurrence(GPT2LMHeadModel(config), settings)
        self.held = (
            None if shard is None else parallelize(self.model, self.model.hooks.layers, CPU, shard)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        ids = torch.randint(0, options.vocabulary, (options.windows, rows, options.window))
        self.windows = [Window(input_ids=window, targets=window) for window in ids]

    def step(self) -> float:
        started = time.perf_counter()
        loss = self.loss(self.model) if self.held is None else self.held.run(self.loss)
        loss.backward()
        if self.held is not None:
            self.held.post_backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - started

    def loss(self, model: Any) -> torch.Tensor:
        return model(windows=self.windows).loss


def in_one_process(number: int, options: argparse.Namespace, queue: Any) -> None:
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(PROCESSES)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    open_talk()
    rows = len(own_share().rows(options.rows))
    trainers = {
        "side_by_side": Trainer(options, rows, shard=None),
        "copies": Trainer(options, rows, shard=False),
        "shards": Trainer(options, rows, shard=True),
    }
    size = sum(weight.numel() for weight in trainers["side_by_side"].model.parameters())
    whole, part = torch.ones(size // PROCESSES * PROCESSES), torch.ones(size // PROCESSES)
    work: dict[str, Callable[[], Any]] = {
        name: trainer.step for name, trainer in trainers.items()
    } | {
        "all_reduce": lambda: dist.all_reduce(whole),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    # In turns, so that other work on the machine affects all of them equally.
    for _ in range(FIRST + options.repeats):
        for name, do in work.items():
            dist.barrier()
            started = time.perf_counter()
            do()
            dist.barrier()
            seconds[name].append(time.perf_counter() - started)
    if number == 0:
        timings = {name: measured(values[FIRST:]) for name, values in seconds.items()}
        queue.put(timings | {"collective_bytes": whole.numel() * whole.element_size()})
    close_talk()


def measured(seconds: list[float]) -> dict[str, Any]:
    # Other work on the machine disturbs the fastest step least.
    return {"fastest": min(seconds), "median": statistics.median(seconds), "seconds": seconds}


if __name__ == "__main__":
    main()
