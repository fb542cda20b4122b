"""What a report is made of: every experiment's layout and its records, and nothing else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiment.definition import SCALES, Claim, Expectation, Layout, Value
from ..experiment.estimates import Estimate, estimate, outcome, verdict
from ..experiment.layout_file import LAYOUT, from_json
from ..experiment.records import Records, read_json, read_records
from .options import ReportOptions

# How an expectation came out, of several and of one.
SAID = {"holds": "hold", "fails": "fail", "open": "open", "missing": "not measured"}
CAME_OUT = {"missing": "not measured"}
# Of what a model gains, taking its state away costs less than this share: it is not the state's gain.
NOT_ITS = 0.5
# Verdicts on what was ours to ask.
OURS = {
    "reproduced": "holds",
    "partly reproduced": "partly holds",
    "not reproduced": "does not hold",
}
ONE = {"holds": "it holds", "fails": "it fails", "open": "it is open", "missing": "not measured"}


@dataclass(frozen=True)
class Section:
    """An experiment at one scale."""

    name: str
    scale: str
    about: dict[str, Any]
    layout: Layout
    records: Records

    @property
    def anchor(self) -> str:
        return f"{self.name}-{self.scale}"

    def estimate(self, value: Value) -> Estimate | None:
        return estimate(value, self.records)

    def arms(self) -> list[str]:
        """That have records."""
        return list(dict.fromkeys(record["arm"] for record in self.records.found.values()))

    def shown_arms(self) -> list[str]:
        """That the tables name, with records or without."""
        cells = [cell for table in self.layout.tables for row in table.rows for cell in row]
        return list(dict.fromkeys(cell.arm for cell in cells if isinstance(cell, Value)))

    def seeds(self) -> tuple[int, int]:
        """The fewest and the most of an arm that is shown; without tables, of any."""
        shown = self.shown_arms()
        there = [arm for arm in self.arms() if arm in shown] or self.arms()
        counts = [len(self.records.of(arm)) for arm in there]
        return min(counts), max(counts)

    def outcomes(self) -> list[list[str]]:
        """For each claim how each of its expectations came out."""
        return [[outcome(e, self.records) for e in claim.expects] for claim in self.layout.claims]

    def verdicts(self) -> list[str]:
        lacking = set(self.lacking())
        found = []
        for claim, outcomes in zip(self.layout.claims, self.outcomes(), strict=True):
            needed = {arm for e in claim.expects for arm in (e.value.arm, e.value.minus)}
            said = verdict(outcomes, complete=not needed & lacking)
            found.append(OURS.get(said, said) if claim.ours else said)
        return found

    def judged(self) -> list[tuple[Claim, str, list[str]]]:
        """Every claim, its verdict, and how what it expects came out."""
        return list(zip(self.layout.claims, self.verdicts(), self.outcomes(), strict=True))

    def not_by_its_state(self, expected: Expectation) -> Value | None:
        """What taking its state away costs an arm that is found better than one without a state, where
        that is little of the difference."""
        value = expected.value
        if not value.metric.startswith("loss") or value.minus is None or expected.side != "below":
            return None
        metric = value.metric.replace("loss", "state_zeroed")
        away = Value(metric, value.arm, form="{:+.4f}")
        gained, costs = self.estimate(value), self.estimate(away)
        its = self.estimate(Value(metric, value.minus))
        if gained is None or gained.high is None or costs is None or its is not None:
            return None
        return away if gained.high < 0 and costs.value < NOT_ITS * -gained.value else None

    def seeds_of(self, claim: Claim) -> int | None:
        """The fewest that something expected was sampled with; none where nothing was."""
        found = [self.estimate(e.value) for e in claim.expects if not e.value.counted]
        return min((one.seeds for one in found if one is not None), default=None)

    def lacking(self) -> list[str]:
        """Arms of which runs are still to be made."""
        planned = self.about.get("planned", {})
        return [arm for arm, runs in planned.items() if len(self.records.of(arm)) < runs]

    def planned(self) -> int:
        """Runs, made or not."""
        return sum(self.about.get("planned", {}).values())


def named_text(text: Mapping[str, Any]) -> str:
    split = text.get("split")
    return f"{text['source']} ({split})" if split else str(text["source"])


def tally(outcomes: Sequence[str], verdict: str, seeds: int | None = None) -> str:
    """How many of a claim's expectations came out how, and whether that is of one seed alone."""
    so_far = "so far " if verdict == "incomplete" else ""
    told = ""
    if len(outcomes) > 1:
        counts = [(outcomes.count(name), word) for name, word in SAID.items()]
        listed = ", ".join(f"{many} {word}" for many, word in counts if many)
        told = f"{so_far}of {len(outcomes)}: {listed}"
    elif so_far:
        told = so_far + ONE[outcomes[0]]
    return "; ".join(part for part in (told, "one seed" if seeds == 1 else "") if part)


def gather(options: ReportOptions) -> list[Section]:
    sections = []
    for path in sorted(options.results.glob(f"*/*/{LAYOUT}"), key=_order):
        name, scale = path.parent.parent.name, path.parent.name
        if options.experiments and name not in options.experiments:
            continue
        if scale not in options.scales if options.scales else scale == "smoke":
            continue
        about = read_json(path)
        records = read_records(path.parent)
        if records.found:
            sections.append(Section(name, scale, about, from_json(about), records))
    if not sections:
        chosen = f" of {', '.join(options.experiments)}" if options.experiments else ""
        raise ValueError(
            f"There are no records{chosen} in {options.results} (the scale smoke is left out unless "
            "it is asked for): make some with holdover run experiments/NAME.py --scale small."
        )
    return sections


def _order(path: Path) -> tuple[str, int]:
    scale = path.parent.name
    return path.parent.parent.name, SCALES.index(scale) if scale in SCALES else len(SCALES)
