"""An experiment: a question, the runs that answer it, and what of their records is shown and judged.

A layout names numbers, it does not hold them: a `Value` says which measure of which runs it is, and is
looked up in the records whenever it is shown. A record that is deleted takes its numbers with it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..pages.wording import MINUS, scaled

if TYPE_CHECKING:
    from .run_context import RunContext

SCALES = ("smoke", "small", "real", "paper")
"""In seconds, to see every stage work; with the bundled model; with a real pretrained one; as the
papers did it, with what is on the hub."""

Side = Literal["below", "above", "within"]


@dataclass(frozen=True)
class Run:
    """One thing that is done once and leaves one record."""

    arm: str
    """What it is a run of: runs of one arm differ in their seed alone."""
    do: "Callable[[RunContext], Mapping[str, Any]]"
    """Does the work and returns its measures (see `measures.py`)."""
    settings: dict[str, Any]
    """Everything that decides the outcome, as JSON has it: another value is another run."""
    seed: int = 0
    after: tuple[str, ...] = ()
    """Names of runs whose folders or measures it reads."""
    alone: bool = False
    """Nothing of the experiment runs beside it: it measures time."""

    @property
    def name(self) -> str:
        """As a file may be called."""
        return re.sub(r"[^\w.+-]+", "-", f"{self.arm}-seed{self.seed}")


@dataclass(frozen=True)
class Value:
    """A measure of an arm, over its seeds; with `minus`, the paired difference to another arm."""

    metric: str
    arm: str
    minus: str | None = None
    form: str = "{:.2f}"
    """With a sign, as "{:+.2f}", where it may lie below zero; without, its interval does not."""
    minus_metric: str | None = None
    """Of the other arm, where it has another name there."""
    share: bool = False
    """Of a whole: its interval does not go beyond 1."""
    counted: bool = False
    """Like bytes, and not sampled: one run decides what is expected of it."""
    unit: float = 1.0
    """What it is shown in: 1e9 where bytes are shown as GB."""
    over_units: bool = False
    """Its interval is over units of the text (documents, books) however many seeds there are: where
    they draw from the same few, and train nothing anew."""
    largest: bool = False
    """Of its seeds the largest and no mean: as of a probability that something is chance."""


@dataclass(frozen=True)
class Published:
    """A number as a paper prints it."""

    printed: str


Cell: TypeAlias = str | Value | Published


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Series:
    """Points of a figure: each x is a number or itself measured, each y is measured."""

    name: str
    points: Sequence[tuple[float | Value, Value]] = ()
    """Joined in this order."""
    labels: Sequence[str] = ()
    """What is written at each point, if anything."""
    curve: tuple[str, str] | None = None
    """Instead of points: a curve of an arm's records, as (arm, name)."""
    above: str | None = None
    """An arm whose curve of that name is subtracted, seed by seed."""


@dataclass(frozen=True)
class Figure:
    title: str
    x: str
    y: str
    series: Sequence[Series]
    note: str = ""
    frontier: bool = False
    """Draw a line through the points that no other beats in both: lower and further left."""
    log_x: bool = False
    """Where x goes over several powers of ten."""
    later: bool = False
    """Curves without their first point, before anything was learnt: all else would look alike."""


@dataclass(frozen=True)
class Samples:
    """Notes of several arms side by side: what all of them were given, and what each made of it."""

    title: str
    arms: Sequence[str]
    given: str
    """The name of the first in a note, which is a mapping of texts."""
    made: str
    note: str
    """What the reader sees there."""


@dataclass(frozen=True)
class Expectation:
    """That a value lies on a side of a bound: decided where its whole interval does, or a count."""

    value: Value
    side: Side
    bound: float = 0.0
    said: str = ""
    width: float = 0.0
    """Within: how far from the bound, on either side of it."""

    @property
    def expected(self) -> str:
        around = f"{self.width:g} of " if self.side == "within" else ""
        shown = self.bound / self.value.unit
        bound = f"{shown:g}" if abs(shown) < 1e6 else scaled(shown)
        return f"{self.side} {around}{bound}".replace("-", MINUS)


@dataclass(frozen=True)
class Claim:
    text: str
    source: str
    """Where it is from; "a check" begins that of claims about something else than a state."""
    expects: Sequence[Expectation]
    ours: bool = False
    """Nobody's but ours, or a check: it holds or does not, and there is nothing to reproduce."""
    rests_on: Expectation | None = None
    """What has to hold for the others to say anything: that a state is used, say, where choices about
    it are compared."""

    @property
    def check(self) -> bool:
        """As that training learns, or that nothing has collapsed."""
        return self.source.startswith("a check")


@dataclass(frozen=True)
class Answer:
    """One line of what a reader wants to know first: words with places ({}) for what was measured."""

    text: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Threats:
    """What the numbers do not say, beside what the records show by themselves."""

    internal: Sequence[str] = ()
    external: Sequence[str] = ()
    construct: Sequence[str] = ()
    conclusion: Sequence[str] = ()
    seeds: str = ""
    """What a seed decides, where it is not all that a training draws."""
    scale: str = ""
    """How far the scale's models and data carry, where it is not what language models' scales say."""


@dataclass(frozen=True)
class Layout:
    done: str = ""
    """What was done, with how much: models, texts, steps."""
    answers: Sequence[Answer] = ()
    """Shown first on the page, as long as all that they name was measured."""
    claims: Sequence[Claim] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    samples: Sequence[Samples] = ()
    threats: Threats = field(default_factory=Threats)


@dataclass(frozen=True)
class Experiment:
    title: str
    question: str
    source: str
    """Paper, table or figure."""
    runs: Callable[[str, Sequence[int]], Sequence[Run]]
    """Of a scale and seeds."""
    layout: Callable[[str], Layout]
    """Of a scale."""
    seeds: Mapping[str, Sequence[int]]
    """Of every scale that it has."""
    place: int = 100
    """Among others in a report, which begins with the lowest."""
