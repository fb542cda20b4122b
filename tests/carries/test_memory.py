"""Peak memory of training, counted as live storage bytes: flat with recompute, growing without."""

import gc
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import holdover
from tiny import attach, build, tokens

WIDTH = 128
WINDOW = 32


class LiveBytes(TorchDispatchMode):
    """Bytes of all storages alive that were made inside, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(output):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.sizes:
            return
        self.sizes[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self.sizes.pop(key)


def peak(model, windows: int, recompute: str, rows: int = 1, **options) -> int:
    ids = tokens(rows, windows * WINDOW)
    gc.collect()
    gc.disable()
    try:
        with LiveBytes() as live:
            model(ids, labels=ids, recompute=recompute, **options).loss.backward()
            model.zero_grad(set_to_none=True)
    finally:
        gc.enable()
    return live.peak


def make(**options):
    base = build("gpt2", n_embd=WIDTH, n_positions=WINDOW + 8, n_head=4, n_layer=2, vocab_size=61)
    return attach(base, window=WINDOW, **options)


@pytest.mark.parametrize(
    ("options", "values"),
    [({}, WIDTH), ({"carry": "tokens", "slots": 3}, 3 * WIDTH), ({"pooling": "max"}, WIDTH)],
    ids=["pooled", "tokens", "max"],
)
@pytest.mark.sampled(3)
def test_with_recompute_memory_is_flat(options, values):
    model = make(**options)
    peak(model, 2, "window")
    found = {windows: peak(model, windows, "window") for windows in (5, 20, 80)}
    slope = (found[80] - found[20]) / 60
    # 2k values, and the window's ids and labels (once laid out, once shifted).
    assert slope <= 4 * 2 * values + 8 * 2 * WINDOW + 64, found
    assert found[80] < 1.5 * found[5], found


def test_without_recompute_memory_grows():
    model = make()
    found = {windows: peak(model, windows, "none") for windows in (5, 20, 80)}
    # In proportion to the length, by far more than a state a window.
    assert found[80] - found[20] == pytest.approx(4 * (found[20] - found[5]), rel=0.05)
    assert (found[80] - found[20]) / 60 > 100 * 4 * WIDTH


def test_a_budget_keeps_as_many_windows_as_fit():
    model = make()
    everything = peak(model, 20, "none")
    nothing = peak(model, 20, "window")
    found = []
    for share in (0.25, 0.5):
        model.settings = model.settings.replace(memory_budget=int(share * everything))
        found.append(peak(model, 20, "auto"))
    assert nothing < found[0] < found[1] < everything
    assert found[0] < nothing + 0.35 * everything
    model.settings = model.settings.replace(memory_budget=10 * everything)
    assert peak(model, 20, "auto") == pytest.approx(everything, rel=0.02)


@pytest.mark.parametrize(
    "name", ["gpt2", "bert", "roberta", "distilbert", "electra", "mpnet", "modernbert"]
)
def test_logits_of_two_windows_never_live_at_once(name):
    """A large vocabulary, so that one window's logits outweigh everything else."""
    vocabulary = 10_000
    base = build(name, vocab_size=vocabulary)
    logits = 4 * WINDOW * vocabulary
    for recompute in ("none", "window", "auto"):
        model = attach(base, window=WINDOW)
        base.requires_grad_(False)
        model.get_input_embeddings().requires_grad_(False)
        found = {windows: peak(model, windows, recompute) for windows in (2, 4)}
        assert found[2] > logits
        assert found[4] - found[2] < logits / 2, (recompute, found)
        holdover.remove_recurrence(model)


@pytest.mark.quick
def test_evaluation_keeps_nothing_but_the_state():
    model = make()
    with torch.no_grad():
        found = []
        for windows in (5, 40):
            ids = tokens(1, windows * WINDOW)
            with LiveBytes() as live:
                model(ids, labels=ids)
            found.append(live.peak)
    assert found[1] - found[0] < 35 * (8 * 3 * WINDOW + 256)


def test_a_budget_leaves_nothing_behind_when_there_is_no_backward():
    model = make()
    ids = tokens(1, 3 * WINDOW)
    found = []
    with LiveBytes() as live:
        for _ in range(4):
            model(ids, labels=ids, recompute="auto")
            gc.collect()
            found.append(live.now)
    assert found[3] == found[1]
