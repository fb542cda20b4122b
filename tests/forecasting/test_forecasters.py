"""The simple forecasters against hand computations, and the table of all forecasters."""

import pytest
import torch
from transformers import AutoConfig, AutoModel

from holdover.forecasting.models.baselines import DLinear, LSTMForecaster, Repeat, SeasonalRepeat
from holdover.forecasting.models.registry import FORECASTERS

SIZES = {"enc_in": 3, "dec_in": 3, "c_out": 2, "seq_len": 10, "label_len": 4, "pred_len": 7}


def build(cls, **changes):
    torch.manual_seed(0)
    return cls(cls.config_class(**{**SIZES, "time_features": 2, **changes})).double().eval()


def series(batch=2, steps=10, channels=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, steps, channels, generator=generator).double()


VALUES, MARKS, FUTURE = series(), series(channels=2), series(steps=7, channels=2)


def test_the_table():
    assert list(FORECASTERS) == ["informer", "dlinear", "lstm", "repeat", "seasonal"]


@torch.no_grad()
def test_repeat_says_the_last_value_of_the_last_channels():
    found = build(Repeat).forecast(VALUES, MARKS, FUTURE)
    for step in range(7):
        assert torch.equal(found[:, step], VALUES[:, 9, 1:])


@torch.no_grad()
@pytest.mark.parametrize("period", [1, 3, 7, 10])
def test_seasonal_repeat_says_the_value_one_period_earlier(period):
    found = build(SeasonalRepeat, period=period).forecast(VALUES, MARKS, FUTURE)
    known = list(VALUES[:, :, 1:].unbind(1))
    for step in range(7):
        known.append(known[len(known) - period])
        assert torch.equal(found[:, step], known[-1])


@torch.no_grad()
@pytest.mark.parametrize("individual", [False, True])
@pytest.mark.parametrize("average", [1, 5, 25])
def test_dlinear_maps_the_trend_and_the_rest(individual, average):
    model = build(DLinear, individual=individual, moving_average=average)
    found = model.forecast(VALUES, MARKS, FUTURE)
    for row in range(2):
        for channel in range(2):
            own = channel if individual else 0
            past = VALUES[row, :, 1 + channel].tolist()
            trend = []
            for step in range(10):
                near = range(step - average // 2, step + average // 2 + 1)
                trend.append(sum(past[min(max(t, 0), 9)] for t in near) / average)
            for step in range(7):
                expected = model.trend.bias[own, step] + model.season.bias[own, step]
                for t in range(10):
                    expected += model.trend.weight[own, step, t] * trend[t]
                    expected += model.season.weight[own, step, t] * (past[t] - trend[t])
                torch.testing.assert_close(found[row, step, channel], expected)
    assert sum(x.numel() for x in model.parameters()) == (1 + individual) * 2 * (10 * 7 + 7)


@torch.no_grad()
def test_dlinear_with_the_maps_of_repeat_is_repeat():
    model = build(DLinear, moving_average=5)
    for part in (model.trend, model.season):
        part.weight.zero_()
        part.weight[:, :, -1] = 1
        part.bias.zero_()
    found = model.forecast(VALUES, MARKS, FUTURE)
    torch.testing.assert_close(found, build(Repeat).forecast(VALUES, MARKS, FUTURE))


@torch.no_grad()
def test_lstm_reads_values_and_marks_step_by_step():
    model = build(LSTMForecaster, hidden_size=5)
    found = model.forecast(VALUES, MARKS, FUTURE)
    weights = dict(model.lstm.named_parameters())
    for row in range(2):
        hidden = cell = torch.zeros(5).double()
        for step in range(10):
            x = torch.cat([VALUES[row, step], MARKS[row, step]])
            gates = weights["weight_ih_l0"] @ x + weights["bias_ih_l0"]
            gates = gates + weights["weight_hh_l0"] @ hidden + weights["bias_hh_l0"]
            keep_in, keep, new, out = gates.split(5)
            cell = keep.sigmoid() * cell + keep_in.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
        expected = model.projection.weight @ hidden + model.projection.bias
        torch.testing.assert_close(found[row], expected.reshape(7, 2))


@torch.no_grad()
@pytest.mark.parametrize("name", FORECASTERS)
def test_all_have_one_call_and_are_saved_and_opened_again(name, tmp_path):
    small = {"d_model": 8, "n_heads": 2, "d_ff": 8, "rsa": True, "rem_counts": (1, 0, 0, 0, 0, 0)}
    own = {"informer": {**small, "rem_dilations": ()}, "seasonal": {"period": 4}}.get(name, {})
    model = build(FORECASTERS[name], **own)
    decoder_values = torch.cat([VALUES[:, -4:], torch.zeros(2, 7, 3).double()], 1)
    decoder_marks = torch.cat([MARKS[:, -4:], FUTURE], 1)
    found = model(VALUES, MARKS, decoder_values, decoder_marks).forecast
    assert found.shape == (2, 7, 2)
    assert torch.equal(model.forecast(VALUES, MARKS, FUTURE), found)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    again = AutoModel.from_pretrained(tmp_path, dtype=torch.float64)
    assert type(again) is FORECASTERS[name]
    assert type(AutoConfig.from_pretrained(tmp_path)) is FORECASTERS[name].config_class
    assert torch.equal(again.forecast(VALUES, MARKS, FUTURE), found)


@pytest.mark.parametrize("name", ["dlinear", "lstm"])
def test_those_with_weights_learn(name):
    model = build(FORECASTERS[name]).train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(30):
        loss = (model(VALUES, MARKS).forecast - FUTURE).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize(
    ("cls", "changes", "words"),
    [
        (SeasonalRepeat, {"period": 11}, "period=11 must be at most seq_len=10"),
        (SeasonalRepeat, {"period": 0}, "period=0 must be a whole number of at least 1"),
        (DLinear, {"moving_average": 4}, "moving_average=4 must be odd"),
        (DLinear, {"c_out": 4}, "c_out=4 must be at most enc_in=3"),
        (Repeat, {"c_out": 4}, "c_out=4 must be at most enc_in=3"),
        (LSTMForecaster, {"hidden_size": 0}, "hidden_size=0 must be a whole number"),
        (LSTMForecaster, {"dropout": 1}, "dropout=1 must be a number of at least 0"),
        (Repeat, {"label_len": 11}, "label_len=11 must be at most seq_len=10"),
    ],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(cls, changes, words):
    with pytest.raises(ValueError, match=words):
        build(cls, **changes)


def test_inputs_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"marks has the shape \[2, 10, 1\]"):
        build(Repeat)(VALUES, MARKS[:, :, 1:])
    with pytest.raises(ValueError, match=r"future_marks has the shape \[2, 5, 2\]"):
        build(DLinear).forecast(VALUES, MARKS, FUTURE[:, 2:])
