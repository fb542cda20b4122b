"""A report's page as a tree of elements, with its points, curves and axes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

from holdover.experiments.definition import Figure
from holdover.experiments.report.charts import draw
from holdover.experiments.report.section import Section
from holdover.pages.page import environment

# Elements that nothing ends.
VOID = ("meta", "br")
# From the middle of a tick's lettering up to its line.
LETTERING = 4
# From a square's corner to its middle.
HALF_SQUARE = 4


@dataclass
class Node:
    tag: str
    attributes: dict[str, str] = field(default_factory=dict)
    inside: "list[Node | str]" = field(default_factory=list)

    def all(self, *tags: str) -> "Iterator[Node]":
        for one in self.inside:
            if isinstance(one, Node):
                if one.tag in tags:
                    yield one
                yield from one.all(*tags)

    def text(self, left_out: "Callable[[Node], bool]" = lambda node: False) -> str:
        return "".join(
            one if isinstance(one, str) else "" if left_out(one) else one.text(left_out)
            for one in self.inside
        )

    def is_a(self, *kinds: str) -> bool:
        return bool(set(kinds) & set(self.attributes.get("class", "").split()))

    def told(self, prefix: str = "data-") -> dict[str, str]:
        """Its data attributes that begin so, without that."""
        return {
            name.removeprefix(prefix): said
            for name, said in self.attributes.items()
            if name.startswith(prefix)
        }

    def title(self) -> str:
        """An attribute of a number, a child element of an SVG mark."""
        return self.attributes.get("title") or "".join(one.text() for one in self.all("title"))


class _Tree(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("page")]

    def handle_starttag(self, tag, attrs):
        made = Node(tag, {name: said or "" for name, said in attrs})
        self.open[-1].inside.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].inside.append(data)


def read_page(text: str) -> Node:
    tree = _Tree()
    tree.feed(text)
    tree.close()
    return tree.open[0]


def drawn_html(figure: Figure, section: Section) -> str:
    """A figure as the page shows it."""
    macros = environment().get_template("macros.html").module
    return str(macros.figure(draw(figure, section))).strip()


def drawing(figure: Node) -> Node:
    """Without the pieces of lines in its legend."""
    return next(one for one in figure.all("svg") if not one.is_a("swatch"))


def place(mark: Node) -> tuple[float, float]:
    """The middle of a marker."""
    if mark.tag == "rect":
        return float(mark.attributes["x"]) + HALF_SQUARE, float(mark.attributes["y"]) + HALF_SQUARE
    return float(mark.attributes["cx"]), float(mark.attributes["cy"])


def steps(line: Node) -> list[tuple[float, float]]:
    """Where a line goes."""
    parts = line.attributes["d"].replace("M", "L").split("L")[1:]
    return [(float(x), float(y)) for x, y in (part.split() for part in parts)]


def axes(figure: Node) -> tuple[Callable[[float], float], Callable[[float], float]]:
    """The positions of values, derived from the axis ticks as a reader would."""
    texts = [one for one in drawing(figure).all("text") if one.is_a("tick") and one.text()]
    across = [
        (plain(one.text()), float(one.attributes["x"]))
        for one in texts
        if one.attributes["text-anchor"] == "middle"
    ]
    up = [
        (plain(one.text()), float(one.attributes["y"]) - LETTERING)
        for one in texts
        if one.attributes["text-anchor"] == "end"
    ]
    if "log-x" in figure.told():
        powers = _through([(math.log10(value), x) for value, x in across])
        return lambda value: powers(math.log10(value)), _through(up)
    return _through(across), _through(up)


def plain(written: str) -> float:
    """A number that may have the letter of its thousands."""
    letters = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    return float(written.rstrip("kMGT")) * letters.get(written[-1], 1.0)


def _through(ticks: list[tuple[float, float]]) -> Callable[[float], float]:
    (low, first), *_, (high, last) = ticks
    return lambda value: first + (value - low) / (high - low) * (last - first)
