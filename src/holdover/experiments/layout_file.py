"""A layout as JSON, beside the records it names: a report needs no experiment file."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from .definition import (
    Answer,
    Cell,
    Claim,
    Expectation,
    Experiment,
    Figure,
    Layout,
    Published,
    Samples,
    Series,
    Table,
    Threats,
    Value,
)

LAYOUT = "experiment.json"


def to_json(name: str, scale: str, experiment: Experiment) -> dict[str, Any]:
    layout = experiment.layout(scale)
    return {
        "record": "experiment",
        "experiment": name,
        "scale": scale,
        "title": experiment.title,
        "question": experiment.question,
        "source": experiment.source,
        "planned": _planned(scale, experiment),
        "place": experiment.place,
        "done": layout.done,
        "answers": [asdict(answer) for answer in layout.answers],
        "claims": [asdict(claim) for claim in layout.claims],
        "tables": [asdict(table) for table in layout.tables],
        "figures": [asdict(figure) for figure in layout.figures],
        "samples": [asdict(samples) for samples in layout.samples],
        "threats": asdict(layout.threats),
    }


def _planned(scale: str, experiment: Experiment) -> Mapping[str, int]:
    """Runs of every arm; none of a scale that has no seeds but those it is asked for with."""
    seeds = experiment.seeds.get(scale)
    return Counter(run.arm for run in experiment.runs(scale, seeds)) if seeds else {}


def from_json(found: dict[str, Any]) -> Layout:
    return Layout(
        done=found.get("done", ""),
        answers=[
            Answer(answer["text"], [Value(**value) for value in answer["values"]])
            for answer in found.get("answers", ())
        ],
        claims=[
            Claim(
                claim["text"],
                claim["source"],
                [_expectation(e) for e in claim["expects"]],
                claim.get("ours", False),
                _expectation(claim["rests_on"]) if claim.get("rests_on") else None,
            )
            for claim in found["claims"]
        ],
        tables=[
            Table(**{**table, "rows": [[_cell(cell) for cell in row] for row in table["rows"]]})
            for table in found["tables"]
        ],
        figures=[
            Figure(**{**figure, "series": [_series(series) for series in figure["series"]]})
            for figure in found["figures"]
        ],
        samples=[Samples(**samples) for samples in found["samples"]],
        threats=Threats(**found["threats"]),
    )


def _expectation(found: dict[str, Any]) -> Expectation:
    return Expectation(**{**found, "value": Value(**found["value"])})


def _cell(cell: Any) -> Cell:
    if isinstance(cell, str):
        return cell
    return Published(**cell) if "printed" in cell else Value(**cell)


def _series(series: dict[str, Any]) -> Series:
    points = [(Value(**x) if isinstance(x, dict) else x, Value(**y)) for x, y in series["points"]]
    curve = series["curve"]
    return Series(
        series["name"],
        points,
        series.get("labels", ()),
        None if curve is None else (curve[0], curve[1]),
        series.get("above"),
    )
