"""Speed of training a Block-Recurrent Transformer, compared with another package on PyPI.

    pip install block-recurrent-transformer-pytorch
    python benchmarks/block_recurrent.py --output results/block_recurrent

Both have the same width, depth, heads, blocks, state vectors and one recurrent layer. Both read the
same segments of several blocks with gradients through all of them, and pass states and memory
without gradients from segment to segment. The other package computes something different (keys and
values shared by all heads, rotary positions, gated feed-forward maps). Before it measures ours, the
benchmark compares its gradients with those of the uncompiled step in float32 with torch's own
attention. It measures each package eager and compiled; ours also compiled and replayed (`holdover
train --compile --replay`: a CUDA graph), after comparing the gradients with those of the normal
step.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from stopwatch import parser_of, timed
from torch import Tensor

import holdover
from holdover.language.replay import ReplayedSegments
from holdover.models.transformer_xl import TransformerXLForCausalLM
from holdover.models.transformer_xl_config import TransformerXLConfig
from holdover.ops import relative_softmax
from holdover.runs.provenance import choose_device, provenance, write_record
from holdover.training.compile_checks import distances, gradients_of, wrong_gradients

SYMBOLS = 205
CASES = ("holdover", "holdover-compiled", "holdover-replayed", "peer", "peer-compiled")
WARM_UP = 3

# Takes the ids of a segment [B, n] and the state; computes gradients and returns the next state.
Step = Callable[[Tensor, Any], Any]


def main() -> None:
    parser = parser_of(__doc__, CASES, repeats=9)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--block", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=4, help="blocks per segment")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    if not options.report:
        device = choose_device(options.device)
        for case in options.cases:
            torch._dynamo.reset()
            write_record(options.output / f"{case}.json", run(case, options, device))
            gc.collect()
    print(report(options.output))


def run(case: str, options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    torch.manual_seed(0)
    name, _, way = case.partition("-")
    build = {"holdover": ours, "peer": peers}[name]
    model, step = build(options, device, way)
    timing = measure(step, model, options, device)
    if way == "replayed":
        # torch does not count the memory of a CUDA graph as allocated.
        timing["peak_bytes"] = None
    print(f"{case:20} {timing['tokens_per_second']:12,.0f} tokens/s", flush=True)
    return {
        "benchmark": "block_recurrent",
        "case": case,
        "parameters": sum(p.numel() for p in model.parameters()),
        "sizes": {
            key: getattr(options, key) for key in ("rows", "block", "blocks", "width", "layers")
        },
        **timing,
        "provenance": provenance(device),
    }


def recurrent_layer(options: argparse.Namespace) -> int:
    return max(options.layers - 2, 1)


def ours(
    options: argparse.Namespace, device: torch.device, way: str
) -> tuple[torch.nn.Module, Step]:
    config = TransformerXLConfig(
        vocab_size=SYMBOLS,
        n_layer=options.layers,
        d_model=options.width,
        n_head=8,
        d_head=options.width // 8,
        d_inner=4 * options.width,
        dropout=0.0,
        recurrent_layers=[recurrent_layer(options)],
        state_vectors=options.block,
    )
    base = TransformerXLForCausalLM(config).to(device)
    recurrence = holdover.RecurrenceConfig(carry="blocks", window=options.block)
    model: Any = holdover.add_recurrence(base, recurrence)

    def windows_of(ids: Tensor) -> list[holdover.Window]:
        parts = ids[:, :-1].split(options.block, 1), ids[:, 1:].split(options.block, 1)
        return [
            holdover.Window(inputs, targets=targets) for inputs, targets in zip(*parts, strict=True)
        ]

    def loss_of(ids: Tensor, state: Any, precision: torch.dtype) -> Any:
        windows = windows_of(ids)
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            return model(windows=windows, state=state)

    def first_segment(precision: torch.dtype) -> dict[str, Tensor]:
        """Gradients of the first segment."""
        (ids,) = segments(options, 1, device)
        return gradients_of(model, lambda: loss_of(ids, None, precision).loss)

    with torchs_own_attention():
        exact, rounded = first_segment(torch.float32), first_segment(torch.bfloat16)
    if way:
        model.compile_step()
    for wrong in wrong_gradients(first_segment(torch.bfloat16), exact, distances(rounded, exact)):
        raise SystemExit(
            f"The step is wrong: the gradient of {wrong.name} differs by {wrong.away:.1%} of its norm."
        )
    replayed = None
    if way == "replayed":
        (ids,) = segments(options, 1, device)
        model.forward = torch.autocast(device.type, torch.bfloat16)(model.forward)
        with torch.no_grad():
            state = model(windows=windows_of(ids)).state
        replayed = ReplayedSegments(model, windows_of(ids), state)

    def step(ids: Tensor, state: Any) -> Any:
        if replayed is not None:
            loss, state = replayed(windows_of(ids), state, ids.numel())
        else:
            out = loss_of(ids, state, torch.bfloat16)
            loss, state = out.loss, out.state.detach()
        loss.backward()
        return state

    return model, step


@contextmanager
def torchs_own_attention() -> Iterator[None]:
    before, relative_softmax.DEVICES = relative_softmax.DEVICES, ()
    try:
        yield
    finally:
        relative_softmax.DEVICES = before


def peers(
    options: argparse.Namespace, device: torch.device, way: str
) -> tuple[torch.nn.Module, Step]:
    from block_recurrent_transformer_pytorch import (  # pyright: ignore[reportMissingImports]
        BlockRecurrentTransformer,
    )

    model = BlockRecurrentTransformer(
        num_tokens=SYMBOLS,
        dim=options.width,
        depth=options.layers,
        dim_head=options.width // 8,
        heads=8,
        max_seq_len=options.block * options.blocks,
        block_width=options.block,
        recurrent_layers=(recurrent_layer(options),),
        num_state_vectors=options.block,
        use_flash_attn=device.type == "cuda",
    ).to(device)
    run = torch.compile(model) if way == "compiled" else model

    def step(ids: Tensor, carried: Any) -> Any:
        memories, states = carried or ([], [])
        with torch.autocast(device.type, torch.bfloat16):
            loss, memories, states = run(ids, xl_memories=memories, states=states, return_loss=True)
        loss.backward()
        return memories, states

    return model, step


def segments(options: argparse.Namespace, count: int, device: torch.device) -> Tensor:
    """[count, B, n + 1] ids; both packages predict the last n ids from the first n."""
    generator = torch.Generator().manual_seed(1)
    shape = (count, options.rows, options.block * options.blocks + 1)
    return torch.randint(SYMBOLS, shape, generator=generator).to(device)


def measure(
    step: Step, model: torch.nn.Module, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    model.train()
    ids = segments(options, options.repeats + WARM_UP, device)
    carried = None

    def one(number: int) -> None:
        nonlocal carried
        carried = step(ids[number], carried)
        model.zero_grad()

    timing = timed(one, WARM_UP, options.repeats, device)
    tokens = options.rows * options.block * options.blocks
    return {"tokens_per_second": tokens / statistics.median(timing["seconds"]), **timing}


def report(folder: Path) -> str:
    lines = ["| case | device | tokens/s | parameters |", "|---|---|---|---|"]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        cells = [record["case"], record["provenance"]["device"]]
        cells += [f"{record['tokens_per_second']:,.0f}", f"{record['parameters']:,}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
