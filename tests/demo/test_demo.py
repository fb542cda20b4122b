"""holdover demo, all of it, with tiny random twins in place of the package's."""

import json
import math
import shutil

import pytest
import torch

from holdover import RecurrenceConfig, add_recurrence
from holdover.bundled import PLAIN, RECURRENT, bundled_model
from holdover.cli import entry as cli
from holdover.demo import show
from holdover.demo.options import DemoOptions
from holdover.demo.run import NOVEL
from holdover.tokenization.encoders import ByteEncoder
from tiny import build

WINDOW = 70


def save_twin(folder, **settings):
    torch.manual_seed(0)
    stock = build("gpt2", "causal-lm", n_positions=120, vocab_size=256)
    add_recurrence(stock, RecurrenceConfig(window=WINDOW, **settings)).save_pretrained(folder)
    ByteEncoder().save(folder)
    return str(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    plain = save_twin(folder / "forgets", carry="none")
    recurrent = save_twin(folder / "remembers", carry="tokens", slots=4, map_hidden=())
    text = folder / "mine.txt"
    text.write_text("The stars were thin, and the moon was old. <b>&amp;</b>\n" * 200)
    words = ["--plain", plain, "--recurrent", recurrent, "--text", str(text)]
    words += ["--novel-tokens", "3000", "--new-tokens", "200", "--max-steps", "3"]
    assert cli.main(["demo", *words, "--device", "cpu", "--output", str(folder / "out")]) == 0
    return folder / "out", json.loads((folder / "out" / "demo.json").read_text())


def test_every_row_of_the_table(finished):
    _, record = finished
    assert [(row["twin"], row["overlap"]) for row in record["rows"]] == [
        (twin, overlap) for twin in ("plain", "recurrent") for overlap in (0, 10, 30, 50)
    ]
    for row in record["rows"]:
        assert row["low"] <= row["perplexity"] <= row["high"]
        assert row["flops_per_token"] > 0 and row["tokens_per_second"] > 0
        trained = row["twin"] == "plain" or row["overlap"] == 0
        assert (row["note"] is None) == trained
    costs = [row["flops_per_token"] for row in record["rows"][:4]]
    assert costs == sorted(costs)


def test_the_difference_is_that_of_the_table(finished):
    _, record = finished
    plain, recurrent = record["rows"][0], record["rows"][4]
    found = record["difference"]
    assert found["value"] == pytest.approx(
        math.log(recurrent["perplexity"] / plain["perplexity"]), abs=1e-6
    )
    assert found["low"] <= found["value"] <= found["high"]


def test_the_state_was_examined(finished):
    _, record = finished
    state = record["state"]
    for name in ("zeroed", "other"):
        assert state[name]["low"] <= state[name]["value"] <= state[name]["high"]
    assert [point["windows"] for point in state["history"]] == [0, 1, 2, 3]
    # Begun with nothing right there is the same as taken away, on the windows that were drawn.
    assert state["history"][0]["above_own"] == pytest.approx(state["zeroed"]["value"], abs=0.05)
    assert state["bytes"] == 4 * 32 * 4


def test_it_was_written_past_the_last_position(finished):
    _, record = finished
    writing = record["writing"]
    assert writing["tokens"] == 200 > record["positions"] == 120
    assert writing["stock_error"].startswith("IndexError") and writing["stock_tokens"] == 120


def test_recurrence_was_trained_into_the_plain_twin(finished):
    folder, record = finished
    learning = record["learning"]
    assert learning["steps"] == 3 and len(learning["curve"]) == 3
    assert learning["text"] == "mine.txt" and learning["held_out_tokens"] > 500
    values = [learning[name]["value"] for name in ("before", "after", "after_zeroed")]
    assert len(set(values)) == 3 and all(value > 1 for value in values)
    settings = json.loads((folder / "learnt" / "holdover_run.json").read_text())["options"]
    assert settings["model"].endswith("forgets") and settings["recurrence"]["carry"] == "tokens"


def test_the_page_and_the_times_of_all_stages(finished):
    folder, record = finished
    assert list(record["seconds"]) == ["read", "state", "write", "learn", "page"]
    page = (folder / "demo.html").read_text()
    assert NOVEL in page and "The Time Traveller" in page.replace("</i>", "").replace("<i>", "")
    assert str(folder.parent) not in json.dumps(record)


def test_run_again_it_trains_again(finished, tmp_path, capsys):
    folder, _ = finished
    again = tmp_path / "out"
    shutil.copytree(folder, again, symlinks=True)
    words = ["--plain", str(folder.parent / "forgets"), "--recurrent"]
    words += [str(folder.parent / "remembers"), "--stages", "learn", "--max-steps", "2"]
    assert cli.main(["demo", *words, "--device", "cpu", "--output", str(again)]) == 0
    assert json.loads((again / "demo.json").read_text())["learning"]["steps"] == 2


def test_few_tokens_and_no_page_but_a_record(finished, tmp_path):
    models = ["--plain", str(finished[0].parent / "forgets")]
    models += ["--recurrent", str(finished[0].parent / "remembers")]
    words = ["--novel-tokens", "1000", "--new-tokens", "20", "--stages", "read,state,write,page"]
    out = tmp_path / "out"
    assert cli.main(["demo", *models, *words, "--device", "cpu", "--output", str(out)]) == 0
    record = json.loads((out / "demo.json").read_text())
    assert [count for count, _ in record["writing"]["memory"]] == [0, 20]
    assert (out / "demo.html").exists() and record["learning"] is None


def test_a_run_of_somebody_elses_is_left_alone(finished, tmp_path, capsys):
    (tmp_path / "learnt").mkdir()
    (tmp_path / "learnt" / "log.jsonl").write_text("mine")
    words = ["--plain", str(finished[0].parent / "forgets"), "--stages", "learn"]
    words += ["--recurrent", str(finished[0].parent / "remembers")]
    assert cli.main(["demo", *words, "--max-steps", "1", "--output", str(tmp_path)]) == 2
    assert "holds a run already" in capsys.readouterr().err
    assert (tmp_path / "learnt" / "log.jsonl").read_text() == "mine"


def test_a_short_text_is_refused_before_the_novel_is_read(finished, tmp_path, capsys):
    text = tmp_path / "short.txt"
    text.write_text("short")
    words = ["--plain", str(finished[0].parent / "forgets"), "--text", str(text)]
    words += ["--recurrent", str(finished[0].parent / "remembers"), "--output", str(tmp_path)]
    assert cli.main(["demo", *words]) == 2
    said = capsys.readouterr()
    assert "has only 5 tokens" in said.err and "reads the novel" not in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--text", "none.txt"], "no text file at none.txt"),
        (["--stages", "read,dance"], "'dance' is not one of"),
        (["--stages", "page"], "so add them"),
        (["--minutes", "0"], "greater than 0"),
        (["--new-tokens", "0"], "at least 1"),
        (["--novel-tokens", "10"], "at least 1000"),
        (["--seed", "-1"], "from 0 to"),
    ],
)
def test_refusals(words, said, finished, capsys):
    folder, _ = finished
    models = ["--plain", str(folder.parent / "forgets")]
    models += ["--recurrent", str(folder.parent / "remembers")]
    assert cli.main(["demo", *models, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_twin_that_forgets_is_no_recurrent_one(finished, capsys):
    plain = str(finished[0].parent / "forgets")
    assert cli.main(["demo", "--plain", plain, "--recurrent", plain]) == 2
    assert "carries no state" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [(-2, -1, "helps"), (-1, 1, "do not differ clearly"), (1, 2, "worse"), (None, None, "too few")],
)
def test_the_verdict_follows_from_the_interval(low, high, said):
    assert said in show.verdict({"low": low, "high": high})


def test_names_of_bundled_models_are_those_the_demo_takes():
    assert (DemoOptions.plain, DemoOptions.recurrent) == (PLAIN, RECURRENT)
    assert bundled_model("gpt2") is None
