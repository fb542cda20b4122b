"""`check_carry` passes right kinds and refuses broken ones with the law they break."""

from dataclasses import replace

import pytest
import torch

import holdover
from carried_kinds import KeyValueTail
from holdover.carries.base import CarryInputs, expand_present
from holdover.carries.pooled import PooledCarry
from holdover.testing import CarryLawError, check_carry


def test_keys_and_values_through_the_cache_pass():
    assert len(check_carry(KeyValueTail)) == 13


@pytest.mark.parametrize("kind", ["pooled", "tokens"])
def test_our_own_kinds_pass(kind):
    check_carry(holdover.CARRIES[kind])


class IgnoresPadding(PooledCarry):
    def observe(self, trace, layer, hidden):
        part = hidden if not trace.whole else hidden.mean(1, keepdim=True)
        trace.partial = part if trace.partial is None else trace.partial + part


class DeclaresAnotherShape(PooledCarry):
    def state_shapes(self, window):
        return {"summary": (2, self.dims.hidden)}


class KeepsStateOnTheModule(PooledCarry):
    last = None

    def read(self, trace):
        return CarryInputs() if trace.carried is None else CarryInputs(rows=self.map(self.last))

    def write(self, trace):
        written = super().write(trace)
        self.last = written["summary"].detach()
        return written


class DoesNothing(PooledCarry):
    def read(self, trace):
        return CarryInputs()


class MixesRows(PooledCarry):
    def write(self, trace):
        summary = super().write(trace)["summary"]
        return {"summary": summary.mean(0, keepdim=True).expand_as(summary).clone()}


class CutsTheGraph(PooledCarry):
    def write(self, trace):
        return {name: tensor.detach() for name, tensor in super().write(trace).items()}


class ForgetsNothing(PooledCarry):
    """Reads a state of zeros as a past, where the row has none."""

    def read(self, trace):
        if trace.carried is None:
            return CarryInputs()
        return CarryInputs(rows=self.map(trace.carried["summary"]))


class PoolsPieces(PooledCarry):
    """Pools every piece of a window that is read token by token."""

    def write(self, trace):
        if trace.whole:
            return super().write(trace)
        return {"summary": trace.partial[:, -1:]}


class LosesItsWeights(PooledCarry):
    def __init__(self, config, dims):
        super().__init__(config, dims)
        self.scale = [torch.rand(dims.hidden) + 1]

    def read(self, trace):
        inputs = super().read(trace)
        return inputs if inputs.rows is None else replace(inputs, rows=inputs.rows * self.scale[0])


class DrawsAtRandom(PooledCarry):
    def write(self, trace):
        summary = super().write(trace)["summary"]
        return {"summary": summary + torch.randn_like(summary)}


BROKEN = {
    IgnoresPadding: "padding is nothing",
    DeclaresAnotherShape: "the state is what it declares",
    KeepsStateOnTheModule: "nothing stays in the module",
    DoesNothing: "the state reaches the next window",
    MixesRows: "rows do not mix",
    CutsTheGraph: "gradients flow to the horizon",
    ForgetsNothing: "a reset row forgets",
    PoolsPieces: "in pieces as in one",
    LosesItsWeights: "saved and loaded",
    DrawsAtRandom: "a later token changes nothing before it",
}


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_broken_kind_is_refused_with_its_law(kind):
    with pytest.raises(CarryLawError) as refused:
        check_carry(kind)
    assert refused.value.law == BROKEN[kind]
    assert kind.__name__ in str(refused.value)


def test_a_registered_kind_works_by_name(tmp_path):
    from holdover.testing import tiny_decoder

    holdover.register_carry("kv_tail", KeyValueTail)
    try:
        config = holdover.RecurrenceConfig(window=6, carry="kv_tail", tail=3)
        assert config.tail == 3 and config.to_dict()["tail"] == 3
        model = holdover.add_recurrence(tiny_decoder(), config).eval()
        ids = torch.arange(5, 25)[None]
        model.save_pretrained(tmp_path)
        again = holdover.RecurrentModel.from_pretrained(tmp_path).eval()
        assert torch.equal(again(ids).logits, model(ids).logits)
        assert model.generate(ids, max_new_tokens=9, do_sample=False).shape == (1, 29)
        with pytest.raises(ValueError, match="is KeyValueTail already"):
            holdover.register_carry("kv_tail", PooledCarry)
    finally:
        from holdover.carries.kinds import KIND_SETTINGS

        del holdover.CARRIES["kv_tail"], KIND_SETTINGS["kv_tail"]
    with pytest.raises(ValueError, match=r"is not a kind of state.*register_carry"):
        holdover.RecurrenceConfig(carry="kv_tail")


def test_carried_keys_are_what_full_attention_sees():
    """Oracle: the stock model run once over the text, each token seeing its own window and the tail."""
    from holdover.testing import tiny_decoder

    holdover.register_carry("kv_oracle", KeyValueTail)
    try:
        window, tail = 6, 4
        config = holdover.RecurrenceConfig(window=window, carry="kv_oracle", tail=tail)
        ids = torch.randint(5, 60, (2, 4 * window), generator=torch.Generator().manual_seed(0))
        place = torch.arange(ids.shape[1])
        begins = place // window * window
        seen = (place[None] <= place[:, None]) & (place[None] >= begins[:, None] - tail)
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            # A position sees the same tail only if that tail saw no further back: one window at a time.
            stock = tiny_decoder()
            first = stock(
                ids[:, : 2 * window], attention_mask=mask[..., : 2 * window, : 2 * window]
            )
            model = holdover.add_recurrence(tiny_decoder(), config).eval()
            found = model(ids[:, : 2 * window]).logits
        torch.testing.assert_close(found, first.logits, rtol=1e-4, atol=1e-5)
    finally:
        from holdover.carries.kinds import KIND_SETTINGS

        del holdover.CARRIES["kv_oracle"], KIND_SETTINGS["kv_oracle"]


def test_a_name_must_be_a_kind():
    with pytest.raises(TypeError, match=r"takes a subclass of holdover\.Carry"):
        holdover.register_carry("mine", dict)
    with pytest.raises(ValueError, match="cannot name a kind"):
        holdover.register_carry("my kind", PooledCarry)


def test_expanding_presence():
    present = torch.tensor([True, False])
    assert expand_present(present, torch.zeros(2, 3, 4)).shape == (2, 1, 1)
