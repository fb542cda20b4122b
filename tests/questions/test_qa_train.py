"""holdover qa train, eval and ask: what is learnt, continued, scored, said and refused."""

import io
import json
import math

import numpy as np
import pytest
import torch

from holdover.cli import entry as cli
from holdover.questions.asking import ask
from holdover.questions.batches import Pairs
from holdover.questions.eval_options import QAEvalOptions
from holdover.questions.evaluation import evaluate_reader
from holdover.questions.files import read_questions
from holdover.questions.folder import open_reader
from holdover.questions.loss import answer_nll
from holdover.questions.task import QuestionAnswering
from readers import (
    AROUND,
    ROOM,
    command,
    evaluate,
    save_encoder,
    sweet_or_hard,
    train,
    write_questions,
)
from runs import best_of, flags_of, log_of, refusal, timeless, validations_of, weights_of

LEARNING = {"epochs": 8, "rows": 16, "lr": 2e-3, "added_learning_rate": 2e-3, "patience": "none"}
TEXT = "facts it is sweet sweet sweet w3 w4\nw5 stone w6 w7 apple w8 w9 w10"


@pytest.fixture(scope="module")
def twins(tmp_path_factory):
    """A folder with a reader that carries a state and one that does not, trained alike."""
    folder = tmp_path_factory.mktemp("twins")
    write_questions(folder / "questions.json", sweet_or_hard(400))
    train(folder, output=folder / "recurrent", **LEARNING, **{"recurrence.map_hidden": "32"})
    train(folder, output=folder / "plain", recurrence="none", **LEARNING)
    return folder


def test_what_only_the_first_window_tells_is_learnt_with_a_state_alone(twins):
    best = {
        name: max(line["valid_f1"] for line in validations_of(twins / name))
        for name in ("recurrent", "plain")
    }
    # Two windows, two candidates in the second: half of them are right by chance.
    assert best["recurrent"] == 1.0 and best["plain"] < 0.75
    losses = {name: validations_of(twins / name)[-1]["valid_loss"] for name in best}
    assert losses["recurrent"] < 0.1 and losses["plain"] > 1.8 * math.log(2)


@pytest.mark.parametrize("name", ["recurrent", "plain"])
def test_a_step_is_on_the_device_as_a_whole(twins, name):
    """On a device without values: what stood on the host, or had to be looked at, would be an error."""
    saved = open_reader(twins / name)
    questions = read_questions(twins / "questions.json")
    pairs = Pairs(saved.tokenizer.encode(questions), saved.reader.layout(saved.tokenizer))
    device = torch.device("meta")
    batch = next(iter(pairs.shuffled_batches(4, 0, 0, 0))).to(device)
    reader = saved.reader.train().to(device)
    loss = answer_nll(reader(batch), batch).sum()
    loss.backward()
    assert loss.device.type == "meta"
    assert all(weight.grad is not None for weight in reader.added_parameters())


def test_the_record_says_whether_the_state_is_used(twins):
    record = evaluate(twins / "recurrent", against=twins / "plain")
    assert record["notes"] == [
        "the reader was trained on the beginning of this file: its end is read",
        "which of the reader's checkpoints is the best was decided by these questions",
    ]
    assert record["data"]["questions"] == 40 and record["data"]["not_in_context"] == 0
    own, plain = record["rows"]
    assert own["em"]["value"] == own["f1"]["value"] == 1.0
    assert own["by_windows"]["2"]["questions"] == 40
    assert sum(group["questions"] for group in own["by_type"].values()) == 40
    state = own["state"]
    assert state["questions"] == 40
    assert state["own_differs_from_first_reading"] < 1e-5
    for name in ("zeroed", "other"):
        f1, nll = (state[name][measure]["above_own"] for measure in ("f1", "nll"))
        assert f1["low"] <= f1["value"] <= f1["high"] < -0.2
        assert nll["low"] > 0.5
    assert "state" not in plain
    (difference,) = record["differences"]
    assert (difference["of"], difference["above"]) == ("recurrent", "plain")
    pairs = zip(own["per_question"]["f1"], plain["per_question"]["f1"], strict=True)
    assert difference["f1"]["value"] == pytest.approx(np.mean([a - b for a, b in pairs]))
    answers = json.loads((twins / "recurrent-eval" / "answers.json").read_text())
    records = json.loads((twins / "questions.json").read_text())[360:]
    assert answers["answer"] == {record["_id"]: record["answer"] for record in records}
    assert record["provenance"]["versions"]["torch"] and "questions_per_second" in own


def test_other_files_and_what_cannot_be_answered(twins, tmp_path):
    records = sweet_or_hard(30, seed=9)
    records[0]["answer"], records[1]["answer"] = "pear", "yes"
    path = write_questions(tmp_path / "other.json", records)
    record = evaluate_reader(
        QAEvalOptions.of(model=str(twins / "recurrent"), data=str(path), output=tmp_path / "e")
    )
    assert record["notes"] == []
    assert record["data"]["not_in_context"] == 1
    assert record["data"]["kinds"] == {"span": 29, "yes": 1, "no": 0}
    (row,) = record["rows"]
    assert row["f1"]["value"] == pytest.approx(28 / 30)
    assert row["by_kind"]["yes"]["f1"] == 0.0


def test_asking(twins, tmp_path, capsys, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    words = ["qa", "ask", "--model", str(twins / "recurrent"), "--question", "What is it"]
    words += ["--device", "cpu"]
    assert cli.main([*words, "--context", str(path), "--around", "12"]) == 0
    answer, probability, marked = capsys.readouterr().out.splitlines()
    assert answer == "apple"
    assert probability.startswith("probability 0.9") and probability.endswith("read in 2 windows")
    assert marked == "...stone w6 w7 >>apple<< w8 w9 w10"
    # The same of another fact, piped in, for a program.
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT.replace("sweet", "hard")))
    assert cli.main([*words, "--context", "-", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["answer"], found["kind"], found["windows"]) == ("stone", "span", 2)
    assert TEXT.replace("sweet", "hard")[found["start"] : found["stop"]] == "stone"
    assert found["before"] + found["marked"] + found["after"] == TEXT.replace(
        "sweet", "hard"
    ).replace("\n", " ")
    assert ask(open_reader(twins / "recurrent"), "What is it", TEXT).answer == "apple"


def test_a_run_that_died_goes_on_as_if_undisturbed(tmp_path, monkeypatch, capsys):
    settings = {"epochs": 2, "max_steps": 13, "save_every": 4, "keep": 9}
    save_encoder(tmp_path / "encoder", dropout=0.1)
    whole = train(tmp_path, output=tmp_path / "whole", **settings)
    calls, original = 0, QuestionAnswering.loss

    def loss(*arguments):
        nonlocal calls
        calls += 1
        if calls == 7:
            raise OSError("the power went out.")
        return original(*arguments)

    monkeypatch.setattr(QuestionAnswering, "loss", loss)
    assert cli.main(command(tmp_path, **settings)) == 2
    monkeypatch.setattr(QuestionAnswering, "loss", original)
    # A run knows its settings.
    again = ["qa", "train", "--resume", "--output", str(tmp_path / "run")]
    assert cli.main(again) == 0
    run = tmp_path / "run"
    assert timeless(log_of(run)) == timeless(log_of(whole))
    assert best_of(run) == best_of(whole)
    heads = "holdover_reader.safetensors"
    for name in ("model.safetensors", heads, "optimizer.safetensors", "random.safetensors"):
        ours, theirs = ((r / "checkpoint-13" / name).read_bytes() for r in (run, whole))
        assert ours == theirs, name
    said = refusal(capsys, [*again, "--lr", "1"])
    assert "The settings differ from those of the run" in said and "--lr was" in said
    records = sweet_or_hard(40, seed=5)
    write_questions(tmp_path / "questions.json", records)
    assert "questions has changed since this run began" in refusal(capsys, again)


def test_what_is_trained_and_what_is_best(tmp_path, capsys):
    """Frozen, the encoder stays as it was; by F1 the first checkpoint with the most is best."""
    run = train(tmp_path, freeze_base=True, epochs=3, keep=9)
    capsys.readouterr()
    first, last = weights_of(run, 0), weights_of(run, 27)
    moved = {name for name in first if not first[name].equal(last[name])}
    assert moved and all(name.startswith("recurrence.") for name in moved)
    validations = validations_of(run)
    most = max(range(len(validations)), key=lambda n: (validations[n]["valid_f1"], -n))
    assert best_of(run) == validations[most]["step"]
    by_loss = train(tmp_path, best_by="loss", epochs=3, output=tmp_path / "by-loss")
    assert "best validation loss" in capsys.readouterr().out
    least = min(validations_of(by_loss), key=lambda line: line["valid_loss"])
    assert best_of(by_loss) == least["step"]


def test_the_defaults_are_the_published_ones_and_fit_the_model(tmp_path):
    run = train(tmp_path, window=None, max_steps=1)
    settings = open_reader(run).reader.encoder.settings
    # 32 positions where 512 are the default.
    assert (settings.window, settings.overlap, settings.carry) == (32, 0, "pooled")
    assert (settings.mix_layers, settings.map_hidden, settings.insert_layer) == ("last", (768,), 2)
    tokens = {"recurrence": "tokens", "recurrence.slots": 3}
    other = train(tmp_path, output=tmp_path / "tokens", window=None, max_steps=1, **tokens)
    assert open_reader(other).reader.encoder.settings.window == 26


def test_refusals(tmp_path, capsys):
    train(tmp_path, max_steps=1)
    run = tmp_path / "run"

    def training(**settings):
        return refusal(capsys, command(tmp_path, output=tmp_path / "new", **settings))

    assert "Say which data: for example --data hotpotqa" in training(data=None)
    assert "neither a file of questions" in training(data="nothing.json")
    assert "There is no folder" in training(model=tmp_path / "questions.json")
    (tmp_path / "encoder" / "config.json").rename(tmp_path / "config.json")
    assert "could not be opened" in training()
    (tmp_path / "config.json").rename(tmp_path / "encoder" / "config.json")
    assert "has a recurrence already" in training(model=run)
    assert "--window 99 does not fit BertModel, which has 32 positions" in training(window=99)
    assert "Question id0 takes 6 of a window's 6 tokens" in training(window=AROUND)
    assert f"overlap of {ROOM}:" in training(overlap=ROOM)
    assert "--compile is for language models" in training(compile=True)
    assert "must be at least 1" in training(rows=0)
    assert "--recurrence.slots 4 has no effect" in training(
        **{"recurrence": "memory", "recurrence.slots": 4}
    )
    assert "holds a run already" in refusal(capsys, command(tmp_path))

    def asking(**settings):
        given = {"model": run, "question": "What is it", "context": tmp_path / "text.txt"}
        return refusal(capsys, ["qa", "ask", *flags_of({**given, **settings})])

    assert "there is no such text file" in asking()
    (tmp_path / "text.txt").write_text(" \n")
    assert "There is nothing to read in" in asking()
    (tmp_path / "text.txt").write_bytes(b"\xff\xfe w1")
    assert "is not UTF-8 at byte 0" in asking()
    assert "Ask something" in asking(question=" ")
    assert "Say which model" in asking(model=None)
    assert "is not a reader" in asking(model=tmp_path / "encoder")
    evaluation = ["qa", "eval", "--model", str(run), "--output", str(tmp_path / "e")]
    assert "did you mean hotpotqa?" in refusal(capsys, [*evaluation, "--data", "hotpotq"])
