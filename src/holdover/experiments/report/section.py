"""An experiment at one scale: its layout, its records, and what they say about its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..definition import Answer, Claim, Expectation, Layout, Samples, Value
from ..estimates import FEWEST_SEEDS, Estimate, estimate, outcome, verdict
from ..records import Records

# Outcomes of several expectations, and of one.
PLURAL = {"holds": "hold", "fails": "fail", "open": "open", "missing": "not measured"}
SINGLE = {"holds": "it holds", "fails": "it fails", "open": "it is open", "missing": "not measured"}
CAME_OUT = {"missing": "not measured"}
# If removing the state costs less than this share of a gain, most of the gain has another cause.
LEAST_SHARE = 0.5
REMOVED = "and removing the state costs"
# Too few seeds for a verdict.
FEW = {1: "one seed", 2: "two seeds"}
# Measures that are themselves the difference to a model without a state.
AGAINST_NO_STATE = ("above_at_equal_flops",)
# Verdicts on claims of our own.
OURS = {
    "reproduced": "holds",
    "partly reproduced": "partly holds",
    "not reproduced": "does not hold",
}


class Sample(NamedTuple):
    given: str
    made: dict[str, str]
    """By arm."""


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

    @property
    def called(self) -> str:
        return f"{self.about['title']}, {self.scale}"

    def estimate(self, value: Value) -> Estimate | None:
        return estimate(value, self.records)

    def arms(self) -> list[str]:
        """Arms with records."""
        return list(dict.fromkeys(record["arm"] for record in self.records.found.values()))

    def shown_arms(self) -> list[str]:
        """Arms that the tables name, with or without records."""
        cells = [cell for table in self.layout.tables for row in table.rows for cell in row]
        return list(dict.fromkeys(cell.arm for cell in cells if isinstance(cell, Value)))

    def seeds(self) -> tuple[int, int]:
        """The fewest and the most seeds of a shown arm; without tables, of any arm."""
        shown = self.shown_arms()
        recorded = [arm for arm in self.arms() if arm in shown] or self.arms()
        counts = [len(self.records.of(arm)) for arm in recorded]
        return min(counts), max(counts)

    def outcomes(self) -> list[list[str]]:
        """For each claim the outcomes of its expectations."""
        return [[self.outcome(e, claim) for e in claim.expects] for claim in self.layout.claims]

    def outcome(self, expected: Expectation, claim: Claim) -> str:
        """Open also if the deciding difference is not what the claim is about."""
        result = outcome(expected, self.records)
        if result == "holds" and not claim.check and self.not_by_its_state(expected):
            return "open"
        lacks_basis = claim.rests_on and outcome(claim.rests_on, self.records) != "holds"
        return "open" if result in ("holds", "fails") and lacks_basis else result

    def outcome_of_basis(self, expected: Expectation) -> str:
        """The outcome of the expectation that a claim rests on."""
        result = outcome(expected, self.records)
        return CAME_OUT.get(result, result) + (
            "" if result == "holds" else ", so the whole claim is open"
        )

    def answers(self) -> list[Answer]:
        """Answers whose values were all measured."""
        given = self.layout.answers
        return [one for one in given if all(self.estimate(value) for value in one.values)]

    def verdicts(self) -> list[str]:
        lacking = set(self.lacking())
        verdicts = []
        for claim, outcomes in zip(self.layout.claims, self.outcomes(), strict=True):
            rests_on = [] if claim.rests_on is None else [claim.rests_on]
            values = [e.value for e in (*claim.expects, *rests_on)]
            needed = {arm for value in values for arm in (value.arm, value.minus)}
            complete, few = not needed & lacking, bool(self.few(claim))
            result = verdict(outcomes, complete=complete, few=few)
            verdicts.append(OURS.get(result, result) if claim.ours else result)
        return verdicts

    def judged(self) -> list[tuple[Claim, str, list[str]]]:
        """Every claim, its verdict, and the outcomes of its expectations."""
        return list(zip(self.layout.claims, self.verdicts(), self.outcomes(), strict=True))

    def state_removed(self, expected: Expectation, claim: Claim) -> Value | None:
        """The value to show next to a number that is mostly not the effect of the state."""
        return None if claim.check else self.not_by_its_state(expected)

    def not_by_its_state(self, expected: Expectation) -> Value | None:
        """The cost of removing an arm's state, if the arm is clearly better or worse than one without
        a state and this cost is only a small part of the difference."""
        value = expected.value
        if value.minus_metric not in (None, value.metric):
            # The arms differ in more than the state, for example in the overlap of windows.
            return None
        if value.metric in AGAINST_NO_STATE:
            metric, base_cost = "state_zeroed", None
        elif value.metric.startswith("loss") and value.minus is not None:
            metric = value.metric.replace("loss", "state_zeroed")
            base_cost = self.estimate(Value(metric, value.minus))
        else:
            return None
        removed = Value(metric, value.arm, form="{:+.4f}")
        difference, cost = self.estimate(value), self.estimate(removed)
        if difference is None or difference.low is None or difference.high is None or cost is None:
            return None
        decided = difference.high < 0 or difference.low > 0
        little = decided and -cost.value / difference.value < LEAST_SHARE
        return removed if base_cost is None and expected.side == "below" and little else None

    def few(self, claim: Claim) -> str:
        """Why a claim has too few runs for a verdict; empty if it has enough."""
        rests_on = [] if claim.rests_on is None else [claim.rests_on]
        sampled = [e.value for e in (*claim.expects, *rests_on) if not e.value.counted]
        if any(value.over_units for value in sampled):
            return "one training"
        known = [one for one in map(self.estimate, sampled) if one is not None]
        return FEW.get(min((one.seeds for one in known), default=FEWEST_SEEDS), "")

    def lacking(self) -> list[str]:
        """Arms with planned runs that have no record yet."""
        planned = self.about.get("planned", {})
        return [arm for arm, runs in planned.items() if len(self.records.of(arm)) < runs]

    def planned(self) -> int:
        """All planned runs, with or without a record."""
        return sum(self.about.get("planned", {}).values())

    def samples(self, samples: Samples) -> list[Sample]:
        """From the notes of each arm's first seed."""
        notes = {
            arm: records[0]["notes"] for arm in samples.arms if (records := self.records.of(arm))
        }
        gathered = []
        for together in zip(*notes.values(), strict=False):
            given = together[0][samples.given]
            # Arms whose records had other inputs are left out.
            made = {
                arm: note[samples.made]
                for arm, note in zip(notes, together, strict=True)
                if note[samples.given] == given
            }
            gathered.append(Sample(given, made))
        return gathered


def named_text(text: Mapping[str, Any]) -> str:
    split = text.get("split")
    return f"{text['source']} ({split})" if split else str(text["source"])


def mostly_not_the_state(count: int) -> str:
    differences = "difference is" if count == 1 else "differences are"
    return f"{count} {differences} mostly not the effect of the state: see there."


def tally(outcomes: Sequence[str], verdict: str, few: str = "") -> str:
    """How many of a claim's expectations hold, fail or are open, and how few runs this rests on."""
    so_far = "so far " if verdict == "incomplete" else ""
    text = ""
    if len(outcomes) > 1:
        counts = [(outcomes.count(name), word) for name, word in PLURAL.items()]
        listed = ", ".join(f"{count} {word}" for count, word in counts if count)
        text = f"{so_far}of {len(outcomes)}: {listed}"
    elif so_far:
        text = so_far + SINGLE[outcomes[0]]
    return "; ".join(part for part in (text, few) if part)
