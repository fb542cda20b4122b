"""Every experiment file: its layouts name runs that it has, and at the smallest scale it runs."""

import html
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from holdover import RecurrenceConfig
from holdover.cli import entry as cli
from holdover.experiments.definition import Layout, Value
from holdover.experiments.estimates import outcome
from holdover.experiments.experiment_file import LAYOUT, from_json, open_experiment, to_json
from holdover.experiments.options import ReportOptions, RunOptions
from holdover.experiments.records import check_names, fingerprint, read_records
from holdover.experiments.report.charts import points_of
from holdover.experiments.report.write import gather
from holdover.experiments.runner import run_experiment
from holdover.runs.models import random_model
from holdover.text.synthetic import Majority

FOLDER = Path(__file__).parents[2] / "experiments"
RESULTS = Path(__file__).parents[2] / "results" / "experiments"
EXPERIMENTS = [
    path
    for path in sorted(FOLDER.glob("*.py"))
    # The others are what experiments share, or are run by themselves.
    if re.search(r"^EXPERIMENT\b", path.read_text(), re.M)
]
# Rates that a few short texts need not tell, since they hold no quotation or no name.
UNTOLD = {
    "propagation": {"names_known", "pronoun_fits", "quote_closed", "sentence_goes_on"},
    "three_questions": {"converged_after"},
}
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
def test_committed_layouts_are_those_of_the_files(path):
    """A report shows the texts and values that the experiment's file names."""
    name, experiment = open_experiment(path)
    for stored in RESULTS.glob(f"{name}/*/{LAYOUT}"):
        layout = to_json(name, stored.parent.name, experiment)
        assert json.loads(stored.read_text()) == json.loads(json.dumps(layout)), stored


@every_experiment
@pytest.mark.sampled(9)
def test_the_smallest_scale_runs_and_is_reported(path, tmp_path):
    results = tmp_path / "results"
    words = ["--scale", "smoke", "--seeds", "0", "--device", "cpu", "--results", str(results)]
    words += ["--output", str(tmp_path / "runs"), "--cache-dir", str(tmp_path / "cache")]
    assert cli.main(["run", str(path), *words]) == 0
    name, experiment = open_experiment(path)
    records = read_records(results / name / "smoke")
    assert set(records.found) == {run.name for run in experiment.runs("smoke", (0,))}
    # Each says what it learnt from or was tested on.
    assert all(record["data"] for record in records.found.values())
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
    assert experiment.title in html.unescape(page.read_text())
    assert experiment.title in page.with_suffix(".md").read_text()
    assert str(tmp_path) not in page.read_text()


def opened(name):
    """An experiment of ours, and the module that it is."""
    _, experiment = open_experiment(FOLDER / f"{name}.py")
    return experiment, sys.modules[f"experiment_{name}"]


def test_the_model_as_it_is_is_read_at_every_overlap(monkeypatch):
    experiment, _ = opened("overlap")
    found = {"perplexity_per_word": 20.0, "loss": 3.0}
    monkeypatch.setattr(sys.modules["language"], "of_evaluation", lambda record, row=0: found)
    run = next(run for run in experiment.runs("small", (0,)) if run.arm == "as it was books")
    before, asked = fingerprint("overlap", "small", run), []

    def evaluate(model, name, **settings):
        asked.append((model, settings["window"], list(settings["overlap"])))

    measures = run.do(SimpleNamespace(settings=run.settings, evaluate=evaluate))
    overlaps = run.settings["overlaps"]
    # Each of its windows is alone already.
    assert asked == [("books-plain", 300, overlaps)]
    assert {f"perplexity@{overlap}" for overlap in overlaps} < set(measures)
    assert measures["single_window_loss"] == 3.0
    # Other runs have the same settings in their hands.
    assert fingerprint("overlap", "small", run) == before


@pytest.mark.parametrize(
    ("files", "given"),
    [
        (["weights.gguf"], {"gguf_file": "weights.gguf"}),
        (["config.json", "model.safetensors"], {}),
    ],
)
def test_a_folder_holds_smollm2_as_one_file_or_as_transformers_saves_it(
    files, given, tmp_path, monkeypatch
):
    opened("overlap")
    found = sys.modules["language"].found
    for file in files:
        (tmp_path / file).touch()
    monkeypatch.setenv("HOLDOVER_SMOLLM2", str(tmp_path))
    assert found({"model": "smollm2"}) == {"model": str(tmp_path), **given}


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_as_many_weights_are_as_many(scale):
    _, three = opened("three_questions")
    counts = {}
    for arm in ("GPT-2, as many weights", "GPT-2, pooled state"):
        given = three.settings_of(arm, three.SCALES[scale])
        model = given["model"]
        recurrence = RecurrenceConfig.from_dict(given["recurrence"])
        counts[arm] = random_model(
            model["model"], model["shape"], 256, recurrence, 0
        ).num_parameters()
    plain, recurrent = counts.values()
    assert recurrent <= plain < 1.001 * recurrent


@pytest.mark.parametrize(
    ("base", "expected"), [(2.5, 0.5), (3.25, 0.25), (2.2, 0.8), (5.0, 0.0), (1.0, None)]
)
def test_convergence_is_where_the_loss_of_the_base_is_reached(base, expected):
    _, three = opened("three_questions")
    found = three.convergence([[0, 4.0], [500, 2.5], [1000, 2.0]], base)
    assert found == ({} if expected is None else {"converged_after": pytest.approx(expected)})


@pytest.mark.parametrize("scale", ["small", "real", "paper"])
def test_a_step_reads_as_many_tokens_whatever_a_window_holds(scale):
    experiment, _ = opened("window_size")
    overlap, _ = opened("overlap")
    tokens = []
    for run in [*experiment.runs(scale, (0,)), *overlap.runs(scale, (0,))]:
        if "train" in run.settings and "recurrence" in run.settings:
            train, window = run.settings["train"], run.settings["recurrence"]["window"]
            tokens.append(train["rows"] * train["windows"] * window)
    assert max(tokens) <= 1.2 * min(tokens)


def test_a_model_is_trained_at_the_rate_that_was_best_where_it_was_tried():
    experiment, three = opened("three_questions")
    runs = {run.arm: run for run in experiment.runs("smoke", (0,))}
    tried = {f"rate-{rate}-GPT-2-seed0" for rate in ("0.0005", "0.001")}
    assert tried <= set(runs["novel: GPT-2, as many weights"].after)
    assert not tried & set(runs["novel: Transformer-XL"].after)
    work = SimpleNamespace(
        settings={"train": {"learning_rate": 7.0}},
        found={
            "a": {"rate": 1.0, "valid_loss": 3.0},
            "b": {"rate": 2.0, "valid_loss": 2.5},
            "base": {"validation_loss": 1.0},
        },
    )
    assert three.chosen_rate(work) == 2.0
    work.found = {"base": {"validation_loss": 1.0}}
    assert three.chosen_rate(work) == 7.0
    # One that was tried alone is a setting, and no choice.
    assert runs["novel: XLNet"].settings["train"]["learning_rate"] == 5e-4
    assert "rates" not in runs["novel: XLNet"].settings


def test_what_is_compared_is_trained_as_long():
    experiment, three = opened("three_questions")
    runs = {run.arm: run.settings for run in experiment.runs("real", (0,))}
    for text in ("enwik8", "books"):
        for arm, (_, _, base) in three.ARMS.items():
            steps = runs[f"{text}: {arm}"]["train"]["max_steps"]
            assert steps == (1000 if arm.startswith("XLNet") else 2000)
            assert base is None or steps == runs[f"{text}: {base}"]["train"]["max_steps"]
    told = experiment.layout("real").done
    assert "XLNet and models compared with it: 1,000 of them" in told and "2,000 of them" in told
    assert "the same for every arm" in experiment.layout("small").done


def test_equal_flops_are_those_of_the_largest_overlap_that_costs_no_more():
    _, three = opened("three_questions")
    base = {"loss": {"value": 3.0}, "flops_counted": 100.0}
    for overlap, flops, loss in ((8, 120.0, 2.9), (16, 150.0, 2.8)):
        base |= {f"loss@{overlap}": {"value": loss}, f"flops_counted@{overlap}": flops}
    for flops, overlap, loss in (
        (90.0, 0, 3.0),
        (119.0, 0, 3.0),
        (149.0, 8, 2.9),
        (999.0, 16, 2.8),
    ):
        ours = {"loss": {"value": 2.5}, "flops_counted": flops}
        assert three.at_equal_flops(ours, base) == {
            "above_at_equal_flops": pytest.approx(2.5 - loss),
            "overlap_at_equal_flops": overlap,
        }


def test_a_vote_that_counts_as_counted_is_of_more_than_the_last_three_windows():
    """An ideal reader of these knows how often a sum in them goes with a majority of A."""
    _, memory = opened("memory")
    window = memory.WINDOW
    letters = {ord("A"): 1, ord("B"): -1}
    majorities: dict[tuple[int, int], list[bool]] = {}
    for document in Majority("train", window).documents():
        # Without the question, the answer and the end.
        votes = [letters.get(letter, 0) for letter in b"".join(document.read())[:-3]]
        windows = (len(votes) + 2) // window
        seen = sum(votes[max(0, windows - 3) * window :])
        majorities.setdefault((windows, seen), []).append(sum(votes) > 0)
    told = [(len(found), sum(found) / len(found)) for found in majorities.values()]
    ideal = sum(texts * (share**2 + (1 - share) ** 2) for texts, share in told)
    assert 0.85 < ideal / sum(texts for texts, _ in told) < memory.COUNTED


def test_signs_are_of_contexts_and_of_books():
    """Five contexts of three books: the first book's are nearer, of the second's one is, the third's is
    as near; a fourth book was not drawn."""
    _, propagation = opened("propagation")
    ours = np.array([0.1, 0.2, 0.3, 0.9, 0.5])
    plain = np.array([0.2, 0.3, 0.4, 0.8, 0.5])
    found = propagation.sign_test(ours, plain, np.array([0, 0, 1, 1, 2]), 4)
    nearer = found["nearer_than_plain"]
    assert nearer["value"] == 0.75 and nearer["over"] == "4 books, 4 contexts"
    assert nearer["sums"] == [2, 1, 0, 0] and nearer["counts"] == [2, 2, 0, 0]
    # Three of four signs, and one of one book: no book is counted in which as many lie on either side.
    assert found["sign_test_p"] == pytest.approx(10 / 16)
    assert found["sign_test_p_books"] == 1.0
    assert propagation.chance_of(10, 0) == pytest.approx(2 / 2**10)
    assert propagation.sign_test(plain, plain, np.array([0, 0, 1, 1, 2]), 4) == {}


def test_models_of_the_papers_scale_are_trained_before_they_go_on(tmp_path):
    """Its path, with the smallest models and texts."""
    path = tmp_path / "trained_first.py"
    path.write_text(f"""
import sys
from dataclasses import replace

sys.path.insert(0, {str(FOLDER)!r})
import propagation

propagation.TRAINED["smoke"] = propagation.TRAINED["paper"]
propagation.SCALES["smoke"] = replace(
    propagation.SCALES["paper"], text="time-machine", window=24, contexts=4, pieces=8, rows=4
)
EXPERIMENT = propagation.EXPERIMENT
""")
    given = {"device": "cpu", "cache_dir": tmp_path / "cache", "tidy": True}
    options = RunOptions(results=tmp_path / "results", output=tmp_path / "runs", **given)
    found = run_experiment(path, options).found
    assert len(found) == 6
    losses = [
        found[f"trained-{kind}-seed0"]["measures"]["valid_loss"] for kind in ("plain", "recurrent")
    ]
    assert all(0 < loss < 10 for loss in losses)
    for arm in ("recurrent", "another-state", "the-book-itself"):
        assert 0 <= found[f"{arm}-seed0"]["measures"]["divergence"]["value"] <= 1
    # The published state, and no verdict but one to reproduce.
    settings = found["trained-recurrent-seed0"]["settings"]
    assert settings["recurrence"]["carry"] == "pooled"
    _, propagation = opened("propagation")
    assert not any(claim.ours for claim in propagation.layout("paper").claims)
    assert all(claim.ours for claim in propagation.layout("small").claims)
    assert not any((tmp_path / "runs" / "trained_first" / "smoke").glob("*/train"))
