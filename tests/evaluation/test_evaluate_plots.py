"""Figures: both files, the same twice, nothing of the caller's matplotlib changed."""

import ast
from pathlib import Path

import numpy as np
import pytest

from holdover.evaluation import plots

matplotlib = pytest.importorskip("matplotlib")

FLOPS = {
    "baseline": [(2.1e8, 26.2, 25.0, 27.0, "50"), (1.75e8, 29.0, None, None, "0")],
    "recurrent": [(1.75e8, 27.7, 27.8, 28.5, "0")],
}
POSITIONS = {"long": np.linspace(5, 3, 300), "short": np.array([np.nan, 4.0, 3.5])}
RUNS = {
    "a": [{"tokens": i, "loss": 5 / (i + 1), "lr": 0.1} for i in range(200)]
    + [{"tokens": 100, "valid_loss": 1.0}],
    "only validated": [{"tokens": 50, "valid_loss": 2.0}],
}
HISTORY = [(1, -0.02, -0.03, -0.01), (0, 0.0, None, None)]
FIGURES = {
    "flops": lambda stem: plots.perplexity_against_flops(stem, FLOPS),
    "positions": lambda stem: plots.loss_by_position(stem, POSITIONS),
    "distances": lambda stem: plots.loss_by_distance(stem, {"a": [(300, 4.0), (600, 3.5)]}),
    "training": lambda stem: plots.training_curves(stem, RUNS),
    "state": lambda stem: plots.state_use(stem, HISTORY, [(1, 0.1), (2, 0.01)]),
}


@pytest.mark.parametrize("name", FIGURES)
def test_both_files_and_the_same_svg_twice(name, tmp_path):
    before = dict(matplotlib.rcParams)
    png, svg = FIGURES[name](tmp_path / "figures" / "v1.2")
    assert (png.name, svg.name) == ("v1.2.png", "v1.2.svg")
    assert png.read_bytes().startswith(b"\x89PNG")
    first = svg.read_bytes()
    assert b"</svg>" in first and b"<dc:date>" not in first
    FIGURES[name](str(tmp_path / "figures" / "v1.2"))
    assert svg.read_bytes() == first
    assert sorted(path.name for path in png.parent.iterdir()) == ["v1.2.png", "v1.2.svg"]
    assert dict(matplotlib.rcParams) == before


def test_vanished_gradients_are_drawn(tmp_path):
    plots.state_use(tmp_path / "state", HISTORY, [(1, 0.1), (2, 0.0)])


def test_more_series_than_colours(tmp_path):
    many = {f"run {number}": np.arange(5.0) + number for number in range(9)}
    plots.loss_by_position(tmp_path / "many", many)


def test_matplotlib_waits_until_it_is_needed():
    """No import at the top of the file, where `if TYPE_CHECKING` does not count, and never pyplot."""
    source = Path(plots.__file__).read_text()
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "matplotlib" not in ast.unparse(node)
    assert "matplotlib.pyplot" not in source and "import pyplot" not in source


def test_smoothing_keeps_beginnings_lines_and_gaps():
    line = np.arange(50.0)
    assert plots.smoothed(line, 5)[:45] == pytest.approx(line[:45])
    steep = 1 / np.sqrt(np.arange(1.0, 300))
    assert plots.smoothed(steep, 7) == pytest.approx(steep, rel=0.03)
    holed = line.copy()
    holed[:20] = np.nan
    assert np.isnan(plots.smoothed(holed, 5)[:20]).all()
    assert plots.smoothed(holed, 5)[20] == pytest.approx(np.mean(line[20:26]))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda stem: plots.loss_by_position(stem, {}), "loss by position"),
        (lambda stem: plots.perplexity_against_flops(stem, {"a": []}), "for a"),
        (lambda stem: plots.training_curves(stem, {"b": [{"tokens": 1}]}), "for b"),
        (lambda stem: plots.state_use(stem, HISTORY, []), "for gradient"),
    ],
)
def test_nothing_to_show(call, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        call(tmp_path / "figure")
    assert not list(tmp_path.iterdir())
