"""Figures of a report say where what they draw comes from."""

import re

import pytest

import browser
from experiments import experiment_file
from holdover.experiments.definition import Figure, Layout, Series, Value
from holdover.experiments.options import ReportOptions, RunOptions
from holdover.experiments.records import Records
from holdover.experiments.report.section import Section
from holdover.experiments.report.write import report
from holdover.experiments.runner import run_experiment
from report_page import drawn_html


def section(*records):
    found = {f"{arm}-{seed}": made for arm, seed, made in records}
    for (arm, seed, made), name in zip(records, list(found), strict=True):
        found[name] = {"run": name, "arm": arm, "seed": seed, "measures": {}, "curves": {}} | made
    return Section("name", "small", {}, Layout(), Records(None, found))


def test_a_point_says_of_what_it_is():
    cheap, dear = ({"measures": {"loss": 2.0, "flops": flops}} for flops in (3e6, 5e6))
    there = section(("a", 0, cheap), ("b", 0, dear), ("a", 1, cheap))
    series = Series("A & b", [(Value("flops", "b"), Value("loss", "a", "b", "{:+.1f}"))])
    drawn = drawn_html(Figure("F", "x", "y", [series]), there)
    assert drawn.startswith('<figure data-section="name-small">')
    told = (
        'data-metric="loss" data-arm="a" data-minus="b" data-minus-metric="loss" '
        'data-x-metric="flops" data-x-arm="b" data-form="{:+.1f}">'
        "<title>A &amp; b: +0.0 at 5M; one seed; a-0, b-0</title></rect>"
    )
    assert told in drawn
    # It alone does: no line between points, and not the legend.
    assert drawn.count("data-arm") == 1


def test_a_curve_says_of_what_it_is():
    curves = {"curves": {"c": [[1, 2.0], [10, 1.0], [100, 0.5]]}}
    there = section(("a", 0, curves), ("a", 1, curves), ("b", 1, curves), ("a", 2, {}))
    lines = [Series("whole", curve=("a", "c")), Series("above", curve=("a", "c"), above="b")]
    drawn = drawn_html(Figure("F", "x", "y", lines, log_x=True, later=True), there)
    assert 'data-section="name-small" data-log-x="yes" data-later="yes"' in drawn
    whole, above = re.findall(r' data-curve="c"([^<]*)<title>([^<]*)</title></path>', drawn)
    assert whole == (' data-arm="a">', "whole; mean of 2 seeds; a-0, a-1")
    assert above == (' data-arm="a" data-above="b">', "above; one seed; a-1, b-1")


@pytest.fixture(scope="module")
def chromium():
    opened = browser.Browser(browser.find_or_skip())
    yield opened
    opened.close()


@pytest.mark.nightly
def test_a_tapped_point_says_where_it_comes_from(tmp_path, chromium):
    given = {"results": tmp_path / "results", "output": tmp_path / "runs", "device": "cpu"}
    run_experiment(experiment_file(tmp_path), RunOptions(**given))
    page = tmp_path / "report.html"
    report(ReportOptions(results=tmp_path / "results", output=page, scales=("smoke",)))
    chromium.open(page, 360, 900, "light")
    point = "document.querySelector('svg [data-x-metric]')"
    chromium.value(f"{point}.scrollIntoView({{block: 'center'}})")
    click = "dispatchEvent(new MouseEvent('click', {bubbles: true}))"
    chromium.value(f"{point}.{click}")
    tip = "document.getElementById('tip')"
    shown = chromium.value(f"[...{tip}.children].map(line => line.textContent)")
    runs = "plain-seed0, plain-seed1, plain-seed2"
    assert shown == ["both: 3.01 at 103", "3 seeds", runs]
    chromium.value(f"{point}.{click}")
    assert chromium.value(f"{tip}.hidden") is True and not chromium.complaints
