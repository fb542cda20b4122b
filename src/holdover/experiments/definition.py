"""An experiment: a question, the runs that answer it, and a layout that shows and judges records.

A layout names numbers instead of holding them: a `Value` says which measure of which runs it is, and is
looked up in the records whenever it is shown. Without the record there is no number.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..pages.wording import MINUS, scaled

if TYPE_CHECKING:
    from .run_context import RunContext

SCALES = ("smoke", "small", "real", "paper")
"""smoke: seconds, to see every stage work; small: the bundled model; real: a pretrained model; paper: as
the papers did it, with models and data from the hub."""

Side = Literal["below", "above", "within"]


@dataclass(frozen=True)
class Run:
    """One piece of work that is done once and leaves one record."""

    arm: str
    """The variant it belongs to: runs of one arm differ only in their seed."""
    do: "Callable[[RunContext], Mapping[str, Any]]"
    """Does the work and returns its measures (see `measures.py`)."""
    settings: dict[str, Any]
    """Everything that decides the outcome, as JSON: another value is another run."""
    seed: int = 0
    after: tuple[str, ...] = ()
    """Names of runs whose folders or measures it reads."""
    alone: bool = False
    """No other run of the experiment runs at the same time, because this one measures time."""

    @property
    def name(self) -> str:
        """Usable as a file name."""
        return re.sub(r"[^\w.+-]+", "-", f"{self.arm}-seed{self.seed}")


@dataclass(frozen=True)
class Value:
    """A measure of an arm, over its seeds; with `minus`, the paired difference to another arm."""

    metric: str
    arm: str
    minus: str | None = None
    form: str = "{:.2f}"
    """With a sign, as in "{:+.2f}", for a value that may be negative; without, its interval starts at 0
    or above."""
    minus_metric: str | None = None
    """The metric of the other arm, if it has another name there."""
    share: bool = False
    """A share: its interval ends at 1 or below."""
    counted: bool = False
    """Counted (such as bytes) and not sampled: one run decides an expectation."""
    unit: float = 1.0
    """The unit it is shown in: 1e9 shows bytes as GB."""
    over_units: bool = False
    """The interval is over units of the text (documents, books) for any number of seeds: for seeds
    that draw from the same few units and train nothing."""
    largest: bool = False
    """The largest of the seeds instead of their mean, for example of p-values."""


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
    """Points of a figure: each x is a number or a measure, each y is a measure."""

    name: str
    points: Sequence[tuple[float | Value, Value]] = ()
    """Joined in this order."""
    labels: Sequence[str] = ()
    """The text at each point, if any."""
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
    """Draw a line through the points for which no other point is lower and further left."""
    log_x: bool = False
    """For an x axis over several powers of ten."""
    later: bool = False
    """Leave out the first point of each curve, which is from before learning and dwarfs the others."""


@dataclass(frozen=True)
class Samples:
    """Notes of several arms side by side: their common input, and the output of each."""

    title: str
    arms: Sequence[str]
    given: str
    """The key of the input in a note, which is a mapping of texts."""
    made: str
    """The key of the output."""
    note: str
    """Explains the samples to the reader."""


@dataclass(frozen=True)
class Expectation:
    """A value lies on one side of a bound: decided if its whole interval, or its count, does."""

    value: Value
    side: Side
    bound: float = 0.0
    said: str = ""
    """Its name in the report; default: the arm."""
    width: float = 0.0
    """For `within`: the distance from the bound, on either side of it."""

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
    """Where it comes from; it begins with "a check" for claims about something other than a state."""
    expects: Sequence[Expectation]
    ours: bool = False
    """Our own claim, or a check: it holds or does not hold, and there is nothing to reproduce."""
    rests_on: Expectation | None = None
    """What has to hold before the others mean anything: for example, that a state is used, before
    choices about it are compared."""

    @property
    def check(self) -> bool:
        """A sanity check, for example that training learns or that nothing has collapsed."""
        return self.source.startswith("a check")


@dataclass(frozen=True)
class Answer:
    """One line of the summary: text with a placeholder ({}) for each value."""

    text: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Threats:
    """Limits of the numbers, in addition to those that the records show by themselves."""

    internal: Sequence[str] = ()
    external: Sequence[str] = ()
    construct: Sequence[str] = ()
    conclusion: Sequence[str] = ()
    seeds: str = ""
    """What a seed decides, if it does not decide everything that a training draws."""
    scale: str = ""
    """How far the scale's models and data generalise, if the default text for the scale does not fit."""


@dataclass(frozen=True)
class Layout:
    done: str = ""
    """What was done, and how much of it: models, texts, steps."""
    answers: Sequence[Answer] = ()
    """Shown first on the page, if all their values were measured."""
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
    """The runs of a scale with these seeds."""
    layout: Callable[[str], Layout]
    """The layout of a scale."""
    seeds: Mapping[str, Sequence[int]]
    """The seeds of every scale that the experiment has."""
    place: int = 100
    """Its position in a report, which begins with the lowest."""
