"""The results of `bundled_model.py`: the record, and the two twins in the package, each with a card.

    python experiments/bundled_shipping.py runs/bundled --record results/bundled_model   (the record)
    python experiments/bundled_shipping.py runs/bundled --record results/bundled_model --ship

The package gets the state with the largest gain over the plain twin at equal FLOPs, which the plain twin
spends on overlapping windows. Perplexity alone would favour models that compute more.
"""

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from holdover.bundled import PLAIN, RECURRENT
from holdover.evaluation.compare import differences
from holdover.runs.provenance import provenance, write_record

PACKAGE = Path(__file__).parent.parent / "src" / "holdover" / "bundled"
# The files of a model; other files in the folder describe the training.
FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
RECORD = "bundled_model.json"
COLUMNS = ("state", "overlap", "perplexity", "nats above plain", "state removed")
COLUMNS += ("another book's state", "MFLOPs")
MOST_BYTES = 25_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of bundled_model.py")
    parser.add_argument("--record", type=Path, required=True, metavar="DIR")
    parser.add_argument("--ship", action="store_true", help="put the twins into the package")
    parser.add_argument(
        "--remark", action="append", default=[], help="a remark for readers of the record"
    )
    options = parser.parse_args()
    evaluations = read_evaluations(options.runs / "shipped")
    record = summarise(evaluations, options.runs) | {"remarks": options.remark}
    write_record(options.record / RECORD, record)
    for name, evaluation in evaluations.items():
        write_record(options.record / "evaluations" / f"{name}.json", evaluation)
    for row in record["rows"]:
        print(row)
    print("shipped:", record["shipped"])
    if options.ship:
        ship(options.runs / "shipped", record)


def read_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    evaluations = {
        path.parent.name.removesuffix("-eval"): json.loads(path.read_text())
        for path in sorted(folder.glob("*-eval/eval.json"))
    }
    if "plain" not in evaluations or len(evaluations) < 2:
        raise SystemExit(
            f"{folder} has no evaluations of the plain twin and another twin: run bundled_model.py "
            "first."
        )
    return {"plain": evaluations.pop("plain"), **evaluations}


def summarise(evaluations: dict[str, dict[str, Any]], runs: Path) -> dict[str, Any]:
    plain = evaluations["plain"]
    curve = [(cost_of(row), loss_of(row)) for row in plain["rows"]]
    rows = []
    for difference in differences(evaluations):
        evaluation = evaluations[difference["model"]]
        row = next(r for r in evaluation["rows"] if r["overlap"] == difference["overlap"])
        at_cost = float(np.interp(cost_of(row), *zip(*curve, strict=True)))
        state = row.get("state")
        rows.append(
            {
                "model": difference["model"],
                "overlap": difference["overlap"],
                "perplexity": row["perplexity_per_token"],
                "interval": row["intervals"]["perplexity_per_token"],
                "difference": [difference["above_first"], difference["low"], difference["high"]],
                "flops_per_token": cost_of(row),
                # Against the plain twin at the same FLOPs, interpolated between its overlaps.
                "gain_at_equal_flops": at_cost - loss_of(row),
                "zeroed": state and [state["zeroed"][k] for k in ("above_own", "low", "high")],
                "other": state and [state["other"][k] for k in ("above_own", "low", "high")],
                "added_parameters": evaluation["model"]["parameters"]["added"],
                "parameters": evaluation["model"]["parameters"]["all"],
            }
        )
    states = [row for row in rows if row["model"] != "plain"]
    best = max(states, key=lambda row: row["gain_at_equal_flops"])
    return {
        "record": "bundled model",
        "books": plain["data"]["documents_read"],
        "tokens": plain["rows"][0]["counts"]["tokens"],
        "rows": rows,
        "shipped": best["model"],
        "as_good_as_plain_at": as_good_as(best, rows),
        "training": {name: training_of(runs / name) for name in ("pretrained", *evaluations)},
        "provenance": provenance(),
    }


def as_good_as(best: dict[str, Any], rows: list[dict[str, Any]]) -> int | None:
    """The largest overlap at which the plain twin is no better."""
    beaten = [
        row["overlap"]
        for row in rows
        if row["model"] == "plain" and row["perplexity"] >= best["perplexity"]
    ]
    return max(beaten, default=None)


def training_of(run: Path) -> dict[str, Any] | None:
    """Settings and results of a training."""
    log = run / "log.jsonl"
    if not log.exists():
        return None
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    about = json.loads((run / "holdover_run.json").read_text())
    options = {
        key: Path(value).name if key in ("model", "tokenizer", "output") and value else value
        for key, value in about["options"].items()
    }
    return {
        "steps": steps[-1]["step"],
        "tokens": steps[-1]["tokens"],
        "seconds": steps[-1]["seconds"],
        "validation": [
            [line["step"], round(line["valid_loss"], 4)] for line in lines if "valid_loss" in line
        ],
        "options": options,
        "commit": about["provenance"]["commit"],
        "device": about["provenance"]["device"],
    }


def cost_of(row: dict[str, Any]) -> float:
    return row["flops_per_token"]["counted"]


def loss_of(row: dict[str, Any]) -> float:
    return math.log(row["perplexity_per_token"])


def ship(folder: Path, record: dict[str, Any]) -> None:
    twins = {PLAIN: "plain", RECURRENT: record["shipped"]}
    size = sum((folder / arm / name).stat().st_size for arm in twins.values() for name in FILES)
    if size > MOST_BYTES:
        raise SystemExit(f"The twins take {size:,} bytes, more than the limit of {MOST_BYTES:,}.")
    write_record(PACKAGE / "books.json", scores(record))
    for name, arm in twins.items():
        (PACKAGE / name).mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(folder / arm / file, PACKAGE / name / file)
        # Stored in half precision and opened in single precision.
        config = json.loads((PACKAGE / name / "config.json").read_text())
        config_text = json.dumps(config | {"dtype": "float32"}, indent=2)
        (PACKAGE / name / "config.json").write_text(config_text + "\n")
        (PACKAGE / name / "README.md").write_text(card(name, arm, record))


def scores(record: dict[str, Any]) -> dict[str, Any]:
    """The scores on other books, which the demonstration shows next to its novel."""
    at_zero = {row["model"]: row for row in record["rows"] if row["overlap"] == 0}
    recurrent = at_zero[record["shipped"]]
    return {
        "plain": at_zero["plain"]["perplexity"],
        "recurrent": recurrent["perplexity"],
        "difference": {
            **dict(zip(("value", "low", "high"), recurrent["difference"], strict=True)),
            "unit": "nats a token",
            "over": f"{record['books']} PG-19 test books",
        },
        "record": f"results/bundled_model/{RECORD}",
    }


def card(name: str, arm: str, record: dict[str, Any]) -> str:
    own = next(row for row in record["rows"] if row["model"] == arm and row["overlap"] == 0)
    pretraining, training = record["training"]["pretrained"], record["training"][arm]
    recurrence = training["options"]["recurrence"]
    carries = {
        "none": "It carries no state: every window of 300 tokens is read alone.",
        "tokens": f"It carries {recurrence['slots']} memory tokens from window to window.",
        "pooled": f"It carries {recurrence['slots']} pooled vectors from window to window.",
    }[recurrence["carry"]]
    total = (pretraining["tokens"] + training["tokens"]) / 1e6
    minutes = (pretraining["seconds"] + training["seconds"]) / 60
    return f"""---
license: apache-2.0
language: en
library_name: holdover
pipeline_tag: text-generation
---
# {name}

A small English language model of old books, made to show the effect of a carried state.
{carries}
Its twin, trained from the same checkpoint on the same tokens in the same order, is in the next folder.

- **Architecture**: GPT-2, 6 layers x 256, 8 heads, 512 learned positions, byte-level BPE of 4,096 tokens
  of its own; {own["parameters"] / 1e6:.1f} million weights in half precision. `<|endoftext|>` is in the
  vocabulary but not in the training data.
- **Data**: 400 English books published before 1919, with ids of PG-19's train split, in Project
  Gutenberg's editions (60.1 million tokens). Nothing was filtered: the prejudices of the time are in it.
  The Time Machine is not among them (`results/bundled_model/seen_before.json`).
- **Recipe**: `experiments/bundled_model.py`. Pretraining: {pretraining["steps"]:,} steps of 65,536
  tokens in windows of 512. Then {training["steps"]:,} steps of 192,000 tokens, 20 windows of 300 with
  back-propagation through all of them. Adam, cosine schedule, bfloat16.
- **Cost**: {total:,.0f} million tokens, {minutes:.0f} minutes on one {training["device"]}, shared with
  other runs in the second part.
- **Evaluation**: on {record["books"]} PG-19 test books ({record["tokens"]:,} tokens) its perplexity is
  {own["perplexity"]:.2f} per token. All states that were tried:

{table(record)}

  Perplexity, differences and FLOPs are per token. Brackets are 95% intervals over books, of paired
  differences; they do not show what another seed would change. The costs of removing or exchanging
  the state, in nats per token, are from 400 windows. Perplexities per token depend on the vocabulary
  and cannot be compared with those of other models.
- **Limits**: too small for long coherent text or for facts; English prose before 1919 only; one seed.

```python
from holdover import RecurrentModel
from holdover.bundled import bundled_model

model = RecurrentModel.from_pretrained(bundled_model("{name}"), dtype="float32")
```
"""


def table(record: dict[str, Any]) -> str:
    """All states that were tried, as a Markdown table."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for row in record["rows"]:
        perplexity = "{:.2f} [{:.2f}, {:.2f}]".format(row["perplexity"], *row["interval"])
        cells = [row["model"], str(row["overlap"]), perplexity]
        cells += [_nats(row[name]) for name in ("difference", "zeroed", "other")]
        lines.append(f"| {' | '.join(cells)} | {row['flops_per_token'] / 1e6:.1f} |")
    return "\n".join(lines)


def _nats(difference: list[float] | None) -> str:
    if not difference or not any(difference):
        return ""
    return "{:+.3f} [{:+.3f}, {:+.3f}]".format(*difference)


if __name__ == "__main__":
    main()
