"""holdover demo: small models that read a novel window by window, with and without a carried state.

* Twins: the same first weights, the same bytes in the same order; they differ in what is carried.
* Every row walks through its own part of the novel; a step reads the next windows of all rows, and
  the state goes on to the next step, without its graph.
* The end of the novel is held out; perplexities are a byte, on that end.
"""

import math
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from .. import RecurrenceConfig, RecurrentModel, State, add_recurrence
from ..results import make_folder, provenance, write_record
from .from_scratch_report import Report, compare, progress, show

WINDOW = 32
SLOTS = 2
POSITIONS = WINDOW + 2 * SLOTS
SIZES = {"vocab_size": 256, "n_positions": POSITIONS, "n_embd": 128, "n_layer": 2, "n_head": 4}
NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
SPECIAL = dict.fromkeys(("bos_token_id", "eos_token_id"), 0)
TWINS = {
    "plain": RecurrenceConfig(window=WINDOW, carry="none"),
    # The method as published.
    "pooled mean": RecurrenceConfig(window=WINDOW),
    "pooled last": RecurrenceConfig(
        window=WINDOW, pooling="last", insert_layer="all", map_hidden=()
    ),
    "memory tokens": RecurrenceConfig(window=WINDOW, carry="tokens", slots=SLOTS, map_hidden=()),
}
STEPS = 1500
ROWS = 8
WINDOWS_A_STEP = 2
LEARNING_RATE = 2e-3
WARM_UP = 50
HELD_OUT = 10  # one byte in so many
# Windows next to each other are alike, so the bootstrap draws whole blocks of them.
BLOCK = 5
SHORTEST = HELD_OUT * (2 * BLOCK * WINDOW * ROWS + 1)


def run(text: Path | None, steps: int, seed: int, output: Path) -> dict[str, Any]:
    """Train the twins, show how they compare, write the record and return it."""
    if steps < 1:
        raise ValueError(f"--steps {steps} trains nothing: give at least 1.")
    if not 0 <= seed < 2**32:
        raise ValueError(f"--seed {seed} is out of range: give a number from 0 to {2**32 - 1}.")
    novel = read_text(text)
    make_folder(output)
    started = time.perf_counter()
    console = Console(highlight=False)
    results = train_and_compare(novel, steps, seed, console)
    show(results, console)
    record = {
        "demo": "twins on the bytes of a novel",
        "text": "the bundled novel" if text is None else text.name,
        "bytes": len(novel),
        "steps": steps,
        "tokens_a_step": ROWS * WINDOWS_A_STEP * WINDOW,
        "seed": seed,
        "model": SIZES,
        "twins": results,
        "seconds": round(time.perf_counter() - started, 1),
        "provenance": provenance(),
    }
    write_record(output / "demo.json", record)
    console.print(f"\nRecord: {output / 'demo.json'} ({record['seconds']} s)", soft_wrap=True)
    return record


def read_text(path: Path | None) -> Tensor:
    """[N] the bytes of a text."""
    if path is None:
        content = (files("holdover") / "texts" / "the_time_machine.txt").read_bytes()
    elif not path.is_file():
        raise FileNotFoundError(f"There is no text file at {path}: give --text a file.")
    else:
        content = path.read_bytes()
    if len(content) < SHORTEST:
        size = f"only {len(content):,} bytes long" if content else "empty"
        raise ValueError(f"{path} is {size}: the demo needs a text of {SHORTEST:,} bytes or more.")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).long()


def train_and_compare(
    novel: Tensor, steps: int, seed: int, console: Console
) -> dict[str, dict[str, Any]]:
    held = math.ceil(len(novel) / HELD_OUT)
    training, held_out = novel[:-held], novel[-held:]
    console.print(
        f"{len(training):,} bytes to learn from, {held:,} held out. {len(TWINS)} twins of a small "
        f"random GPT-2 of {POSITIONS} positions, {steps:,} steps each, windows of {WINDOW} bytes."
    )
    results: dict[str, dict[str, Any]] = {}
    plain = None
    with progress(console, steps * len(TWINS)) as report:
        for name, settings in TWINS.items():
            model = build(settings, seed)
            speed, loss = train(model, training, steps, seed, report(name))
            scores, nbytes = score(model, held_out)
            plain = scores["own"] if plain is None else plain
            results[name] = {
                **compare(scores, plain),
                "training_loss": loss,
                "added_parameters": model.parameter_counts()["added"],
                "state_bytes": nbytes,
                "training_tokens_per_second": round(speed),
                "whole_text": read_whole(model, held_out),
                "recurrence": settings.to_dict(),
            }
    return results


def build(settings: RecurrenceConfig, seed: int) -> RecurrentModel:
    torch.manual_seed(seed)
    # With GPT-2's own initializer_range, 0.02, a model this small learns slowly.
    config = GPT2Config(**SIZES, **NO_DROPOUT, **SPECIAL, initializer_range=0.06)
    return add_recurrence(GPT2LMHeadModel(config), settings)


def batches(tokens: Tensor, seed: int) -> Iterator[tuple[bool, Tensor, Tensor]]:
    """Whether the rows start anew, [B, n] bytes and the bytes that follow them; without end."""
    generator = torch.Generator().manual_seed(seed)
    length = WINDOWS_A_STEP * WINDOW
    while True:
        # Another cut in every round, so that other bytes stand at the beginning of windows.
        shift = int(torch.randint(WINDOW, (), generator=generator))
        ids, targets = as_rows(tokens[shift:], length)
        for column in range(0, ids.shape[1], length):
            part = slice(column, column + length)
            yield column == 0, ids[:, part], targets[:, part]


def as_rows(tokens: Tensor, multiple: int) -> tuple[Tensor, Tensor]:
    """[ROWS, n] consecutive stretches of a text, and the same one byte later."""
    columns = (len(tokens) - 1) // ROWS // multiple * multiple
    end = ROWS * columns
    return tokens[:end].reshape(ROWS, columns), tokens[1 : end + 1].reshape(ROWS, columns)


def train(
    model: RecurrentModel, tokens: Tensor, steps: int, seed: int, report: Report
) -> tuple[float, float]:
    """Returns tokens a second, and the loss averaged over the last tenth of the steps."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.01)
    state, losses = None, []
    started = time.perf_counter()
    for step, (anew, ids, targets) in zip(range(steps), batches(tokens, seed), strict=False):
        for group in optimizer.param_groups:
            decay = 0.5 + 0.5 * math.cos(math.pi * step / steps)
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARM_UP) * max(decay, 0.02)
        carried = None if anew or state is None else state.detach()
        output = model(ids, shift_labels=targets, state=carried)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        state = output.state
        losses.append(output.loss.item())
        speed = (step + 1) * ids.numel() / (time.perf_counter() - started)
        report(losses[-1], speed)
    last = losses[-max(1, steps // 10) :]
    return speed, sum(last) / len(last)


@torch.no_grad()
def score(model: RecurrentModel, held_out: Tensor) -> tuple[dict[str, Tensor], int]:
    """[blocks] mean -log p with the state as it is, zeroed, and another row's; bytes a state."""
    model.eval()
    ids, targets = as_rows(held_out, BLOCK * WINDOW)
    everything = torch.ones(ROWS, dtype=torch.bool)
    others = torch.arange(ROWS).roll(ROWS // 2)
    spoil: dict[str, Callable[[State], State]] = {
        "own": lambda state: state,
        "zeroed": lambda state: state.reset(everything),
        "other": lambda state: state.rows(others),
    }
    sums: dict[str, list[Tensor]] = {name: [] for name in spoil}
    state: State | None = None
    for window, wanted in zip(ids.split(WINDOW, 1), targets.split(WINDOW, 1), strict=True):
        reached = None
        for name, change in spoil.items():
            given = None if state is None else change(state)
            output = model(window, state=given)
            reached = reached or output.state
            loss = nn.functional.cross_entropy(output.logits.mT, wanted, reduction="none")
            sums[name].append(loss.mean(1))
        state = reached
    assert state is not None
    blocks = {
        name: torch.stack(parts, 1).double().reshape(-1, BLOCK).mean(1)
        for name, parts in sums.items()
    }
    return blocks, state.nbytes // ROWS


@torch.no_grad()
def read_whole(model: RecurrentModel, held_out: Tensor) -> dict[str, Any]:
    """The held-out text in one call: to the stock model, and with the recurrence."""
    ids = held_out[None]
    failure = None
    with model.disable_recurrence():
        try:
            model(ids)
        except IndexError as error:
            failure = f"{type(error).__name__}: {error}"
    output = model(ids, labels=ids)
    return {
        "tokens": len(held_out),
        "stock_error": failure,
        "perplexity": round(math.exp(output.loss), 4),
        "state_bytes": output.state.nbytes,
    }
