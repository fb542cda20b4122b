"""Speed of `model.generate` at growing lengths, compared with re-running the last window.

    python benchmarks/generation.py --shape gpt2 --output results/generation

generate: one text, after a prompt of two windows; measures the time at each of --lengths tokens.
re-run:   the usual way to write a text longer than the window: transformers' own model reads the last
          full window again for every token. Every token costs the same, so --again tokens suffice.
stock:    transformers' own generate with its own cache, up to a full window: the cost of a token
          inside one window.
All run in one process with greedy decoding, on the same weights. Before it measures, the benchmark
compares the logits of generate with those of reading the whole text in one call.
Each run writes one JSON record; `--report` prints the table for a folder of records.
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
# The number of last tokens before each length that give the speed at that length.
LAST_TOKENS = 100


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--shape", default="small", choices=[*SHAPES, "bundled"])
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--window", type=int, default=300, help="for random weights")
    parser.add_argument("--overlap", type=int, default=0, help="for random weights")
    parser.add_argument("--again", type=int, default=100, help="tokens to write by re-running")
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
            raise SystemExit(
                f"--shape bundled: this package lacks the model {RECURRENT}. Choose another."
            )
        return open_model(RECURRENT)
    torch.manual_seed(0)
    base = GPT2LMHeadModel(GPT2Config(**SHAPES[options.shape], bos_token_id=0, eos_token_id=0))
    config = holdover.RecurrenceConfig(window=options.window, overlap=options.overlap)
    return holdover.add_recurrence(base, config)


def check(model: holdover.RecurrentModel, prompt: torch.Tensor) -> float:
    """Write a few tokens (also as a warm-up) and compare with reading everything in one call."""
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
            f"generate is wrong: its logits differ by {difference} from reading everything in one call."
        )
    return difference


class Clock(StoppingCriteria):
    """Records the time at which each of `counts` tokens was written. Never stops generation."""

    def __init__(self, prompt: int, counts: set[int]) -> None:
        self.prompt, self.counts = prompt, counts
        self.times: dict[int, float] = {}

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        count = input_ids.shape[1] - self.prompt
        if count in self.counts:
            wait(input_ids)
            self.times[count] = time.perf_counter()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def generate(
    model: holdover.RecurrentModel, prompt: torch.Tensor, lengths: list[int]
) -> list[dict[str, float]]:
    """Seconds since the call, including the prompt, and the speed over the last tokens."""
    before = {length: max(1, length - LAST_TOKENS) for length in lengths}
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
    results = []
    for length in lengths:
        seconds = clock.times[length] - start
        last = clock.times[length] - clock.times[before[length]]
        results.append(
            {
                "tokens": length,
                "seconds": seconds,
                "tokens_per_second": length / seconds,
                "tokens_per_second_at_the_end": (length - before[length]) / last,
            }
        )
        print(
            f"generate {length:7,} tokens: {length / seconds:9,.1f} tokens/s, "
            f"{results[-1]['tokens_per_second_at_the_end']:9,.1f} at the end",
            flush=True,
        )
    return results


@torch.no_grad()
def re_run(model: holdover.RecurrentModel, ids: torch.Tensor, count: int) -> dict[str, float]:
    window = ids.shape[1]
    with model.disable_recurrence():
        for number in range(count + 1):
            if number == 1:
                # The first token is a warm-up.
                wait(ids)
                start = time.perf_counter()
            logits = model(ids[:, -window:], use_cache=False, logits_to_keep=1).logits
            ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        wait(ids)
    seconds = time.perf_counter() - start
    print(f"re-run   {count:7,} tokens: {count / seconds:9,.1f} tokens/s", flush=True)
    return {"tokens": count, "seconds": seconds, "tokens_per_second": count / seconds}


def stock_generate(model: holdover.RecurrentModel, prompt: torch.Tensor) -> dict[str, float]:
    """From one token to a full window; the first tokens are a warm-up."""
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
    """The table for a folder of records."""
    lines = [
        "| model | device | window | written | generate tokens/s | re-run tokens/s | ratio |",
        "|---|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text())
        re_run_speed = record["re_run"]["tokens_per_second"]
        for result in record["generate"]:
            speed = result["tokens_per_second"]
            cells = [record["shape"], record["provenance"]["device"], str(record["window"])]
            cells += [f"{result['tokens']:,}", f"{speed:,.0f}", f"{re_run_speed:,.0f}"]
            lines.append(f"| {' | '.join(cells)} | {speed / re_run_speed:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
