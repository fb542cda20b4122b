"""The alarm: a character model that has learnt nothing but frequencies says so."""

import json

import numpy as np
import pytest
import torch

from holdover import RecurrenceConfig, add_recurrence
from holdover.cli import entry as cli
from holdover.evaluation.collapse import check_collapse, token_specific, unigram_bits
from holdover.evaluation.scoring import score
from holdover.tokenization.encoders import ByteEncoder
from runs import train
from streams import stream
from tiny import attach, build, tokens

CPU = torch.device("cpu")
TEXT = "the moon was thin and old, and the tide was out. " * 40


def of_frequencies(text: bytes):
    """Transformer-XL with an output bias of log frequencies, and embeddings that say nothing."""
    base = build("holdover_xl", vocab_size=256)
    counts = np.bincount(list(text), minlength=256) + 1e-9
    with torch.no_grad():
        base.transformer.embedding.weight.zero_()
        base.lm_head.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
    return add_recurrence(base, RecurrenceConfig(window=20, carry="memory")).eval()


def test_the_entropy_of_single_symbols():
    assert unigram_bits(stream(4000, vocabulary=37)) == pytest.approx(5.0, abs=0.02)


def test_a_model_of_frequencies_has_collapsed_and_its_layers_show_it(tmp_path, capsys):
    model = of_frequencies(TEXT.encode())
    model.save_pretrained(tmp_path / "model")
    ByteEncoder().save(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    words = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "text.txt")]
    words += ["--cache-dir", str(tmp_path / "cache"), "--output", str(tmp_path / "eval")]
    assert cli.main(["eval", *words, "--device", "cpu", "--no-plots", "--no-diagnose-state"]) == 0
    assert "COLLAPSED" in capsys.readouterr().out
    (row,) = json.loads((tmp_path / "eval" / "eval.json").read_text())["rows"]
    found = row["collapse"]
    assert found["collapsed"] and found["bits"] == pytest.approx(found["unigram_bits"], abs=0.02)
    assert len(found["token_specific"]) == 4 and max(found["token_specific"]) < 1e-9


def test_other_models_have_not():
    model = attach(build("gpt2", "causal-lm", vocab_size=61), window=7).eval()
    text = stream(200)
    # As good as the symbols alone would be, by whatever way: that is what is looked at.
    near = unigram_bits(text) * np.log(2)
    text.encoder.vocabulary = 61
    assert check_collapse(model, text, near, CPU)["collapsed"]
    for nats in (near - 0.05, near + 0.05):
        found = check_collapse(model, text, nats, CPU)
        assert not found["collapsed"] and "token_specific" not in found
    own = score(model, text, rows=2, device=CPU).mean()
    assert not check_collapse(model, text, own + 1, CPU)["collapsed"]


def test_words_are_too_rare_to_count():
    text = stream(50)
    text.encoder.vocabulary = 50_000
    assert check_collapse(None, text, 3.0, CPU) is None


def test_shares_by_hand():
    model = attach(build("gpt2", "causal-lm"), window=7).train()
    text = stream(30)
    shares = token_specific(model, text, CPU)
    assert model.training
    hidden = model.eval()(
        torch.from_numpy(text.ids.astype(np.int64))[None], output_hidden_states=True
    )
    said = hidden.hidden_states[1][0].detach().numpy()
    apart = ((said - said.mean(0)) ** 2).sum() / (said**2).sum()
    assert shares[1] == pytest.approx(apart, rel=1e-4)
    same = model(tokens(1, 1).expand(1, 5), output_hidden_states=True)
    assert len(shares) == len(same.hidden_states)


def test_training_says_so_after_the_warm_up(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("holdover.evaluation.collapse.NEAR", 100.0)
    run = train(tmp_path, max_steps=4, warm_up=2, validate_every=40)
    assert "COLLAPSED" in capsys.readouterr().out
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if "alarm" in line]
    assert steps and min(steps) > 2
    assert cli.main(["plot", str(run), "--output", str(tmp_path / "plots")]) == 0
