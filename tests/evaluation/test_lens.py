"""The lens: each token's bits with its state, without and with another's, against single steps."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from holdover.cli import entry as cli
from holdover.evaluation.diagnose import KeptStates, donors, drawn_windows
from holdover.evaluation.scoring import score, segments_to_score
from holdover.evaluation.token_lens import lens
from holdover.tokenization.encoders import ByteEncoder
from holdover.windows import Window
from streams import stream
from tiny import attach, build

WINDOW = 7
CPU = torch.device("cpu")
CARRIES = {
    "pooled": {},
    "tokens": {"carry": "tokens", "slots": 2},
    "overlap": {"overlap": 3, "pool_positions": "non_overlap"},
}


def double_model(**options):
    return attach(build("gpt2", "causal-lm").double(), window=WINDOW, **options).eval()


@torch.no_grad()
def bits_of(model, tokens, stretch, number, state):
    """Where a window's targets stand in the stream, and their bits behind a state."""
    settings = model.settings
    start = stretch.start + number * (settings.window - settings.overlap)
    stop = min(start + settings.window, stretch.start + stretch.length)
    ids = torch.from_numpy(tokens.ids[start : stop + 1].astype(np.int64))
    output, _ = model.step(Window(ids[None, :-1]), state)
    keep = settings.overlap if number else 0
    logits = output["logits"][0, keep:].log_softmax(-1)
    nats = -logits.gather(1, ids[1 + keep :, None])[:, 0]
    return slice(start + keep + 1, stop + 1), nats.numpy() / np.log(2)


@pytest.mark.parametrize("lengths", [(80,), (40, 33, 21)], ids=["one document", "several"])
@pytest.mark.parametrize("carry", CARRIES)
def test_every_number_by_hand(carry, lengths):
    model, tokens = double_model(**CARRIES[carry]), stream(*lengths)
    seen = lens(model, tokens, rows=5)
    stretches = segments_to_score(tokens, model.settings, None)
    overlap = model.settings.overlap
    windows = drawn_windows(tokens, stretches, WINDOW, overlap, len(tokens), 0)
    kept = KeptStates(stretches, windows)
    scores = score(model, tokens, rows=2, device=CPU, keep_state=kept)
    np.testing.assert_allclose(seen.own, scores.nll / np.log(2), rtol=1e-10)
    other, _ = donors(stretches, windows, 0)
    past = np.zeros(len(tokens), bool)
    for number, (stretch, window) in enumerate(windows):
        for found, state in (
            (seen.own, kept.states[number]),
            (seen.without, None),
            (seen.other, kept.states[other[number]]),
        ):
            where, bits = bits_of(model, tokens, stretches[stretch], window, state)
            np.testing.assert_allclose(found[where], bits, rtol=1e-9)
            past[where] = True
    # First windows have no past that could be taken away.
    np.testing.assert_array_equal(seen.own[~past], seen.without[~past])
    np.testing.assert_array_equal(seen.own[~past], seen.other[~past])
    assert np.isnan(seen.own[tokens.bounds[:-1]]).all()
    assert np.isfinite(np.delete(seen.saved, tokens.bounds[:-1])).all()


def test_what_is_only_read_has_no_bits():
    scored = np.ones(60, bool)
    scored[20:40] = False
    seen = lens(double_model(), stream(60, scored=scored))
    for values in (seen.own, seen.without, seen.other):
        assert np.isnan(values[20:40]).all() and np.isfinite(values[41:]).all()


def test_progress_counts_every_reading():
    told = []
    lens(double_model(), stream(80), advance=told.append)
    windows = -(-79 // WINDOW)
    assert sum(told) == windows + 2 * (windows - 1)


def test_a_text_in_letters_is_the_corpus_of_its_tokens():
    model = attach(build("gpt2", "causal-lm", vocab_size=256), window=WINDOW).eval()
    text = "It was old \u2013 and the \u2019moon was thin. " * 3
    seen = lens(model, text, ByteEncoder())
    assert bytes(seen.ids.tolist()).decode() == text
    tokens = stream(len(seen.ids))
    again = lens(model, replace(tokens, ids=seen.ids))
    for name in ("own", "without", "other", "window", "position", "document"):
        np.testing.assert_array_equal(getattr(seen, name), getattr(again, name))


@pytest.mark.parametrize(
    ("options", "mode", "said"),
    [
        ({"carry": "none"}, False, "carries nothing"),
        ({}, True, "training mode"),
    ],
)
def test_what_cannot_be_looked_at(options, mode, said):
    with pytest.raises(ValueError, match=said):
        lens(double_model(**options).train(mode), stream(40))


def test_other_models_numbers_and_texts_are_refused():
    model = double_model()
    for refused, said in (
        (lambda: lens(build("gpt2", "causal-lm"), stream(40)), "carries nothing"),
        (lambda: lens(attach(build("bert", "masked-lm")).eval(), stream(40)), "next token"),
        (lambda: lens(model, stream(40), rows=0), "rows=0"),
        (lambda: lens(model, stream(40), seed=-1), "seed=-1"),
        (lambda: lens(model, "letters", ByteEncoder()), "256 ids"),
    ):
        with pytest.raises(ValueError, match=said):
            refused()
    with model.disable_recurrence(), pytest.raises(ValueError, match="disabled"):
        lens(model, stream(40))
    wide = attach(build("gpt2", "causal-lm", vocab_size=256), window=WINDOW).eval()
    with pytest.raises(ValueError, match="half a character at 2"):
        lens(wide, "ab\ud800", ByteEncoder())


@pytest.mark.parametrize("length", [5, WINDOW + 5])
def test_without_two_pasts_there_is_no_other_state(length):
    seen = lens(double_model(), stream(length))
    assert seen.other_is is None and np.isnan(seen.other).all()
    assert np.isfinite(seen.saved[1:]).all()


def test_a_file_and_the_word_bytes(tmp_path):
    model = attach(build("gpt2", "causal-lm", vocab_size=256), window=WINDOW).eval()
    path = tmp_path / "text.txt"
    path.write_text("The moon was thin \u2013 and old.", encoding="utf-8")
    seen = lens(model, path, "bytes")
    assert bytes(seen.ids.tolist()) == path.read_bytes()


def test_letters_need_a_tokenizer():
    with pytest.raises(ValueError, match="needs its tokenizer"):
        lens(double_model(), "letters")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lens") / "model"
    torch.manual_seed(0)
    attach(build("gpt2", "causal-lm", vocab_size=256), window=20).save_pretrained(folder)
    ByteEncoder().save(folder)
    return folder


@pytest.mark.parametrize("against", ["without", "other"])
def test_the_page_of_a_text_from_the_command_line(against, saved, tmp_path, capsys):
    books = tmp_path / "books"
    books.mkdir()
    for name in ("a", "b"):
        (books / f"{name}.txt").write_text(f"{name}: the moon <b>was</b> thin & old. " * 5)
    page = tmp_path / "new" / "page.html"
    words = ["lens", str(books), "--model", str(saved), "-o", str(page), "--against", against]
    assert cli.main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "bits each with the state" in said and "another document" in said
    shown = page.read_text()
    assert "holdover lens" in shown and "&lt;b&gt;" in shown and "<b>was" not in shown
    windows = [int(number) for number in re.findall(r'id="w(\d+)"', shown)]
    assert windows == list(range(1, len(windows) + 1)) and len(windows) == 18
    assert str(tmp_path) not in shown
    assert f'data-else="{"without" if against == "without" else "with another"}"' in shown


def test_a_short_text_and_a_folder_for_a_page(saved, tmp_path, capsys):
    text = tmp_path / "short.txt"
    text.write_text("The moon was thin and old.")
    page = tmp_path / "page.html"
    words = ["lens", str(text), "--model", str(saved), "--device", "cpu", "-o"]
    assert cli.main([*words, str(page)]) == 0
    assert "no other state to compare with" in capsys.readouterr().out
    assert "with another state" not in page.read_text()
    assert cli.main([*words, str(page), "--against", "other"]) == 2
    assert "only one window" in capsys.readouterr().err.lower()
    assert cli.main([*words, str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_a_stock_model_has_no_lens(tmp_path, capsys):
    build("gpt2", "causal-lm").save_pretrained(tmp_path / "stock")
    assert cli.main(["lens", "time-machine", "--model", str(tmp_path / "stock")]) == 2
    assert "has no recurrence" in capsys.readouterr().err
