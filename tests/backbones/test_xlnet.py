"""XLNet: its own memory is that of `mems` handed on by hand; its scores are stock XLNet's."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.xlnet.modeling_xlnet import XLNetRelativeAttention

import holdover
from holdover.backbones.xlnet import scores_by_key
from tiny import LAYERS, attach, build, tokens

WINDOW = 9


@pytest.mark.parametrize("length", [WINDOW, 5, 20])
@pytest.mark.parametrize("task", ["bare", "token-classification"])
def test_carried_memory_is_stock_memory(task, length):
    base = build("xlnet", task, mem_len=length)
    ids = tokens(2, 4 * WINDOW)
    mems, expected = None, []
    with torch.no_grad():
        for part in ids.split(WINDOW, 1):
            stock = base(part, mems=mems, use_mems=True)
            mems = stock.mems
            expected.append(stock[0])
    model = attach(base, carry="memory", memory_length=length)
    with torch.no_grad():
        out = model(ids)
    ours = out.last_hidden_state if task == "bare" else out.logits
    torch.testing.assert_close(ours, torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
    for layer in range(LAYERS):
        kept = out.state.tensors[f"layer.{layer}"]
        torch.testing.assert_close(kept, mems[layer].transpose(0, 1), rtol=1e-4, atol=1e-4)
    assert out.state.tensors["filled"].tolist() == [min(length, 4 * WINDOW)] * 2


def test_carried_memory_has_gradients_where_stock_memory_has_none():
    base = build("xlnet")
    model = attach(base, carry="memory")
    ids = tokens(1, 2 * WINDOW)
    labels = ids.clone()
    labels[:, : WINDOW + 1] = -100
    found = {}
    for horizon in (None, 1):
        embedded = []
        handle = model.get_input_embeddings().register_forward_hook(
            lambda module, args, output, embedded=embedded: embedded.append(output)
        )
        loss = model(ids, labels=labels, horizon=horizon).loss
        handle.remove()
        found[horizon] = torch.autograd.grad(loss, embedded, allow_unused=True)[0]
    assert found[None].abs().sum() > 0
    assert found[1] is None or found[1].abs().sum() == 0


@pytest.mark.parametrize("older", [0, 1, 7])
@pytest.mark.parametrize("queries", [1, 2, 5])
def test_scores_by_key_are_those_of_stock(queries, older):
    keys = queries + older
    scores = torch.randn(2, 3, queries, keys + queries, requires_grad=True)
    found, gradients = [], []
    for shift in (scores_by_key, XLNetRelativeAttention.rel_shift_bnij):
        found.append(shift(scores, klen=keys))
        weights = torch.arange(found[-1].numel()).view_as(found[-1]).float()
        gradients += torch.autograd.grad((found[-1] * weights).sum(), scores)
    assert found[0].shape == (2, 3, queries, keys)
    assert torch.equal(*found) and torch.equal(*gradients)


def test_stock_attention_is_left_as_it_was():
    base = build("xlnet")
    stock = [dict(vars(layer.rel_attn)) for layer in base.base_model.layer]
    model = attach(base, carry="memory")
    assert all(layer.rel_attn.rel_shift_bnij is scores_by_key for layer in base.base_model.layer)
    left = holdover.remove_recurrence(model)
    for layer, before in zip(left.base_model.layer, stock, strict=True):
        assert vars(layer.rel_attn).keys() == before.keys()


class Called(TorchDispatchMode):
    """Names of the operations inside."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("carry", ["none", "pooled", "memory"])
def test_gradients_of_scores_are_not_added_up_by_index(carry):
    """Compiled for a GPU, each number of such a sum is an operation that others wait for."""
    base, ids = build("xlnet"), tokens(2, 2 * WINDOW)
    loss = {}
    loss["stock"] = base(ids, labels=ids).loss
    loss["ours"] = attach(base, carry=carry)(ids, labels=ids).loss
    found = {}
    for name, value in loss.items():
        with Called() as called:
            value.backward()
        found[name] = {one for one in called.names if "index_add" in one}
    assert found["stock"] and not found["ours"]
