"""A walk over the committed report: every number on it is computed again from the records.

It compares the numbers of tables and lists, the positions of points, intervals and curves, and the names
of their runs. Not compared: bootstrap intervals over texts, which numbers of one or two seeds have if no
record holds the interval.
"""

import math
import re
import shutil
from pathlib import Path

import pytest

from holdover.experiments.options import ReportOptions
from holdover.experiments.report.write import report
from recomputed import FEWEST, curve, number, read_all
from report_page import axes, drawing, place, plain, read_page, steps

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "experiments"
PAGE = (ROOT / "docs" / "results" / "report.html").read_text()
MINUS = "\u2212"
# Marks an interval that is not over seeds.
DAGGER = "\u2020"
# Places are written to a tenth, and so are those of the ticks they are compared by.
PIXELS = 0.3
# Cells with published numbers, notes, and costs of runs.
NOT_MEASURED = ("published", "note", "cost-of-runs")


@pytest.fixture(scope="module")
def records():
    return read_all(RESULTS)


def walk(text, records):
    """Errors on a page, each with its element; empty if every number matches the records."""
    page, wrong = read_page(text), []
    for node in page.all("span"):
        if node.is_a("measured"):
            said = wrong_number(node, records[node.told()["section"]])
            wrong += [(node, f"{node.text()} {node.told()}: {said}")] if said else []
    for cell in page.all("td"):
        words = cell.text(left_out=lambda node: node.is_a("measured"))
        if re.search(r"\d", words) and not cell.is_a(*NOT_MEASURED):
            wrong.append((cell, f"{words}: nothing says where it comes from"))
    for figure in page.all("figure"):
        runs = records[figure.told()["section"]]
        for node, said in wrong_marks(figure, runs):
            where = figure.told()["section"], node.tag, node.title() or node.attributes
            wrong.append((node, f"{where}: {said}"))
    return wrong


def said(wrong):
    return [words for _, words in wrong]


def wrong_number(node, runs):
    told = node.told()
    found = number(runs, told)
    if found is None:
        return "it has no record"
    if found.runs != named_runs(node):
        return f"it is of {sorted(found.runs)}"
    value, _, bounds = node.text().partition(" ")
    if not is_written(value, found.value, told):
        return f"it is {found.value}"
    few = found.seeds < FEWEST
    if bounds and few != bounds.endswith(DAGGER):
        return f"it is of {found.seeds} seeds"
    if found.bounds is None:
        # Over texts that were drawn again and again, if there is one.
        return ""
    # One of no width is left out.
    written = bounds.rstrip(DAGGER).strip("[]").split(", ") if bounds else [value, value]
    right = map(is_written, written, found.bounds, [told, told])
    return "" if all(right) else f"its interval is {found.bounds}"


def named_runs(node):
    return set(node.title().split("; ")[-1].split(", "))


def is_written(printed, value, told):
    """Whether a value is printed so; where it lies between two, either will do."""
    value /= float(told.get("unit", 1))
    large = abs(value) >= (1e9 if "," in told["form"] else 1e6)
    form, noise = "{:.2e}" if large else told["form"], 1e-9 * abs(value) + 1e-15
    return printed.replace(MINUS, "-") in {form.format(value + n) for n in (0, -noise, noise)}


def wrong_marks(figure, runs):
    """Errors in the marks of a figure; a line may also join drawn points."""
    drawn = [
        one for one in drawing(figure).all("path", "rect", "circle") if "class" in one.attributes
    ]
    points = [place(one) for one in drawn if one.is_a("marker")]
    across, up = axes(figure)
    bar = None
    for node in drawn:
        wrong = ""
        if node.is_a("marker"):
            wrong = wrong_point(node, bar, runs, across, up)
        elif "data-curve" in node.attributes:
            wrong = wrong_curve(node, "later" in figure.told(), runs, across, up)
        elif node.is_a("line") and not all(near(step, points) for step in steps(node)):
            wrong = "it goes where no point is"
        if wrong:
            yield node, wrong
        # An interval is drawn just before its point.
        bar = node if node.is_a("bar") else None


def near(step, points):
    return any(math.dist(step, point) <= PIXELS for point in points)


def wrong_point(node, bar, runs, across, up):
    told, (x, y) = node.told(), place(node)
    found = number(runs, told) if told else None
    if found is None:
        return "it has no record"
    written, _, beside = node.title().split("; ")[0].rpartition(": ")[2].partition(" at ")
    if abs(y - up(found.value)) > PIXELS or not is_written(written, found.value, told):
        return f"its y is {found.value}"
    names = found.runs
    if "x-metric" in told:
        its = number(runs, {"form": ""} | node.told("data-x-"))
        if its is None:
            return "its x has no record"
        if abs(x - across(its.value)) > PIXELS or abs(plain(beside) / its.value - 1) > 0.005:
            return f"its x is {its.value}"
        names = names | its.runs
    if names != named_runs(node):
        return f"it is of {sorted(names)}"
    if found.bounds is not None:
        ends = re.match(r"M(\S+) (\S+)V([^M]+)M", bar.attributes["d"]) if bar else None
        right = (x, *map(up, found.bounds))
        if ends is None or math.dist(right, [float(end) for end in ends.groups()]) > 2 * PIXELS:
            return f"its interval is {found.bounds}"
    return ""


def wrong_curve(node, later, runs, across, up):
    points, names = curve(runs, node.told())
    if not points:
        return "it has no record"
    if names != named_runs(node):
        return f"it is of {sorted(names)}"
    right, drawn = points[1:] if later else points, steps(node)
    if len(right) != len(drawn):
        return f"it has {len(right)} points"
    off = [
        (x, y)
        for (x, y), step in zip(right, drawn, strict=True)
        if math.dist((across(x), up(y)), step) > 2 * PIXELS
    ]
    return f"it goes through {off}" if off else ""


def test_every_number_of_the_committed_page_is_what_its_records_say(records):
    assert not said(walk(PAGE, records))
    # And there are all kinds of them.
    kinds = ('class="measured"', 'class="bar ', "data-metric=", "data-x-metric=", "data-curve=")
    assert all(kind in PAGE for kind in kinds)


# The last digit in front of the point: changing it moves a mark by at least its width.
PLACE = r"[\d.]*(\d)\.\d"
CHANGES = {
    "a number of a table": r'<td><span class="measured"[^>]*><b>[^<]*(\d)</b>',
    "a number of a list": r'<li>[^<]*<span class="measured"[^>]*><b>[^<]*(\d)</b>',
    "a bound over seeds": r'title="\d seeds;[^>]*><b>[^<]*</b> <small>\[[^<]*(\d)\]</small>',
    "a bound of one run": rf'"perplexity" data-arm="[^"]*" data-f[^>]*"one[^[]*\[[^]]*(\d)\]{DAGGER}',
    "a run's name": r'<span class="measured"[^>]*-seed(\d)"',
    "a cell without a source": r"<td>()</td>",
    "a square's height": rf'<rect class="marker[^>]* y="{PLACE}"[^>]* data-metric',
    "a circle's height": rf'<circle[^>]* cy="{PLACE}"[^>]* data-metric',
    "a measured x": rf'<circle[^>]* cx="{PLACE}"[^>]* data-x-metric',
    "a point's words": r"<circle[^>]* data-metric[^>]*><title>[^;]*: [\d.]*(\d)[; ]",
    "an interval of a figure": rf'<path class="bar [^>]*V{PLACE}M',
    "a line between points": rf'<path class="line [^>]*L[\d.]+ {PLACE}"/>',
    "a curve": rf'<path class="line [^>]*L[\d.]+ {PLACE}L[^>]* data-curve',
    "a curve's run": r"data-curve[^>]*><title>[^<]*-seed(\d)</title>",
    "an axis": r'<text class="tick" [^>]*"end">[^<]*([1-8])<',
}


def sections():
    """Each for itself, by its name: a page of one is walked soon."""
    found = re.finditer(r'<section id="([^"]+)".*?</section>', PAGE, re.DOTALL)
    return {one[1]: one[0] for one in found}


@pytest.mark.parametrize("place", CHANGES)
def test_a_digit_that_is_changed_is_found(place, records):
    text, found = next(
        (text, found) for text in sections().values() if (found := re.search(CHANGES[place], text))
    )
    assert not said(walk(text, records))
    digit = (int(found[1] or 0) + 1) % 10
    changed = f"{text[: found.start(1)]}{digit}{text[found.end(1) :]}"
    assert walk(changed, records)


def naming(text, run):
    """Numbers, points and curves that say they are of a run."""
    spans = [node for node in read_page(text).all("span") if node.is_a("measured")]
    marks = [
        node
        for figure in read_page(text).all("figure")
        for node in figure.all("path", "rect", "circle")
        if node.told()
    ]
    return [node for node in (*spans, *marks) if run in named_runs(node)]


@pytest.mark.parametrize(
    ("name", "scale", "run"),
    [
        ("window_size", "small", "plain-200-seed1"),
        ("three_questions", "small", "enwik8-GPT-2-seed1"),
        ("overlap", "real", "plain-wikitext-seed0"),
        ("attention", "real", "rsa-xl-enwik8-204-seed0"),
    ],
)
def test_a_record_that_is_deleted_takes_its_numbers_along(name, scale, run, tmp_path):
    """With three seeds the numbers now come from the other two; with one they are gone."""
    folder = tmp_path / "results" / name / scale
    shutil.copytree(RESULTS / name / scale, folder)
    its = sections()[f"{name}-{scale}"]
    of_it = naming(its, run)
    (folder / f"{run}.json").unlink()
    left = read_all(tmp_path / "results")
    # The old page: all that is of the run is wrong now, and nothing else is.
    assert of_it and [node for node, _ in walk(its, left)] == of_it
    path = tmp_path / "report.html"
    report(ReportOptions(results=tmp_path / "results", output=path))
    page = path.read_text()
    assert not naming(page, run) and not said(walk(page, left))
    alone = [node for node in of_it if named_runs(node) == {run}]
    after = [node.told() for node in read_page(page).all("span", "path", "rect", "circle")]
    assert not any(node.told() in after for node in alone)
