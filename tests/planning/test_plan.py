"""The cost model: against torch's counter, against what autograd keeps, against committed records."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import holdover
from holdover.backbones.registry import BACKBONES
from holdover.cli import entry as cli
from holdover.cli.submit import read_command
from holdover.config import RecurrenceConfig
from holdover.evaluation.cost import counted_flops
from holdover.models.registry import MODELS
from holdover.planning.costs import batch_flops, communication, memory, ring_speed, step_seconds
from holdover.planning.hardware import HARDWARE, HOURS_BETWEEN_FAILURES
from holdover.planning.model_profile import activation_bytes, profile_model
from holdover.planning.options import LAUNCH_SECONDS, UTILISATION, PlannedRun, PlanOptions
from holdover.planning.predict import plan
from holdover.planning.prediction_checks import calibration, check, markdown
from holdover.planning.show import table_rows
from holdover.recurrent.step import OutputRequest
from holdover.unrolling import ActivationMeter
from holdover.windows import Window
from scripts import script
from tiny import CONFIGS, build

ROOT = Path(__file__).parents[2]
RECORDS = [ROOT / "results" / name for name in ("speed", "training")]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
# The furthest that predicted memory may be from what a record says.
MEMORY_FACTOR = 1.2


def shape_of(name: str, **changes) -> dict:
    """A tiny shape for `profile_model`, and the same for `build`."""
    return {**CONFIGS[name], **changes}


NO_DROPOUT = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
SHAPES = {
    "gpt2": shape_of("gpt2", n_embd=64, n_positions=64, vocab_size=97, **NO_DROPOUT),
    "llama": shape_of("llama", hidden_size=64, intermediate_size=160, vocab_size=97, head_dim=16),
    "gpt_neox": shape_of("gpt_neox", hidden_size=64, intermediate_size=200, vocab_size=97),
}
SETTINGS = {
    "plain": {"carry": "none"},
    "pooled": {"map_hidden": (20,)},
    "everywhere": {"slots": 3, "insert_layer": "all", "pooling": "last", "map_hidden": (20,)},
    "tokens": {"carry": "tokens", "slots": 4, "map_hidden": (20,)},
}


@pytest.mark.parametrize(
    ("settings", "recompute"),
    [
        ("plain", "none"),
        ("pooled", "none"),
        ("pooled", "window"),
        ("everywhere", "none"),
        ("tokens", "window"),
    ],
)
@pytest.mark.parametrize("name", SHAPES)
def test_flops_are_those_that_torch_counts(name, settings, recompute):
    """Within 3 %: the first window of a text reads no rows, and pooling is left out."""
    recurrence = RecurrenceConfig(window=24, recompute=recompute, **SETTINGS[settings])
    base = build(name, **SHAPES[name])
    model = holdover.add_recurrence(base, recurrence).train()
    ids = torch.randint(3, 97, (2, 24 * 5))
    counted = counted_flops(lambda: model(ids, labels=ids).loss.backward())
    run = PlannedRun(rows=2, windows=5, window=24, recompute=recompute)
    predicted = batch_flops(profile_model(name, SHAPES[name], recurrence), run)
    assert (predicted["recomputed"] > 0) == (recompute == "window")
    assert sum(predicted.values()) == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("name", [name for name, row in BACKBONES.items() if row.causal])
def test_every_causal_backbone_is_planned_or_refused(name):
    options = PlanOptions.of(model=name, shape={**CONFIGS[name], "vocab_size": 97}, window=16)
    if name in MODELS:
        with pytest.raises(ValueError, match="holdover_xl is no such model"):
            plan(options)
    else:
        assert plan(options).memory["activations"] > 0


def test_tokens_that_are_read_again_are_paid_for():
    recurrence = RecurrenceConfig(window=24, overlap=8, carry="none")
    model = holdover.add_recurrence(build("gpt2", **SHAPES["gpt2"]), recurrence).train()
    ids = torch.randint(3, 97, (2, 24 + 16 * 4))
    counted = counted_flops(lambda: model(ids, labels=ids).loss.backward())
    run = PlannedRun(rows=2, windows=5, window=24, overlap=8)
    flops = batch_flops(profile_model("gpt2", SHAPES["gpt2"], recurrence), run)
    assert sum(flops.values()) == pytest.approx(counted, rel=0.03)
    assert run.tokens_a_batch == 2 * 5 * 16


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_and_kept_activations_are_those_of_the_real_model(name):
    recurrence = RecurrenceConfig(window=24, carry="none")
    model = holdover.add_recurrence(build(name, **SHAPES[name]), recurrence).train()
    expected = profile_model(name, SHAPES[name], recurrence)
    assert expected.parameters == model.parameter_counts()["all"]
    ids = torch.randint(3, 97, (2, 24))
    window = Window(input_ids=ids, targets=ids)
    with ActivationMeter(model.parameters()) as meter:
        model.step(window, None, OutputRequest("bare"))
    predicted = 48 * activation_bytes(name, SHAPES[name], "float32").eager
    # Fake tensors repeat the keys and values of grouped heads, which real attention need not.
    assert predicted == pytest.approx(meter.bytes, rel=0.06)


@pytest.fixture(scope="module")
def checked():
    return check(RECORDS)[0]


def test_memory_is_that_of_the_records(checked):
    assert len(checked) >= 10
    for one in checked:
        ratio = one.memory / one.memory_measured
        assert 1 / MEMORY_FACTOR < ratio < MEMORY_FACTOR, one


def test_defaults_are_the_medians_of_the_records(checked):
    utilisation, launch = calibration(checked)
    assert f"{utilisation:.2f}" == f"{UTILISATION:.2f}"
    assert f"{launch:.4f}" == f"{LAUNCH_SECONDS:.4f}"


# Few layers, so that it is quick; as wide as a model of 7 billion weights.
SHORT = "num_hidden_layers=4"
LLAMA = {"model": "llama", "shape": {"num_hidden_layers": 4}, "window": 2048, "windows": 4}


def test_shards_hold_whole_weights_and_gradients_but_a_part_of_adam():
    copies = plan(PlanOptions.of(**LLAMA, gpus=8, rows=8, bf16=False)).memory
    shards = plan(PlanOptions.of(**LLAMA, gpus=8, rows=8, bf16=False, shard=True)).memory
    for part in ("weights", "gradients"):
        assert shards[part] == copies[part] * 9 / 8
    assert shards["Adam"] == copies["Adam"] / 8
    assert shards["activations"] == copies["activations"]


def test_communication_by_hand():
    model = profile_model("gpt2", SHAPES["gpt2"], RecurrenceConfig(window=24))
    size, h100 = 4 * model.parameters, HARDWARE["h100"]
    common = {"rows": 1, "windows": 2, "window": 24, "accumulate": 3}
    copies = communication(model, PlannedRun(**common, processes=8), h100, 1.0)
    assert copies.sent == pytest.approx(2 * 7 / 8 * size)
    shards = communication(model, PlannedRun(**common, processes=8, shard=True), h100, 1.0)
    # The weights once, the gradients of three batches.
    assert shards.sent == pytest.approx(4 * 7 / 8 * size)
    assert ring_speed(PlannedRun(**common, processes=8), h100) == h100.inside
    assert ring_speed(PlannedRun(**common, processes=16), h100) == 8 * h100.between
    assert communication(model, PlannedRun(**common), h100, 1.0).seconds == 0
    # What one window's backward does not hide is waited for; gathered weights always are.
    assert copies.exposed(copies.seconds / 2) == pytest.approx(copies.seconds / 2)
    assert copies.exposed(2 * copies.seconds) == 0
    assert shards.exposed(1e9) == pytest.approx(shards.seconds * 3 / 4)


def test_small_windows_wait_for_launches():
    model = profile_model("gpt2", {}, RecurrenceConfig())
    run = PlannedRun(rows=1, windows=1, window=300, precision="autocast", optimizer=False)
    nothing = communication(model, run, HARDWARE["h200"], 1.0)
    seconds = step_seconds(model, run, HARDWARE["h200"], 0.34, nothing)
    assert seconds.step == pytest.approx(12 * LAUNCH_SECONDS)


def test_every_part_of_memory_is_counted_once():
    model = profile_model("gpt2", SHAPES["gpt2"], RecurrenceConfig(window=24))
    kept = activation_bytes("gpt2", SHAPES["gpt2"], "float32")
    small = memory(model, kept, PlannedRun(rows=1, windows=1, window=24))
    large = memory(model, kept, PlannedRun(rows=1, windows=3, window=24))
    assert large["activations"] == 3 * small["activations"]
    assert small["bf16 copies"] == small["exchange"] == 0
    again = memory(model, kept, PlannedRun(rows=1, windows=3, window=24, recompute="window"))
    assert again["activations"] == 24 * kept.eager


def shown(name: str) -> str:
    return re.search(rf"<!-- {name}:begin -->\n(.*?)<!-- {name}:end -->", PAGE, re.S)[1].strip()


def test_the_pages_check_is_what_the_command_prints(capsys):
    folders = ",".join(map(str, [*RECORDS, ROOT / "results" / "scaling"]))
    assert cli.main(["plan", "--check", folders]) == 0
    printed = capsys.readouterr().out
    checked, communications = check([*RECORDS, ROOT / "results" / "scaling"])
    first, second = markdown(checked, communications).split("\n\n")
    assert shown("check") == first and shown("communication") == second
    assert first in printed and second in printed


def test_the_pages_plans_are_what_the_command_says():
    worked = script("benchmarks/worked_plan.py")
    assert len(worked.commands(PAGE)) >= 4
    assert shown("plans") == worked.report(PAGE)


def test_the_pages_sentences_say_the_same_numbers(checked):
    text = " ".join(PAGE.split())
    ratios = [one.memory / one.memory_measured for one in checked]
    assert (
        f"{max(ratios) - 1:.0%} too high to {1 - min(ratios):.0%} too low".replace("%", " %")
        in text
    )
    slowest = max(one.speed / one.speed_measured for one in checked)
    assert f"took {slowest:.2f} times as long as predicted" in text
    assert (
        f"{UTILISATION} of the peak" in text and f"{1000 * LAUNCH_SECONDS:.1f} ms a layer" in text
    )
    worked = script("benchmarks/worked_plan.py")
    plans = {n: plan(worked.options_of(words)) for n, words in worked.commands(PAGE).items()}
    first, kept = plans["64 nodes"], plans["64 nodes, all kept"]
    before = sum(first.memory[part] for part in ("weights", "gradients", "bf16 copies"))
    assert f"take {before / 2**30:.1f} GiB before the first token" in text
    weights, halves = first.model.parameters * 4, first.memory["bf16 copies"]
    assert (
        f"{weights / 2**30:.1f} GiB each, and bfloat16 copies another {halves / 2**30:.1f}" in text
    )
    assert f"8 x {weights / 1e9:.0f} GB of a node's memory" in text
    fewer = 1 - sum(kept.flops_a_token.values()) / sum(first.flops_a_token.values())
    assert f"need {100 * fewer:.0f} % fewer FLOPs" in text
    assert f"One process writes the checkpoint** ({first.checkpoint_bytes / 1e9:.1f} GB)" in text
    assert f"batch: {first.tokens_a_step / 1e6:.1f} million tokens" in text
    assert f"every {HOURS_BETWEEN_FAILURES:,.0f} GPU hours" in text


def test_the_pages_training_is_the_planned_one():
    (words,) = re.findall(r"^holdover submit .* -- (train .*)$", PAGE, re.M)
    options = read_command(shlex.split(words)).options
    worked = script("benchmarks/worked_plan.py")
    planned = worked.options_of(worked.commands(PAGE)["64 nodes"])
    for name in ("rows", "windows", "accumulate", "bf16", "shard", "recurrence", "validate_every"):
        assert getattr(options, name) == getattr(planned, name), name
    assert options.max_tokens == planned.tokens
    assert options.save_every == pytest.approx(plan(planned).save_every, rel=0.1)


def test_the_command_shows_and_writes(tmp_path, capsys):
    words = "plan --model gpt2 --gpus 16 --rows 32 --tokens 1e9 --recurrence none --overlap 10"
    assert cli.main([*words.split(), "--json", str(tmp_path / "plan.json")]) == 0
    out = capsys.readouterr().out
    assert "16 x h100 in 2 nodes, replicated" in out and "GPU hours" in out
    record = json.loads((tmp_path / "plan.json").read_text())
    planned = plan(
        PlanOptions.of(model="gpt2", gpus=16, rows=32, overlap=10, recurrence={"carry": "none"})
    )
    assert record["plan"]["gpu_hours"] == planned.gpu_hours
    assert record["plan"]["options"]["tokens"] == 10**9 and "provenance" in record
    assert [what for _, what, _ in table_rows(planned)][:2] == ["parameters", "GPUs"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--model is missing"),
        ("--model llama --gpus 8 --rows 4", "Give at least --rows 8"),
        ("--model llama --gpus 12 --rows 12", "does not fill whole nodes of --gpus-per-node 8"),
        ("--model gpt2 --hardware v100", "choose from a100, h100, h200, b200"),
        ("--model gpt2 --rsa", "not for --rsa"),
        ("--model gpt2 --recompute auto", "plan with --recompute none and with --recompute window"),
        (
            "--model gpt2 --utilisation 2",
            "--utilisation 2.0: expected a share above 0 and at most 1",
        ),
        ("--model gpt2 --shape layers=2", "'layers' is not a setting of gpt2"),
        ("--model gpt2 --shard", "--shard needs several GPUs"),
        ("--model bert", "bert is no such model"),
        ("--check tests", "no records in tests"),
    ],
)
def test_refusals_are_one_sentence(words, message, capsys):
    assert cli.main(["plan", *words.split()]) == 2
    assert message in capsys.readouterr().err


def test_what_does_not_fit_says_what_would(capsys):
    words = f"plan --model llama --shape {SHORT} --gpus 8 --hardware h100 --rows 64 --windows 20"
    assert cli.main([*words.split(), "--window", "2048"]) == 2
    message = capsys.readouterr().err
    assert "GiB too much; it fits with --recompute window (" in message
    assert plan(PlanOptions.of(**LLAMA, gpus=8, rows=64, recompute="window")).misfit is None
    # Copies of gradients, buckets and Adam alone are too much.
    deep = "plan --model llama --shape num_hidden_layers=24 --gpus 8 --rows 8 --window 256"
    assert cli.main(deep.split()) == 2
    assert "it fits with --recompute window and --shard (" in capsys.readouterr().err
    whole = "plan --model llama --gpus 8 --rows 8 --window 2048"
    assert cli.main(whole.split()) == 2
    assert "it still takes" in capsys.readouterr().err
