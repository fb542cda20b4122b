"""RSA in stock models: the loops, closed gates, causality, streaming, training, refusals."""

import copy
import json

import pytest
import torch

import holdover
from contract_grid import RSA
from holdover import BACKBONES
from holdover.backbones.rsa import ConfigView, RSAHook
from holdover.cli import entry as cli
from holdover.ops import rsa as mechanism
from holdover.ops.rem import RecurrenceEncoding
from holdover.runs.models import open_model
from holdover.tokenization.encoders import ByteEncoder
from reference.rem import Head, weight
from runs import command, losses_of, refusal, train
from tiny import LAYERS, RSA_DECODERS, RSA_ENCODERS, attach, build, outputs_of, tokens

WINDOW = 9
SUPPORTED = [*RSA_DECODERS, *RSA_ENCODERS]
ALL_KINDS = {"rsa": True, "rem_counts": (1, 1, 0, 0, 0, 1), "rem_dilations": (3,)}


def gates(model) -> list[torch.Tensor]:
    return [m.mu for m in model.modules() if isinstance(m, RecurrenceEncoding)]


def set_gates(model, value: float) -> None:
    with torch.no_grad():
        for gate in gates(model):
            gate.fill_(value)


# --- The loops ---------------------------------------------------------------------------------


class Loops:
    """The attention of every layer, entry by entry in float64.

    Of the mask that a module is given nothing is used: which key a query reads follows from the
    window's length, from how many tokens a row has and from which rows have a past.
    """

    def __init__(self, positions: int, lengths: list[int], past: list[bool], causal: bool) -> None:
        self.positions, self.lengths, self.past, self.causal = positions, lengths, past, causal
        self.calls = 0

    def __call__(self, hook, query, key, value, mask, scaling, **others):
        self.calls += 1
        inserted = key.shape[2] - self.positions
        encoding = hook.rsa.encoding
        kernel = encoding()
        heads = [
            Head(*head, masked=self.causal, truncate=encoding.truncate)
            for head in zip(
                encoding.kinds, kernel.rate, kernel.angle, kernel.dilations, strict=True
            )
        ]
        groups = query.shape[1] // key.shape[1]
        output = torch.zeros_like(query)
        for row in range(query.shape[0]):
            for head in range(query.shape[1]):
                keys, values = key[row, head // groups], value[row, head // groups]
                for place in range(self.positions):
                    asked = query[row, head, inserted + place]
                    own = heads[head] if head < len(heads) else None
                    output[row, head, inserted + place] = self.mixture(
                        asked, keys, values, row, place, inserted, scaling, own, encoding.mu
                    )
        return output.transpose(1, 2), None

    def mixture(self, asked, keys, values, row, place, inserted, scaling, head, mu):
        rows = range(inserted) if self.past[row] else ()
        last = place if self.causal else self.positions
        held = [j for j in range(self.positions) if j < self.lengths[row]]
        read = [*rows, *(inserted + j for j in held if j <= last)]
        weights = torch.stack([(asked * keys[j]).sum() * scaling for j in read]).softmax(0)
        attended = sum(w * values[j] for w, j in zip(weights, read, strict=True))
        if head is None:
            return attended
        recurrent = sum(weight(head, place - j) * values[inserted + j] for j in held)
        gate = 1 / (1 + torch.exp(-mu))
        return (1 - gate) * attended + gate * recurrent


CASES = {
    "gpt2": ("gpt2", {"carry": "none"}, False),
    "gpt2-truncated": ("gpt2", {"carry": "none", "rem_truncate": 3}, False),
    "gpt2-rows": ("gpt2", {"insert_layer": "all", "slots": 2}, False),
    "gpt2-one-layer": ("gpt2", {"rsa_layers": (2,)}, False),
    "opt-memory-tokens": ("opt", {"carry": "tokens", "slots": 2}, False),
    "gpt_neox": ("gpt_neox", {"carry": "none"}, True),
    "llama-shared-heads": ("llama", {"insert_layer": 2}, False),
    "bert": ("bert", {"carry": "none"}, False),
    "bert-padded": ("bert", {"carry": "none"}, True),
    "bert-rows-padded": ("bert", {"slots": 2}, True),
}


def compare_with_the_loops(name, options, padded, monkeypatch) -> None:
    """Outputs and the gradients of all weights, of a window behind a state that one row has lost."""
    model = attach(build(name).double(), **ALL_KINDS, **options)
    causal = BACKBONES[name].causal
    slots = model.recurrence.extra_positions // 2
    lengths = [WINDOW, 5 if padded else WINDOW]
    ids = tokens(2, WINDOW)
    mask = torch.arange(WINDOW) < torch.tensor(lengths)[:, None]
    with torch.no_grad():
        state = model(tokens(2, WINDOW, 7)).state
    # The read positions of a row without a past are hidden, not missing: all of it is behind them.
    state = state if slots else state.reset(torch.tensor([False, True]))

    def read():
        out = model(ids, attention_mask=mask.long() if padded else None, state=state)
        direction = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(0))
        total = (direction.double() * out.logits * mask[..., None]).sum()
        parameters = [p for p in model.parameters() if p.requires_grad]
        found = torch.autograd.grad(total, parameters, allow_unused=True)
        return out.logits * mask[..., None], found

    logits, gradients = read()
    loops = Loops(WINDOW + 2 * slots, lengths if not causal else [99, 99], [True, False], causal)
    monkeypatch.setattr(RSAHook, "attend", lambda hook, *args, **named: loops(hook, *args, **named))
    expected, wanted = read()
    chosen = options.get("rsa_layers", range(LAYERS))
    assert loops.calls == len(chosen)
    # RMS norms and rotations of some models are computed in single precision.
    exact = {"rtol": 1e-4, "atol": 1e-5} if name == "llama" else {"rtol": 1e-7, "atol": 1e-9}
    torch.testing.assert_close(logits, expected, **exact)
    names = [key for key, p in model.named_parameters() if p.requires_grad]
    for key, mine, other in zip(names, gradients, wanted, strict=True):
        assert (mine is None) == (other is None), key
        if mine is not None:
            torch.testing.assert_close(mine, other, **exact)
            assert ".rsa." not in key or other.abs().sum() > 0, key


@pytest.mark.parametrize(("name", "options", "padded"), CASES.values(), ids=CASES)
def test_it_is_the_mixture_entry_by_entry(name, options, padded, monkeypatch):
    compare_with_the_loops(name, options, padded, monkeypatch)


@pytest.mark.parametrize("case", ["gpt2", "gpt2-rows", "bert"])
def test_the_loops_catch_a_recurrence_that_ignores_where_the_query_stands(case, monkeypatch):
    right = mechanism.rem
    monkeypatch.setattr(
        mechanism, "rem", lambda *sizes: right(*sizes)[:, -1:].expand_as(right(*sizes))
    )
    with pytest.raises(AssertionError, match="not close"):
        compare_with_the_loops(*CASES[case], monkeypatch)


@pytest.mark.parametrize("case", ["gpt2-rows", "bert-rows-padded"])
def test_the_loops_catch_a_recurrence_that_reads_inserted_rows(case, monkeypatch):
    monkeypatch.setattr(RSAHook, "_present", lambda hook, value: None)
    with pytest.raises(AssertionError, match="not close"):
        compare_with_the_loops(*CASES[case], monkeypatch)


# --- Closed and removed ------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_closed_gates_leave_the_stock_model_bit_for_bit(name, implementation):
    base = build(name)
    base.set_attn_implementation(implementation)
    ids = tokens(2, 20)
    with torch.no_grad():
        stock = base(ids).logits
    model = attach(base, **RSA, carry="none", window=20)
    assert not torch.allclose(outputs_of(model, ids), stock, atol=1e-2)
    set_gates(model, -torch.inf)
    assert torch.equal(outputs_of(model, ids), stock)


@pytest.mark.parametrize("carry", [{}, {"carry": "tokens", "slots": 2}], ids=["pooled", "tokens"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_closed_gates_leave_the_carried_state_bit_for_bit(name, carry):
    ids = tokens(2, 3 * WINDOW)
    model, plain = attach(build(name), **RSA, **carry), attach(build(name), **carry)
    plain.recurrence.load_state_dict(model.recurrence.state_dict(), strict=False)
    set_gates(model, -torch.inf)
    assert torch.equal(outputs_of(model, ids), outputs_of(plain, ids))


@pytest.mark.parametrize("name", SUPPORTED)
def test_nothing_is_left_in_a_model_that_it_was_removed_from(name):
    base = build(name)
    implementation = base.config._attn_implementation
    model = attach(base, **RSA)
    views = [m for m in base.modules() if isinstance(getattr(m, "config", None), ConfigView)]
    assert len(views) == LAYERS
    # What the model itself goes by is never changed: masks are made as before.
    assert base.config._attn_implementation == implementation
    assert holdover.remove_recurrence(model) is base
    assert all(view.config is base.config for view in views)
    assert not any("rsa" in key for key in base.state_dict())


def test_the_implementation_of_a_live_model_can_be_changed():
    model = attach(build("gemma3_text"), **RSA)
    ids, before = tokens(2, 25), None
    for implementation in ("sdpa", "eager", "sdpa"):
        model.backbone.set_attn_implementation(implementation)
        found = outputs_of(model, ids)
        before = found if before is None else before
        torch.testing.assert_close(found, before, rtol=1e-3, atol=5e-4)


def test_a_copy_has_a_recurrence_of_its_own():
    model = attach(build("gpt2"), **RSA)
    ids = tokens(1, 20)
    expected = outputs_of(model, ids)
    twin = copy.deepcopy(model)
    set_gates(model, 5.0)
    assert torch.equal(outputs_of(twin, ids), expected)
    assert not torch.equal(outputs_of(model, ids), expected)
    holdover.remove_recurrence(model)
    assert torch.equal(outputs_of(twin, ids), expected)


# --- What it reads -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", SUPPORTED)
def test_decoders_read_what_was_before_and_encoders_both_sides(name):
    """Gates wide open in all heads of one layer: its attention is the recurrence alone."""
    counts = {"rem_counts": (4, 0, 0, 0, 0, 0), "rem_dilations": ()}
    model = attach(build(name), rsa=True, carry="none", rsa_layers=(1,), **counts)
    set_gates(model, 800.0)
    ids, middle = tokens(1, WINDOW), 4
    seen = attention_outputs(model, ids)[0, middle]
    for place in range(WINDOW):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] + 7) % 50 + 5
        differs = not torch.equal(attention_outputs(model, changed)[0, middle], seen)
        # Itself it does not read: the diagonal is zero.
        assert differs == (place < middle or (place > middle and name in RSA_ENCODERS)), place


def attention_outputs(model, ids) -> torch.Tensor:
    found = []
    attention = model.hooks.layers[0].get_submodule(model.spec.attention)
    handle = attention.register_forward_hook(lambda module, args, output: found.append(output[0]))
    outputs_of(model, ids)
    handle.remove()
    return found[0]


def test_lags_are_not_cut_at_a_sliding_window():
    counts = {"rem_counts": (4, 0, 0, 0, 0, 0), "rem_dilations": ()}
    model = attach(build("mistral"), rsa=True, carry="none", rsa_layers=(1,), **counts)
    assert model.backbone.config.sliding_window < WINDOW - 1
    set_gates(model, 800.0)
    ids = tokens(1, WINDOW)
    changed = ids.clone()
    changed[0, 0] = (ids[0, 0] + 7) % 50 + 5
    one, other = (attention_outputs(model, text)[0, -1] for text in (ids, changed))
    assert not torch.equal(one, other)


# --- Streaming ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"carry": "none"}, {}, {"carry": "tokens", "slots": 2}], ids=str
)
@pytest.mark.parametrize("name", ["gpt2", "opt", "llama", "mistral"])
def test_written_token_by_token_it_is_re_fed(name, options):
    model, text = attach(build(name), **RSA, **options), tokens(2, 5)
    written = model.generate(text, max_new_tokens=30, do_sample=False, eos_token_id=None)
    for _ in range(30):
        text = torch.cat([text, outputs_of(model, text)[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, text)


def test_one_query_behind_many_keys():
    """A window is read by the scan, single tokens by a row of the matrix."""
    model = attach(build("gpt2", n_positions=300), **RSA, carry="none", window=300)
    ids = tokens(1, 300)
    window = model.open_window()
    pieces = [window.feed(ids[:, part]) for part in (slice(0, 290), *map(at, range(290, 300)))]
    torch.testing.assert_close(torch.cat(pieces, 1), outputs_of(model, ids), rtol=2e-4, atol=2e-4)


def at(place: int) -> slice:
    return slice(place, place + 1)


# --- Compiled, half precision ------------------------------------------------------------------


@pytest.mark.sampled(99)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("name", "options"),
    [("gpt2", {}), ("llama", {"carry": "tokens", "slots": 2}), ("bert", {})],
    ids=["gpt2-pooled", "llama-tokens", "bert-pooled"],
)
def test_the_step_compiles_without_graph_breaks(name, options):
    torch._dynamo.reset()
    ids, found = tokens(2, 3 * WINDOW), []
    for compiled in (False, True):
        model = attach(build(name), **RSA, **options)
        if compiled:
            model.compile_step(backend="aot_eager")
        loss = model(ids, labels=ids).loss
        loss.backward()
        found.append((loss, [p.grad for p in model.parameters()]))
    (eager, eager_gradients), (fast, fast_gradients) = found
    torch.testing.assert_close(fast, eager)
    for mine, other in zip(fast_gradients, eager_gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_bfloat16_stays_close(name):
    model, ids = attach(build(name), **RSA), tokens(2, 3 * WINDOW)
    expected = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    torch.testing.assert_close(loss, expected, rtol=0.05, atol=0.05)
    loss.backward()
    assert all(gate.grad.isfinite() for gate in gates(model))
    half = model.to(torch.bfloat16)(ids, labels=ids).loss
    torch.testing.assert_close(half.float(), expected, rtol=0.05, atol=0.05)


# --- Weights -----------------------------------------------------------------------------------


def test_five_parameters_a_layer_are_added():
    model = holdover.add_recurrence(
        build("gpt2"), holdover.RecurrenceConfig(rsa=True, carry="none", window=WINDOW)
    )
    assert model.parameter_counts()["added"] == 5 * LAYERS
    assert [gate.item() for gate in gates(model)] == [-3.0] * LAYERS
    holdover.remove_recurrence(model)
    fewer = attach(build("gpt2"), rsa=True, carry="none", rsa_layers=(1, 3))
    assert fewer.parameter_counts()["added"] == 10
    assert {key.split(".")[1] for key, _ in fewer.recurrence.named_parameters()} == {"1", "3"}


def test_what_was_added_is_saved_and_a_state_knows_it(tmp_path):
    base = build("gpt2")
    base.save_pretrained(tmp_path / "base")
    base = type(base).from_pretrained(tmp_path / "base")
    model, ids = attach(base, **RSA), tokens(1, 20)
    expected, state = outputs_of(model, ids), model(ids).state
    model.save_pretrained(tmp_path / "added", only_added=True)
    again = holdover.RecurrentModel.from_pretrained(tmp_path / "added")
    assert torch.equal(outputs_of(again, ids), expected)
    outputs_of(again, ids, state=state)
    set_gates(again, 0.0)
    with pytest.raises(ValueError, match="does not belong to this model: weights"):
        outputs_of(again, ids, state=state)
    plain = attach(build("gpt2"))
    with pytest.raises(ValueError, match="rsa is True in the state and None in this model"):
        outputs_of(plain, ids, state=state)
    # States of models without it say nothing of it, as they did before there was any.
    assert not any(key.startswith(("rsa", "rem_")) for key in plain(ids).state.owner)


def test_lora_trains_beside_it():
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        build("gpt2"), peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    )
    model, ids = attach(adapted, **RSA), tokens(2, 20)
    model.freeze_base()
    model(ids, labels=ids).loss.backward()
    trained = [key for key, p in model.named_parameters() if p.grad is not None]
    assert any("lora_" in key for key in trained) and any(".rsa." in key for key in trained)


# --- From the command line ---------------------------------------------------------------------

FLAGS = {"rsa": True, "rem_counts": "1,0,0,0,1,1", "rem_dilations": "2,3", "rem_gate": -1.0}
SHAPE = "n_layer=2,n_embd=16,n_head=4,n_positions=32,resid_pdrop=0,embd_pdrop=0,attn_pdrop=0"


@pytest.mark.parametrize("carry", ["none", "pooled"])
def test_trained_from_the_command_line_all_its_parameters_move(carry, tmp_path, capsys):
    run = train(tmp_path, shape=SHAPE, recurrence=carry, **FLAGS, max_steps=12, lr=5e-3)
    assert losses_of(run)[-1] < losses_of(run)[0]
    first, last = (
        holdover.RecurrentModel.from_pretrained(run / f"checkpoint-{step}") for step in (0, 12)
    )
    assert last.settings.rem_gate == -1.0 and last.settings.rem_counts == (1, 0, 0, 0, 1, 1)
    kinds = set()
    for key, tensor in first.state_dict().items():
        if ".encoding." in key:
            kinds.add(key.rpartition(".")[2])
            assert (tensor != last.state_dict()[key]).all(), key
    assert kinds == {"eta", "nu", "theta", "mu"}
    # Evaluated, opened by name, talked to and trained on without its settings being said again.
    text, cache = tmp_path / "text.txt", tmp_path / "cache"
    words = ["eval", "--model", run, "--data", text, "--device", "cpu", "--cache-dir", cache]
    assert cli.main([str(word) for word in [*words, "--output", tmp_path / "eval"]]) == 0
    record = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert record["model"]["recurrence"]["rsa"] is True
    session = holdover.Session(open_model(str(run)), ByteEncoder())
    session.read("abc de")
    assert session.write(5)
    more = train(
        tmp_path, model=run, from_scratch=None, shape=None, max_steps=2, output=tmp_path / "more"
    )
    assert holdover.RecurrentModel.from_pretrained(more / "checkpoint-2").settings.rsa


def test_a_frozen_base_trains_the_recurrence_at_the_added_rate(tmp_path):
    run = train(
        tmp_path,
        shape=SHAPE,
        recurrence="none",
        freeze_base=True,
        added_learning_rate=1e-2,
        max_steps=1,
        **FLAGS,
    )
    first, last = (
        holdover.RecurrentModel.from_pretrained(run / f"checkpoint-{step}") for step in (0, 1)
    )
    for key, tensor in first.state_dict().items():
        moved = (last.state_dict()[key] - tensor).abs()
        if ".rsa." in key:
            # Adam's first step is the learning rate itself.
            torch.testing.assert_close(moved, torch.full_like(moved, 1e-2), rtol=1e-2, atol=0)
        else:
            assert not moved.any(), key


def test_a_model_with_a_recurrence_is_not_given_another_silently(tmp_path, capsys):
    train(tmp_path, shape=SHAPE, recurrence="none", **FLAGS, max_steps=1)
    settings = {"model": tmp_path / "run", "from_scratch": None, "shape": None}
    settings["output"] = tmp_path / "more"
    said = refusal(capsys, command(tmp_path, **settings, rem_gate=0.5))
    assert "--rem-gate is -1.0 in the model and 0.5 was asked for" in said
    said = refusal(capsys, command(tmp_path, **settings, recurrence="pooled"))
    assert "carry is 'none' in the model and 'pooled' was asked for" in said


# --- Refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in BACKBONES if name not in SUPPORTED])
def test_attentions_that_go_around_the_interface_are_refused(name):
    base = build(name)
    with pytest.raises(ValueError, match=f"attention interface, and {name} does not use it"):
        attach(base, **RSA)
    attach(base, carry="none")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rem_counts": (5, 0, 0, 0, 0, 0), "rem_dilations": ()}, "asks for 5 heads .* has 4"),
        ({"rsa_layers": (4,)}, r"rsa_layers=\(4,\) is out of range: .* has layers 1 to 3"),
        ({"rsa_layers": (1, 1)}, "each of them once"),
        ({"rsa_layers": ()}, "one or more layers"),
        ({"rsa_layers": (0,)}, "rsa_layers=0 must be a whole number of at least 1"),
        ({"rem_counts": (0,) * 6, "rem_dilations": ()}, "at least 1 together"),
        ({"rem_counts": (1, 1)}, "six numbers of heads"),
        ({"rem_counts": (-1, 0, 0, 0, 2, 2)}, "rem_counts=-1 must be"),
        ({"rem_counts": (1, 0, 0, 0, 0, 0)}, "one number for each of the 0 dilated heads"),
        ({"rem_dilations": (1, 2, 3, 0)}, "rem_dilations=0 must be"),
        ({"rem_truncate": 0}, "rem_truncate=0 must be"),
        ({"rem_gate": float("-inf")}, "rem_gate=-inf must be a finite number"),
        ({"rsa": False, "rem_gate": 0.0}, "rem_gate=0.0 has no effect without rsa"),
        ({"rsa": False, "rsa_layers": (1,)}, "rsa_layers=.* has no effect without rsa"),
    ],
    ids=str,
)
def test_settings_that_cannot_be(changes, said):
    with pytest.raises(ValueError, match=said):
        attach(build("gpt2"), **{"rsa": True, **changes})


def test_upcast_attention_of_gpt2_is_refused_where_it_would_be_used():
    base = build("gpt2", reorder_and_upcast_attn=True)
    model, ids = attach(base, **RSA), tokens(1, 9)
    outputs_of(model, ids)
    base.set_attn_implementation("eager")
    with pytest.raises(ValueError, match="reorder_and_upcast_attn goes around"):
        outputs_of(model, ids)
