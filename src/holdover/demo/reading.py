"""The demo's first two stages: both twins read the novel; then, is the state used?"""

from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..evaluation.compare import differences
from ..evaluation.diagnose import WindowReader, compared, drawn_windows, resampled_over
from ..evaluation.driver import progress
from ..evaluation.intervals import Resampled, units_of
from ..evaluation.scoring import segments_to_score
from ..evaluation.token_lens import NATS_A_BIT, Lens, lens
from ..language.eval_options import EvalOptions
from ..language.evaluation import measure
from ..text.tokens import Tokens
from .options import DemoOptions

OVERLAPS = (0, 10, 30, 50)
# Few, because the novel is read many times anyway.
TIMED_WINDOWS = 12
# The most windows of history to try, and the number of windows of the novel to try them on.
HISTORY = 3
HISTORY_WINDOWS = 24


def read_twins(options: DemoOptions, window: int, console: Console) -> dict[str, dict[str, Any]]:
    """The evaluation records of both twins on the novel."""
    records = {}
    for twin in ("plain", "recurrent"):
        console.print(
            f"The {twin} twin reads the novel at overlaps {', '.join(map(str, OVERLAPS))}."
        )
        records[twin] = measure(
            EvalOptions.of(
                model=getattr(options, twin),
                data="time-machine",
                split="all",
                window=window,
                overlap=OVERLAPS,
                document_tokens=options.novel_tokens,
                metrics=False,
                diagnose_state=False,
                timed_windows=TIMED_WINDOWS,
                plots=False,
                device=options.device,
                output=options.output / twin,
            ),
            console,
        )
    return records


def as_rows(records: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the table."""
    rows = []
    for twin, record in records.items():
        for row in record["rows"]:
            low, high = row["intervals"]["perplexity_per_token"]
            rows.append(
                {
                    "twin": twin,
                    "overlap": row["overlap"],
                    "perplexity": row["perplexity_per_token"],
                    "low": low,
                    "high": high,
                    # Counted by torch: the formula ignores the cost of memory tokens.
                    "flops_per_token": row["flops_per_token"]["counted"],
                    "tokens_per_second": row["tokens_per_second"],
                    "rows_side_by_side": row["rows_side_by_side"],
                    "peak_memory": row["peak_memory"]["bytes"],
                    "note": row["note"],
                }
            )
    return rows


def difference(records: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The loss of the recurrent twin minus that of the plain twin at overlap 0, paired."""
    at_zero = {twin: {**record, "rows": record["rows"][:1]} for twin, record in records.items()}
    _, above = differences(at_zero)
    row = records["plain"]["rows"][0]
    return {
        "value": above["above_first"],
        "low": above["low"],
        "high": above["high"],
        "unit": "nats a token",
        "over": f"{row['units']} {row['interval_over']}",
    }


def examine_state(
    model: Any, tokens: Tokens, device: torch.device, console: Console, seed: int
) -> tuple[Lens, dict[str, Any]]:
    """Score every token with its own state, without a state and with another; and vary the history."""
    settings = model.settings
    stretches = segments_to_score(tokens, settings, None)
    windows = -(-len(tokens) // settings.window)
    with progress(console, "with and without the state", 3 * windows) as advance:
        seen = lens(model, tokens, seed=seed, advance=advance)
    drawn = drawn_windows(tokens, stretches, settings.window, 0, HISTORY_WINDOWS, seed)
    drawn = [(stretch, window) for stretch, window in drawn if window >= HISTORY]
    return seen, {
        "zeroed": above_own(seen, seen.without),
        "other": above_own(seen, seen.other),
        "other_is": seen.other_is,
        "history": by_history(model, tokens, stretches, drawn, seen, device),
        "bytes": seen.state_bytes,
    }


def above_own(seen: Lens, bits: np.ndarray) -> dict[str, Any]:
    """Nats per token above those with the own state, with an interval over blocks of windows."""
    predicted = ~np.isnan(seen.own)
    units, _ = units_of(seen.document[predicted], seen.window[predicted])
    resampled = Resampled(units)
    more = (bits - seen.own)[predicted] * NATS_A_BIT
    value, low, high = resampled.interval(
        resampled.per_unit(more),
        resampled.per_unit(np.ones(len(more))),
        transform=lambda nats: nats,
    )
    return {"value": value, "low": low, "high": high}


def by_history(
    model: Any,
    tokens: Tokens,
    stretches: list[Any],
    drawn: list[tuple[int, int]],
    seen: Lens,
    device: torch.device,
) -> list[dict[str, Any]]:
    """The loss of drawn windows if their state begins empty only a few windows before them."""
    if len(drawn) < 2:
        return []
    reader = WindowReader(model, tokens, stretches, drawn, 16, device, lambda count: None)
    _, places = reader.losses(lambda number: None)
    own = np.array(
        [np.nansum(seen.own[p.start + p.keep + 1 : p.start + p.length + 1]) for p in places]
    )
    resampled, _ = resampled_over(places, 2000, 0)
    numbers = range(len(drawn))
    return [
        {
            "windows": length,
            **compared(
                resampled, reader.with_history(numbers, length), own * NATS_A_BIT, reader.counts
            ),
        }
        for length in range(HISTORY + 1)
    ]
