"""The demonstration: run as a whole, and its parts that numbers depend on."""

import json
import os
import subprocess
import sys

import pytest
import torch

from holdover.demo import from_scratch as demo
from holdover.demo import from_scratch_report as demo_report


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The output and the record of a demo of a few steps on a short text."""
    folder = tmp_path_factory.mktemp("demo")
    text = folder / "text.txt"
    text.write_text("The stars were thin, and the moon was old. " * (demo.SHORTEST // 43 + 1))
    call = (
        f"from holdover.demo.from_scratch import *; run(Path({str(text)!r}), 3, 0, Path('new/run'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", call],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
    )
    return done.stdout, json.loads((folder / "new" / "run" / "demo.json").read_text())


def test_the_record_says_what_was_run_and_where(finished):
    _, record = finished
    assert (record["steps"], record["seed"], record["text"]) == (3, 0, "text.txt")
    assert record["provenance"]["versions"]["torch"] == torch.__version__
    assert record["provenance"]["command"] and record["provenance"]["device"]
    assert list(record["twins"]) == list(demo.TWINS)
    for name, twin in record["twins"].items():
        assert twin["recurrence"] == demo.TWINS[name].to_dict()
        for measure in ("perplexity", "difference_to_plain", "zeroed", "other"):
            value, low, high = twin[measure]
            assert low <= value <= high


def test_plain_windows_have_no_state_to_spoil(finished):
    plain = finished[1]["twins"]["plain"]
    assert plain["perplexity"] == plain["zeroed"] == plain["other"]
    assert plain["state_bytes"] == plain["added_parameters"] == 0


def test_states_are_read(finished):
    for name, twin in finished[1]["twins"].items():
        if name != "plain":
            assert twin["zeroed"] != twin["perplexity"] and twin["state_bytes"] > 0


def test_the_whole_text_is_read_past_the_position_limit(finished):
    printed, record = finished
    for twin in record["twins"].values():
        whole = twin["whole_text"]
        assert whole["tokens"] > 10 * demo.POSITIONS
        assert whole["stock_error"].startswith("IndexError")
        assert whole["state_bytes"] == twin["state_bytes"]
        assert whole["perplexity"] == pytest.approx(twin["perplexity"][0], rel=0.05)
    assert "the stock model stops" in printed


def test_every_twin_is_in_the_table_and_judged(finished):
    printed, _ = finished
    assert "100%, loss" in printed and "s left" in printed
    for name in demo.TWINS:
        assert name in printed
        assert name == "plain" or f"\n{name}: " in printed


def test_twins_start_from_the_same_weights():
    plain, *others = (demo.build(settings, seed=3) for settings in demo.TWINS.values())
    for other in others:
        for mine, theirs in zip(
            plain.backbone.parameters(), other.backbone.parameters(), strict=True
        ):
            assert torch.equal(mine, theirs)


def test_rows_walk_through_their_own_part():
    novel = torch.arange(50_000)
    walk = demo.batches(novel, seed=0)
    anew, before, following = next(walk)
    assert anew and torch.equal(before[:, 1:], following[:, :-1])
    for _ in range(20):
        anew, ids, targets = next(walk)
        assert not anew
        assert torch.equal(ids[:, 0], before[:, -1] + 1)
        assert torch.equal(targets, ids + 1)
        before = ids


def test_scores_are_those_of_one_walk_through_each_row():
    model = demo.build(demo.TWINS["memory tokens"], seed=0).eval()
    held_out = torch.randint(256, (demo.SHORTEST // demo.HELD_OUT,))
    scores, _ = demo.score(model, held_out)
    ids, targets = demo.as_rows(held_out, demo.BLOCK * demo.WINDOW)
    with torch.no_grad():
        whole = model(ids, shift_labels=targets).loss
    assert scores["own"].mean().item() == pytest.approx(whole.item(), rel=1e-5)


def test_intervals_of_differences_are_paired():
    generator = torch.Generator().manual_seed(0)
    blocks = torch.rand(60, generator=generator, dtype=torch.float64)
    value, low, high = demo_report.with_interval(blocks)
    assert low < value < high
    assert demo_report.with_interval(blocks, blocks) == [0.0, 0.0, 0.0]
    value, low, high = demo_report.with_interval(blocks - 0.01, blocks)
    assert low < value < high < 0 and high - low < 0.01


@pytest.mark.parametrize(
    ("difference", "other", "said"),
    [
        ([-0.2, -0.3, -0.1], [0.4, 0.3, 0.5], "the state helps: perplexity 4.0% below"),
        ([-0.2, -0.3, -0.1], [0.0, -0.1, 0.1], "not through what the state holds"),
        ([0.0, -0.1, 0.1], [0.4, 0.3, 0.5], "no difference to plain can be told"),
        ([0.2, 0.1, 0.3], [0.0, -0.1, 0.1], "perplexity 4.0% above plain"),
    ],
)
def test_the_sentence_follows_from_the_intervals(difference, other, said):
    twin = {"difference_to_plain": difference, "other_difference": other, "perplexity": [5.0]}
    assert said in demo_report.verdict(twin, plain=5.0)
