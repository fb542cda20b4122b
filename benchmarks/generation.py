"""Tokens a second of `model.generate`, however much was written, against re-running the last window.

    python benchmarks/generation.py --shape gpt2 --output results/generation

generate: one text of --lengths tokens behind a prompt of two windows; the clock is read at each length.
re-run:   what is done today when a text is longer than the window: transformers' own model, the last
          full window through it for every token. Each token costs the same, so --again of them do.
stock:    transformers' own generate with its own cache, as many tokens as a window holds: no text is
          longer, so this is what a token costs inside a window.
All run in one process, on the same weights, greedily. Before anything is measured, the logits that
generate saw are compared with those of reading the whole text.
One JSON record a run; `--report` prints the table of a folder of them.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteria, StoppingCriteriaList

import holdover
from holdover.bundled import RECURRENT, bundled_model
from holdover.runs.models import open_model
from holdover.runs.provenance import choose_device, provenance, write_record

SHAPES = {
    "small": {"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 512, "vocab_size": 256},
    "gpt2": {},
}
# The stretch in front of a length whose speed is that of a long text alone.
STRETCH = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--shape", default="small", choices=[*SHAPES, "bundled"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--window", type=int, default=300, help="of random shapes")
    parser.add_argument("--overlap", type=int, default=0, help="of random shapes")
    parser.add_argument("--again", type=int, default=100, help="tokens written by re-running")
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
    model: Any = build(options).eval()
    model.to(device)
    window = model.settings.window
    torch.manual_seed(1)
    prompt = torch.randint(0, model.vocabulary, (1, 2 * window), device=device)
    agreement = check(model, prompt)
    generated = generate(model, prompt, sorted(options.lengths))
    again = re_run(model, prompt[:, -window:], options.again)
    stock = stock_generate(model, prompt)
    record = {
        "benchmark": "generation",
        "shape": options.shape,
        "model": f"{type(model.backbone).__name__}, {model.num_parameters():,} parameters",
        "dtype": str(model.dtype).removeprefix("torch."),
        "window": window,
        "overlap": model.settings.overlap,
        "recurrence": model.settings.carry,
        "prompt": prompt.shape[1],
        "largest_logit_difference_to_re_reading": agreement,
        "generate": generated,
        "re_run": again,
        "stock_generate_in_a_window": stock,
        "provenance": provenance(device),
    }
    write_record(options.output / f"{options.shape}-{device.type}.json", record)


def build(options: argparse.Namespace) -> holdover.RecurrentModel:
    if options.shape == "bundled":
        if bundled_model(RECURRENT) is None:
            raise SystemExit(f"This package holds no model {RECURRENT}: choose another --shape.")
        return open_model(RECURRENT)
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(**SHAPES[options.shape], bos_token_id=0, eos_token_id=0))
    config = holdover.RecurrenceConfig(window=options.window, overlap=options.overlap)
    return holdover.add_recurrence(base, config)


def check(model: holdover.RecurrentModel, prompt: torch.Tensor) -> float:
    """Write a few tokens (a first run, too), and compare with reading everything in one call."""
    out = model.generate(
        prompt,
        max_new_tokens=8,
        eos_token_id=None,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    with torch.no_grad():
        whole = model(out.sequences[:, :-1]).logits[:, prompt.shape[1] - 1 :]
    difference = float((torch.stack(out.logits, 1) - whole).abs().max())
    if not difference < 1e-2:
        raise SystemExit(
            f"generate is wrong: logits differ by {difference} from those of re-reading."
        )
    return difference


class Clock(StoppingCriteria):
    """When each number of tokens was written; stops nothing."""

    def __init__(self, prompt: int, wanted: set[int]) -> None:
        self.prompt, self.wanted = prompt, wanted
        self.times: dict[int, float] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        count = input_ids.shape[1] - self.prompt
        if count in self.wanted:
            wait(input_ids)
            self.times[count] = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate(
    model: holdover.RecurrentModel, prompt: torch.Tensor, lengths: list[int]
) -> list[dict[str, float]]:
    """Seconds from the call on, reading the prompt included, and the speed of the last stretch."""
    before = {length: max(1, length - STRETCH) for length in lengths}
    clock = Clock(prompt.shape[1], {*lengths, *before.values()})
    wait(prompt)
    start = time.perf_counter()
    model.generate(
        prompt,
        max_new_tokens=lengths[-1],
        eos_token_id=None,
        do_sample=False,
        stopping_criteria=StoppingCriteriaList([clock]),
    )
    found = []
    for length in lengths:
        seconds = clock.times[length] - start
        last = clock.times[length] - clock.times[before[length]]
        found.append(
            {
                "tokens": length,
                "seconds": seconds,
                "tokens_per_second": length / seconds,
                "tokens_per_second_at_the_end": (length - before[length]) / last,
            }
        )
        print(
            f"generate {length:7,} tokens: {length / seconds:9,.1f} tokens/s, "
            f"{found[-1]['tokens_per_second_at_the_end']:9,.1f} at the end",
            flush=True,
        )
    return found


@torch.no_grad()
def re_run(model: holdover.RecurrentModel, ids: torch.Tensor, count: int) -> dict[str, float]:
    window = ids.shape[1]
    with model.disable_recurrence():
        for number in range(count + 1):
            if number == 1:
                # The first one warms up.
                wait(ids)
                start = time.perf_counter()
            logits = model(ids[:, -window:], use_cache=False, logits_to_keep=1).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        wait(ids)
    seconds = time.perf_counter() - start
    print(f"re-run   {count:7,} tokens: {count / seconds:9,.1f} tokens/s", flush=True)
    return {"tokens": count, "seconds": seconds, "tokens_per_second": count / seconds}


def stock_generate(model: holdover.RecurrentModel, prompt: torch.Tensor) -> dict[str, float]:
    """From one token to a full window; the first tokens warm up."""
    first, last = 8, model.settings.window - 1
    clock = Clock(1, {first, last})
    with model.disable_recurrence():
        model.generate(
            prompt[:, :1],
            max_new_tokens=last,
            eos_token_id=None,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
    count, seconds = last - first, clock.times[last] - clock.times[first]
    print(f"stock    {count:7,} tokens: {count / seconds:9,.1f} tokens/s", flush=True)
    return {"tokens": count, "seconds": seconds, "tokens_per_second": count / seconds}


def wait(ids: torch.Tensor) -> None:
    if ids.is_cuda:
        torch.cuda.synchronize()


def report(folder: Path) -> str:
    """The table of a folder of records."""
    lines = [
        "| model | device | window | written | generate tokens/s | re-run tokens/s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        against = record["re_run"]["tokens_per_second"]
        for found in record["generate"]:
            speed = found["tokens_per_second"]
            cells = [record["shape"], record["provenance"]["device"], str(record["window"])]
            cells += [f"{found['tokens']:,}", f"{speed:,.0f}", f"{against:,.0f}"]
            lines.append(f"| {' | '.join(cells)} | {speed / against:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
