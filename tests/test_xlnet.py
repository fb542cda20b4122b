"""XLNet through its own memory: the same as handing its `mems` on by hand."""

import pytest
import torch

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
