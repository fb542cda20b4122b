"""The Block-Recurrent Transformer against its equations, vector by vector, and what it promises."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

import holdover
from holdover.carries.base import Block
from holdover.cli import entry as cli
from holdover.models import block_recurrent
from holdover.models.transformer_xl import TransformerXLForCausalLM
from holdover.models.transformer_xl_config import STATE_PATHS, TransformerXLConfig
from holdover.ops.gates import GATES
from holdover.tokenization.encoders import ByteEncoder
from reference.block_recurrent import BlockRecurrent
from runs import checkpoints_of, command, losses_of, refusal, train, weights_of
from tiny import BLOCKS, LAYERS, attach, build, outputs_of, tokens

WINDOW = 5
VECTORS = 4
LAYER = 1  # from 0, the one that is recurrent in most tests
STATE = f"states.{LAYER}"
EXACT = {"rtol": 1e-9, "atol": 1e-10}
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
FORMS = [(gate, path) for gate in GATES for path in STATE_PATHS]


def brt(window=WINDOW, memory=None, carry="blocks", seed=3, **changes):
    """A small model in float64, nothing of it as it begins: no scale is 1 and no gate is even."""
    base = build(BLOCKS, **{"state_vectors": VECTORS, **changes}).double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise, alpha=0.3)
            if name.endswith(("start", "identity")):
                parameter.mul_(4)
    length = {} if memory is None else {"memory_length": memory}
    return attach(base, window=window, carry=carry, **length)


def segments(row, window=WINDOW):
    return [part.tolist() for part in row.split(window)]


def updated(model):
    return model.backbone.transformer.layers[LAYER].update


def every_gradient(loss, model):
    return torch.autograd.grad(loss, list(model.backbone.parameters()))


@pytest.mark.parametrize(("gate", "path"), FORMS)
@pytest.mark.quick_sampled(3)
def test_it_is_the_reference(gate, path):
    """Outputs, memory, states and all gradients over three blocks, the last of them short."""
    model = brt(state_gate=gate, state_path=path)
    oracle = BlockRecurrent(model.backbone)
    ids = tokens(2, 2 * WINDOW + 3)
    ours = model(ids)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(ours.logits.shape, generator=generator, dtype=torch.float64)
    of_state = torch.randn(VECTORS, 32, generator=generator, dtype=torch.float64)
    total = (weight * ours.logits).sum() + (of_state * ours.state.tensors[STATE]).sum()
    theirs = torch.zeros((), dtype=torch.float64)
    for row, text in enumerate(ids):
        said, kept = oracle.read(segments(text), WINDOW)
        torch.testing.assert_close(ours.logits[row], said, **EXACT)
        torch.testing.assert_close(ours.state.tensors[STATE][row], oracle.states[LAYER], **EXACT)
        for layer in range(LAYERS):
            found = ours.state.tensors[f"layer.{layer}"][row]
            torch.testing.assert_close(found, kept[layer], **EXACT)
        theirs = theirs + (weight[row] * said).sum() + (of_state * oracle.states[LAYER]).sum()
    names = [name for name, _ in model.backbone.named_parameters()]
    for name, mine, other in zip(
        names, every_gradient(total, model), every_gradient(theirs, model), strict=True
    ):
        torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)
        assert other.abs().sum() > 0, name


@pytest.mark.parametrize("layers", [[1], [3], [1, 3]])
@pytest.mark.parametrize("memory", [3, 9])
def test_any_layers_and_any_memory_are_the_reference(layers, memory):
    model = brt(memory=memory, recurrent_layers=layers)
    oracle = BlockRecurrent(model.backbone)
    ids = tokens(1, 3 * WINDOW)
    ours = model(ids)
    said, _ = oracle.read(segments(ids[0]), memory)
    torch.testing.assert_close(ours.logits[0], said, **EXACT)
    for layer in layers:
        found = ours.state.tensors[f"states.{layer - 1}"][0]
        torch.testing.assert_close(found, oracle.states[layer - 1], **EXACT)


def test_the_gradient_stops_where_a_segment_ends():
    """Blocks of one unroll are one segment unless the horizon cuts it."""
    model = brt()
    oracle = BlockRecurrent(model.backbone)
    ids = tokens(1, 3 * WINDOW)
    for horizon, stopped in ((None, False), (1, True)):
        said = model(ids, horizon=horizon).logits[0]
        theirs, _ = oracle.read(segments(ids[0]), WINDOW, stop_gradient=stopped)
        weight = torch.randn(said.shape, generator=torch.Generator().manual_seed(0)).double()
        for mine, other in zip(
            torch.autograd.grad((weight * said).sum(), list(model.parameters()), allow_unused=True),
            torch.autograd.grad(
                (weight * theirs).sum(), list(model.parameters()), allow_unused=True
            ),
            strict=True,
        ):
            assert (mine is None or not mine.any()) == (other is None or not other.any())
            if mine is not None and other is not None:
                torch.testing.assert_close(mine, other, rtol=1e-8, atol=1e-9)


def test_rows_of_any_length_are_the_reference(monkeypatch):
    """Padding and empty places of the memory are read by no state; rows that wait keep theirs."""
    stock = block_recurrent.scaled_dot_product_attention

    def never_empty(query, key, value, attn_mask=None, **options):
        # Not every kernel makes a number of a softmax over nothing.
        assert attn_mask is None or attn_mask.any(-1).all()
        return stock(query, key, value, attn_mask=attn_mask, **options)

    monkeypatch.setattr(block_recurrent, "scaled_dot_product_attention", never_empty)
    model = brt(memory=7)
    oracle = BlockRecurrent(model.backbone)
    lengths = [13, 2, 9, 5, 0]
    ids = tokens(5, 13)
    mask = torch.arange(13) < torch.tensor(lengths)[:, None]
    out = model(ids, attention_mask=mask.long())
    more = tokens(5, WINDOW + 1, 5)
    again = model(more, state=out.state)
    loss = again.logits.square().mean()
    assert all(gradient.isfinite().all() for gradient in every_gradient(loss, model))
    for row, length in enumerate(lengths):
        read = segments(ids[row, :length]) if length else []
        said, _ = oracle.read([*read, *segments(more[row])], 7)
        ours = torch.cat([out.logits[row, :length], again.logits[row]])
        torch.testing.assert_close(ours, said, **EXACT)
        torch.testing.assert_close(again.state.tensors[STATE][row], oracle.states[LAYER], **EXACT)


def test_rows_that_forget_begin_at_the_learned_start():
    model = brt()
    ids, more = tokens(3, 2 * WINDOW), tokens(3, WINDOW + 2, 5)
    state = model(ids).state.reset(torch.tensor([False, True, False]))
    found, fresh = model(more, state=state), model(more)
    torch.testing.assert_close(found.logits[1], fresh.logits[1], **EXACT)
    torch.testing.assert_close(
        found.state.tensors[STATE][1], fresh.state.tensors[STATE][1], **EXACT
    )
    assert not torch.allclose(found.logits[0], fresh.logits[0])


@torch.no_grad()
def test_no_token_sees_a_later_one():
    """Neither in its block nor through a state: with a memory of one place only that reaches far."""
    model = brt(memory=1)
    ids = tokens(1, 4 * WINDOW)
    before = model(ids).logits[0]
    for position in range(4 * WINDOW):
        changed = ids.clone()
        changed[0, position] = (changed[0, position] + 7) % 50 + 5
        differs = (model(changed).logits[0] != before).any(-1)
        assert not differs[:position].any()
        assert differs[position]
        # The state behind a block tells of all its tokens, to all tokens of the blocks behind it.
        assert differs[position - position % WINDOW + WINDOW :].all()


@torch.no_grad()
def test_a_block_does_not_read_what_it_makes_of_the_state():
    model = brt()
    ids, state = tokens(1, WINDOW), model(tokens(1, WINDOW, 7)).state
    before = model(ids, state=state)
    for parameter in (updated(model).attended.outer.weight, updated(model).attended.gate.bias):
        parameter.add_(1)
    after = model(ids, state=state)
    assert torch.equal(after.logits, before.logits)
    assert not torch.equal(after.state.tensors[STATE], before.state.tensors[STATE])
    more = tokens(1, 3, 9)
    assert not torch.allclose(
        model(more, state=after.state).logits, model(more, state=before.state).logits
    )


@torch.no_grad()
def test_identities_tell_state_vectors_apart():
    """Vectors that begin alike read alike, and stay alike for ever, but for their names."""
    model = brt()
    update = updated(model)
    update.start.copy_(update.start[:1].expand_as(update.start))
    found = model(tokens(1, 3 * WINDOW)).state.tensors[STATE][0]
    assert all(not torch.allclose(found[0], other) for other in found[1:])
    update.identity.zero_()
    found = model(tokens(1, 3 * WINDOW)).state.tensors[STATE][0]
    torch.testing.assert_close(found, found[:1].expand_as(found), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("path", STATE_PATHS)
def test_a_fixed_gate_at_its_limits(path):
    """Open it keeps the state as it is; closed it forgets what it was."""
    model = brt(state_path=path)
    update = updated(model)
    ids = tokens(1, 3 * WINDOW)
    gates = [part.gate for part in (update.attended, update.mapped) if part is not None]
    for gate in gates:
        gate.bias.fill_(800.0)
    torch.testing.assert_close(model(ids).state.tensors[STATE][0], update.start, rtol=0, atol=0)
    for gate in gates:
        gate.bias.fill_(-800.0)
    found = model(ids).state.tensors[STATE][0]
    assert not torch.allclose(found, update.start)
    if path == "single":
        assert found.abs().max() <= 1  # what is new is a tanh there, and only there


@torch.no_grad()
def test_an_lstm_gate_begins_by_keeping():
    """sigmoid(1) of the state and sigmoid(-1) of what is new, with kernels of nothing."""
    gate = GATES["lstm"](3, 2)
    for linear in (gate.forget, gate.input):
        linear.weight.zero_()
        linear.bias.zero_()
    found = gate(torch.full((1, 3), 2.0), torch.full((1, 3), 5.0), torch.ones(1, 2))
    expected = 2 * torch.tensor(1.0).sigmoid() + 5 * torch.tensor(-1.0).sigmoid()
    torch.testing.assert_close(found, expected.expand(1, 3))


def parameters_added(config):
    """To a Transformer-XL of equal sizes, for each recurrent layer."""
    k, inner, s = config.d_model, config.n_head * config.d_head, config.state_vectors
    hidden = config.d_inner

    def gated(inputs):  # a projection and what opens its gate
        return inputs * k + (k if config.state_gate == "fixed" else 2 * (inputs * k + k))

    vertical = k * inner + inner * k + config.n_head  # queries, the output's second half, scales
    horizontal = (
        4 * k * inner + 2 * config.n_head + k + 2 * s * k
    )  # q q k v, scales, norm, start, names
    path = {
        "skip": gated(2 * inner),
        "single": 2 * inner * hidden + gated(hidden),
        "dual": gated(2 * inner) + k + k * hidden + gated(hidden),
    }[config.state_path]
    return len(config.recurrent_layers) * (vertical + horizontal + path)


def count(**changes):
    with torch.device("meta"):
        model = TransformerXLForCausalLM(TransformerXLConfig(**changes))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("gate", "path"), FORMS)
@pytest.mark.parametrize("layers", [[12], [6, 12]])
def test_parameters_are_counted_by_a_formula(gate, path, layers):
    sizes = {"n_layer": 14, "state_gate": gate, "state_path": path, "recurrent_layers": layers}
    added = parameters_added(TransformerXLConfig(**sizes))
    assert count(**sizes) - count(n_layer=14) == added


def test_the_enwik8_size():
    """14 layers of width 512, the third from the top recurrent, 512 vectors; 47,880,396 without."""
    assert count(n_layer=14, recurrent_layers=[12]) == 50_502_884


@pytest.mark.parametrize("layers", [8, 10, 12, 14])
def test_rsa_adds_five_parameters_to_every_layer_but_the_recurrent_one(layers):
    sizes = {"n_layer": layers, "recurrent_layers": [layers - 2]}
    assert count(attention="rsa", **sizes) - count(**sizes) == 5 * (layers - 1)


def test_rsa_with_closed_gates_is_the_plain_model():
    rsa = {"attention": "rsa", "rem_counts": (1, 0, 0, 1, 1, 1), "rem_dilations": (2, 3, 2)}
    model = brt(**rsa)
    plain = brt()
    plain.load_state_dict(
        {name: t for name, t in model.state_dict().items() if ".encoding." not in name}
    )
    ids = tokens(2, 3 * WINDOW)
    assert not torch.allclose(model(ids).logits, plain(ids).logits)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("encoding.mu"):
                parameter.fill_(-800.0)
    found, expected = model(ids), plain(ids)
    torch.testing.assert_close(found.logits, expected.logits, rtol=0, atol=0)
    torch.testing.assert_close(
        found.state.tensors[STATE], expected.state.tensors[STATE], rtol=0, atol=0
    )


@pytest.mark.parametrize("gate", GATES)
def test_weights_begin_as_in_the_original(gate):
    torch.manual_seed(0)
    config = TransformerXLConfig(
        n_layer=1, recurrent_layers=[1], state_vectors=200, state_gate=gate, state_path="dual"
    )
    layer = TransformerXLForCausalLM(config).transformer.layers[0]
    update = layer.update
    for parameter, spread in ((update.start, 0.1), (update.identity, 1.0)):
        assert parameter.mean().item() == pytest.approx(0, abs=0.02 * spread)
        assert parameter.std().item() == pytest.approx(spread, rel=0.02)
    for ones in (
        *(layer.attention.state_scale, update.state_scale, update.token_scale),
        *(update.norm.weight, update.mapped_norm.weight),
    ):
        assert (ones == 1).all()
    for part, inputs in ((update.attended, 1024), (update.mapped, 2048)):
        # Matrices of the state are drawn like all of Transformer-XL.
        assert part.outer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        for name, parameter in part.gate.named_parameters():
            spread = 0.1 if name.endswith("bias") else (0.1 / inputs) ** 0.5
            assert parameter.std().item() == pytest.approx(spread, rel=0.15), name


def test_nothing_is_dropped_of_the_state():
    model = brt(dropout=0.5, dropatt=0.5).train()
    layer = model.backbone.transformer.layers[LAYER]
    states = torch.randn(2, VECTORS, 32, dtype=torch.float64)
    inputs = torch.randn(2, WINDOW, 32, dtype=torch.float64)
    block = Block(inputs, None, None, states, None)
    assert torch.equal(layer.next_state(block), layer.next_state(block))


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize(("gate", "path"), [("fixed", "skip"), ("lstm", "dual")])
def test_streamed_is_re_fed(gate, path, overlap):
    """Piece by piece; the state's keys are made once for a block, however many pieces it has."""
    base = build(BLOCKS, state_gate=gate, state_path=path)
    model = attach(base, carry="blocks", overlap=overlap)
    ids = tokens(2, 9 + 2 * (9 - overlap))
    whole = model(ids)
    made = []
    key_value = base.transformer.layers[LAYER].update.key_value
    handle = key_value.register_forward_hook(lambda *call: made.append(1))
    state, logits, start = None, [], 0
    while start < ids.shape[1]:
        window = model.open_window(state, rows=2)
        for piece in (1, 3, 1, 1, 3):
            taken = min(piece, window.room - window.length)
            if taken:
                logits.append(window.feed(ids[:, start : start + taken]))
                start += taken
        state = window.close()
    handle.remove()
    assert len(made) == 2 * 3  # to be read by tokens, and by the state itself
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits, **CLOSE)
    assert state.tensors.keys() == whole.state.tensors.keys()
    for key, tensor in whole.state.tensors.items():
        torch.testing.assert_close(state.tensors[key], tensor, **CLOSE)


def test_a_window_that_repeats_rows_goes_on_from_each():
    model = attach(build(BLOCKS), carry="blocks")
    ids = tokens(2, 9, 5)
    for state in (model(tokens(2, 14)).state, None):
        window = model.open_window(state, rows=2)
        window.take_rows(torch.tensor([1, 0, 1]))
        chosen = ids[[1, 0, 1]]
        logits = [window.feed(chosen[:, :4])]
        window.take_rows(torch.tensor([2, 1]))
        logits = [logits[0][[2, 1]], window.feed(chosen[[2, 1], 4:])]
        whole = model(ids, state=state)
        torch.testing.assert_close(torch.cat(logits, 1), whole.logits[[1, 0]], **CLOSE)
        for key, tensor in window.close().tensors.items():
            torch.testing.assert_close(tensor, whole.state.tensors[key][[1, 0]], **CLOSE)


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_is_re_fed(beams):
    """Past many blocks, texts of different lengths side by side, rows taken in another order."""
    model = attach(build(BLOCKS), carry="blocks")
    prompt, mask = tokens(2, 13), torch.ones(2, 13, dtype=torch.long)
    mask[1, :4] = 0
    how = {
        "max_new_tokens": 30,
        "do_sample": False,
        "num_beams": beams,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    written = model.generate(prompt, attention_mask=mask, **how)
    for row, kept, text in zip(prompt, mask, written, strict=True):
        alone = model.generate(row[kept.bool()][None], **how)
        assert torch.equal(alone[0, -30:], text[-30:])
        if beams == 1:
            again = outputs_of(model, alone[:, :-1])[:, -30:].argmax(-1)
            assert torch.equal(again[0], alone[0, -30:])


def test_the_plain_model_generates_at_the_start_of_its_state():
    model = build(BLOCKS)
    prompt = tokens(2, 7)
    written = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        again = model(written[:, :-1]).logits[:, 6:].argmax(-1)
    assert torch.equal(again, written[:, 7:])


def test_a_session_goes_on_where_it_was_saved(tmp_path):
    model = attach(build(BLOCKS, vocab_size=256), carry="blocks")
    whole, first = (holdover.Session(model, ByteEncoder(), seed=3) for _ in range(2))
    whole.read("a text of more than two blocks")
    first.read("a text of more than")
    first.save(tmp_path / "session")
    second = holdover.Session.load(tmp_path / "session", model, ByteEncoder())
    second.read(" two blocks")
    assert second.write(40) == whole.write(40)


def test_saved_and_opened_through_auto_classes(tmp_path):
    base = build(BLOCKS, state_gate="lstm", state_path="dual")
    ids = tokens(1, 20)
    base.save_pretrained(tmp_path / "plain")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    for name, tensor in base.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    model = attach(again, carry="blocks", memory_length=5)
    model.save_pretrained(tmp_path / "recurrent")
    loaded = holdover.RecurrentModel.from_pretrained(tmp_path / "recurrent")
    assert torch.equal(outputs_of(loaded, ids), outputs_of(model, ids))
    assert loaded.backbone.config.recurrent_layers == [2]


# Dynamo warns of its own ways of tracing autograd functions.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("gate", "path"), [("lstm", "single")])
@pytest.mark.nightly
def test_compiled_steps_are_the_same(gate, path):
    """Without a graph break, forward and backward, padded and not."""
    torch._dynamo.reset()
    found = []
    ids = tokens(2, 40)
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0
    for compiled in (False, True):
        base = build(BLOCKS, state_gate=gate, state_path=path)
        model = attach(base, window=8, carry="blocks")
        if compiled:
            model.compile_step(backend="aot_eager")
        for given in (None, mask):
            out = model(ids, attention_mask=given, labels=ids)
            total = out.loss + out.state.tensors[STATE].square().mean()
            found.append((out.loss, *every_gradient(total, model)))
    for mine, other in zip(found[0] + found[1], found[2] + found[3], strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def test_half_precision_and_autocast_carry_the_same_state():
    ids = tokens(2, 30)
    model = attach(build(BLOCKS), carry="blocks")
    exact = model(ids)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(ids, labels=ids, return_logits=True)
    mixed.loss.backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())
    half = model.to(torch.bfloat16)(ids)
    for found in (mixed, half):
        for mine, other in (
            (found.logits, exact.logits),
            (found.state.tensors[STATE], exact.state.tensors[STATE]),
        ):
            assert (mine.float() - other).abs().mean() < 0.1 * other.abs().mean()


def test_trained_and_evaluated_from_the_command_line(tmp_path):
    shape = "n_layer=2,d_model=16,n_head=2,d_head=8,d_inner=32,dropout=0.0"
    shape += ",recurrent_layers=[2],state_vectors=4"
    run = train(
        tmp_path,
        model="holdover_xl",
        shape=shape,
        recurrence="blocks",
        windows=3,
        max_steps=30,
        lr=1e-2,
    )
    losses = losses_of(run)
    assert losses[-1] < losses[0] - 0.5
    first, *_, last = checkpoints_of(run)
    before, after = weights_of(run, first), weights_of(run, last)
    assert {name for name, tensor in before.items() if torch.equal(tensor, after[name])} == set()
    given = {"model": run, "data": tmp_path / "text.txt", "output": tmp_path / "eval"}
    given |= {"cache-dir": tmp_path / "cache", "device": "cpu"}
    flags = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    assert cli.main(["eval", *flags, "--no-plots"]) == 0
    record = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert record["model"]["recurrence"]["carry"] == "blocks"
    assert cli.main(["eval", *flags, "--no-plots", "--window", "4", "--memory-length", "9"]) == 0


def test_a_run_that_is_continued_carries_its_states(tmp_path):
    shape = "n_layer=2,d_model=16,n_head=2,d_head=8,d_inner=24,recurrent_layers=[1],state_vectors=3"
    how = {"model": "holdover_xl", "shape": shape, "recurrence": "blocks", "save_every": 3}
    whole = train(tmp_path, output=tmp_path / "whole", max_steps=6, **how)
    run = train(tmp_path, max_steps=3, **how)
    train(tmp_path, max_steps=6, resume=True, **how)
    assert losses_of(run) == losses_of(whole)
    ours, theirs = weights_of(run, 6), weights_of(whole, 6)
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"recurrent_layers": [0]},
            "recurrent_layers=.0. must be a list of different layers from 1",
        ),
        ({"recurrent_layers": [4]}, "to n_layer=3, such as .1.,"),
        (
            {"recurrent_layers": [2, 2]},
            "recurrent_layers=.2, 2. must be a list of different layers",
        ),
        ({"state_vectors": 0}, "state_vectors=0 must be a whole number of at least 1"),
        ({"state_gate": "gru"}, "state_gate='gru' is not a choice; use one of 'fixed', 'lstm'"),
        (
            {"state_path": "triple"},
            "state_path='triple' is not a choice; use one of 'skip', 'single', 'dual'",
        ),
    ],
)
def test_sizes_that_are_none_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        build(BLOCKS, **changes)


def test_a_layer_given_as_a_number_is_refused_in_a_sentence(tmp_path, capsys):
    shape = "n_layer=2,d_model=16,n_head=2,d_head=8,d_inner=32,recurrent_layers=2"
    said = refusal(capsys, command(tmp_path, model="holdover_xl", shape=shape, recurrence="blocks"))
    assert "recurrent_layers" in said


@pytest.mark.parametrize("carry", ["memory", "pooled", "tokens"])
def test_other_states_are_refused_for_recurrent_layers(carry):
    with pytest.raises(ValueError, match=f"carry='{carry}' leaves out the states of the recurrent"):
        attach(build(BLOCKS), carry=carry)


@pytest.mark.parametrize("name", ["holdover_xl", "gpt2"])
def test_blocks_are_refused_without_recurrent_layers(name):
    with pytest.raises(ValueError, match=f"this {name} has none: name them in recurrent_layers"):
        attach(build(name), carry="blocks")
