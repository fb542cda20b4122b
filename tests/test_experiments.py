"""Every experiment file: its layouts name runs that it has, and at the smallest scale it runs."""

import json
import re
from pathlib import Path

import pytest

from holdover import cli
from holdover.experiment import Layout, Value, outcome, read_records
from holdover.experiment.layout_file import from_json, to_json
from holdover.experiment.opening import open_experiment
from holdover.experiment.records import check_names, fingerprint
from holdover.page.wording import escaped
from holdover.report.charts import points_of
from holdover.report.gather import gather
from holdover.report.options import ReportOptions

EXPERIMENTS = [
    path
    for path in sorted((Path(__file__).parent.parent / "experiments").glob("*.py"))
    # The others are what experiments share, or are run by themselves.
    if re.search(r"^EXPERIMENT\b", path.read_text(), re.M)
]
# Rates that a few short texts need not tell, since they hold no quotation or no name.
UNTOLD = {"propagation": {"names_known", "pronoun_fits", "quote_closed", "sentence_goes_on"}}
every_experiment = pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)


def table_values(layout: Layout) -> list[Value]:
    cells = [cell for table in layout.tables for row in table.rows for cell in row]
    return [cell for cell in cells if isinstance(cell, Value)]


def named_arms(layout: Layout) -> set[str]:
    values = table_values(layout)
    values += [expectation.value for claim in layout.claims for expectation in claim.expects]
    series = [series for figure in layout.figures for series in figure.series]
    values += [end for one in series for point in one.points for end in point]
    values = [value for value in values if isinstance(value, Value)]
    curves = {one.curve[0] for one in series if one.curve is not None}
    return curves | {arm for value in values for arm in (value.arm, value.minus) if arm}


@every_experiment
def test_at_every_scale_layouts_name_runs_that_there_are(path):
    name, experiment = open_experiment(path)
    assert "smoke" in experiment.seeds
    for scale, seeds in experiment.seeds.items():
        runs = experiment.runs(scale, seeds)
        check_names(name, runs)
        # Settings that no file can hold are refused here.
        assert all(fingerprint(name, scale, run) for run in runs)
        layout = experiment.layout(scale)
        assert named_arms(layout) <= {run.arm for run in runs}, scale
        assert all(len(row) == len(table.columns) for table in layout.tables for row in table.rows)
        assert all(claim.expects for claim in layout.claims)
        written = json.loads(json.dumps(to_json(name, scale, experiment)))
        assert named_arms(from_json(written)) == named_arms(layout)


@every_experiment
def test_the_smallest_scale_runs_and_is_reported(path, tmp_path):
    results = tmp_path / "results"
    words = ["--scale", "smoke", "--seeds", "0", "--device", "cpu", "--results", str(results)]
    words += ["--output", str(tmp_path / "runs"), "--cache-dir", str(tmp_path / "cache")]
    assert cli.main(["run", str(path), *words]) == 0
    name, experiment = open_experiment(path)
    records = read_records(results / name / "smoke")
    assert set(records.found) == {run.name for run in experiment.runs("smoke", (0,))}
    (section,) = gather(ReportOptions(results=results, scales=("smoke",)))
    for value in table_values(section.layout):
        untold = value.metric in UNTOLD.get(name, ())
        assert untold or section.estimate(value) is not None, value
    for expectation in (one for claim in section.layout.claims for one in claim.expects):
        untold = expectation.value.metric in UNTOLD.get(name, ())
        assert untold or outcome(expectation, records) != "missing", expectation
    for figure in section.layout.figures:
        assert all(points_of(series, section) for series in figure.series), figure.title
    page = tmp_path / "report.html"
    words = ["--results", str(results), "--scales", "smoke", "--output", str(page)]
    assert cli.main(["report", *words]) == 0
    assert escaped(experiment.title) in page.read_text()
    assert experiment.title in page.with_suffix(".md").read_text()
    assert str(tmp_path) not in page.read_text()
