"""holdover eval from the outside: records, tables, plots, held-out ends."""

import io
import json
import lzma
import math
import re

import numpy as np
import pytest
import torch
from rich.console import Console

from evaluations import SHAPE, WINDOW, WORDS, evaluated, place, prose, saved, subwords
from holdover import RecurrenceConfig, RecurrentModel
from holdover.cli import entry as cli
from holdover.evaluation.cost import flops_per_token
from holdover.evaluation.scoring import score
from holdover.language.eval_options import EvalOptions
from holdover.language.evaluation import evaluate
from holdover.language.options import TrainOptions
from holdover.language.training import train
from holdover.tokenization.encoders import ByteEncoder
from streams import stream
from tiny import attach, build

__all__ = ["place"]  # a fixture


@pytest.fixture(scope="module")
def record(place, tmp_path_factory):
    """Of one evaluation at two overlaps, with everything that is measured."""
    output = tmp_path_factory.mktemp("record")
    console = Console(file=io.StringIO(), width=80)
    made = evaluated(place, output, console, overlap=(0, 4), plots=True)
    return made, output, console.file.getvalue()


def test_the_record(record, place):
    made, output, _ = record
    written = (output / "eval.json").read_text()
    assert json.loads(written, parse_constant=pytest.fail) == made
    assert not re.search(r"(?<![\w.])/\w+/", written.replace("tokens/s", ""))
    assert str(place) not in written and str(output) not in written
    assert set(made) == {
        *("record", "format_version", "model", "data", "options", "rows", "provenance")
    }
    assert made["model"]["name"] == "pooled" and made["model"]["recurrence"]["window"] == WINDOW
    assert made["model"]["training"] is None
    assert made["data"]["source"] == "text.txt" and made["data"]["documents_read"] == 1
    assert made["options"]["data"] == "text.txt" and made["options"]["cache_dir"] == "cache"
    fields = {"window", "overlap", "note", "carried_through", "windows", "nats", "counts"}
    fields |= {"perplexity_per_token", "perplexity_per_word", "perplexity_per_word_and_line"}
    fields |= {"perplexity_per_byte", "bits_per_byte", "bits_per_character", "intervals", "units"}
    fields |= {"interval_over", "loss_by_position", "flops_per_token", "tokens_per_second"}
    fields |= {"rows_side_by_side", "held_fixed", "peak_memory", "next_token", "state", "per_unit"}
    fields |= {"memory_length", "collapse", "loss_by_distance"}
    assert [row["overlap"] for row in made["rows"]] == [0, 4]
    for row in made["rows"]:
        assert set(row) == fields and row["carried_through"] == "document"
        assert len(row["loss_by_position"]) == WINDOW
        parts = row["loss_by_distance"]
        assert sum(part["tokens"] for part in parts) == row["counts"]["tokens"]
        nats = sum(part["loss"] * part["tokens"] for part in parts)
        assert nats == pytest.approx(row["nats"], rel=1e-4)
        ends = [(0, WINDOW), (WINDOW, 2 * WINDOW), (2 * WINDOW, 4 * WINDOW)]
        assert [(part["from"], part["to"]) for part in parts[:3]] == ends
    assert made["rows"][0]["note"] is None
    assert "only positions that are not read again are pooled" in made["rows"][1]["note"]


def test_perplexities_are_those_of_the_sums(record, place):
    made, _, _ = record
    text = (place / "text.txt").read_text()
    lines = text.count("\n")
    for row in made["rows"]:
        nats, counts = row["nats"], row["counts"]
        # The first byte is not predicted, and not divided by.
        assert counts["tokens"] == counts["bytes"] == len(text.encode()) - 1
        assert row["perplexity_per_token"] == pytest.approx(row["perplexity_per_byte"])
        # It is a word of its own ("#").
        words = counts["words"]
        assert words == len(text.split()) - 1
        assert counts["words_and_lines"] - words in (lines, lines + 1)
        assert row["perplexity_per_token"] == pytest.approx(math.exp(nats / counts["tokens"]))
        assert row["perplexity_per_word"] == pytest.approx(math.exp(nats / words), rel=1e-9)
        assert row["bits_per_byte"] == pytest.approx(nats / math.log(2) / counts["bytes"])
        assert row["bits_per_character"] == pytest.approx(row["bits_per_byte"])
        positions = np.array(row["loss_by_position"], float)
        # What is read again is scored once, by the window before.
        assert np.isfinite(positions[row["overlap"] :]).all()
        assert np.isnan(positions[: row["overlap"]]).all()
        for name, (low, high) in row["intervals"].items():
            assert low < row[name] < high
        assert row["next_token"]["positions"] == counts["tokens"]
        assert 0 < row["next_token"]["words_scored"] <= words
        state = row["state"]
        assert state["own_differs_from_first_reading"] < 1e-4
        assert [point["windows"] for point in state["history"]] == [0, 1, 2, 3, 4]
        assert [point["distance"] for point in state["gradient_norms"]] == [1, 2, 3, 4]


def test_the_sum_is_that_of_score(record, place):
    """The same ids, put together without evaluate's own reading of files and models."""
    made, _, _ = record
    ids = np.frombuffer((place / "text.txt").read_bytes(), np.uint8)
    tokens = stream(len(ids), vocabulary=256)
    tokens.ids[:] = ids
    model = attach(build("gpt2", vocab_size=256, **SHAPE), window=WINDOW)
    for row in made["rows"]:
        with model.reading(overlap=row["overlap"]):
            scores = score(model, tokens, rows=1, device=torch.device("cpu"))
        assert row["nats"] == pytest.approx(np.nansum(scores.nll), rel=1e-5)
        assert row["windows"] == scores.windows


def test_plots_are_written(record):
    _, output, _ = record
    names = {"perplexity_flops", "loss_by_position", "loss_by_distance", "state_pooled_overlap0"}
    names |= {"state_pooled_overlap4"}
    expected = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in output.iterdir()} == expected | {"eval.json"}


def test_the_table_cuts_no_number_at_80_columns(record):
    made, output, shown = record
    assert "…" not in shown and max(map(len, shown.replace(str(output), "").splitlines())) <= 80
    for row in made["rows"]:
        for name in ("perplexity_per_token", "bits_per_byte"):
            low, high = row["intervals"][name]
            digits = 2 if low > 10 else 3
            assert f"{row[name]:.{digits}f}" in shown
            assert f"{low:.{digits}f}, {high:.{digits}f}" in shown
        assert f"{row['flops_per_token']['as_printed']:.2e}" in shown
        assert f"{100 * row['next_token']['top5_accuracy']:.1f} %" in shown
        assert f"overlap {row['overlap']}: the state " in shown
    assert (
        shown.count("pooled on text.txt (all): 1,122 tokens") == 1
        and shown.count("95% intervals") == 1
    )
    for title in ("ppl/token", "ppl/word", "bits/byte", "bits/char", "top-1"):
        assert shown.count(title) == 1


def test_a_wide_console_gets_one_table(place, tmp_path):
    console = Console(file=io.StringIO(), width=200)
    evaluated(place, tmp_path, console, overlap=(0,), diagnose_state=False)
    (head,) = [line for line in console.file.getvalue().splitlines() if "ppl/token" in line]
    assert "GiB" in head


def test_flops_against_a_hand_count(place, record, tmp_path):
    made, _, _ = record
    width, layers, vocabulary = SHAPE["n_embd"], SHAPE["n_layer"], 256
    assert 24 * layers * width**2 + 2 * layers * WINDOW * width == flops_per_token(
        layers, width, WINDOW, 0
    )

    def by_hand(keys_of_layers):
        projections = layers * 24 * width**2 * WINDOW  # 4 d^2 of attention and 8 d^2 of the MLP
        attention = sum(4 * WINDOW * keys * width for keys in keys_of_layers)
        return projections + attention + 2 * width * vocabulary * WINDOW

    plain = evaluated(place, tmp_path, model="stock", window=WINDOW, overlap=(0, 3))
    for row in plain["rows"]:
        new = WINDOW - row["overlap"]
        formula = flops_per_token(layers, width, WINDOW, row["overlap"])
        assert row["flops_per_token"]["formula"] == formula
        assert row["flops_per_token"]["counted"] == by_hand([WINDOW, WINDOW]) / new
        assert "state" not in row and row["carried_through"] == "nothing"
    # The state: its map (12 hidden units) and one more row of attention in the layer that reads it.
    added = 2 * (width * 12 + 12 * width) + 2 * 4 * width**2
    added += 4 * width * ((WINDOW + 1) ** 2 - WINDOW**2)
    for row in made["rows"]:
        counted = (by_hand([WINDOW, WINDOW]) + added) / (WINDOW - row["overlap"])
        assert row["flops_per_token"]["counted"] == pytest.approx(counted, rel=1e-12)
        assert row["flops_per_token"]["formula"] == flops_per_token(
            layers, width, WINDOW, row["overlap"]
        )


def test_documents_and_how_much_of_them_is_read(place, tmp_path):
    pattern = {"new_document": "^# ", "diagnose_state": False, "metrics": False}
    whole = evaluated(place, tmp_path, **pattern)
    documents = whole["data"]["documents_read"]
    text = (place / "text.txt").read_text()
    assert documents == text.count("# ") == 8 and whole["rows"][0]["interval_over"] != "documents"
    assert whole["rows"][0]["counts"]["tokens"] == len(text) - documents
    first = evaluated(place, tmp_path, documents=2, **pattern)
    two = text[: text.index("# 2")]
    assert first["data"]["documents_read"] == 2
    assert first["rows"][0]["counts"]["tokens"] == len(two) - 2
    # Each document begins with a # that nothing predicts.
    assert first["rows"][0]["counts"]["words"] == len(two.split()) - 2
    cut = evaluated(place, tmp_path, documents=2, document_tokens=30, **pattern)
    beginnings = [part[:30] for part in (two[: two.index("# 1")], two[two.index("# 1") :])]
    assert cut["rows"][0]["counts"]["tokens"] == 58
    assert cut["rows"][0]["counts"]["bytes"] == 58
    assert cut["rows"][0]["counts"]["words"] == sum(len(part.split()) for part in beginnings) - 2
    more = evaluated(place, tmp_path, documents=99, **pattern)
    assert more["rows"][0]["nats"] == whole["rows"][0]["nats"]


def test_units_are_documents_where_there_are_enough(place, tmp_path):
    (place / "many.txt").write_text("".join(f"# {n}\n{WORDS[n % 12]} tide\n" for n in range(25)))
    made = evaluated(place, tmp_path, data="many.txt", new_document="^# ")
    assert made["rows"][0]["interval_over"] == "documents" and made["rows"][0]["units"] == 25
    single = evaluated(place, tmp_path, data="many.txt", document_tokens=200)
    assert single["rows"][0]["interval_over"].startswith("a single block of 20 windows")
    assert set(map(tuple, single["rows"][0]["intervals"].values())) == {(None, None)}


def test_a_state_that_is_reset(place, tmp_path):
    made = evaluated(place, tmp_path, carry=3, history=2)
    row = made["rows"][0]
    assert row["carried_through"] == 3 and row["state"]["other_is"].startswith("the same document")
    whole = evaluated(place, tmp_path, diagnose_state=False)
    assert row["nats"] != whole["rows"][0]["nats"] and row["windows"] == whole["rows"][0]["windows"]


def test_mixed_precision(place, tmp_path):
    made = evaluated(place, tmp_path, bf16=True, document_tokens=300)
    exact = evaluated(place, tmp_path, document_tokens=300)
    assert made["rows"][0]["nats"] == pytest.approx(exact["rows"][0]["nats"], rel=0.02)
    assert made["rows"][0]["nats"] != exact["rows"][0]["nats"]
    assert len(made["rows"][0]["state"]["gradient_norms"]) == 4


@pytest.mark.parametrize(
    "settings",
    [
        {"carry": "tokens", "slots": 2},
        {"slots": 3, "pooling": "max", "start": "learned"},
        {"detach_state": True, "overlap": 2},
    ],
    ids=["tokens", "slots", "detached"],
)
def test_other_kinds_of_state(settings, place, tmp_path):
    saved(place / "other", **settings)
    overlaps = (settings.get("overlap", 0), 5)
    made = evaluated(place, tmp_path, model="other", overlap=overlaps, document_tokens=500)
    assert all(len(row["state"]["gradient_norms"]) == 4 for row in made["rows"])
    assert all(row["state"]["own_differs_from_first_reading"] < 1e-4 for row in made["rows"])


def test_a_text_of_one_endless_word(place, tmp_path):
    """Its perplexity per word is beyond all numbers, and JSON has none for that."""
    (place / "word.txt").write_text("tide" * 300)
    made = evaluated(place, tmp_path, data="word.txt", plots=True)
    json.loads((tmp_path / "eval.json").read_text(), parse_constant=pytest.fail)
    assert made["rows"][0]["perplexity_per_word"] is None
    assert made["rows"][0]["bits_per_byte"] > 0


def test_only_some_tokens_are_scored(place, tmp_path):
    made = evaluate(
        EvalOptions(
            model=str(place / "pooled"),
            data="recall",
            documents=30,
            cache_dir=place / "cache",
            output=tmp_path,
            plots=False,
            overlap=(0, 3),
        ),
        Console(file=io.StringIO()),
    )
    for row in made["rows"]:
        assert row["counts"]["tokens"] == 60 and row["perplexity_per_word"] is None
        assert row["interval_over"] == "documents" and row["state"]["windows"] == 60


@pytest.fixture(scope="module")
def trained(place):
    """A run of two steps on the text, but for its end."""
    options = TrainOptions(
        model="gpt2",
        from_scratch=True,
        shape=SHAPE,
        recurrence=RecurrenceConfig(window=WINDOW, map_hidden=(8,)),
        data=str(place / "text.txt"),
        tokenizer="bytes",
        held_out=0.2,
        rows=2,
        windows=2,
        max_steps=2,
        device="cpu",
        cache_dir=place / "cache",
        output=place / "run",
    )
    train(options, console=Console(file=io.StringIO()))
    return place / "run"


@pytest.mark.parametrize("split", ["test", "valid"])
def test_what_a_run_was_trained_on_is_not_read(split, trained, place, tmp_path):
    console = Console(file=io.StringIO(), width=80)
    made = evaluated(place, tmp_path, console, model="run", split=split)
    text = (place / "text.txt").read_bytes()
    end = len(text) - round(len(text) * 0.8)
    assert made["data"]["counts"]["bytes"] == end
    assert made["rows"][0]["counts"]["tokens"] == end - 1
    assert made["data"]["split"] == f"its end, {end} of {len(text)} tokens"
    assert "its held-out end is read" in console.file.getvalue()
    training = made["model"]["training"]
    assert training["data"]["training"]["sha256"] == made["data"]["sha256"]
    assert made["model"]["name"] == "run"
    assert str(place) not in (tmp_path / "eval.json").read_text()


def test_nor_under_another_cut_or_compressed(trained, place, tmp_path):
    """The text is known by its content, not by how it is read."""
    with lzma.open(place / "again.txt.xz", "wb") as file:
        file.write((place / "text.txt").read_bytes())
    options = {"model": "run", "metrics": False, "diagnose_state": False}
    whole = len((place / "text.txt").read_bytes())
    for changed in ({"new_document": "^# 3"}, {"data": "again.txt.xz"}):
        made = evaluated(place, tmp_path, **options, **changed)
        assert made["data"]["counts"]["bytes"] < 0.3 * whole


def test_what_is_asked_for_by_name_is_read(trained, place, tmp_path):
    text = (place / "text.txt").read_bytes()
    options = {"model": "run", "metrics": False, "diagnose_state": False}
    whole = evaluated(place, tmp_path, split="all", **options)
    assert whole["data"]["counts"]["bytes"] == len(text) and "part" not in whole["data"]
    begun = evaluated(place, tmp_path, split="train", held_out=0.2, **options)
    assert begun["data"]["counts"]["bytes"] == round(len(text) * 0.8)
    (place / "other.txt").write_text(prose(seed=1))
    other = evaluated(place, tmp_path, data="other.txt", **options)
    assert other["data"]["counts"]["bytes"] == len(prose(seed=1))


def test_a_model_in_the_working_folder_has_a_name(place, tmp_path, monkeypatch):
    monkeypatch.chdir(place / "pooled")
    options = EvalOptions(
        model=".",
        data=str(place / "text.txt"),
        document_tokens=40,
        cache_dir=place / "cache",
        output=tmp_path,
        plots=False,
    )
    made = evaluate(options, Console(file=io.StringIO()))
    assert made["model"]["name"] == "pooled" == made["options"]["model"]


def test_a_model_of_subwords(place, tmp_path):
    encoder = subwords()
    saved(place / "subwords", encoder)
    made = evaluated(place, tmp_path, model="subwords", classes=20)
    row = made["rows"][0]
    text = (place / "text.txt").read_text()
    assert row["counts"]["bytes"] == len(text) - 1 > 2 * row["counts"]["tokens"]
    words = row["counts"]["words"]
    assert words == len(text.split()) - 1
    assert row["perplexity_per_word"] == pytest.approx(math.exp(row["nats"] / words))
    assert 0 < row["next_token"]["words_scored"] <= len(text.split())


@pytest.mark.parametrize("carry", ["none", "pooled", "memory"])
def test_a_model_of_two_streams(carry, place, tmp_path):
    """XLNet's query stream is a view of a weight, which the counter of FLOPs stumbled over."""
    shape = {"n_layer": 2, "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32}
    xlnet = build("xlnet", vocab_size=ByteEncoder().vocabulary, **shape)
    saved(tmp_path / "model", stock=xlnet, carry=carry)
    made = evaluated(place, tmp_path, model=tmp_path / "model", document_tokens=60)
    assert made["rows"][0]["flops_per_token"]["counted"] > 0


def test_a_document_shorter_than_a_window_just_works(place, tmp_path):
    (place / "short.txt").write_text("tide")
    made = evaluated(place, tmp_path, data="short.txt", plots=True)
    row = made["rows"][0]
    assert row["counts"]["tokens"] == 3 and row["windows"] == 1 and "state" not in row


def test_from_the_command_line(capsys, place, tmp_path):
    arguments = ["eval", "--model", str(place / "pooled"), "--data", str(place / "text.txt")]
    arguments += ["--cache-dir", str(place / "cache"), "--document-tokens", "200", "--no-plots"]
    assert cli.main([*arguments, "--output", str(tmp_path), "--overlap", "0,3"]) == 0
    written = json.loads((tmp_path / "eval.json").read_text())
    assert [row["overlap"] for row in written["rows"]] == [0, 3]
    shown = capsys.readouterr().out
    assert "…" not in shown and "ppl/word" in shown


def test_a_compiled_step_that_is_wrong_is_refused(place, tmp_path, monkeypatch):
    def miscompiled(self):
        def step(*arguments):
            output, *rest = self._step(*arguments)
            return {name: 1.2 * value for name, value in output.items()}, *rest

        self._compiled.step = step

    monkeypatch.setattr(RecurrentModel, "compile_step", miscompiled)
    with pytest.raises(
        FloatingPointError, match=r"compiled step is wrong: .*Leave --compile out\."
    ):
        evaluated(place, tmp_path, compile=True)


def test_validations_are_not_compiled(tmp_path, monkeypatch, place):
    """The losses of a compiled plain model were wrong without gradients, and right with them."""

    def forbidden(self):
        def step(*arguments):
            assert torch.is_grad_enabled()
            return self._step(*arguments)

        self._compiled.step = step

    monkeypatch.setattr(RecurrentModel, "compile_step", forbidden)
    train(
        TrainOptions(
            model="gpt2",
            from_scratch=True,
            shape=SHAPE,
            data=str(place / "text.txt"),
            cache_dir=place / "cache",
            tokenizer="bytes",
            output=tmp_path / "run",
            recurrence=RecurrenceConfig(window=WINDOW, carry="none"),
            rows=2,
            windows=2,
            max_steps=2,
            compile=True,
        ),
        console=Console(file=io.StringIO()),
    )
