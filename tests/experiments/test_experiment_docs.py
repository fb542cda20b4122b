"""What docs/experiments.md and docs/related.md say of the experiments holds."""

import re
from pathlib import Path

from holdover.bundled import bundled_model
from holdover.experiments.experiment_file import open_experiment
from holdover.language.options import TrainOptions
from holdover.text.options import TextOptions
from holdover.text.splits import read_text
from holdover.tokenization.encoders import open_encoder

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "experiments.md").read_text()


def test_every_experiment_is_listed():
    files = {path.name for path in (ROOT / "experiments").glob("*.py")}
    named = set(re.findall(r"`(\w+\.py)`", GUIDE))
    defining = {
        name for name in files if "\nEXPERIMENT" in (ROOT / "experiments" / name).read_text()
    }
    assert defining <= named <= files


def test_the_files_steps_are_in_its_text(tmp_path):
    """A training ends with its epochs too: more steps than they have are not made."""
    rows, windows, steps = (
        int(re.search(rf"{name}=(\d+)", GUIDE)[1]) for name in ("rows", "windows", "max_steps")
    )
    options = TextOptions(data="time-machine", cache_dir=tmp_path)
    text = read_text(options, open_encoder(bundled_model("books-plain")), "train", window=300)
    assert steps <= TrainOptions.epochs * len(text) // (rows * windows * 300)


RELATED = (ROOT / "docs" / "related.md").read_text()
# As in (2023), or (RSA, 2023).
YEAR = r"\((?:\w+, )?(\d{4})\)"


def test_papers_that_claims_rest_on_are_told_of():
    sources = [
        claim.source
        for path in sorted((ROOT / "experiments").glob("*.py"))
        if "\nEXPERIMENT" in path.read_text()
        for _, experiment in [open_experiment(path)]
        for scale in experiment.seeds
        for claim in experiment.layout(scale).claims
    ]
    named = {one for source in sources for one in re.findall(r"(\w+) et al\. (\d{4})", source)}
    told = set(re.findall(rf"^\*\*(\w+) et al\..*{YEAR}", RELATED, re.M))
    assert ("Zeng", "2023") in named <= told


def test_a_paragraph_tells_of_one_paper():
    _, *paragraphs = RELATED.split("\n\n")
    for paragraph in paragraphs:
        (heading,) = re.findall(r"\*\*(.*?)\*\*", paragraph, re.S)
        assert paragraph.startswith(f"**{heading}**") and len(re.findall(YEAR, heading)) == 1
