"""Laws that hold for every backbone and every mechanism option: adding a row adds its tests."""

import copy

import pytest
import torch

import holdover
from contract_grid import (
    FOURTH,
    GRID,
    LAWS,
    OPTIONS,
    REACHING,
    WINDOW,
    combinations,
    law,
)
from holdover import BACKBONES, CARRIES
from holdover.windows import IGNORED
from tiny import (
    BLOCKS,
    CONFIGS,
    DECODERS,
    LAYERS,
    ROWS,
    attach,
    build,
    outputs_of,
    tokens,
)

READ_LEFT_TO_RIGHT = (*DECODERS, BLOCKS, "xlnet")
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


def carries(options) -> bool:
    return options.get("carry") != "none"


def gradients(model, loss):
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.autograd.grad(loss, parameters, allow_unused=True)


def assert_same_gradients(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


def test_every_row_has_a_tiny_configuration():
    assert set(CONFIGS) == set(ROWS)


def test_every_choice_of_every_option_is_in_the_grid():
    from typing import Literal, get_args, get_origin, get_type_hints

    from holdover.carries.kinds import KIND_SETTINGS
    from holdover.config import RecurrenceConfig

    hints: dict = {}
    for settings in (*KIND_SETTINGS.values(), RecurrenceConfig):
        hints |= get_type_hints(settings)
    CHOICES = {name: get_args(kind) for name, kind in hints.items() if get_origin(kind) is Literal}

    default = holdover.RecurrenceConfig().to_dict()
    # Recomputing and truncation are laws of their own below.
    for field in set(CHOICES) - {"recompute"}:
        used = {options.get(field, default[field]) for options in OPTIONS.values()}
        assert used >= set(CHOICES[field]) - {"per_window"}, field
    assert {options.get("carry", "pooled") for options in OPTIONS.values()} == set(CARRIES)


@law()
def test_disabled_and_removed_are_the_stock_model_bit_for_bit(name, options):
    base = build(name)
    ids = tokens(2, 21)
    with torch.no_grad():
        stock = base(ids).logits
    before = {key: value.clone() for key, value in base.state_dict().items()}
    hooks = count_hooks(base)
    model = attach(base, **options)
    outputs_of(model, ids)
    with model.disable_recurrence(), torch.no_grad():
        assert torch.equal(model(ids).logits, stock)
    assert not carries(options) or not torch.equal(outputs_of(model, ids), stock)
    back = holdover.remove_recurrence(model)
    assert back is base
    assert count_hooks(base) == hooks
    assert not any({"forward", "_attn"} & set(vars(module)) for module in base.modules())
    after = base.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    with torch.no_grad():
        assert torch.equal(base(ids).logits, stock)


def count_hooks(model) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@law()
def test_rows_without_a_past_read_as_if_nothing_was_carried(name, options):
    model = attach(build(name), **options)
    first, second = tokens(2, WINDOW, 3), tokens(2, WINDOW, 4)
    state = model(first).state
    forgotten = state.reset(torch.tensor([True, True]))
    fresh = outputs_of(model, second)
    torch.testing.assert_close(outputs_of(model, second, state=forgotten), fresh, **CLOSE)
    # One row forgets, the other does not.
    half = outputs_of(model, second, state=state.reset(torch.tensor([True, False])))
    whole = outputs_of(model, second, state=state)
    torch.testing.assert_close(half[0], fresh[0], **CLOSE)
    torch.testing.assert_close(half[1], whole[1], **CLOSE)
    if carries(options):
        assert not torch.allclose(whole, fresh, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", BACKBONES)
def test_a_masked_state_gives_the_stock_models_logits(name):
    base = build(name)
    ids = tokens(2, WINDOW)
    model = attach(base)
    state = model(tokens(2, WINDOW, 7)).state.reset(torch.ones(2, dtype=torch.bool))
    ours = outputs_of(model, ids, state=state)
    if name == "xlnet":
        # Its stock call is bidirectional; next-token reading is compared with the stock call below.
        theirs = stock_xlnet_next_token(base, model, ids)
    else:
        holdover.remove_recurrence(model)
        with torch.no_grad():
            theirs = base(ids).logits
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-5)


def stock_xlnet_next_token(base, model, ids):
    """Token by token, as XLNet's own documentation predicts a next token."""
    logits = []
    with model.disable_recurrence(), torch.no_grad():
        for end in range(1, ids.shape[1] + 1):
            asked = torch.cat([ids[:, :end], torch.zeros_like(ids[:, :1])], 1)
            hidden = torch.ones(end + 1, end + 1).triu().expand(len(ids), -1, -1)
            target = torch.zeros(len(ids), 1, end + 1)
            target[:, 0, -1] = 1
            logits.append(model.backbone(asked, perm_mask=hidden, target_mapping=target).logits)
    return torch.cat(logits, 1)


@pytest.mark.parametrize("insert_layer", [1, 2, LAYERS, "all"])
@pytest.mark.parametrize("name", BACKBONES)
def test_the_state_reaches_every_query_of_the_layers_from_insert_layer_on(name, insert_layer):
    model = attach(build(name), insert_layer=insert_layer, window=20)
    ids = tokens(1, 20)
    states = [model(tokens(1, 20, seed)).state for seed in (5, 6)]
    with torch.no_grad():
        one, other = (model(ids, state=s, output_hidden_states=True).hidden_states for s in states)
    first_reached = 1 if insert_layer == "all" else insert_layer
    for layer in range(LAYERS + 1):
        same = (one[layer] == other[layer]).all(-1)
        if layer < first_reached:
            assert same.all(), layer
        else:
            # Also beyond sliding and local windows.
            assert not same.any(), layer


@law()
def test_the_past_acts_only_through_the_state(name, options):
    model = attach(build(name), **options)
    overlap = options.get("overlap", 0)
    ids = tokens(1, 2 * WINDOW - overlap)
    changed = ids.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 50 + 5
    later = slice(WINDOW, None)
    whole = outputs_of(model, ids)
    if carries(options):
        assert not torch.allclose(outputs_of(model, changed)[:, later], whole[:, later], atol=1e-5)
    # The same second window after another first one, given the state of the original.
    state = model(ids[:, :WINDOW]).state
    given = outputs_of(model, ids[:, WINDOW:], state=state)
    torch.testing.assert_close(given, whole[:, later], **CLOSE)
    if not carries(options):
        assert torch.allclose(outputs_of(model, changed)[:, later], whole[:, later], **CLOSE)


@law(READ_LEFT_TO_RIGHT)
def test_no_output_sees_a_later_token(name, options):
    model = attach(build(name), **options)
    ids = tokens(1, 25)
    before = outputs_of(model, ids)
    for position in (0, 4, WINDOW - 1, WINDOW, 17, 24):
        changed = ids.clone()
        changed[0, position] = (changed[0, position] + 7) % 50 + 5
        after = outputs_of(model, changed)
        assert torch.equal(after[:, :position], before[:, :position]), position
        assert not torch.equal(after[:, position], before[:, position]), position


@law()
def test_two_calls_are_one(name, options):
    model = attach(build(name), **options)
    overlap = options.get("overlap", 0)
    boundary = WINDOW + (WINDOW - overlap)
    ids = tokens(2, boundary + 13)
    whole = model(ids)
    first = model(ids[:, :boundary])
    second = model(ids[:, boundary:], state=first.state)
    kept = boundary
    if not ROWS[name].causal and name != "xlnet" and overlap:
        # Bidirectional models return a position from the window that centres it, which a call that
        # ends there cannot wait for.
        kept = boundary - overlap
        torch.testing.assert_close(first.logits[:, :kept], whole.logits[:, :kept], **CLOSE)
    else:
        torch.testing.assert_close(first.logits, whole.logits[:, :boundary], **CLOSE)
    torch.testing.assert_close(
        second.logits[:, overlap:], whole.logits[:, boundary + overlap :], **CLOSE
    )
    for key, tensor in whole.state.tensors.items():
        torch.testing.assert_close(second.state.tensors[key], tensor, **CLOSE)


@law()
@torch.no_grad()
def test_rows_are_independent_of_each_other_and_of_padding(name, options):
    model = attach(build(name), **options)
    lengths = [23, 9, 14, 2]
    rows = [tokens(1, length, seed) for seed, length in enumerate(lengths)]
    alone = [model(row) for row in rows]
    for side in ("left", "right"):
        for filler in (0, 7):
            ids = torch.full((len(rows), max(lengths)), filler)
            mask = torch.zeros_like(ids)
            for index, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                place = slice(0, length) if side == "right" else slice(max(lengths) - length, None)
                ids[index, place] = row
                mask[index, place] = 1
            together = model(ids, attention_mask=mask)
            for index, single in enumerate(alone):
                ours = together.logits[index][mask[index].bool()]
                torch.testing.assert_close(ours, single.logits[0], **CLOSE)
                for key, tensor in single.state.tensors.items():
                    torch.testing.assert_close(
                        together.state.tensors[key][index : index + 1], tensor, **CLOSE
                    )


@law()
@torch.no_grad()
def test_each_row_resets_where_its_own_documents_end(name, options):
    model = attach(build(name), **options)
    documents = [[11, 5, 12], [19, 9], [28]]
    ids = tokens(3, 28)
    starts = torch.zeros(3, 28, dtype=torch.bool)
    pieces = []
    for row, lengths in enumerate(documents):
        begin = 0
        for length in lengths:
            starts[row, begin] = True
            pieces.append((row, begin, begin + length))
            begin += length
    # A start on the padding in front of a document is its start.
    padded = model(
        torch.cat([ids[:1, :2] * 0, ids[:1]], 1),
        attention_mask=torch.tensor([[0, 0] + [1] * 28]),
        document_starts=torch.tensor([[True] + [False] * 29]),
        state=model(tokens(1, WINDOW, 9)).state,
    )
    torch.testing.assert_close(padded.logits[:, 2:], model(ids[:1]).logits, **CLOSE)
    # A past that must not leak into documents that begin here.
    state = model(tokens(3, WINDOW, 9)).state
    together = model(ids, state=state, labels=ids, document_starts=starts, return_logits=True)
    sums = []
    for row, begin, end in pieces:
        piece = ids[row : row + 1, begin:end]
        alone = model(piece, labels=piece, return_logits=True)
        torch.testing.assert_close(together.logits[row, begin:end], alone.logits[0], **CLOSE)
        sums.append((end - begin - 1) * alone.loss)
    if name in READ_LEFT_TO_RIGHT:
        count = sum(end - begin - 1 for _, begin, end in pieces)
        torch.testing.assert_close(together.loss, sum(sums) / count, **CLOSE)


@law()
def test_recompute_changes_nothing(name, options):
    model = attach(build(name), **options)
    model.recurrence.requires_grad_(True)
    ids = tokens(2, 22)
    losses, states, found = [], [], []
    for mode in ("none", "window", "auto"):
        out = model(ids, labels=ids, recompute=mode)
        total = out.loss + sum(
            tensor.float().square().mean()
            for tensor in out.state.tensors.values()
            if tensor.numel()
        )
        losses.append(out.loss)
        states.append(out.state)
        found.append(gradients(model, total))
    for other in (1, 2):
        torch.testing.assert_close(losses[other], losses[0])
        assert_same_gradients(found[other], found[0])
        for key, tensor in states[0].tensors.items():
            torch.testing.assert_close(states[other].tensors[key], tensor)


@law()
def test_gradients_reach_every_added_parameter_and_no_frozen_one(name, options):
    model = attach(build(name), **options)
    model.freeze_base()
    ids = tokens(2, 3 * WINDOW)
    loss = model(ids, labels=ids).loss
    if not list(model.recurrence.parameters()):
        assert not loss.requires_grad
        return
    loss.backward()
    assert all(p.grad is None for p in model.backbone.parameters())
    for key, parameter in model.recurrence.named_parameters():
        assert parameter.grad is not None, key
        # One slot of a softmax over one thing has no slope.
        assert parameter.grad.abs().sum() > 0, key


# Batched lower layers embed all windows in one call, which this way of looking cannot tell apart.
# What a pooled state is made of is tried with one row.
CARRYING = [
    (name, label)
    for name, label in GRID
    if name in ("gpt2", "bert", "xlnet", "holdover_xl", BLOCKS)
    and (name in ("gpt2", BLOCKS) or label in (*REACHING, "pooled", "short-memory"))
    and carries(OPTIONS[label])
    and OPTIONS[label].get("lower_layers") != "batched"
]


@combinations(CARRYING)
@pytest.mark.parametrize("recompute", ["none", "window"])
def test_the_gradient_stops_exactly_at_the_horizon(name, options, recompute):
    model = attach(build(name), **{**options, "overlap": 0})
    ids = tokens(1, 5 * WINDOW)
    for horizon, scored, reached in ((None, 4, 0), (2, 4, 4), (2, 3, 2), (3, 4, 3), (1, 4, 4)):
        embedded: list[torch.Tensor] = []
        handle = record_outputs(model.get_input_embeddings(), embedded)
        labels = torch.full_like(ids, IGNORED)
        labels[:, scored * WINDOW : (scored + 1) * WINDOW] = ids[
            :, scored * WINDOW : (scored + 1) * WINDOW
        ]
        aligned = {"labels" if name == "bert" else "shift_labels": labels}
        out = model(ids, **aligned, horizon=horizon, recompute=recompute)
        handle.remove()
        found = torch.autograd.grad(out.loss, embedded, allow_unused=True)
        if options.get("carry") == "memory":
            # A memory of layer inputs reaches one window further back with every layer.
            reached = max(reached, scored - LAYERS)
        for number, gradient in enumerate(found):
            flows = gradient is not None and bool(gradient.abs().sum() > 0)
            assert flows == (reached <= number <= scored), (horizon, scored, number)


def record_outputs(module, found):
    def record(module, args, output):
        found.append(output.requires_grad_())

    return module.register_forward_hook(record)


@law()
@torch.no_grad()
def test_saved_and_loaded_is_the_same_model(name, options, tmp_path):
    model = attach(build(name), **options)
    ids = tokens(2, 20)
    state = model(tokens(2, WINDOW, 8)).state
    model.save_pretrained(tmp_path / "model")
    state.save(tmp_path / "book.state")
    again = holdover.RecurrentModel.from_pretrained(tmp_path / "model")
    loaded = holdover.State.load(tmp_path / "book.state")
    ours, theirs = model.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[key]) for key, tensor in ours.items())
    torch.testing.assert_close(
        outputs_of(again, ids, state=loaded), outputs_of(model, ids, state=state), **CLOSE
    )
    assert loaded.nbytes == state.nbytes


@law()
@torch.no_grad()
def test_texts_of_any_length_are_windows_one_after_the_other(name, options):
    model = attach(build(name), **options)
    overlap = options.get("overlap", 0)
    centred = not ROWS[name].causal and name != "xlnet"
    for length in (1, 2, WINDOW - 1, WINDOW, WINDOW + 1, 32):
        ids = tokens(1, length)
        whole = model(ids)
        assert whole.logits.shape[1] == length
        state, parts = None, []
        for span in holdover.cut(length, WINDOW, overlap, centred=centred):
            window = holdover.Window(ids[:, span.start : span.stop])
            output, state = model.step(window, state)
            parts.append(
                output["logits"][:, span.keep_start - span.start : span.keep_stop - span.start]
            )
        torch.testing.assert_close(whole.logits, torch.cat(parts, 1), **CLOSE)
        for key, tensor in whole.state.tensors.items():
            torch.testing.assert_close(state.tensors[key], tensor, **CLOSE)


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "xlnet"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
@torch.no_grad()
def test_lower_layers_may_run_first_for_windows_of_any_shape(name, pooling):
    """Documents of one row that end inside windows, and hidden states that are asked for."""
    ids = tokens(1, 40)
    starts = torch.zeros_like(ids, dtype=torch.bool)
    starts[0, [5, 14, 28]] = True
    found = []
    for choice in ("per_window", "batched"):
        model = attach(build(name), lower_layers=choice, insert_layer=3, pooling=pooling)
        out = model(ids, document_starts=starts, output_hidden_states=choice == "batched")
        again = model(ids, document_starts=starts)
        torch.testing.assert_close(again.logits, out.logits, **CLOSE)
        found.append((again, model(ids, output_hidden_states=True).hidden_states))
    (one, hidden), (other, other_hidden) = found
    torch.testing.assert_close(other.logits, one.logits, **CLOSE)
    torch.testing.assert_close(
        other.state.tensors["summary"], one.state.tensors["summary"], **CLOSE
    )
    for ours, theirs in zip(hidden, other_hidden, strict=True):
        torch.testing.assert_close(ours, theirs, **CLOSE)


@pytest.mark.parametrize("name", [name for name in BACKBONES if name != "xlnet"])
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_lower_layers_may_run_first_for_padded_windows(name, pooling):
    """Rows of uneven lengths: the layers below see no padding, and pool none."""
    ids = tokens(3, 40)
    mask = torch.arange(40) < torch.tensor([40, 23, 31])[:, None]
    found = []
    for choice in ("per_window", "batched"):
        model = attach(build(name), lower_layers=choice, insert_layer=3, pooling=pooling)
        out = model(ids, attention_mask=mask.long(), labels=ids)
        found.append((out, gradients(model, out.loss)))
    (one, its), (other, others) = found
    torch.testing.assert_close(other.loss, one.loss, **CLOSE)
    torch.testing.assert_close(
        other.state.tensors["summary"], one.state.tensors["summary"], **CLOSE
    )
    assert_same_gradients(others, its)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama"])
@pytest.mark.parametrize("mode", ["train", "backbone alone"])
def test_recompute_draws_the_same_dropout(name, mode):
    dropout = {"attention_dropout": 0.3} if name == "llama" else {}
    model = attach(build(name, **dropout))
    (model if mode == "train" else model.backbone).train()
    ids = tokens(2, 22)
    found = []
    for recompute in ("none", "window", "auto"):
        torch.manual_seed(3)
        found.append(gradients(model, model(ids, labels=ids, recompute=recompute).loss))
    assert_same_gradients(found[1], found[0])
    assert_same_gradients(found[2], found[0])


@pytest.mark.parametrize("name", BACKBONES)
def test_a_copy_is_a_model_of_its_own(name):
    model = attach(build(name))
    ids = tokens(1, 20)
    expected = outputs_of(model, ids)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(outputs_of(twin, ids), expected)
    assert not torch.equal(outputs_of(model, ids), expected)


@pytest.mark.parametrize("name", DECODERS)
def test_the_attention_of_a_live_model_can_be_changed(name):
    model = attach(build(name))
    ids = tokens(1, 25)
    before = outputs_of(model, ids)
    model.backbone.set_attn_implementation("eager")
    torch.testing.assert_close(outputs_of(model, ids), before, rtol=1e-3, atol=5e-4)


@pytest.mark.parametrize("name", [n for n in BACKBONES if n not in ("gpt_neo", "mpnet", "xlnet")])
def test_eager_attention_agrees_with_fused_attention(name):
    found = []
    for implementation in ("sdpa", "eager"):
        base = build(name)
        base.set_attn_implementation(implementation)
        model = attach(base, slots=2)
        ids, mask = tokens(2, 25), torch.ones(2, 25, dtype=torch.long)
        mask[1, 20:] = 0
        plain = outputs_of(model, ids)
        padded = outputs_of(model, ids, attention_mask=mask) * mask[..., None]
        found.append((plain, padded))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=5e-4)


def test_every_two_of_rows_options_and_laws_meet():
    assert len(LAWS) > FOURTH
    assert {pair for pairs in LAWS for pair in pairs} == set(GRID)
    for pairs in LAWS:
        rows, labels = ({pair[place] for pair in pairs} for place in (0, 1))
        assert labels == set(OPTIONS)
        assert rows == set(ROWS) or rows == set(READ_LEFT_TO_RIGHT)
