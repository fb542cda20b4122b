"""The training loop, seen from outside: its losses are those of a loop anybody would write."""

import json
import math
import re
from contextlib import closing
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from torch.nn import functional as F

from holdover import RecurrenceConfig, RecurrentModel
from holdover.evaluation.scoring import score
from holdover.language.options import TrainOptions
from holdover.language.task import LanguageModelling
from holdover.runs.models import open_model, random_model
from holdover.text.options import TextOptions
from holdover.text.splits import read_text
from holdover.text.window_loader import Walk, training_rows
from holdover.tokenization.encoders import ByteEncoder
from holdover.training import loop
from holdover.training.display import Display
from holdover.training.log import PACKAGES
from holdover.training.optimizer import build_optimizer, rate
from holdover.windows import IGNORED
from runs import (
    SHAPE,
    best_of,
    checkpoints_of,
    command,
    log_of,
    losses_of,
    refusal,
    steps_of,
    train,
    validations_of,
    weights_of,
    write_documents,
)

# So small a learning rate that no weight changes.
STILL = {"lr": 1e-30, "added_learning_rate": 1e-30}


def tokens_of(folder, split="train"):
    options = TextOptions(
        data=str(folder / "text.txt"), new_document="^#", cache_dir=folder / "cache"
    )
    return read_text(options, ByteEncoder(), split, window=8)


def added_and_base(model):
    added = list(model.recurrence.parameters())
    known = {id(parameter) for parameter in added}
    return added, [parameter for parameter in model.parameters() if id(parameter) not in known]


# Loop


@pytest.mark.parametrize("carry", ["pooled", "tokens", "none"])
@pytest.mark.parametrize("overlap", [0, 3])
def test_losses_and_weights_are_those_of_a_plain_loop(overlap, carry, tmp_path):
    run = train(
        tmp_path,
        "recurrence.map_hidden=12" if carry != "none" else "rows=3",
        overlap=overlap,
        recurrence=carry,
        added_learning_rate=3e-3,
        clip=0.9,
        warm_up=4,
    )
    settings = RecurrenceConfig(
        window=8,
        overlap=overlap,
        carry=carry,
        **({"map_hidden": (12,)} if carry != "none" else {}),
    )
    model = random_model("gpt2", SHAPE, 256, settings, seed=0).train()
    added, base = added_and_base(model)
    groups = [{"params": base, "peak": 1e-3}, {"params": added, "peak": 3e-3}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    tokens = tokens_of(tmp_path)
    assert tokens.documents > 3
    walk = Walk(tokens, training_rows(tokens, 3, 0, 0), 8, overlap)
    state, begun, found = None, 0, []
    for step, batch in zip(range(1, 11), walk.batches(2), strict=False):
        total, count = torch.zeros(()), 0
        state = None if state is None else state.detach()
        for window in batch.windows():
            if state is not None and window.begins is not None:
                begun += int(window.begins.sum())
                state = state.reset(window.begins)
            output, state = model.step(window, state)
            logits, targets = output["logits"].flatten(0, 1), window.targets.flatten()
            total = total + F.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
            count += int((targets != IGNORED).sum())
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * min(step / 4, 1)
        optimizer.zero_grad()
        (total / count).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.9)
        optimizer.step()
        found.append(((total / count).item(), norm.item()))
    lines = steps_of(run)
    assert len(lines) == len(found) == 10
    # Documents ended on the way.
    assert begun >= 1
    for line, (loss, norm) in zip(lines, found, strict=True):
        # Adam's first steps make rounding errors of small gradients as large as the gradients.
        assert line["loss"] == pytest.approx(loss, abs=1e-5)
        assert line["gradient_norm"] == pytest.approx(norm, rel=1e-4)
    saved = weights_of(run, 10)
    for name, weight in model.state_dict().items():
        if name in saved:
            torch.testing.assert_close(saved[name], weight, rtol=0, atol=2e-5)


def test_accumulated_batches_are_one_batch(tmp_path):
    """Two batches of 2 windows and one of 4 whose gradient is cut in the middle."""
    halves = train(tmp_path, accumulate=2, output=tmp_path / "halves", overlap=2)
    whole = train(tmp_path, "recurrence.horizon=2", windows=4, output=tmp_path / "whole", overlap=2)
    for one, other in zip(steps_of(halves), steps_of(whole), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=2e-6)
        assert one["gradient_norm"] == pytest.approx(other["gradient_norm"], rel=1e-4)
        assert one["tokens"] == other["tokens"]


def test_accumulation_of_a_last_group_that_is_not_full(tmp_path):
    run = train(tmp_path, accumulate=7, epochs=1, max_steps=None)
    tokens = tokens_of(tmp_path)
    batches = -(-len(Walk(tokens, training_rows(tokens, 3, 0, 0), 8)) // 2)
    assert batches % 7
    lines = steps_of(run)
    assert len(lines) == math.ceil(batches / 7)
    assert lines[-1]["tokens"] == len(tokens) - tokens.documents


def test_epochs_read_everything_once_each_in_another_order(tmp_path, monkeypatch):
    seen = []
    original = LanguageModelling.loss

    def watch(self, model, batch, *rest):
        seen.append(batch)
        return original(self, model, batch, *rest)

    monkeypatch.setattr(LanguageModelling, "loss", watch)
    run = train(tmp_path, epochs=2, max_steps=None, validate_every=300, patience="none")
    tokens = tokens_of(tmp_path)
    an_epoch = len(tokens) - tokens.documents
    assert steps_of(run)[-1]["tokens"] == 2 * an_epoch
    assert sum(batch.scored for batch in seen) == 2 * an_epoch
    half = len(seen) // 2
    first, second = seen[:half], seen[half:]
    assert sum(batch.scored for batch in first) == an_epoch
    assert not torch.equal(first[0].ids, second[0].ids)


# Learning rates


def test_warm_up_and_both_learning_rates(tmp_path):
    run = train(tmp_path, warm_up=4, max_steps=6, lr=1e-3, added_learning_rate=2e-2)
    shares = [0.25, 0.5, 0.75, 1, 1, 1]
    lines = steps_of(run)
    assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3 * s for s in shares])
    assert [line["added_learning_rate"] for line in lines] == pytest.approx(
        [2e-2 * s for s in shares]
    )


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 0.75, 0.5, 0.25, 0]),
        ("cosine", [0.5, 1, *[(1 + math.cos(math.pi * n / 4)) / 2 for n in range(1, 5)]]),
    ],
)
def test_schedules(schedule, expected, tmp_path):
    run = train(tmp_path, schedule=schedule, warm_up=2, max_steps=6)
    found = [line["learning_rate"] / 1e-3 for line in steps_of(run)]
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_schedule_ends_with_the_tokens(tmp_path):
    """max_tokens is known beforehand, so the learning rate comes down in time."""
    run = train(tmp_path, schedule="linear", max_steps=None, max_tokens=300)
    assert steps_of(run)[-1]["learning_rate"] < 0.15 * steps_of(run)[0]["learning_rate"]


def test_the_rate_without_warm_up_and_behind_the_end():
    options = TrainOptions(model="a", data="b", warm_up=0, schedule="linear")
    assert rate(1, 10, options) == pytest.approx(0.9)
    assert rate(12, 10, options) == 0


def test_clipping(tmp_path):
    """A small bound changes the steps; the norm that is logged is the one before it."""
    free = train(tmp_path, clip="none", max_steps=3, output=tmp_path / "free")
    wide = train(tmp_path, clip=1e6, max_steps=3, output=tmp_path / "wide")
    tight = train(tmp_path, clip=1e-6, max_steps=3, output=tmp_path / "tight")
    assert losses_of(free) == losses_of(wide) != losses_of(tight)
    assert [line["gradient_norm"] for line in steps_of(free)] == [None] * 3
    assert steps_of(tight)[0]["gradient_norm"] == steps_of(wide)[0]["gradient_norm"] > 0.1


@pytest.mark.parametrize("frozen", [False, True])
def test_groups_partition_the_parameters(frozen):
    model = random_model("gpt2", SHAPE, 256, RecurrenceConfig(window=8), seed=0)
    if frozen:
        model.freeze_base()
    options = TrainOptions(model="a", data="b", weight_decay=0.1)
    groups = build_optimizer(model, options).param_groups
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    grouped = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(grouped) == sorted(map(id, trained))
    added = {id(parameter) for parameter in model.recurrence.parameters()}
    for group in groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.ndim > 1 else 0.0)
            wanted = options.added_learning_rate if id(parameter) in added else 5e-5
            assert group["peak"] == wanted


def test_weight_decay_takes_from_matrices_only(tmp_path):
    """With a gradient clipped to almost nothing, what is left of a step is the decay."""
    common = {"max_steps": 1, "lr": 1e-3, "added_learning_rate": 1e-3, "keep": 5}
    with_decay = train(tmp_path, weight_decay=10, output=tmp_path / "with", **common)
    without = train(tmp_path, output=tmp_path / "without", **common)
    first = weights_of(without, 0)
    for name, weight in weights_of(without, 1).items():
        decayed = weights_of(with_decay, 1)[name]
        expected = weight - 1e-3 * 10 * first[name] if weight.ndim > 1 else weight
        torch.testing.assert_close(decayed, expected, rtol=1e-5, atol=1e-7)


# Twins


@pytest.mark.parametrize("overlap", [0, 3])
def test_twins_read_the_same_and_start_alike(overlap, tmp_path, monkeypatch):
    seen = []
    original = RecurrentModel.forward

    def watch(self, *arguments, windows=None, **others):
        seen.append([(w.input_ids, w.targets, w.mask, w.begins) for w in windows])
        return original(self, *arguments, windows=windows, **others)

    monkeypatch.setattr(RecurrentModel, "forward", watch)
    runs, given = [], []
    for carry in ("pooled", "none"):
        seen.clear()
        runs.append(
            train(tmp_path, recurrence=carry, overlap=overlap, output=tmp_path / carry, keep=9)
        )
        given.append(list(seen))
    assert len(given[0]) == len(given[1]) == 10
    torch.testing.assert_close(given[0], given[1], rtol=0, atol=0)
    recurrent, plain = weights_of(runs[0], 0), weights_of(runs[1], 0)
    assert set(plain) < set(recurrent)
    assert all(name.startswith("recurrence.") for name in set(recurrent) - set(plain))
    for name, weight in plain.items():
        assert torch.equal(weight, recurrent[name])
    # The same dropout too, however many numbers the added weights took.
    drawn = [(run / "checkpoint-0" / "random.safetensors").read_bytes() for run in runs]
    assert drawn[0] == drawn[1]
    tokens = [[line["tokens"] for line in steps_of(run)] for run in runs]
    assert tokens[0] == tokens[1]


def test_seeds(tmp_path):
    one = losses_of(train(tmp_path, output=tmp_path / "a", max_steps=3))
    same = losses_of(train(tmp_path, output=tmp_path / "b", max_steps=3))
    other = losses_of(train(tmp_path, output=tmp_path / "c", max_steps=3, seed=1))
    assert one == same
    assert not set(one) & set(other)


def test_a_frozen_base_stays_bit_by_bit(tmp_path):
    run = train(tmp_path, freeze_base=True, keep=9)
    before, after = weights_of(run, 0), weights_of(run, 10)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if name.startswith("recurrence.")}


# Documents


def letters(*documents: str) -> str:
    """Documents of 17 bytes: 16 to read and as many to predict, two windows of 8."""
    assert all(len(document) == 15 for document in documents)
    return "".join(f"#{document}\n" for document in documents)


FIRST, SECOND, CHANGED = "abcabcabcabcabc", "hello hello hel", "xyzzyxyzzyxyzzy"


def losses_by_document(folder, texts, **settings):
    """The losses of one row that reads documents in the order of the text's own."""
    folder.mkdir()
    (folder / "text.txt").write_text(letters(*texts))
    write_documents(folder / "other.txt")
    order = training_rows(tokens_of(folder, "all"), 1, 0, 0)[0]
    run = train(
        folder,
        rows=1,
        epochs=1,
        max_steps=None,
        validation=folder / "other.txt",
        **STILL,
        **settings,
    )
    return [stretch.document for stretch in order], losses_of(run)


@pytest.mark.parametrize("carry", ["pooled", "tokens"])
def test_nothing_is_carried_across_the_end_of_a_document(carry, tmp_path):
    """The row's second document has the same loss, whatever its first one said."""
    order, before = losses_by_document(tmp_path / "a", [FIRST, SECOND], recurrence=carry)
    texts = [FIRST, SECOND]
    texts[order[0]] = CHANGED
    same_order, after = losses_by_document(tmp_path / "b", texts, recurrence=carry)
    assert order == same_order and len(before) == len(after) == 2
    assert before[0] != after[0]
    assert before[1] == after[1]


def change_of_the_second_window(folder, **settings):
    """Whether the second window of a document notices what its first one said; one window a step."""
    order, before = losses_by_document(folder / "a", [FIRST, SECOND], windows=1, **settings)
    texts = [FIRST, SECOND]
    texts[order[0]] = "y" + texts[order[0]][1:]
    _, after = losses_by_document(folder / "b", texts, windows=1, **settings)
    assert len(before) == len(after) == 4
    assert before[0] != after[0] and before[2:] == after[2:]
    return before[1] != after[1]


@pytest.mark.parametrize("carry", ["pooled", "tokens"])
def test_the_state_is_carried_from_step_to_step(carry, tmp_path):
    assert change_of_the_second_window(tmp_path, recurrence=carry)


def test_no_state_and_no_carrying(tmp_path):
    assert not change_of_the_second_window(tmp_path, recurrence="none")


def test_reset_every_window(tmp_path):
    assert not change_of_the_second_window(tmp_path, reset_every=1)


def test_reset_every_counts_windows_of_a_document(tmp_path):
    """Resets show as begins; no target is lost or doubled by them."""
    tokens = read_task(tmp_path, reset_every=None).training
    counted = {}
    for every in (None, 1, 2):
        task = read_task(tmp_path, reset_every=every)
        with closing(task.batches(0, 0)) as batches:
            found = list(batches)
        counted[every] = sum(int(batch.begins.sum()) for batch in found)
        assert sum(batch.scored for batch in found) == len(tokens) - tokens.documents
        windows = sum(place is not None for batch in found for row in batch.places for place in row)
        if every == 1:
            assert counted[1] == windows
    assert counted[None] < counted[2] < counted[1]


def read_task(folder, **settings):
    if not (folder / "text.txt").exists():
        write_documents(folder / "text.txt")
    options = TrainOptions(
        model="gpt2", data="text", recurrence=RecurrenceConfig(window=8), rows=3, **settings
    )
    return LanguageModelling(
        tokens_of(folder), tokens_of(folder, "valid"), options, torch.device("cpu")
    )


# Validation, checkpoints and ends


def scripted(monkeypatch, *losses):
    """Validations that find these losses, one after another."""
    left = list(losses)

    def validate(self, model):
        assert not model.training
        loss = left.pop(0)
        return {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}

    monkeypatch.setattr(LanguageModelling, "validate", validate)
    return left


def test_validation_every_so_many_tokens(tmp_path):
    run = train(tmp_path, validate_every=100)
    steps = {line["step"]: line["tokens"] for line in steps_of(run)}
    expected, last = [0], 0
    for step, tokens in steps.items():
        if tokens - last >= 100 or step == 10:
            expected.append(step)
            last = tokens
    assert [line["step"] for line in validations_of(run)] == expected
    assert len(expected) >= 4


def test_validation_is_the_mean_over_the_held_out_text(tmp_path):
    run = train(tmp_path, overlap=3)
    tokens = tokens_of(tmp_path, "valid")
    model = open_model(str(run / "checkpoint-10")).eval()
    found = score(model, tokens, rows=1, device=torch.device("cpu")).mean()
    last = validations_of(run)[-1]
    assert last["valid_loss"] == pytest.approx(found, abs=1e-5)
    assert last["valid_perplexity"] == pytest.approx(math.exp(found), rel=1e-4)


def test_a_validation_text_of_its_own_is_read_whole(tmp_path):
    other = write_documents(tmp_path / "other.txt", seed=5)
    run = train(tmp_path, max_steps=1, validation=other)
    about = json.loads((run / "holdover_run.json").read_text())["data"]
    assert "part" not in about["training"] and "part" not in about["validation"]


def test_a_validation_text_beside_a_corpus_with_splits(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / "corpus" / split).mkdir(parents=True)
        write_documents(tmp_path / "corpus" / split / "text.txt", seed=len(split))
    other = write_documents(tmp_path / "other.txt", seed=5)
    train(tmp_path, max_steps=1, data=tmp_path / "corpus", validation=other)


def test_best_link_and_rotation(tmp_path, monkeypatch):
    scripted(monkeypatch, 5.0, 4.0, 4.5, 4.4, 4.3, 4.2, 4.1)
    run = train(tmp_path, validate_every=80, keep=1, patience="none", max_steps=12)
    found = [line["step"] for line in validations_of(run)]
    marks = [line["best"] for line in validations_of(run)]
    assert marks[:3] == [True, True, False] and sum(marks) == 2
    assert len(found) > 4
    assert best_of(run) == found[1]
    assert checkpoints_of(run) == [found[1], 12]


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_keep(keep, tmp_path, monkeypatch):
    scripted(monkeypatch, 1.0, 2.0)
    run = train(tmp_path, keep=keep, save_every=2)
    assert best_of(run) == 0
    assert checkpoints_of(run) == [0, *[4, 6, 8, 10][-keep:]]


def test_patience(tmp_path, monkeypatch, capsys):
    left = scripted(monkeypatch, 5.0, 4.0, 4.0, 4.5, 3.0, 3.0, 2.0)
    run = train(tmp_path, validate_every=1, patience=2, max_steps=20)
    # The one at the start is no failure; an equal loss is no improvement.
    assert [line["step"] for line in validations_of(run)] == [0, 1, 2, 3]
    assert len(left) == 3
    assert best_of(run) == 1
    assert "2 validations brought nothing better" in capsys.readouterr().out


def test_a_validation_that_is_no_number_is_never_the_best(tmp_path, monkeypatch):
    scripted(monkeypatch, math.nan, math.nan, 3.0, math.inf)
    run = train(tmp_path, validate_every=1, patience="none", max_steps=3)
    found = validations_of(run)
    assert [line["best"] for line in found] == [False, False, True, False]
    assert [line["valid_loss"] for line in found] == [None, None, 3.0, None]
    assert best_of(run) == 2


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_steps": 4}, "4 steps were made"),
        ({"max_steps": None, "max_tokens": 100}, "tokens were read"),
        ({"max_steps": None, "epochs": 1}, "1 epochs were read"),
    ],
)
def test_limits(limit, said, tmp_path, capsys):
    run = train(tmp_path, **limit)
    lines = steps_of(run)
    assert said in capsys.readouterr().out
    if "max_tokens" in limit:
        assert lines[-2]["tokens"] < 100 <= lines[-1]["tokens"]
    elif limit["max_steps"]:
        assert len(lines) == 4
    # The last step is validated and saved, whatever ended the run.
    assert validations_of(run)[-1]["step"] == lines[-1]["step"] == checkpoints_of(run)[-1]


def test_minutes(tmp_path, monkeypatch, capsys):
    """By a clock on which every look takes a second."""
    seconds = iter(range(10_000))
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))
    run = train(tmp_path, max_time=0.2)
    assert 1 < len(steps_of(run)) < 10
    assert "0.2 minutes have passed" in capsys.readouterr().out
    assert validations_of(run)[-1]["step"] == checkpoints_of(run)[-1] == steps_of(run)[-1]["step"]


# What is shown and written


def test_the_log_is_one_line_a_step(tmp_path):
    run = train(tmp_path)
    assert [line["step"] for line in steps_of(run)] == list(range(1, 11))
    lines = log_of(run)
    assert len(lines) == 10 + len(validations_of(run))
    for line in steps_of(run):
        assert set(line) == {
            "step",
            "tokens",
            "loss",
            "learning_rate",
            "added_learning_rate",
            "gradient_norm",
            "tokens_per_second",
            "seconds",
        }


def test_plain_lines_where_there_is_no_terminal(tmp_path, capsys):
    train(tmp_path, log_every=3)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\r" not in shown
    lines = [line for line in shown.splitlines() if line.startswith("step ")]
    assert [line.split()[1] for line in lines] == ["3/10", "6/10", "9/10"]
    for line in lines:
        assert "loss" in line and "tokens/s" in line and line.endswith("left")
    assert "10 steps were made" in shown


def test_tensorboard(tmp_path):
    run = train(tmp_path, report_to="tensorboard", log_every=2)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "holdover"))
    found.Reload()
    losses = {event.step: event.value for event in found.Scalars("loss")}
    assert sorted(losses) == [2, 4, 6, 8, 10]
    assert losses[4] == pytest.approx(losses_of(run)[3], rel=1e-6)
    assert [event.step for event in found.Scalars("valid_loss")] == [0, 10]


def test_a_tracker_that_is_not_installed(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(PACKAGES, "wandb", "not_there_at_all")
    said = refusal(capsys, command(tmp_path, report_to="wandb"))
    assert "pip install not_there_at_all" in said
    assert not (tmp_path / "run").exists()


# Precision and compilation


def test_bf16_stays_close(tmp_path):
    exact = losses_of(train(tmp_path, output=tmp_path / "exact"))
    run = train(tmp_path, bf16=True, output=tmp_path / "half", overlap=0)
    rounded = losses_of(run)
    assert rounded == pytest.approx(exact, abs=0.05)
    assert rounded != exact
    assert all(weight.dtype == torch.float32 for weight in weights_of(run, 10).values())


# Dynamo warns of its own ways of tracing.
@pytest.mark.filterwarnings("default")
def test_compiled_steps_give_the_same_losses(tmp_path, monkeypatch):
    """The graphs are traced as on a GPU, and run as they are: no compiler is needed."""
    original = RecurrentModel.compile_step
    monkeypatch.setattr(
        RecurrentModel, "compile_step", lambda self: original(self, backend="aot_eager")
    )
    words = ("recurrence.insert_layer=1", "recurrence.map_hidden=12")
    shape = ",".join(f"{key}={value}" for key, value in {**SHAPE, "n_layer": 1}.items())
    common = {"max_steps": 5, "overlap": 3, "shape": shape}
    exact = losses_of(train(tmp_path, *words, output=tmp_path / "exact", **common))
    run = train(tmp_path, *words, compile=True, output=tmp_path / "compiled", **common)
    assert losses_of(run) == pytest.approx(exact, abs=1e-5)
    assert set(weights_of(run, 5)) == set(weights_of(tmp_path / "exact", 5))


def test_the_time_that_is_left_knows_of_the_limit(monkeypatch, capsys):
    clock = iter(range(1000))
    monkeypatch.setattr("holdover.training.display.time.perf_counter", lambda: float(next(clock)))
    display = Display(Console(width=200), torch.device("cpu"), every=1)
    display.expect(46_000)
    display.start(0, 0, seconds=100.0)
    for step in range(1, 6):
        display.step(step, 10 * step, 3.0, 1e-3)
    told = re.findall(r"step (\d+)/([\d,]+) .* (\S+) left", capsys.readouterr().out)
    assert len(told) == 5
    for _, total, left in told:
        assert int(total.replace(",", "")) <= 100 and left <= "1:40"
