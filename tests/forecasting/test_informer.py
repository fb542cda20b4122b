"""Informer and RSA-Informer against plain loops, and their further properties."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModel

import reference.informer as slow
from holdover.forecasting.models import informer_attention
from holdover.forecasting.models.informer import Distilling, Informer, SeriesEmbedding
from holdover.forecasting.models.informer_attention import ProbSparse, how_many, self_attention
from holdover.forecasting.models.informer_config import InformerConfig, encoder_lengths
from holdover.ops.rem import rem

SIZES = {
    "enc_in": 3,
    "dec_in": 3,
    "c_out": 2,
    "seq_len": 21,
    "label_len": 2,
    "pred_len": 11,
    "time_features": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 20,
    "factor": 1,
    "dropout": 0.0,
}
RSA = {"rsa": True, "rem_counts": (0, 1, 1, 1, 0, 0), "rem_dilations": (2,)}
EXACT = {"rtol": 1e-9, "atol": 1e-10}


def informer(**changes) -> Informer:
    torch.manual_seed(0)
    return Informer(InformerConfig(**{**SIZES, **changes})).double()


def inputs(config, batch=3, seed=1):
    generator = torch.Generator().manual_seed(seed)
    steps = config.label_len + config.pred_len
    shapes = (
        (config.seq_len, config.enc_in),
        (config.seq_len, config.time_features),
        (steps, config.dec_in),
        (steps, config.time_features),
    )
    return [torch.randn(batch, *shape, generator=generator).double() for shape in shapes]


def drawn_by(generator, config):
    """The samples of each layer, one list per query, as the model draws them."""
    lengths = encoder_lengths(config) + [config.label_len + config.pred_len] * config.d_layers
    for length in lengths:
        shape = (length, slow.how_many(config.factor, length))
        yield torch.randint(length, shape, generator=generator).tolist()


def both(model, batch, seed=3):
    """Forecasts and all gradients of the model and of the loops, with the same samples."""
    found = []
    for read in (fast_forecast, slow_forecast):
        forecast = read(model, batch, torch.Generator().manual_seed(seed))
        direction = torch.randn(forecast.shape, generator=torch.Generator().manual_seed(9)).double()
        gradients = torch.autograd.grad((forecast * direction).sum(), list(model.parameters()))
        found.append((forecast, gradients))
    return found


def fast_forecast(model, batch, generator):
    model.draw_from(generator)
    return model(*batch).forecast


def slow_forecast(model, batch, generator):
    return slow.Informer(model).forward(*batch, drawn_by(generator, model.config))


def assert_same(model, batch):
    (forecast, gradients), (expected, slow_gradients) = both(model, batch)
    torch.testing.assert_close(forecast, expected, **EXACT)
    names = [name for name, _ in model.named_parameters()]
    for name, one, other in zip(names, gradients, slow_gradients, strict=True):
        torch.testing.assert_close(one, other, **EXACT, msg=lambda text, name=name: name + text)
        # A softmax ignores a constant added to all keys, and a batch norm subtracts a bias.
        if not name.endswith(("key.bias", "conv.bias")):
            assert other.abs().sum() > 0, name


@pytest.mark.parametrize("distil", [True, False])
@pytest.mark.parametrize("attention", ["prob", "full"])
@pytest.mark.parametrize("recurrence", [{}, RSA], ids=["plain", "rsa"])
@pytest.mark.sampled(2)
def test_it_is_the_loops(recurrence, attention, distil):
    """In training mode, with batch statistics: forecasts and all gradients."""
    model = informer(attention=attention, distil=distil, **recurrence).train()
    assert_same(model, inputs(model.config))


@pytest.mark.parametrize(
    "changes",
    [
        {**RSA, "lazy_rem": True},
        {**RSA, "rem_truncate": 4, "mix": False},
        {"rsa": True, "rem_counts": (1, 0, 1, 0, 2, 0), "rem_dilations": (3, 2)},
        {"seq_len": 16, "label_len": 0, "e_layers": 3, "d_layers": 2, "time_features": 0},
        {"factor": 5, "activation": "relu", "e_layers": 1, **RSA},
    ],
    ids=["lazy", "truncated", "all-heads", "deep", "everything-attends"],
)
def test_options_are_the_loops(changes):
    model = informer(**changes).train()
    assert_same(model, inputs(model.config, batch=2))


@torch.no_grad()
@pytest.mark.parametrize("attention", ["prob", "full"])
def test_in_evaluation_the_norms_are_the_running_ones(attention):
    model = informer(attention=attention, **RSA).train()
    batch = inputs(model.config)
    model(*batch)
    model.eval()
    lengths = [*encoder_lengths(model.config), 13]
    keys = (
        torch.randint(
            length,
            (length, how_many(1, length)),
            generator=informer_attention.evaluation_generator(0, length),
        ).tolist()
        for length in lengths
    )
    expected = slow.Informer(model).forward(*batch, keys)
    torch.testing.assert_close(model(*batch).forecast, expected, **EXACT)


def test_the_rows_of_a_recurrence_are_those_of_the_queries_that_attend(monkeypatch):
    """The check fails if the first rows are taken instead, as in a published reproduction."""
    model = informer(**RSA).train()
    batch = inputs(model.config)
    assert_same(model, batch)
    by_rows = informer_attention.rem

    def first_rows(kernel, queries, rows):
        return by_rows(kernel, queries, rows=torch.arange(rows.shape[2]).expand_as(rows))

    monkeypatch.setattr(informer_attention, "rem", first_rows)
    with pytest.raises(AssertionError):
        assert_same(model, batch)


@torch.no_grad()
@pytest.mark.parametrize("steps", [3, 4, 9])
def test_parts_are_the_loops(steps):
    torch.manual_seed(0)
    config = InformerConfig(**SIZES)
    hidden, values, marks = (torch.randn(2, steps, width).double() for width in (16, 3, 2))
    embedding = SeriesEmbedding(3, config).double()
    weights = {f"e.{name}": tensor for name, tensor in embedding.named_parameters()}
    for row in range(2):
        expected = slow.embed(values[row], marks[row], weights, "e")
        torch.testing.assert_close(embedding(values, marks)[row], expected, **EXACT)
    halving = Distilling(16).double()
    tensors = [*halving.named_parameters(), *halving.named_buffers()]
    weights = {f"d.{name}": tensor.clone() for name, tensor in tensors}
    expected = torch.stack(slow.distil(list(hidden), weights, "d", training=True))
    assert expected.shape == (2, -(-steps // 2), 16)
    torch.testing.assert_close(halving(hidden), expected, **EXACT)


def test_how_many_queries_attend():
    found = {length: how_many(5, length) for length in (2, 3, 15, 48, 96, 168, 336, 720)}
    assert found == {2: 2, 3: 3, 15: 15, 48: 20, 96: 25, 168: 30, 336: 30, 720: 35}
    assert all(slow.how_many(5, length) == count for length, count in found.items())


# ---- who sees whom


def reach(attention, hidden) -> torch.Tensor:
    """[T, T] bool: whether the result at one step changes smoothly with the input of another."""
    jacobian = torch.autograd.functional.jacobian(lambda x: attention(x[None])[0].sum(1), hidden[0])
    return jacobian.abs().sum(2) > 1e-12


def decoder_attention(**changes):
    model = informer(**{**RSA, **changes}).eval()
    hidden = torch.randn(1, 13, 16, generator=torch.Generator().manual_seed(2)).double()
    return model.decoder[0].attention, hidden


@pytest.mark.parametrize("attention", ["full", "prob"])
def test_masked_attention_reads_no_later_step(attention):
    """Without mix. The selection of ProbSparse is fixed, because a choice has no gradient."""
    masked, hidden = decoder_attention(attention=attention, mix=False)
    assert not reach(masked, hidden).triu(1).any()
    assert reach(masked, hidden).tril().sum() > 13


@torch.no_grad()
def test_in_full_nothing_at_all_comes_from_later_steps():
    masked, hidden = decoder_attention(attention="full", mix=False)
    before = masked(hidden)
    for step in range(1, 13):
        changed = hidden.clone()
        changed[:, step:] += 5 * torch.randn_like(changed[:, step:])
        torch.testing.assert_close(masked(changed)[:, :step], before[:, :step], **EXACT)


@torch.no_grad()
def test_which_queries_attend_depends_on_later_steps(monkeypatch):
    """As published, the measure reads sampled keys at any step. With a fixed choice nothing does."""
    masked, hidden = decoder_attention(attention="prob", mix=False)
    changed = hidden.clone()
    changed[:, 7:] *= 20
    chosen = []
    choose = informer_attention.select_queries
    monkeypatch.setattr(
        informer_attention,
        "select_queries",
        lambda *arguments: chosen.append(choose(*arguments)) or chosen[-1],
    )
    before, after = masked(hidden), masked(changed)
    assert not torch.equal(chosen[0].sort().values, chosen[1].sort().values)
    assert (before - after)[:, :7].abs().max() > 1e-3
    monkeypatch.setattr(informer_attention, "select_queries", lambda *arguments: chosen[0])
    torch.testing.assert_close(masked(changed)[:, :7], before[:, :7], **EXACT)


@torch.no_grad()
def test_where_all_queries_attend_it_is_full_attention():
    sparse, hidden = decoder_attention(attention="prob", factor=5)
    full, _ = decoder_attention(attention="full")
    full.load_state_dict(
        {name.replace("encoding", "rsa.encoding"): x for name, x in sparse.state_dict().items()}
    )
    torch.testing.assert_close(sparse(hidden), full(hidden), **EXACT)


def test_mixed_heads_hold_later_steps():
    """As published: row t of 13 holds pieces 4 t .. 4 t + 3 of 4 heads of 13 steps each."""
    masked, hidden = decoder_attention(attention="full", mix=True)
    seen = reach(masked, hidden)
    for step in range(13):
        latest = max((4 * step + piece) % 13 for piece in range(4))
        assert seen[step].nonzero().max() == latest


@pytest.mark.parametrize(("mix", "silent"), [(True, [0, 1]), (False, [])])
def test_mixed_heads_in_front_have_no_part_in_the_forecast(mix, silent):
    """Rows 8 to 13 of 14 begin with piece 32 of 4 x 14: the last four steps of the third head."""
    model = informer(label_len=8, pred_len=6, mix=mix).train()
    model(*inputs(model.config)).forecast.sum().backward()
    of_heads = model.decoder[0].attention.value.weight.grad.unflatten(0, (4, 4)).abs().sum((1, 2))
    assert (of_heads == 0).nonzero().flatten().tolist() == silent


@torch.no_grad()
@pytest.mark.parametrize("attention", ["full", "prob"])
def test_a_forecast_knows_what_was_observed_and_the_calendar_alone(attention):
    """The decoder reads zeros as values of the steps to forecast; their marks are known."""
    model = informer(attention=attention, **RSA).eval()
    values, marks, decoder_values, decoder_marks = inputs(model.config)
    decoder_values[:, :2] = values[:, -2:]
    decoder_values[:, 2:] = 0
    decoder_marks[:, :2] = marks[:, -2:]
    expected = model(values, marks, decoder_values, decoder_marks).forecast
    assert expected.shape == (3, 11, 2)
    assert torch.equal(model.forecast(values, marks, decoder_marks[:, 2:]), expected)


# ---- sampling


@torch.no_grad()
def test_evaluation_draws_the_same_whatever_came_before():
    model = informer(**RSA).eval()
    batch = inputs(model.config)
    first = model(*batch).forecast
    torch.rand(5)
    assert torch.equal(model(*batch).forecast, first)
    alone = model(*[x[1:2] for x in batch]).forecast
    torch.testing.assert_close(alone, first[1:2], **EXACT)
    model.config.sample_seed = 1
    assert not torch.equal(model(*batch).forecast, first)


@torch.no_grad()
def test_training_draws_anew():
    model = informer(distil=False).train()
    batch = inputs(model.config)
    assert not torch.equal(model(*batch).forecast, model(*batch).forecast)
    found = []
    for _ in range(2):
        torch.manual_seed(4)
        found.append(model(*batch).forecast)
    assert torch.equal(*found)


# ---- sizes, parameters, memory


def count(model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("e_layers", "d_layers"), [(2, 1), (3, 2)])
def test_the_published_sizes(e_layers, d_layers):
    with torch.device("meta"):
        config = InformerConfig(e_layers=e_layers, d_layers=d_layers)
        plain = Informer(config)
        recurrent = Informer(InformerConfig(e_layers=e_layers, d_layers=d_layers, rsa=True))
    width, inner, channels, marks = 512, 2048, 7, 4
    norm = 2 * width
    attention = 4 * (width * width + width)
    mapped = 2 * width * inner + inner + width
    embedding = (3 * channels + 1) * width + (marks + 1) * width
    halving = 3 * width * width + width + norm
    expected = 2 * embedding + 2 * norm + width * channels + channels
    expected += e_layers * (attention + mapped + 2 * norm) + (e_layers - 1) * halving
    expected += d_layers * (2 * attention + mapped + 3 * norm)
    assert count(plain) == expected
    # Four pairs of a rate and an angle, and one gate, for each layer; none in cross-attention.
    assert count(recurrent) - expected == 9 * (e_layers + d_layers)


@pytest.mark.parametrize("attention", ["prob", "full"])
def test_the_recurrence_learns(attention):
    model = informer(attention=attention, **RSA).train()
    own = {name: x for name, x in model.named_parameters() if ".encoding." in name}
    assert len(own) == 3 * 4
    before = {name: x.detach().clone() for name, x in own.items()}
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    model(*inputs(model.config)).forecast.square().mean().backward()
    optimiser.step()
    for name, parameter in own.items():
        assert parameter.grad is not None and parameter.grad.abs().min() > 0, name
        assert (parameter != before[name]).all(), name


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"attention": "full"}, {"lazy_rem": True}], ids=str)
def test_closed_gates_leave_informer(changes):
    model = informer(**{**RSA, **changes}, rem_gate=-800.0).eval()
    plain = informer(attention=changes.get("attention", "prob")).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    batch = inputs(model.config)
    assert torch.equal(model(*batch).forecast, plain(*batch).forecast)


class Made(TorchDispatchMode):
    """The number of elements of the largest tensor that an operation creates."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                size = tensor.untyped_storage().nbytes() // tensor.element_size()
                self.elements = max(self.elements, size)
        return output


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_no_square_is_made(masked, lazy):
    """Neither the recurrence nor the selection: the rows of attending queries are the largest."""
    length = 720
    config = InformerConfig(**{**SIZES, **RSA, "factor": 5, "lazy_rem": lazy})
    attention = self_attention(config, masked)
    hidden = torch.randn(1, length, 16)
    with Made() as made:
        attention(hidden).sum().backward()
    assert made.elements <= 4 * how_many(5, length) * length
    assert made.elements < length**2


@torch.no_grad()
def test_a_square_would_be_seen(monkeypatch):
    def cut_from_the_square(kernel, length, rows):
        return rem(kernel, length)[:, : rows.shape[2]]

    monkeypatch.setattr(informer_attention, "rem", cut_from_the_square)
    config = InformerConfig(**{**SIZES, **RSA, "factor": 5})
    attention = self_attention(config, masked=True)
    with Made() as made:
        attention(torch.randn(1, 720, 16))
    assert made.elements >= 720**2


# ---- saving, lengths, refusals


@torch.no_grad()
@pytest.mark.parametrize("recurrence", [{}, RSA], ids=["plain", "rsa"])
def test_saved_and_opened_again(tmp_path, recurrence):
    model = informer(**recurrence).train()
    batch = inputs(model.config)
    model(*batch)
    for parameter in model.parameters():
        parameter.add_(0.01)
    model.eval().save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert isinstance(again, Informer) and not again.training
    assert isinstance(AutoConfig.from_pretrained(tmp_path), InformerConfig)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    torch.testing.assert_close(again(*batch).forecast, model(*batch).forecast, **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("seq_len", [3, 5, 7, 12, 33])
@pytest.mark.parametrize("attention", ["prob", "full"])
def test_odd_lengths(seq_len, attention):
    model = informer(
        seq_len=seq_len, label_len=min(seq_len, 4), pred_len=5, attention=attention, **RSA
    ).eval()
    assert model(*inputs(model.config)).forecast.shape == (3, 5, 2)
    assert model.encode(*inputs(model.config)[:2]).shape[1] == -(-seq_len // 2)


@torch.no_grad()
@pytest.mark.parametrize("changes", [RSA, {**RSA, "lazy_rem": True}], ids=["rows", "lazy"])
def test_half_precision_is_near_single(changes):
    model = informer(**changes).float().eval()
    batch = [x.float() for x in inputs(model.config)]
    expected = model(*batch).forecast
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = model(*batch).forecast
    assert found.dtype == torch.bfloat16
    assert (found - expected).abs().mean() < 0.2 * expected.abs().mean()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seq_len": 2, "label_len": 2}, "seq_len=2 leaves 2 steps for a convolution over 3"),
        ({"seq_len": 8, "e_layers": 4}, "seq_len=8 leaves 2 steps"),
        ({"label_len": 0, "pred_len": 2}, "pred_len=2 leave fewer than 3 steps for the decoder"),
        ({"label_len": 30}, "label_len=30 must be at most seq_len=21"),
        ({"pred_len": 0}, "pred_len=0 must be a whole number of at least 1"),
        ({"d_model": 18}, "d_model=18 must be even and a multiple of n_heads=4"),
        (
            {"attention": "sparse"},
            "attention='sparse' is not a valid choice; use one of 'prob', 'full'",
        ),
        ({"activation": "elu"}, "activation='elu' is not a valid choice"),
        ({"dropout": 1.5}, "dropout=1.5 must be a number of at least 0"),
        ({"sample_seed": -1}, "sample_seed=-1 must be a whole number of at least 0"),
        ({"lazy_rem": True}, "lazy_rem=True needs rsa=True"),
        ({"rsa": True}, "asks for 8 heads with a recurrence, but n_heads=4"),
        ({"rsa": True, "rem_counts": 4}, "rem_counts=4 must be a list of whole numbers"),
        ({**RSA, "rem_dilations": ()}, "for each of the 1 dilated heads"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        informer(**changes)


def test_inputs_of_other_shapes_are_refused():
    model = informer().eval()
    values, marks, decoder_values, decoder_marks = inputs(model.config)
    with pytest.raises(
        ValueError, match=r"values has the shape \[3, 20, 3\], but .* expects \[3, 21, 3\]"
    ):
        model(values[:, 1:], marks, decoder_values, decoder_marks)
    with pytest.raises(ValueError, match="decoder_values is missing"):
        model(values, marks)
    with pytest.raises(ValueError, match=r"decoder_marks has the shape \[2, 13, 2\]"):
        model(values, marks, decoder_values, decoder_marks[1:])
    with pytest.raises(ValueError, match=r"future_marks has the shape \[3, 13, 2\]"):
        model.forecast(values, marks, decoder_marks)
    with pytest.raises(ValueError, match="dec_in=2 is not enc_in=3"):
        informer(dec_in=2).forecast(values, marks, decoder_marks[:, 2:])


def test_prob_sparse_drops_nothing():
    """Published: its dropout is declared and never used; full attention drops weights."""
    for attention, equal in (("prob", True), ("full", False)):
        config = InformerConfig(**{**SIZES, "dropout": 0.5, "attention": attention})
        attend = self_attention(config, masked=False).attend.train()
        if isinstance(attend, ProbSparse):
            attend.sample = lambda length, device: torch.arange(9).expand(9, 9)[:, :3]
        query = torch.randn(1, 4, 9, 4)
        assert torch.equal(attend(query, query, query), attend(query, query, query)) is equal
