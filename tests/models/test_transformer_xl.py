"""Transformer-XL against its equations, score by score, and what its memory promises."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM

import holdover
from holdover.cli import entry as cli
from holdover.models.attend import ATTENTIONS, SoftmaxAttend
from holdover.models.transformer_xl import TransformerXLForCausalLM
from holdover.models.transformer_xl_config import TransformerXLConfig
from holdover.ops.relative import column_distances, hidden_keys, position_bias, sinusoids
from reference.transformer_xl import TransformerXL
from runs import losses_of, train
from tiny import LAYERS, attach, build, outputs_of, tokens

WINDOW = 6
EXACT = {"rtol": 1e-9, "atol": 1e-10}
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def xl(window: int = WINDOW, memory: int | None = None, carry: str = "memory", **changes):
    """A small model in float64, so that nothing hides in rounding."""
    base = build("holdover_xl", **changes).double()
    length = {} if carry != "memory" else {"memory_length": memory}
    return attach(base, window=window, carry=carry, **length)


def segments(row: torch.Tensor, window: int = WINDOW) -> list[list[int]]:
    return [part.tolist() for part in row.split(window)]


def every_gradient(loss: torch.Tensor, model) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(model.backbone.parameters())))


SETTINGS = {
    "longer-memory": (11, {}),
    "memory-of-one-window": (WINDOW, {}),
    "shorter-memory": (4, {}),
    "clamped": (11, {"clamp_len": 5}),
    "same-length": (11, {"same_length": True}),
    "same-length-shorter-than-the-window": (4, {"same_length": True, "clamp_len": 3}),
}


@pytest.mark.parametrize("stopped", [False, True], ids=["differentiable", "stopped"])
@pytest.mark.parametrize(("memory", "changes"), SETTINGS.values(), ids=SETTINGS.keys())
@pytest.mark.sampled(3)
@pytest.mark.quick_sampled(6)
def test_it_is_the_reference(memory, changes, stopped):
    """Outputs, memory and all gradients over four segments."""
    model = xl(memory=memory, **changes)
    oracle = TransformerXL(model.backbone)
    ids = tokens(2, 3 * WINDOW + 2)
    ours = model(ids, horizon=1 if stopped else None)
    weight = torch.randn(ours.logits.shape, generator=torch.Generator().manual_seed(0)).double()
    read = [oracle.read(segments(row), memory, stop_gradient=stopped) for row in ids]
    torch.testing.assert_close(ours.logits, torch.stack([said for said, _ in read]), **EXACT)
    for row, (_, kept) in enumerate(read):
        for layer in range(LAYERS):
            found = ours.state.tensors[f"layer.{layer}"][row]
            torch.testing.assert_close(found, kept[layer], **EXACT)
    theirs = torch.stack([said for said, _ in read])
    for mine, other in zip(
        every_gradient((weight * ours.logits).sum(), model),
        every_gradient((weight * theirs).sum(), model),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, **EXACT)
        assert other.abs().sum() > 0


@pytest.mark.parametrize("same_length", [False, True])
def test_rows_of_any_length_are_the_reference(same_length):
    """Padding is never read, places of the memory that hold nothing are hidden."""
    model = xl(memory=9, same_length=same_length)
    oracle = TransformerXL(model.backbone)
    lengths = [20, 3, 13, 7]
    ids = tokens(4, 20)
    mask = torch.arange(20) < torch.tensor(lengths)[:, None]
    out = model(ids, attention_mask=mask.long())
    more = tokens(4, WINDOW + 1, 5)
    again = model(more, state=out.state)
    assert out.state.tensors["filled"].tolist() == [9, 3, 9, 7]
    for row, length in enumerate(lengths):
        cut = [*segments(ids[row, :length]), *segments(more[row])]
        said, kept = oracle.read(cut, 9)
        ours = torch.cat([out.logits[row, :length], again.logits[row]])
        torch.testing.assert_close(ours, said, **EXACT)
        filled = again.state.tensors["filled"][row]
        for layer in range(LAYERS):
            torch.testing.assert_close(
                again.state.tensors[f"layer.{layer}"][row, 9 - filled :], kept[layer], **EXACT
            )


def test_rows_that_forget_are_the_reference():
    model = xl(memory=8)
    oracle = TransformerXL(model.backbone)
    ids, more = tokens(3, 2 * WINDOW), tokens(3, WINDOW + 2, 5)
    state = model(ids).state.reset(torch.tensor([False, True, False]))
    said = model(more, state=state).logits
    for row, cut in enumerate((segments(ids[0]), [], segments(ids[2]))):
        expected, _ = oracle.read([*cut, *segments(more[row])], 8)
        torch.testing.assert_close(said[row], expected[-more.shape[1] :], **EXACT)


@pytest.mark.parametrize("window", [3, 7, 14])
def test_with_a_memory_of_everything_segments_are_one(window):
    """However a text is cut; with gradients through the memory these are the same too."""
    ids = tokens(2, 28)
    whole = xl(window=28, memory=28)
    cut = xl(window=window, memory=28)
    losses = [model(ids, labels=ids).loss for model in (whole, cut)]
    torch.testing.assert_close(outputs_of(cut, ids), outputs_of(whole, ids), **EXACT)
    torch.testing.assert_close(losses[1], losses[0], **EXACT)
    for mine, other in zip(
        every_gradient(losses[1], cut), every_gradient(losses[0], whole), strict=True
    ):
        torch.testing.assert_close(mine, other, **EXACT)
    stopped = cut(ids, labels=ids, horizon=1).loss
    torch.testing.assert_close(stopped, losses[0], **EXACT)


def test_the_state_is_detached_where_asked():
    model = attach(build("holdover_xl"), carry="memory", detach_state=True)
    state = model(tokens(1, 20)).state
    assert not any(tensor.requires_grad for tensor in state.tensors.values())


@pytest.mark.parametrize("memory", [3, 10])
def test_nothing_sees_a_later_token_or_more_than_the_memory(memory):
    """With one layer the reach of a position is its memory, exactly; padding reaches nobody."""
    model = xl(window=5, memory=memory, n_layer=1)
    ids = tokens(1, 25)
    before = outputs_of(model, ids)[0]
    for position in range(25):
        changed = ids.clone()
        changed[0, position] = (changed[0, position] + 7) % 50 + 5
        differs = (outputs_of(model, changed)[0] != before).any(-1)
        for other in range(25):
            begins = other - other % 5
            assert bool(differs[other]) == (begins - memory <= position <= other), (position, other)


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("older", [0, 1, 5, 16])
@pytest.mark.parametrize("clamp", [None, 4])
def test_the_bias_is_a_score_for_every_distance(length, older, clamp):
    """Against scores computed one by one; its gradients too, through the softmax that follows."""
    keys, width = older + length, 6
    torch.manual_seed(0)
    query = torch.randn(2, length, 3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(width, 12, dtype=torch.float64, requires_grad=True)
    hidden = hidden_keys(length, keys, None, None, query.device)

    def ours():
        distances = column_distances(keys, clamp, query.device, torch.float64)
        places = (sinusoids(distances, width) @ weight).unflatten(-1, (3, 4))
        return position_bias(query, places, hidden)

    def theirs():
        rows = []
        for i in range(length):
            row = []
            for j in range(keys):
                distance = torch.tensor([min(max(older + i - j, 0), clamp or keys)]).double()
                place = (sinusoids(distance, width) @ weight).view(3, 4)
                score = (query[:, i] * place).sum(-1)
                row.append(score if j <= older + i else torch.full_like(score, -math.inf))
            rows.append(torch.stack(row, -1))
        return torch.stack(rows, -2)

    target = torch.randn(2, 3, length, keys, dtype=torch.float64)
    found = []
    for scores in (ours(), theirs()):
        loss = (scores.softmax(-1) * target).sum()
        found.append((scores.detach(), *torch.autograd.grad(loss, (query, weight))))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


def test_sines_stand_in_front_of_cosines():
    table = sinusoids(torch.tensor([0.0, 3.0]), 4)
    expected = [[0, 0, 1, 1], [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]]
    torch.testing.assert_close(table, torch.tensor(expected, dtype=torch.float32))


@pytest.mark.parametrize(
    ("layers", "symbols", "count"),
    [(12, 204, 41_055_436), (14, 204, 47_880_396), (14, 27, 47_789_595)],
)
def test_the_original_sizes_have_the_original_parameters(layers, symbols, count):
    with torch.device("meta"):
        model = TransformerXLForCausalLM(TransformerXLConfig(n_layer=layers, vocab_size=symbols))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_weights_begin_as_in_the_original():
    torch.manual_seed(0)
    config = TransformerXLConfig(n_layer=1, d_model=256, d_inner=512, n_head=16, d_head=32)
    model = TransformerXLForCausalLM(config)
    for name, parameter in model.named_parameters():
        mean, spread = parameter.mean().item(), parameter.std().item()
        if "norm.weight" in name:
            assert mean == pytest.approx(1, abs=5e-3)
            assert spread == pytest.approx(0.02, rel=0.2)
        elif parameter.ndim == 1:
            assert mean == spread == 0, name
        else:
            assert spread == pytest.approx(0.02, rel=0.1), name
    assert model.lm_head.weight is model.transformer.embedding.weight


def test_dropout_is_drawn_where_the_original_draws_it():
    model = build("holdover_xl", dropout=0.5).train()
    places = model.transformer.places(torch.zeros(1, 4, 32), 8)
    share = (places.columns == 0).float().mean()
    assert 0.3 < share < 0.7
    ids = tokens(1, 12)
    assert not torch.equal(model(ids).logits, model(ids).logits)
    steady = build("holdover_xl", dropout=0.0, dropatt=0.5).train()
    assert not torch.equal(steady(ids).logits, steady(ids).logits)


@pytest.mark.parametrize("memory", [4, 9, 15])
@pytest.mark.parametrize(
    "changes", [{}, {"same_length": True, "clamp_len": 5}], ids=["plain", "eval"]
)
@pytest.mark.parametrize("overlap", [0, 2])
def test_streamed_is_re_fed(memory, changes, overlap):
    """Piece by piece through windows, the memory's keys computed once for each window."""
    model = attach(
        build("holdover_xl", **changes), carry="memory", memory_length=memory, overlap=overlap
    )
    ids = tokens(2, 9 + 3 * (9 - overlap))
    whole = model(ids)
    state, logits, start = None, [], 0
    seen = []
    handle = model.backbone.transformer.layers[0].attention.key_value.register_forward_hook(
        lambda module, args, output: seen.append(args[0].shape[1])
    )
    while start < ids.shape[1]:
        window = model.open_window(state, rows=2)
        for piece in (1, 3, 1, 1, 3):
            taken = min(piece, window.room - window.length)
            if taken:
                logits.append(window.feed(ids[:, start : start + taken]))
                start += taken
        state = window.close()
    handle.remove()
    assert sum(seen) == 4 * 9 + 3 * memory
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits, **CLOSE)
    for key, tensor in whole.state.tensors.items():
        torch.testing.assert_close(state.tensors[key], tensor, **CLOSE)


@pytest.mark.parametrize("beams", [1, 3])
def test_generated_is_re_fed(beams):
    """Past many windows, texts of different lengths side by side, rows taken in another order."""
    model = attach(build("holdover_xl"), carry="memory", memory_length=12)
    prompt, mask = tokens(2, 13), torch.ones(2, 13, dtype=torch.long)
    mask[1, :4] = 0
    written = model.generate(
        prompt,
        attention_mask=mask,
        max_new_tokens=30,
        do_sample=False,
        num_beams=beams,
        eos_token_id=None,
        pad_token_id=0,
    )
    alone = [
        model.generate(
            row[kept.bool()][None],
            max_new_tokens=30,
            do_sample=False,
            num_beams=beams,
            eos_token_id=None,
            pad_token_id=0,
        )[0, -30:]
        for row, kept in zip(prompt, mask, strict=True)
    ]
    assert torch.equal(written[:, -30:], torch.stack(alone))
    if beams == 1:
        for row, kept in zip(written, mask, strict=True):
            text = row[int((kept == 0).sum()) :][None]
            again = outputs_of(model, text[:, :-1])[:, -30:].argmax(-1)
            assert torch.equal(again[0], text[0, -30:])


def test_a_window_that_repeats_rows_goes_on_from_each():
    model = attach(build("holdover_xl"), carry="memory")
    state = model(tokens(2, 14)).state
    ids = tokens(2, 9, 5)
    window = model.open_window(state)
    window.take_rows(torch.tensor([1, 0, 1]))
    chosen = ids[[1, 0, 1]]
    logits = [window.feed(chosen[:, :4])]
    window.take_rows(torch.tensor([2, 1]))
    logits = [logits[0][[2, 1]], window.feed(chosen[[2, 1], 4:])]
    whole = model(ids, state=state)
    torch.testing.assert_close(torch.cat(logits, 1), whole.logits[[1, 0]], **CLOSE)
    for key, tensor in window.close().tensors.items():
        torch.testing.assert_close(tensor, whole.state.tensors[key][[1, 0]], **CLOSE)


def test_the_plain_model_generates_with_a_cache_of_its_own():
    """Without a recurrence it is a decoder whose context is everything."""
    model = build("holdover_xl")
    prompt = tokens(2, 7)
    written = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None)
    with torch.no_grad():
        again = model(written[:, :-1]).logits[:, 6:].argmax(-1)
    assert torch.equal(again, written[:, 7:])
    padded = torch.cat([torch.zeros_like(prompt[:, :3]), prompt], 1)
    mask = torch.cat([torch.zeros_like(prompt[:, :3]), torch.ones_like(prompt)], 1)
    with torch.no_grad():
        theirs = model(padded, attention_mask=mask).logits[:, 3:]
        torch.testing.assert_close(theirs, model(prompt).logits, **CLOSE)
        # The first token has nothing but padding in front of it.
        ignored = torch.where(mask.cumsum(1) < 2, -100, padded)
        loss = model(padded, attention_mask=mask, labels=ignored).loss
    expected = torch.nn.functional.cross_entropy(
        theirs[:, :-1].flatten(0, 1), prompt[:, 1:].flatten()
    )
    torch.testing.assert_close(loss, expected, **CLOSE)


def test_evaluation_settings_of_the_original():
    """Short windows behind a long memory, clamped, as many keys for every query."""
    model = xl(window=8, memory=8)
    ids = tokens(1, 30)
    config = model.backbone.config
    outside = model(ids)
    with model.reading(window=4, memory_length=14):
        config.clamp_len, config.same_length = 6, True
        inside = model(ids)
        assert inside.state.tensors["layer.0"].shape[1] == 14
        said, kept = TransformerXL(model.backbone).read(segments(ids[0], 4), 14)
        config.clamp_len, config.same_length = None, False
    torch.testing.assert_close(inside.logits[0], said, **EXACT)
    torch.testing.assert_close(inside.state.tensors["layer.2"][0], kept[2], **EXACT)
    assert torch.equal(model(ids).logits, outside.logits)
    with pytest.raises(ValueError, match="does not belong to this model: memory_length is 14"):
        model(ids, state=inside.state)
    with model.reading(window=4):
        # A window that was chosen shorter does not shorten the memory.
        assert model(ids).state.tensors["layer.0"].shape[1] == 8
    plain = xl(carry="none").reading(memory_length=9)
    with pytest.raises(ValueError, match="memory_length=9 has no effect with carry='none'"), plain:
        pass


def test_saved_and_opened_through_auto_classes(tmp_path):
    base = build("holdover_xl", clamp_len=7)
    ids = tokens(1, 20)
    with torch.no_grad():
        expected = base(ids).logits
    base.save_pretrained(tmp_path / "plain")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "plain")
    assert type(again) is TransformerXLForCausalLM
    assert again.config.clamp_len == 7
    with torch.no_grad():
        assert torch.equal(again(ids).logits, expected)
    model = attach(again, carry="memory", memory_length=5)
    model.save_pretrained(tmp_path / "recurrent")
    loaded = holdover.RecurrentModel.from_pretrained(tmp_path / "recurrent")
    assert torch.equal(outputs_of(loaded, ids), outputs_of(model, ids))
    assert loaded.settings.memory_length == 5


# Dynamo warns of its own ways of tracing autograd functions.
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("memory", [5, 16])
def test_compiled_steps_are_the_same(memory):
    """Without a graph break, forward and backward."""
    torch._dynamo.reset()
    found = []
    ids = tokens(2, 40)
    for compiled in (False, True):
        model = attach(build("holdover_xl"), window=8, carry="memory", memory_length=memory)
        if compiled:
            model.compile_step(backend="aot_eager")
        out = model(ids, labels=ids)
        found.append((out.loss, *every_gradient(out.loss, model)))
    for mine, other in zip(*found, strict=True):
        torch.testing.assert_close(mine, other, **CLOSE)


def test_half_precision_and_autocast_read_the_same_memory():
    ids = tokens(2, 30)
    model = attach(build("holdover_xl"), carry="memory")
    exact = outputs_of(model, ids)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = model(ids, labels=ids, return_logits=True)
    mixed.loss.backward()
    assert all(parameter.grad is not None for parameter in model.backbone.parameters())
    half = outputs_of(model.to(torch.bfloat16), ids)
    for logits in (mixed.logits, half):
        assert (logits.float() - exact).abs().mean() < 0.1 * exact.abs().mean()


class Recurring(torch.nn.Module):
    """Another attention in the same model: half softmax, half a sum that decays with the distance."""

    def __init__(self, config):
        super().__init__()
        self.softmax = SoftmaxAttend(config)
        self.decay = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, query, key, value, scores, unseen):
        length, keys = query.shape[2], key.shape[2]
        lag = torch.arange(keys - length, keys)[:, None] - torch.arange(keys)
        weights = torch.where(lag > 0, self.decay ** lag.clamp(min=1), 0.0)
        if unseen is not None:
            value = value.masked_fill(unseen[:, None, :, None], 0.0)
        return (self.softmax(query, key, value, scores, unseen) + weights @ value) / 2


def test_another_attention_is_composed(monkeypatch):
    """It knows every key's distance and which keys hold nothing: all that a memory promises holds."""
    monkeypatch.setitem(ATTENTIONS, "recurring", Recurring)
    whole, cut = (xl(window=w, memory=28, attention="recurring") for w in (28, 7))
    ids = tokens(2, 28)
    losses = [model(ids, labels=ids).loss for model in (whole, cut)]
    torch.testing.assert_close(losses[1], losses[0], **EXACT)
    for mine, other in zip(
        every_gradient(losses[1], cut), every_gradient(losses[0], whole), strict=True
    ):
        torch.testing.assert_close(mine, other, **EXACT)
    plain = xl(window=7, memory=28)
    more = [m.backbone.num_parameters() for m in (cut, plain)]
    assert more[0] - more[1] == LAYERS
    window = cut.open_window(cut(ids[:, :14]).state)
    pieces = [window.feed(piece) for piece in ids[:, 14:21].split(3, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), outputs_of(whole, ids)[:, 14:21], **EXACT)


def test_refusals():
    for changes, words in (
        ({"d_model": 7}, "d_model=7 must be even"),
        ({"n_layer": 0}, "n_layer=0 must be a whole number of at least 1"),
        ({"clamp_len": 0}, "clamp_len=0 must be at least 1"),
        ({"attention": "rotary"}, "attention='rotary' is unknown for Transformer-XL"),
    ):
        with pytest.raises(ValueError, match=words):
            TransformerXLForCausalLM(TransformerXLConfig(**{"d_model": 8, "n_layer": 1, **changes}))


def test_trained_and_evaluated_from_the_command_line(tmp_path):
    shape = "n_layer=2,d_model=16,n_head=2,d_head=8,d_inner=32,dropout=0.0"
    run = train(
        tmp_path,
        model="holdover_xl",
        shape=shape,
        recurrence="memory",
        windows=1,
        max_steps=30,
        lr=1e-2,
    )
    losses = losses_of(run)
    assert losses[-1] < losses[0] - 0.5
    given = {"model": run, "data": tmp_path / "text.txt", "output": tmp_path / "eval"}
    given |= {"cache-dir": tmp_path / "cache", "device": "cpu", "window": 4}
    flags = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    assert cli.main(["eval", *flags, "--no-plots"]) == 0
    record = json.loads((tmp_path / "eval" / "eval.json").read_text())
    assert record["model"]["recurrence"]["carry"] == "memory"
    perplexities = {}
    for memory in (2, 40):
        assert cli.main(["eval", *flags, "--no-plots", "--memory-length", str(memory)]) == 0
        (row,) = json.loads((tmp_path / "eval" / "eval.json").read_text())["rows"]
        assert row["memory_length"] == memory
        perplexities[memory] = row["perplexity_per_token"]
    assert perplexities[2] != perplexities[40]
