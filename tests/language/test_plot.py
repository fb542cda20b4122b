"""holdover plot: what it draws, and what it refuses."""

import json

import pytest

from holdover.cli import entry as cli
from holdover.evaluation.compare import differences
from holdover.language.plotting import plot


def a_run(folder):
    folder.mkdir()
    lines = [{"step": 0, "tokens": 0, "valid_loss": 5.0}]
    lines += [{"step": n, "tokens": 10 * n, "loss": 5 - n / 10} for n in range(1, 20)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "log.jsonl").write_text(text + '{"step": 20, "tok')
    return folder


def an_evaluation(folder, overlaps=(0, 4)):
    folder.mkdir()
    rows = [
        {
            "overlap": overlap,
            "perplexity_per_word": 30.0 - overlap,
            "perplexity_per_token": 9.0 - overlap,
            "intervals": {"perplexity_per_word": [28 - overlap, 33 - overlap]},
            "flops_per_token": {"formula": 1e6 + overlap},
            "loss_by_position": [3.0, 2.5, None, 2.0],
            "interval_over": "documents",
            "units": 3,
            "nats": 60.0 - overlap,
            "counts": {"tokens": 30},
            "per_unit": {"nats": [10.0, 20.0, 30.0 - overlap], "tokens": [10, 10, 10]},
        }
        for overlap in overlaps
    ]
    record = {"record": "evaluation", "model": {"name": "twin"}, "rows": rows}
    record["data"] = {"sha256": "0", "source": "novel.txt"}
    (folder / "eval.json").write_text(json.dumps(record))
    return folder


def test_runs_and_evaluations_side_by_side(tmp_path):
    paths = [a_run(tmp_path / "one"), a_run(tmp_path / "two"), an_evaluation(tmp_path / "three")]
    paths.append(an_evaluation(tmp_path / "four") / "eval.json")
    written = plot(paths, tmp_path / "plots")
    names = {path.name for path in written}
    assert names == {
        f"{stem}.{kind}"
        for stem in ("training", "perplexity_flops", "loss_by_position")
        for kind in ("png", "svg")
    }
    drawn = (tmp_path / "plots" / "training.svg").read_text()
    assert "one, training" in drawn and "two, validation" in drawn
    # Two models of one name stay two curves.
    assert "twin (2)" in (tmp_path / "plots" / "perplexity_flops.svg").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "neither a run"),
        ("{", "is not an evaluation record"),
        ('{"record": "demo"}', "not a record of holdover eval"),
    ],
)
def test_what_is_neither_is_refused(content, said, tmp_path, capsys):
    path = tmp_path / "something.json"
    if content is not None:
        path.write_text(content)
    assert cli.main(["plot", str(path)]) == 2
    assert said in capsys.readouterr().err


def test_differences_are_paired(tmp_path):
    first, second = (
        json.loads((an_evaluation(tmp_path / n) / "eval.json").read_text()) for n in "ab"
    )
    # Harder by the same amount in every unit: no doubt about the difference, whatever the units' own.
    for row in second["rows"]:
        row["per_unit"]["nats"] = [value + 1 for value in row["per_unit"]["nats"]]
    found = differences({"a": first, "b": second})
    assert [row["above_first"] for row in found] == pytest.approx([0, -4 / 30, 0.1, 0.1 - 4 / 30])
    assert found[2]["low"] == found[2]["high"] == pytest.approx(0.1)
    assert found[1]["low"] < found[1]["high"]


def test_compare_shows_a_row_for_each_overlap(tmp_path, capsys):
    one, two = an_evaluation(tmp_path / "one"), an_evaluation(tmp_path / "two")
    assert cli.main(["compare", str(one), str(two / "eval.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("twin") == 5 and "twin (2)" in shown and "-0.1333" in shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record["rows"][0].pop("per_unit"), "evaluate it again"),
        (lambda record: record["data"].update(sha256="1"), "not scored on the same targets"),
        (lambda record: record["rows"][0]["per_unit"].update(tokens=[1, 2, 3]), "same targets"),
    ],
)
def test_what_cannot_be_paired_is_refused(change, said, tmp_path, capsys):
    one, two = an_evaluation(tmp_path / "one"), an_evaluation(tmp_path / "two")
    record = json.loads((two / "eval.json").read_text())
    change(record)
    (two / "eval.json").write_text(json.dumps(record))
    assert cli.main(["compare", str(one), str(two)]) == 2
    assert said in capsys.readouterr().err
    assert cli.main(["compare", str(tmp_path)]) == 2
    assert "is not an evaluation" in capsys.readouterr().err
