"""RSA-XL: Transformer-XL with a recurrence in its attention, and every law of both."""

import pytest
import torch
from torch import nn

import holdover
from holdover.cli import entry as cli
from holdover.language.options import TrainOptions
from holdover.models.attend import ATTENTIONS
from holdover.models.transformer_xl import TransformerXLForCausalLM
from holdover.models.transformer_xl_config import TransformerXLConfig
from holdover.ops.relative_softmax import PositionScores
from holdover.training.optimizer import build_optimizer
from reference.rem import Head, matrix
from runs import losses_of, train
from tiny import attach, build, tokens

WINDOW = 6
RSA = {"attention": "rsa", "rem_counts": (1, 0, 0, 1, 1, 1), "rem_dilations": (2, 3, 2)}
EXACT = {"rtol": 1e-8, "atol": 1e-9}


def rsa_xl(window=WINDOW, memory=11, **changes):
    base = build("holdover_xl", **{**RSA, **changes}).double()
    return attach(base, window=window, carry="memory", memory_length=memory)


class ByTheMatrix(nn.Module):
    """The mixture entry by entry, with the weights of another attention of the same model."""

    def __init__(self, fast):
        super().__init__()
        self.encoding = fast.rsa.encoding

    def forward(self, query, key, value, scores, unseen):
        kernel, gate = self.encoding(), self.encoding.gate()
        by_content = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        weights = (by_content + scores.bias()).softmax(-1)
        outputs = []
        for number in range(query.shape[1]):
            mixed = weights[:, number]
            if number < len(kernel.dilations):
                head = Head(
                    self.encoding.kinds[number],
                    kernel.rate[number],
                    kernel.angle[number],
                    kernel.dilations[number],
                )
                lags = matrix(head, query.shape[2], key.shape[2])
                if unseen is not None:
                    lags = lags * (~unseen)[:, None].to(lags.dtype)
                mixed = (1 - gate) * mixed + gate * lags
            outputs.append(mixed @ value[:, number])
        return torch.stack(outputs, 1)


@pytest.mark.parametrize("memory", [4, 11])
def test_it_is_the_mixture_entry_by_entry(memory):
    """Outputs, memory and all gradients over four segments, the first of them without a past."""
    model = rsa_xl(memory=memory)
    ids = tokens(2, 3 * WINDOW + 2)

    def read():
        out = model(ids)
        weight = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(0)).double()
        gradients = torch.autograd.grad((weight * out.logits).sum(), list(model.parameters()))
        return out, gradients

    fast, gradients = read()
    for layer in model.backbone.transformer.layers:
        layer.attention.attend = ByTheMatrix(layer.attention.attend)
    slow, expected = read()
    torch.testing.assert_close(fast.logits, slow.logits, **EXACT)
    for name, tensor in slow.state.tensors.items():
        torch.testing.assert_close(fast.state.tensors[name], tensor, **EXACT)
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, **EXACT)
        assert other.abs().sum() > 0


@pytest.mark.parametrize(
    ("symbols", "layers", "count"),
    [(204, 14, 47_880_466), (27, 14, 47_789_665), (27, 12, 40_964_695), (27, 16, 54_614_635)],
)
def test_five_parameters_a_layer_are_added(symbols, layers, count):
    with torch.device("meta"):
        config = TransformerXLConfig(n_layer=layers, vocab_size=symbols, attention="rsa")
        model = TransformerXLForCausalLM(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_closed_gates_leave_transformer_xl():
    model = rsa_xl(rem_gate=-800.0)
    plain = attach(build("holdover_xl").double(), window=WINDOW, carry="memory", memory_length=11)
    plain.load_state_dict(model.state_dict(), strict=False)
    ids = tokens(2, 3 * WINDOW)
    torch.testing.assert_close(model(ids).logits, plain(ids).logits, rtol=0, atol=0)


@torch.no_grad()
def test_with_a_memory_of_everything_segments_are_one():
    model, ids = rsa_xl(memory=40).eval(), tokens(2, 4 * WINDOW)
    with model.reading(window=4 * WINDOW):
        whole = model(ids).logits
    torch.testing.assert_close(model(ids).logits, whole, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("memory", [4, 11])
def test_nothing_sees_a_later_token(memory):
    model, ids = rsa_xl(memory=memory).eval(), tokens(1, 4 * WINDOW)
    before = model(ids).logits
    for place in (0, WINDOW - 1, WINDOW, 2 * WINDOW + 3):
        changed = ids.clone()
        changed[0, place] = (ids[0, place] + 1) % 50 + 3
        after = model(changed).logits
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=0)
        assert not torch.equal(after[:, place], before[:, place])


@torch.no_grad()
def test_the_recurrence_knows_where_the_query_stands():
    """With gates wide open attention is the recurrence alone: equal rows would be equal outputs."""
    model = rsa_xl(rem_gate=800.0, rem_counts=(4, 0, 0, 0, 0, 0), rem_dilations=()).eval()
    kernel = model.backbone.transformer.layers[0].attention.attend.rsa.encoding()
    values = torch.randn(1, 4, 9, 8).double()
    attend = model.backbone.transformer.layers[0].attention.attend
    hidden = torch.zeros(1, 1, 9, 9, dtype=torch.bool)
    scores = PositionScores(values.transpose(1, 2), values.new_zeros(17, 4, 8), hidden, None, None)
    found = attend(values, values, values, scores, None)
    for head in range(4):
        rate = kernel.rate[head]
        for query in range(9):
            expected = sum(
                (rate ** (query - key) * values[0, head, key] for key in range(query)),
                torch.zeros(8).double(),
            )
            torch.testing.assert_close(found[0, head, query], expected, **EXACT)


@torch.no_grad()
def test_written_token_by_token_it_is_re_fed():
    model, text = rsa_xl(memory=8).eval(), tokens(2, 9)
    written = model.generate(text, max_new_tokens=20, do_sample=False, eos_token_id=None)
    for _ in range(20):
        text = torch.cat([text, model(text).logits[:, -1:].argmax(-1)], 1)
    assert torch.equal(written, text)


def test_saved_and_opened_again(tmp_path):
    model = rsa_xl()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(tmp_path)
    again = holdover.RecurrentModel.from_pretrained(tmp_path, dtype=torch.float64)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor, rtol=0, atol=0)


def test_too_many_heads_are_refused():
    with pytest.raises(ValueError, match="needs 6 heads"):
        build("holdover_xl", attention="rsa", rem_counts=(6, 0, 0, 0, 0, 0), rem_dilations=())
    assert set(ATTENTIONS) == {"relative", "rsa"}


def test_trained_from_the_command_line_all_its_parameters_move(tmp_path):
    shape = "n_layer=2,d_model=16,n_head=4,d_head=4,d_inner=24,dropout=0.0,attention=rsa"
    words = ["recurrence.memory_length=16", "recurrence.carry=memory"]
    run = train(tmp_path, *words, model="holdover_xl", shape=shape, max_steps=12, lr=5e-3)
    assert losses_of(run)[-1] < losses_of(run)[0]
    first, last = (
        holdover.RecurrentModel.from_pretrained(run / f"checkpoint-{step}") for step in (0, 12)
    )
    for name, tensor in first.state_dict().items():
        if ".encoding." in name:
            assert not torch.equal(tensor, last.state_dict()[name]), name
    words = ["eval", "--model", str(run), "--data", str(tmp_path / "text.txt"), "--device", "cpu"]
    words += ["--cache-dir", str(tmp_path / "cache"), "--output", str(tmp_path / "eval")]
    assert cli.main(words) == 0


def test_the_numbers_of_the_recurrence_learn_at_the_added_rate():
    rem = {"rem_counts": (0, 0, 0, 0, 1, 1), "rem_dilations": (2, 3)}
    model = attach(build("holdover_xl", attention="rsa", **rem), carry="memory", window=8)
    options = TrainOptions(model="a", data="b", learning_rate=1e-4, added_learning_rate=1e-2)
    peaks = {
        id(weight): group["peak"]
        for group in build_optimizer(model, options).param_groups
        for weight in group["params"]
    }
    by_name = {name: peaks[id(weight)] for name, weight in model.named_parameters()}
    fast = {name for name, peak in by_name.items() if peak == 1e-2}
    assert fast == {name for name in by_name if name.endswith((".nu", ".theta", ".mu"))}
    assert len(fast) == 3 * model.backbone.config.n_layer
