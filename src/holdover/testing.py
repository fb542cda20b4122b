"""The contract of a kind of carried state, as tests that anyone can run on their own kind.

    holdover.testing.check_carry(MyCarry)

runs every law below on tiny random models and raises `CarryLawError` with the law that is broken. The
library's own kinds pass the same laws on every backbone.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .carries.base import Carry
from .carries.kinds import KIND_SETTINGS
from .carries.registry import CARRIES, register_carry
from .config import RecurrenceConfig
from .recurrent.attach import add_recurrence, remove_recurrence
from .recurrent.model import RecurrentModel
from .state import State

VOCABULARY = 61
# More than the positions whose outputs wait to be mixed (generation/open_window.py).
WINDOW = 40
RELATIVE, ABSOLUTE = 1e-4, 1e-5
NAME = "kind_under_test"


class CarryLawError(AssertionError):
    """A kind of state breaks a law of the contract."""

    def __init__(self, kind: type[Carry], law: str, why: str) -> None:
        self.law = law
        super().__init__(f"{kind.__name__} breaks the law {law!r}: {why}")


def tiny_decoder() -> Any:
    """A random Llama with two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _with_large_weights(LlamaForCausalLM(config))


def check_carry(
    kind: type[Carry],
    *,
    settings: Mapping[str, Any] | None = None,
    model: Callable[[], Any] = tiny_decoder,
) -> list[str]:
    """Run every law on a kind of state; returns the names of the laws.

    settings: keywords of the kind's own settings. model: makes the backbone, a causal language model
    with a vocabulary of at least 61 ids.
    """
    with _registered(kind) as name:
        for law, check in LAWS.items():
            config = RecurrenceConfig(window=WINDOW, carry=name, **(settings or {}))
            try:
                check(_Subject(kind, config, model))
            except CarryLawError:
                raise
            except AssertionError as error:
                lines = [line for line in str(error).splitlines() if line.strip()]
                raise CarryLawError(kind, law, lines[0] if lines else "it failed") from error
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                raise CarryLawError(kind, law, why) from error
    return list(LAWS)


class _Subject:
    """A kind under test, attached to a fresh model."""

    def __init__(
        self, kind: type[Carry], config: RecurrenceConfig, model: Callable[[], Any]
    ) -> None:
        self.kind = kind
        self.config = config
        self.make = model
        self.model = self.attached()

    def attached(self, **changes: Any) -> RecurrentModel:
        torch.manual_seed(1)
        model = add_recurrence(self.make(), self.config.replace(**changes)).eval()
        _with_large_weights(model.recurrence, 0.3)
        return model

    def logits(self, ids: Tensor, state: State | None = None, **arguments: Any) -> Tensor:
        with torch.no_grad():
            return self.model(ids, state=state, **arguments).logits

    def state(self, ids: Tensor, **arguments: Any) -> State:
        with torch.no_grad():
            return self.model(ids, **arguments).state


def _state_is_declared(subject: _Subject) -> None:
    state = subject.state(_ids(3, WINDOW + 5))
    shapes = subject.model.recurrence.state_shapes(WINDOW)
    written = {name: tuple(tensor.shape) for name, tensor in state.tensors.items()}
    declared = {name: (3, *shape) for name, shape in shapes.items()}
    assert written == declared, f"it wrote {written} for 3 rows where {declared} was declared"


def _disabled_is_stock(subject: _Subject) -> None:
    ids = _ids(2, 9)
    model, stock = subject.model, subject.make()
    with torch.no_grad():
        expected = stock(ids).logits
        with model.disable_recurrence():
            _same(model(ids).logits, expected, "disabled, the logits are not the stock model's")
        removed = remove_recurrence(model)
        _same(removed(ids).logits, expected, "removed, the logits are not the stock model's")


def _state_is_used(subject: _Subject) -> None:
    if not subject.kind.carries_state:
        return
    first, second = _ids(1, WINDOW), _ids(1, 6, seed=5)
    state, other = subject.state(first), subject.state(_ids(1, WINDOW, seed=9))
    for name, instead in (("without a state", None), ("with another text's state", other)):
        away = (subject.logits(second, state) - subject.logits(second, instead)).abs().max()
        assert away > 1e-4, f"{name} the next window's logits are the same: the state does nothing"


def _nothing_is_kept(subject: _Subject) -> None:
    first, second = _ids(2, WINDOW), _ids(2, 7, seed=3)
    state = subject.state(first)
    expected = subject.logits(second, state)
    subject.state(_ids(2, WINDOW + 3, seed=8))
    _same(
        subject.logits(second, state),
        expected,
        "the same window and state gave other logits after another call: something stays in the "
        "module, or is drawn at random",
    )


def _causal(subject: _Subject) -> None:
    ids = _ids(1, 2 * WINDOW + 7)
    changed = ids.clone()
    changed[:, WINDOW + 5 :] = _ids(1, WINDOW + 2, seed=7)
    before = slice(0, WINDOW + 5)
    _same(
        subject.logits(changed)[:, before],
        subject.logits(ids)[:, before],
        "a later token changed earlier logits",
    )


def _streamed(subject: _Subject) -> None:
    ids = _ids(2, 2 * WINDOW + 11)
    expected = subject.logits(ids)
    state, parts = None, []
    for part in ids.split(WINDOW, 1):
        with torch.no_grad():
            output = subject.model(part, state=state)
        state, parts = output.state, [*parts, output.logits]
    _same(torch.cat(parts, 1), expected, "read in several calls, the text gives other logits")
    state, written = None, []
    for part in ids.split(WINDOW, 1):
        window = subject.model.open_window(state, rows=2)
        written += [window.feed(piece) for piece in part.split(1, 1)]
        state = window.close()
    _same(torch.cat(written, 1), expected, "read token by token, the text gives other logits")


def _rows_do_not_mix(subject: _Subject) -> None:
    ids = _ids(3, WINDOW + 9)
    expected = subject.logits(ids)
    for row in range(3):
        _same(
            subject.logits(ids[row : row + 1]), expected[row : row + 1], "a row depends on others"
        )
    state, more = subject.state(ids[:, :WINDOW]), _ids(3, 5, seed=4)
    order = torch.tensor([2, 0, 2])
    _same(
        subject.logits(more[order], state.rows(order)),
        subject.logits(more, state)[order],
        "the rows of a state cannot be reordered",
    )


def _padding_is_nothing(subject: _Subject) -> None:
    ids, length = _ids(2, 2 * WINDOW + 9), WINDOW + 6
    mask = torch.ones_like(ids)
    alone = subject.state(ids[:1, :length])
    more = _ids(1, 6, seed=6)
    expected = subject.logits(more, alone)
    for side, kept in (("right", slice(0, length)), ("left", slice(-length, None))):
        padded, shown = ids.clone(), mask.clone()
        padded[0], shown[0] = 0, 0
        padded[0, kept], shown[0, kept] = ids[0, :length], 1
        state = subject.state(padded, attention_mask=shown).rows([0])
        if state.present is not None and bool(state.present.all()):
            state = replace(state, present=None)
        _same(subject.logits(more, state), expected, f"padding on the {side} changed a row's state")


def _reset_is_forgetting(subject: _Subject) -> None:
    ids, starts = _ids(2, WINDOW + 13), torch.zeros(2, WINDOW + 13, dtype=torch.bool)
    starts[1, WINDOW - 4] = True
    together = subject.logits(ids, document_starts=starts)
    _same(
        together[1:, WINDOW - 4 :],
        subject.logits(ids[1:, WINDOW - 4 :]),
        "after a document start the row still remembers",
    )
    _same(together[:1], subject.logits(ids[:1]), "a row was reset with its neighbour")


def _gradients(subject: _Subject) -> None:
    if not subject.kind.carries_state:
        return
    ids = _ids(1, 3 * WINDOW)
    embedding = subject.model.get_input_embeddings()
    labels = torch.full_like(ids, -100)
    labels[:, 2 * WINDOW + 1 :] = ids[:, 2 * WINDOW + 1 :]

    def gradient(**arguments: Any) -> Tensor:
        kept: list[Tensor] = []

        def keep(module: Any, args: Any, output: Any) -> None:
            kept.append(output)

        hook = embedding.register_forward_hook(keep)
        try:
            loss = subject.model(ids, labels=labels, **arguments).loss
        finally:
            hook.remove()
        (first,) = torch.autograd.grad(loss, kept[0], allow_unused=True)
        return torch.zeros(1) if first is None else first.abs().max()

    assert gradient() > 0, "no gradient reaches the first window: the state is cut from its graph"
    assert gradient(horizon=1) == 0, "with horizon=1 a gradient still reaches the first window"


def _recompute_changes_nothing(subject: _Subject) -> None:
    ids = _ids(2, 2 * WINDOW + 5)
    results = []
    for mode in ("none", "window"):
        subject.model.zero_grad()
        output = subject.model(ids, labels=ids, recompute=mode)
        output.loss.backward()
        gradients = [p.grad.clone() for p in subject.model.parameters() if p.grad is not None]
        results.append([output.loss.detach(), *gradients])
    for plain, again in zip(*results, strict=True):
        _same(again, plain, "recompute changed the loss or a gradient")


def _saved_and_loaded(subject: _Subject) -> None:
    first, second = _ids(2, WINDOW), _ids(2, 6, seed=3)
    state = subject.state(first)
    expected = subject.logits(second, state)
    with tempfile.TemporaryDirectory() as folder:
        subject.model.save_pretrained(folder)
        again = RecurrentModel.from_pretrained(folder).eval()
        state.save(f"{folder}/text.state")
        loaded = State.load(f"{folder}/text.state")
        with torch.no_grad():
            found = again(second, state=loaded).logits
    _same(found, expected, "a saved model, with a saved state, gives other logits")


def _threads(subject: _Subject) -> None:
    texts = [_ids(1, WINDOW + 9, seed=seed) for seed in range(8)]
    expected = [subject.logits(ids) for ids in texts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(subject.logits, texts * 4))
    for number, logits in enumerate(found):
        _same(logits, expected[number % 8], "threads that share a model read each other's state")


LAWS: dict[str, Callable[[_Subject], None]] = {
    "the state is what it declares": _state_is_declared,
    "disabled or removed, the model is the stock model": _disabled_is_stock,
    "nothing stays in the module": _nothing_is_kept,
    "the state reaches the next window": _state_is_used,
    "a later token changes nothing before it": _causal,
    "rows do not mix": _rows_do_not_mix,
    "padding is nothing": _padding_is_nothing,
    "a reset row forgets": _reset_is_forgetting,
    "in pieces as in one": _streamed,
    "gradients flow to the horizon": _gradients,
    "recompute changes nothing": _recompute_changes_nothing,
    "saved and loaded": _saved_and_loaded,
    "threads do not meet": _threads,
}


@contextmanager
def _registered(kind: type[Carry]) -> Iterator[str]:
    for name, known in CARRIES.items():
        if known is kind:
            yield name
            return
    register_carry(NAME, kind)
    try:
        yield NAME
    finally:
        del CARRIES[NAME], KIND_SETTINGS[NAME]


def _ids(rows: int, columns: int, seed: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, VOCABULARY, (rows, columns), generator=generator)


def _with_large_weights(module: Any, scale: float = 0.2) -> Any:
    # Stock initialisation is so small that an error would hide in rounding.
    for parameter in module.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=scale)
    return module.eval()


def _same(found: Tensor, expected: Tensor, why: str) -> None:
    if found.shape != expected.shape or not torch.allclose(found, expected, RELATIVE, ABSOLUTE):
        far = (found - expected).abs().max() if found.shape == expected.shape else "of its shape"
        raise AssertionError(f"{why} (largest difference {far})")
