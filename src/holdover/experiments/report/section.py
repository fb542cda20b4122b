"""An experiment at one scale: its layout, its records, and what these say of its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..definition import Answer, Claim, Expectation, Layout, Value
from ..estimates import FEWEST_SEEDS, Estimate, estimate, outcome, verdict
from ..records import Records

# How an expectation came out, of several and of one.
SAID = {"holds": "hold", "fails": "fail", "open": "open", "missing": "not measured"}
CAME_OUT = {"missing": "not measured"}
# Of what a model gains, taking its state away costs less than this share: it is not the state's gain.
NOT_ITS = 0.5
AWAY = "and taking its state away costs"
# Too few seeds for a verdict.
FEW = {1: "one seed", 2: "two seeds"}
# Measures that are by themselves the difference to a model without a state.
AGAINST_ONE_WITHOUT = ("above_at_equal_flops",)
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

    @property
    def called(self) -> str:
        return f"{self.about['title']}, {self.scale}"

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
        return [[self.outcome(e, claim) for e in claim.expects] for claim in self.layout.claims]

    def outcome(self, expected: Expectation, claim: Claim) -> str:
        """Open, too, where what decides it is not what the claim is about."""
        found = outcome(expected, self.records)
        if found == "holds" and not claim.check and self.not_by_its_state(expected):
            return "open"
        return "open" if found in ("holds", "fails") and self.rests_on_nothing(claim) else found

    def rests_on_nothing(self, claim: Claim) -> bool:
        return claim.rests_on is not None and outcome(claim.rests_on, self.records) != "holds"

    def rests(self, expected: Expectation) -> str:
        """How that came out which a claim rests on."""
        found = outcome(expected, self.records)
        return CAME_OUT.get(found, found) + ("" if found == "holds" else ", and so is all of it")

    def answers(self) -> list[Answer]:
        """Those of which all was measured."""
        given = self.layout.answers
        return [one for one in given if all(self.estimate(value) for value in one.values)]

    def verdicts(self) -> list[str]:
        lacking = set(self.lacking())
        found = []
        for claim, outcomes in zip(self.layout.claims, self.outcomes(), strict=True):
            rests_on = [] if claim.rests_on is None else [claim.rests_on]
            values = [e.value for e in (*claim.expects, *rests_on)]
            needed = {arm for value in values for arm in (value.arm, value.minus)}
            complete, few = not needed & lacking, bool(self.few(claim))
            said = verdict(outcomes, complete=complete, few=few)
            found.append(OURS.get(said, said) if claim.ours else said)
        return found

    def judged(self) -> list[tuple[Claim, str, list[str]]]:
        """Every claim, its verdict, and how what it expects came out."""
        return list(zip(self.layout.claims, self.verdicts(), self.outcomes(), strict=True))

    def besides(self, expected: Expectation, claim: Claim) -> Value | None:
        """What stands beside a number that is not what the state does."""
        return None if claim.check else self.not_by_its_state(expected)

    def not_by_its_state(self, expected: Expectation) -> Value | None:
        """What taking its state away costs an arm that is found better than one without a state, or
        worse, where that is little of the difference."""
        value = expected.value
        if value.minus_metric not in (None, value.metric):
            # They differ in more than a state: in what windows share, say.
            return None
        if value.metric in AGAINST_ONE_WITHOUT:
            metric, its = "state_zeroed", None
        elif value.metric.startswith("loss") and value.minus is not None:
            metric = value.metric.replace("loss", "state_zeroed")
            its = self.estimate(Value(metric, value.minus))
        else:
            return None
        away = Value(metric, value.arm, form="{:+.4f}")
        gained, costs = self.estimate(value), self.estimate(away)
        if gained is None or gained.low is None or gained.high is None or costs is None:
            return None
        decided = gained.high < 0 or gained.low > 0
        # What the state does to the loss, of what is different.
        little = decided and -costs.value / gained.value < NOT_ITS
        return away if its is None and expected.side == "below" and little else None

    def few(self, claim: Claim) -> str:
        """On how little it rests, in words; nothing where that is enough for a verdict."""
        rests_on = [] if claim.rests_on is None else [claim.rests_on]
        sampled = [e.value for e in (*claim.expects, *rests_on) if not e.value.counted]
        if any(value.over_units for value in sampled):
            return "one training"
        found = [one for one in map(self.estimate, sampled) if one is not None]
        return FEW.get(min((one.seeds for one in found), default=FEWEST_SEEDS), "")

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


def not_the_state(many: int) -> str:
    """Of how many differences taking the state away is little."""
    were = "difference is" if many == 1 else "differences are"
    return f"{many} {were} mostly something else than what the state does: see there."


def tally(outcomes: Sequence[str], verdict: str, few: str = "") -> str:
    """How many of a claim's expectations came out how, and on how little that rests."""
    so_far = "so far " if verdict == "incomplete" else ""
    told = ""
    if len(outcomes) > 1:
        counts = [(outcomes.count(name), word) for name, word in SAID.items()]
        listed = ", ".join(f"{many} {word}" for many, word in counts if many)
        told = f"{so_far}of {len(outcomes)}: {listed}"
    elif so_far:
        told = so_far + ONE[outcomes[0]]
    return "; ".join(part for part in (told, few) if part)
