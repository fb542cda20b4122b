"""What holdover eval refuses: one sentence, exit code 2, before anything long is begun."""

import pytest
import torch

from evaluations import WINDOW, evaluated, place, saved, subwords
from holdover.cli import entry as cli

__all__ = ["place"]  # a fixture


def refused(capsys, place, tmp_path, *more, model="pooled", data="text.txt"):
    """The one sentence on stderr of a request that ends with exit code 2."""
    arguments = ["--model", str(place / model), "--data", str(place / data), "--device", "cpu"]
    arguments += ["--cache-dir", str(place / "cache"), "--output", str(tmp_path / "out")]
    capsys.readouterr()
    assert cli.main(["eval", *arguments, *more]) == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith("holdover: ") and sentence[-1] in ".?"
    return sentence


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty.txt is empty"),
        (b"abc\0\1\2" * 50, "looks binary, not like text: byte 3 is NUL"),
        (b"t", "every document is a single token"),
    ],
    ids=["empty", "binary", "one token"],
)
def test_texts_that_cannot_be_scored(content, said, capsys, place, tmp_path):
    (place / "empty.txt").write_bytes(content)
    assert said in refused(capsys, place, tmp_path, data="empty.txt")


def test_bytes_that_are_no_utf8(capsys, place, tmp_path):
    saved(place / "subwords", subwords())
    (place / "broken.txt").write_bytes(b"time and tide " * 5 + b"\xff wait\n")
    assert "byte 70 is 0xff" in refused(
        capsys, place, tmp_path, model="subwords", data="broken.txt"
    )
    made = evaluated(place, tmp_path, model="subwords", data="broken.txt", errors="replace")
    assert made["rows"][0]["counts"]["words"] == 17


def test_models_that_cannot_be_opened(capsys, place, tmp_path):
    assert "nowhere" in refused(capsys, place, tmp_path, model="nowhere")
    folder = saved(place / "truncated")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "truncated or damaged" in refused(capsys, place, tmp_path, model="truncated")
    (folder / "config.json").write_text("{")
    assert "config.json is damaged" in refused(capsys, place, tmp_path, model="truncated")


def test_settings_that_do_not_fit(capsys, place, tmp_path):
    said = refused(capsys, place, tmp_path, "--overlap", f"0,{WINDOW}")
    assert f"--overlap {WINDOW} must be smaller than --window {WINDOW}" in said
    assert "which has 40 positions" in refused(capsys, place, tmp_path, "--window", "41")
    assert "which has 40 positions" in refused(
        capsys, place, tmp_path, "--window=41", model="stock"
    )
    assert "--held-out 5.0 must be a share" in refused(capsys, place, tmp_path, "--held-out", "5")
    assert "--draws 5 must be at least 100" in refused(capsys, place, tmp_path, "--draws", "5")
    if not torch.cuda.is_available():
        assert "torch finds none" in refused(capsys, place, tmp_path, "--device", "cuda")
    assert "has no tokenizer" in refused(capsys, place, tmp_path, "--tokenizer", str(tmp_path))
    assert "did you mean overlap" in refused(capsys, place, tmp_path, "overlp=3")
    assert "did you mean --overlap" in refused(capsys, place, tmp_path, "--overlp", "3")
    file = tmp_path / "settings.yaml"
    file.write_text("docments: 3\n")
    assert "did you mean documents" in refused(capsys, place, tmp_path, "--config", str(file))


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    capsys, place, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        "holdover.language.evaluation.read_text", lambda *_, **__: pytest.fail("read")
    )
    (tmp_path / "file").write_text("in the way")
    assert "cannot be written to" in refused(
        capsys, place, tmp_path, "--output", str(tmp_path / "file" / "eval")
    )


def test_what_does_not_fit_is_said_before_anything_is_read(place, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "holdover.language.evaluation.read_text", lambda *_, **__: pytest.fail("read")
    )
    with pytest.raises(ValueError, match="must be smaller than window"):
        evaluated(place, tmp_path, overlap=(0, 99))


def test_a_tokenizer_of_another_model(capsys, place, tmp_path):
    subwords().save(place / "tokenizer")
    said = refused(capsys, place, tmp_path, "--tokenizer", str(place / "tokenizer"))
    assert "has 290 ids and the model only 256" in said
