"""Replayed steps: what is recorded, what is replayed, and what is refused.

CUDA graphs need a GPU; here the recorder is a stand-in that, like torch's, owns the memory it reads and
writes, and calls what was recorded on it.
"""

import itertools
import traceback
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import masking_utils

from holdover.backbones.cuda_graphs import no_value_checks
from holdover.language import training as run
from holdover.language.options import TrainOptions
from holdover.language.replay import _Segment, form_of
from holdover.training.compile_checks import CompileMismatch
from holdover.training.replay import check_replay, check_replayed
from holdover.windows import Window
from runs import OtherGradient, command, losses_of, refusal, train
from tiny import BLOCKS, attach, build

WORDS = "A text of the same words again and again. "


@pytest.fixture
def replays(monkeypatch):
    """Trains on a CPU as if it could record; counts what is replayed."""
    counted, pools = [], []

    def another_pool():
        pools.append(object())
        return pools[-1]

    def record(module, given, allow_unused_input, pool):
        assert allow_unused_input and module.training
        # Both records of a run work in the same memory.
        assert pools and pool is pools[-1]
        held, read, written = given, module.forward, {}
        with torch.no_grad():
            read(*held)

        def replay(*tensors):
            counted.append(1)
            for place, tensor in zip(held, tensors, strict=True):
                assert place.shape == tensor.shape and place.dtype == tensor.dtype
                place.copy_(tensor)
            loss, *state = read(*held)
            # As a graph does: the memory of its results is always the same.
            for number, tensor in enumerate(state):
                written.setdefault(number, tensor.clone()).copy_(tensor)
            return loss, *written.values()

        return replay

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", another_pool)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(run, "check_replay", lambda *_: None)
    return counted


def as_shape(**values):
    return ",".join(f"{name}={value}" for name, value in values.items())


XL = as_shape(n_layer=2, d_model=16, n_head=2, d_head=8, d_inner=32, dropout=0.0)
MODELS = {
    "plain": {"recurrence": "none"},
    "pooled": {},
    "tokens": {"recurrence": "tokens", "overlap": 2},
    "xl": {"model": "holdover_xl", "recurrence": "memory", "shape": XL},
    "brt": {
        "model": "holdover_xl",
        "recurrence": "blocks",
        "shape": XL + ",recurrent_layers=[1],state_vectors=4",
    },
}


# Where masks are written out, dropout falls elsewhere.
DROPOUT = {"shape": as_shape(n_layer=2, n_embd=16, n_head=2, n_positions=32)}


def write_text(folder, documents):
    (folder / "text.txt").write_text(
        "".join(f"# {WORDS * (60 // documents)}\n" for _ in range(documents))
    )


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("documents", "bf16"), [(1, False), (12, False), (12, True)])
def test_a_replayed_run_is_the_run(model, documents, bf16, replays, tmp_path):
    """With ends of documents in every step or in none, from the first one on."""
    write_text(tmp_path, documents)
    settings = {**MODELS[model], "bf16": bf16}
    as_written = train(tmp_path, **settings)
    assert not replays
    again = train(tmp_path, replay=True, output=tmp_path / "replayed", **settings)
    # Every record was tried once before; without ends, the step that has no past goes as it was written.
    assert len(replays) == (9 + 1 if documents == 1 else 10 + 2)
    # Masks that hide nothing add in another order, and Adam enlarges that from step to step.
    assert losses_of(again) == pytest.approx(losses_of(as_written), rel=1e-3 if bf16 else 1e-4)


def test_dropout_is_that_of_the_run(replays, tmp_path):
    write_text(tmp_path, 1)
    as_written = train(tmp_path, **DROPOUT)
    again = train(tmp_path, replay=True, output=tmp_path / "replayed", **DROPOUT)
    assert len(replays) == 10 and losses_of(again) == losses_of(as_written)


def test_a_step_that_is_shorter_goes_as_it_was_written(replays, tmp_path):
    write_text(tmp_path, 1)
    settings = {"epochs": 2, "max_steps": None, "rows": 25}
    as_written = train(tmp_path, **settings)
    again = train(tmp_path, replay=True, output=tmp_path / "replayed", **settings)
    losses = losses_of(as_written)
    assert losses_of(again) == pytest.approx(losses, rel=1e-4)
    assert 0 < len(replays) - 1 < len(losses)


MANY_LAYERS = {**MODELS["xl"], "shape": XL.replace("n_layer=2", "n_layer=12")}


@pytest.mark.parametrize("model", [DROPOUT, MANY_LAYERS], ids=["dropout", "many layers"])
def test_a_run_that_is_continued_is_the_one_that_was_not_stopped(model, replays, tmp_path):
    """Also where a file's order of layers (1, 10, 11, 2) is not the model's."""
    write_text(tmp_path, 12)
    whole = train(tmp_path, replay=True, **model)
    given = {"replay": True, "output": tmp_path / "parts", **model}
    replays.clear()
    train(tmp_path, max_steps=5, **given)
    assert losses_of(train(tmp_path, resume=True, **given)) == losses_of(whole)
    # All ten steps, and what was tried before them, twice.
    assert len(replays) == 10 + 2 * 2


@pytest.mark.parametrize(("by_chance", "refused"), [(0.0, True), (0.05, False)])
def test_a_record_may_differ_as_a_step_does_from_itself(by_chance, refused):
    """Kernels that add up as threads arrive give other gradients from one reading to the next."""
    model = torch.nn.Linear(64, 1)
    signs = itertools.cycle([1, -1])

    def written():
        return model(torch.ones(1, 64)).sum() * (1 + next(signs) * by_chance)

    def replayed():
        return model(torch.ones(1, 64)).sum() * 1.05

    expected = pytest.raises(CompileMismatch, match="weight differs by 5% from that of the step")
    with expected if refused else nullcontext():
        check_replayed(model, replayed, written)


def test_a_record_with_other_gradients_is_refused(monkeypatch, tmp_path, capsys):

    def record(module, given, allow_unused_input, pool):
        def replay(*tensors):
            loss, *state = module(*tensors)
            return OtherGradient.apply(loss), *state

        return replay

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(run, "check_replay", lambda *_: None)
    said = refusal(capsys, command(tmp_path, replay=True))
    assert "replayed step is wrong" in said and "Give --no-replay" in said


def test_a_step_that_cannot_be_recorded_is_told(monkeypatch, tmp_path, capsys):
    def record(module, given, allow_unused_input, pool):
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(run, "check_replay", lambda *_: None)
    said = refusal(capsys, command(tmp_path, replay=True))
    assert "cannot be recorded (operation not permitted when stream is capturing)" in said
    assert "give --no-replay" in said and "more of it" not in said


def test_while_a_step_is_recorded_nobody_looks_for_several_texts_in_a_row():
    before, positions = masking_utils.find_packed_sequence_indices, torch.tensor([[0, 1, 0, 1]])
    assert before(positions) is not None
    with no_value_checks():
        assert masking_utils.find_packed_sequence_indices(positions) is None
    assert masking_utils.find_packed_sequence_indices is before


@pytest.mark.parametrize(
    ("settings", "device", "processes", "said"),
    [
        ({}, "cpu", 1, "device=cpu"),
        ({"accumulate": 2}, "cuda", 1, "accumulate=2"),
        ({}, "cuda", 2, "processes=2"),
        ({"recurrence.recompute": "window"}, "cuda", 1, "recompute=window"),
    ],
)
def test_what_cannot_be_recorded_is_refused(settings, device, processes, said):
    options = TrainOptions.of(model="gpt2", data="x", replay=True, **settings)
    with pytest.raises(ValueError, match=said):
        check_replay(options, torch.device(device), processes)
    without = TrainOptions.of(model="gpt2", data="x", **settings)
    check_replay(without, torch.device(device), processes)


def test_without_a_gpu_nothing_is_replayed_silently(tmp_path, capsys):
    said = refusal(capsys, command(tmp_path, replay=True))
    assert "replay does not go with --device cpu" in said


class DDP(TorchDispatchMode):
    """Notes what is made on the host and put on the device, which cannot be recorded."""

    def __init__(self, device):
        super().__init__()
        self.device = device
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        host = any(isinstance(arg, torch.Tensor) and arg.device.type == "cpu" for arg in args)
        put = isinstance(result, torch.Tensor) and result.device.type == self.device
        copied = name in ("_to_copy", "copy_") and host
        if put and (name == "lift_fresh" or copied):
            self.found.append("".join(traceback.format_stack(limit=8)))
        return result


CARRIES = {
    "none": {"carry": "none"},
    "pooled": {},
    "several": {"slots": 3, "pooling": "attention"},
    "max": {"slots": 2, "pooling": "max"},
    "last": {"slots": 2, "pooling": "last", "insert_layer": "all"},
    "fixed-key": {"pooling": "fixed-key", "insert_layer": 2},
    "learned start": {"start": "learned"},
    "tokens": {"carry": "tokens", "slots": 2, "map_hidden": ()},
    "rsa": {"rsa": True, "rem_counts": (0, 0, 0, 0, 1, 1), "rem_dilations": (2, 3)},
}
RECORDED = [
    *(("gpt2", carry) for carry in CARRIES),
    *(("llama", carry) for carry in CARRIES),
    *(("xlnet", carry) for carry in ("none", "pooled", "memory")),
    ("holdover_xl", "memory"),
    (BLOCKS, "blocks"),
]


def copies_of_a_step(backbone, carry, masked, monkeypatch):
    """What a step makes on the host, on a device without values: to look at one is an error there, as it
    is while kernels are recorded."""
    device = "meta"
    # Which torch asks of devices that it knows alone.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    settings = CARRIES.get(carry, {"carry": carry})
    model = attach(build(backbone), window=8, **settings).train().to(device)
    ids = torch.zeros(2, 8, dtype=torch.long, device=device)
    window = Window(ids, targets=ids)
    if masked:
        mask, begins = torch.ones_like(ids, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)
        window = replace(window, mask=mask, begins=begins.to(device))
    with no_value_checks():
        state = model(windows=[window], num_items_in_batch=1).state.detach()
        form, tensors = form_of([window] * 3, state)
        segment, count = _Segment(model, form), torch.ones((), device=device)
        with DDP(device) as copies:
            loss, *_ = segment(count, *tensors)
            loss.backward()
    return copies.found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("backbone", "carry"), RECORDED)
def test_a_step_can_be_recorded(backbone, carry, masked, monkeypatch):
    found = copies_of_a_step(backbone, carry, masked, monkeypatch)
    assert not found, found[0]


@pytest.mark.parametrize("compiled", [False, True])
def test_what_names_no_device_is_made_where_the_step_is(compiled, monkeypatch):
    """XLNet makes a matrix on the host, in older versions of transformers, and sends it. Compiled steps
    are left alone: they would be compiled again for a device."""
    model = attach(build("gpt2"), window=8).train().to("meta")
    if compiled:
        model.compile_step(backend="eager")
        with model.uncompiled():
            assert not model.compiled
    assert model.compiled == compiled
    ids = torch.zeros(2, 8, dtype=torch.long, device="meta")
    form, tensors = form_of([Window(ids, targets=ids)], None)
    made, forward = [], model.forward

    def looked_at(**given):
        made.append(torch.eye(2).device.type)
        return forward(**given)

    monkeypatch.setattr(model, "forward", looked_at)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    with no_value_checks():
        _Segment(model, form)(torch.ones((), device="meta"), *tensors)
    assert made == (["cpu"] if compiled else ["meta"]) and torch.eye(2).device.type == "cpu"
