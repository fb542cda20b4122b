"""What came of `attention_recurrence.py`: a record, a table beside the published numbers, figures.

    python experiments/attention_recurrence_report.py runs/enwik8 --record results/attention/enwik8-204

A column holds one convention of one text: folders of several texts are refused.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from spread import with_spread

from holdover.evaluate.compare import differences
from holdover.evaluate.plots import write_figure
from holdover.results import provenance, write_record

RECORD = "attention_recurrence.json"
# Of an arm the one that differs from it only in its attention.
BASES = {"rsa-xl": "xl", "rsa-brt": "brt"}
# Bits per character: the RSA paper after 400,000 steps, and its reproduction after 10,000 to 40,000.
PUBLISHED = {
    "enwik8-204": {
        "xl": (1.074, 1.26),
        "rsa-xl": (None, 5.07),
        "rsa-xl-small": (None, 3.93),
        "brt": (1.0746, 1.29),
        "rsa-brt": (1.0683, None),
    },
    "text8": {
        "xl": (None, 1.28),
        "rsa-xl": (1.164, 4.10),
        "rsa-xl-small": (None, 3.19),
        "brt": (1.1652, 1.30),
        "rsa-brt": (1.1625, None),
    },
}
# Lags that the figure of what was learnt shows.
SHOWN_LAGS = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", type=Path, help="folder of attention_recurrence.py")
    parser.add_argument("--record", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    record = summarise(options.runs)
    write_record(options.record / RECORD, record)
    draw_learnt(options.record / "learnt", record)
    draw_shares(options.record / "shares", record)
    print(table(record))


def summarise(runs: Path) -> dict[str, Any]:
    evaluations = {
        path.parent.parent.name: json.loads(path.read_text())
        for path in sorted(runs.glob("*/eval/eval.json"))
    }
    texts = {evaluation["data"]["source"] for evaluation in evaluations.values()}
    if len(texts) != 1:
        raise SystemExit(f"{runs} holds evaluations of {sorted(texts)}: one text was expected.")
    rows = [row_of(runs / name, evaluation) for name, evaluation in evaluations.items()]
    return {
        "record": "attention recurrence",
        "text": texts.pop(),
        "rows": rows,
        "differences": [pair for row in rows if (pair := against_base(row, evaluations))],
        "provenance": provenance(),
    }


def row_of(run: Path, evaluation: dict[str, Any]) -> dict[str, Any]:
    arm, seed, share = run.name.rsplit("-", 2)
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    last = [line for line in lines if "loss" in line][-1]
    about = json.loads((run / "holdover_run.json").read_text())
    (row,) = evaluation["rows"]
    gates = run / "gates.json"
    return {
        "run": run.name,
        "arm": arm,
        "seed": int(seed),
        "share": float(share),
        "bits": in_bits(row["nats"] / row["counts"]["tokens"]),
        "unigram_bits": row["collapse"]["unigram_bits"],
        "collapsed": row["collapse"]["collapsed"],
        "symbols": row["counts"]["tokens"],
        "parameters": evaluation["model"]["parameters"]["all"],
        "steps": last["step"],
        "tokens": last["tokens"],
        "seconds": last["seconds"],
        "validation": [
            [line["step"], in_bits(line["valid_loss"])] for line in lines if "valid_loss" in line
        ],
        "options": {
            key: about["options"][key] for key in ("shape", "recurrence", "windows", "rows")
        },
        "device": about["provenance"]["device"],
        "commit": about["provenance"]["commit"],
        "gates": json.loads(gates.read_text())["layers"] if gates.exists() else None,
    }


def against_base(
    row: dict[str, Any], evaluations: dict[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """Bits above the model without RSA of the same seed and share, paired over blocks of the text."""
    base = row["run"].replace(row["arm"], BASES.get(row["arm"], ""), 1)
    if row["arm"] not in BASES or base not in evaluations:
        return None
    _, found = differences({base: evaluations[base], row["run"]: evaluations[row["run"]]})
    value, low, high = (in_bits(found[name]) for name in ("above_first", "low", "high"))
    return {"run": row["run"], "base": base, "bits": value, "low": low, "high": high}


def in_bits(nats: float) -> float:
    return nats / math.log(2)


def table(record: dict[str, Any]) -> str:
    """In Markdown: every arm with its seeds, beside what was published."""
    lines = [
        "| model | share of text | steps | parameters | bits per character | above its base "
        "| paper | reproduction |",
        "|---|---|---|---|---|---|---|---|",
    ]
    published = PUBLISHED.get(record["text"], {})
    groups: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for row in record["rows"]:
        groups.setdefault((row["arm"], row["share"]), []).append(row)
    for (arm, share), rows in groups.items():
        bits = with_spread([row["bits"] for row in rows], "{:.3f}")
        pairs = [pair for pair in record["differences"] if pair["run"] in {r["run"] for r in rows}]
        above = ""
        if len(pairs) == 1:
            above = "{bits:+.4f} [{low:+.4f}, {high:+.4f}]".format(**pairs[0])
        elif pairs:
            above = with_spread([pair["bits"] for pair in pairs], "{:+.4f}")
        known = ["" if value is None else str(value) for value in published.get(arm, (None, None))]
        collapsed = " (collapsed)" if any(row["collapsed"] for row in rows) else ""
        cells = [arm, f"{share:.0%}", f"{rows[0]['steps']:,}", f"{rows[0]['parameters']:,}"]
        lines.append(f"| {' | '.join([*cells, bits + collapsed, above, *known])} |")
    return "\n".join(lines)


def draw_learnt(stem: Path, record: dict[str, Any]) -> None:
    """How much recurrence the layers use, and at which lags."""
    rows = [row for row in record["rows"] if row["gates"] and row["share"] == 1.0]
    if not rows:
        return
    row = rows[0]

    def draw(panels: Any) -> None:
        share, weights = panels
        layers = range(1, len(row["gates"]) + 1)
        share.bar(layers, [layer["gate"] for layer in row["gates"]], color="#0072B2")
        share.set(xlabel="Layer", ylabel="Share of the recurrence, sigmoid(mu)")
        lags = np.arange(1, SHOWN_LAGS + 1)
        image = np.stack([np.abs(lag_weights(layer, lags)).sum(0) for layer in row["gates"]])
        shown = weights.imshow(
            image, aspect="auto", origin="lower", extent=(1, SHOWN_LAGS, 0.5, len(layers) + 0.5)
        )
        weights.set(xlabel="Lag", ylabel="Layer")
        weights.grid(visible=False)
        for axis in (share.xaxis, weights.yaxis):
            axis.get_major_locator().set_params(integer=True)
        weights.figure.colorbar(shown, ax=weights, label="Sum over heads of gate x |weight|")

    write_figure(stem, draw, panels=2)


def lag_weights(layer: dict[str, Any], lags: np.ndarray) -> np.ndarray:
    """[heads, lags] what a layer's heads give to each lag, times the gate."""
    found = []
    for kind, dilation, rate, angle in zip(
        layer["kinds"], layer["dilations"], layer["rates"], layer["angles"], strict=True
    ):
        turns = lags / dilation
        # Only whole turns count; the others are computed on the way, where a sign has no power.
        wave = {"regular": 1.0, "cos": np.cos(angle * turns), "sin": np.sin(angle * turns)}[kind]
        weights = np.abs(rate) ** turns * np.sign(rate) ** np.floor(turns) * wave
        found.append(np.where(lags % dilation == 0, weights, 0.0) * layer["gate"])
    return np.array(found)


def draw_shares(stem: Path, record: dict[str, Any]) -> None:
    """Bits per character over the share of the training text: the paper's first figure."""
    shares = sorted({row["share"] for row in record["rows"]})
    if len(shares) < 2:
        return

    def draw(panels: Any) -> None:
        (axes,) = panels
        for arm in dict.fromkeys(row["arm"] for row in record["rows"]):
            values = [
                [
                    row["bits"]
                    for row in record["rows"]
                    if (row["arm"], row["share"]) == (arm, share)
                ]
                for share in shares
            ]
            means = [np.mean(part) for part in values]
            spread = [np.std(part) for part in values]
            axes.errorbar([100 * share for share in shares], means, spread, marker="o", label=arm)
        axes.set(xscale="log", xlabel="Share of the training text (%)", ylabel="Bits per character")
        axes.legend()

    write_figure(stem, draw)


if __name__ == "__main__":
    main()
