"""holdover plot: what it draws, and what it refuses."""

import json

import pytest

from holdover import cli
from holdover.plot import plot


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
        }
        for overlap in overlaps
    ]
    record = {"record": "evaluation", "model": {"name": "twin"}, "rows": rows}
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
        (None, "no run"),
        ("{", "no evaluation record"),
        ('{"record": "demo"}', "no evaluation record"),
    ],
)
def test_what_is_neither_is_refused(content, said, tmp_path, capsys):
    path = tmp_path / "something.json"
    if content is not None:
        path.write_text(content)
    assert cli.main(["plot", str(path)]) == 2
    assert said in capsys.readouterr().err
