"""The library against loop-form oracles in float64: outputs, states and every gradient.

The oracles (tests/reference) run one document, one window, one head and one query at a time, with
the very parameters of the model under test, so that each gradient has a counterpart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import holdover
from reference.bert import Bert
from reference.gpt2 import GPT2
from reference.llama import Llama
from reference.recurrence import Recurrence

TOLERANCE = 1e-10
# Below this a gradient is zero but for rounding (a key's bias moves all scores alike).
NOTHING = 1e-12

VOCABULARY = 50
PADDING = 2
WIDTH = 16
LAYERS = 3
WINDOW = 5
IGNORED = -100
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": PADDING}
SIZES = {
    "hidden_size": WIDTH,
    "intermediate_size": 20,
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 24,
    "vocab_size": VOCABULARY,
    **SPECIAL,
}
BACKBONES = ("gpt2", "llama", "bert")
ORACLES = {"gpt2": GPT2, "llama": Llama, "bert": Bert}


def tiny(backbone: str) -> Any:
    if backbone == "gpt2":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_positions=24,
                n_embd=WIDTH,
                n_layer=LAYERS,
                n_head=2,
                n_inner=20,
                **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0),
                **SPECIAL,
            )
        )
    if backbone == "llama":
        return LlamaForCausalLM(
            LlamaConfig(num_attention_heads=4, num_key_value_heads=2, head_dim=4, **SIZES)
        )
    return BertForMaskedLM(
        BertConfig(
            num_attention_heads=2,
            attention_probs_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
            **SIZES,
        )
    )


def build(backbone: str, **options: Any) -> tuple[holdover.RecurrentModel, Recurrence]:
    """A library model, and the oracle that shares its parameters."""
    torch.manual_seed(0)
    settings = {"window": WINDOW, **options}
    if settings.get("carry") != "none":
        settings.setdefault("map_hidden", (5, 4))
    config = holdover.RecurrenceConfig(**settings)
    model = holdover.add_recurrence(tiny(backbone).double(), config).double()
    for name, parameter in model.named_parameters():
        # Far from the stock initialisation, whose outputs are all but uniform; around 1 for norms.
        centre = float("norm" in name.lower() or ".ln_" in name) * name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=centre, std=0.3)
    added = dict(model.recurrence.named_parameters())
    for name, parameter in added.items():
        if name.startswith("map"):
            # Positive biases: a map whose rectifiers are all dead would compare nothing.
            torch.nn.init.normal_(parameter, mean=0.6 * (parameter.ndim == 1), std=0.4)
    return model, Recurrence(ORACLES[backbone](model.backbone), added, config)


@pytest.fixture(autouse=True)
def _float64_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """HF's RMS norm computes in float32 whatever it is given: here it must not."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.weight * (
            x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        )

    monkeypatch.setattr(LlamaRMSNorm, "forward", forward)


# --- What both sides are given ----------------------------------------------------------------


@dataclass
class Batch:
    """One call's inputs, padded; documents are read off them row by row for the oracle."""

    ids: Tensor
    labels: Tensor
    mask: Tensor | None = None
    starts: Tensor | None = None
    shifted: bool = False
    """Whether labels[b, i] is already position i's target (as it is for masked models)."""

    def arguments(self) -> dict[str, Tensor]:
        given = {"shift_labels" if self.shifted else "labels": self.labels}
        given |= {} if self.mask is None else {"attention_mask": self.mask}
        return given | ({} if self.starts is None else {"document_starts": self.starts})


@dataclass
class Result:
    loss: Tensor
    logits: list[Tensor]
    """[real tokens, V] of every row."""
    state: list[Tensor]
    """[m, k] of every row."""
    tail: list[list[int]] = field(default_factory=list)
    """What a continuation of every row reads again (oracle only)."""
    count: int = 0
    """Scored targets (oracle only)."""


def random_ids(rows: int, columns: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # No special ids: HF gives the padding id's embedding no gradient.
    return torch.randint(3, VOCABULARY, (rows, columns), generator=generator)


def even(rows: int, columns: int, masked: bool, seed: int = 1) -> Batch:
    """Rows of one document each; a third of the labels is not scored."""
    ids = random_ids(rows, columns, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    labels = random_ids(rows, columns, seed + 2) if masked else ids.clone()
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
    return Batch(ids, labels)


def uneven(rows: Sequence[Sequence[int]], side: str, masked: bool, seed: int = 1) -> Batch:
    """Rows of documents of the given lengths, padded on one side, or every row somewhere else."""
    columns = max(map(sum, rows))
    batch = even(len(rows), columns, masked, seed)
    batch.mask = torch.zeros(len(rows), columns, dtype=torch.long)
    batch.starts = torch.zeros(len(rows), columns, dtype=torch.bool)
    for b, lengths in enumerate(rows):
        room = columns - sum(lengths)
        at = {"left": room, "right": 0, "mixed": (room, 0, room // 2)[b % 3]}[side]
        batch.mask[b, at : at + sum(lengths)] = 1
        for length in lengths:
            batch.starts[b, at] = True
            at += length
    # Labels of the padding stay as they are: that nothing of it is scored is the library's part.
    batch.ids[batch.mask == 0] = PADDING
    return batch


def run_oracle(oracle: Recurrence, batch: Batch, before: Result | None = None) -> Result:
    """Document by document; `before` is the call this one continues."""
    result = Result(torch.zeros(()), [], [])
    nll: list[Tensor] = []
    for b in range(len(batch.ids)):
        real = [i for i in range(batch.ids.shape[1]) if batch.mask is None or batch.mask[b, i]]
        pieces: list[list[int]] = []
        for i in real:
            if not pieces or (batch.starts is not None and batch.starts[b, i]):
                pieces.append([])
            pieces[-1].append(i)
        state = None if before is None or not before.state else before.state[b]
        tail = [] if before is None else before.tail[b]
        logits = [torch.zeros(0, VOCABULARY).double()]
        for number, piece in enumerate(pieces):
            if number or (batch.starts is not None and batch.starts[b, piece[0]]):
                state, tail = None, []
            document = oracle.run(
                [int(batch.ids[b, i]) for i in piece], targets(oracle, batch, b, piece), state, tail
            )
            state, tail = document.state, document.tail
            logits.append(document.logits)
            nll += document.nll
        result.logits.append(torch.cat(logits))
        result.tail.append(tail)
        # A row without tokens keeps what it had.
        result.state += [] if state is None else [state]
    result.count = len(nll)
    result.loss = torch.stack(nll).sum() / len(nll)
    return result


def targets(oracle: Recurrence, batch: Batch, b: int, piece: list[int]) -> list[int | None]:
    """What each position of a document is scored against."""
    labels = [int(batch.labels[b, i]) for i in piece]
    if oracle.backbone.causal and not batch.shifted:
        # Position i predicts token i + 1, and none of another document.
        labels = [*labels[1:], IGNORED]
    return [None if label == IGNORED else label for label in labels]


def run_library(
    model: holdover.RecurrentModel, batch: Batch, state: Any = None
) -> tuple[Result, Any]:
    out = model(batch.ids, state=state, return_logits=True, **batch.arguments())
    rows = range(len(batch.ids))
    real = torch.ones_like(batch.ids) if batch.mask is None else batch.mask
    added = dict(model.recurrence.named_parameters())
    carried = []
    if added:
        assert out.state.present is None or bool(out.state.present.all())
        tensor = out.state.tensors["memory" if "write_embeddings" in added else "summary"]
        carried = [tensor[b] for b in rows]
    logits = [out.logits[b][real[b].bool()] for b in rows]
    return Result(out.loss, logits, carried), out.state


# --- How they are compared --------------------------------------------------------------------


def relative_error(found: Tensor, expected: Tensor) -> float:
    size = expected.norm().item()
    difference = (found - expected).norm().item()
    return difference / size if size > NOTHING else difference


def gradients(model: holdover.RecurrentModel, value: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    # Kept, since a chain of calls is also compared with one over the whole text.
    found = torch.autograd.grad(value, [*named.values()], allow_unused=True, retain_graph=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(named.items(), found, strict=True)
    }


def scalar(results: Sequence[Result], counts: Sequence[int]) -> Tensor:
    """The losses, weighted by what they average, and the last state against a random cotangent."""
    total = sum(result.loss * count for result, count in zip(results, counts, strict=True))
    total = total / sum(counts)
    if results[-1].state and results[-1].state[0].requires_grad:
        state = torch.stack(results[-1].state)
        generator = torch.Generator().manual_seed(9)
        total = total + (state * torch.randn(state.shape, generator=generator).to(state)).sum()
    return total


def compare(
    model: holdover.RecurrentModel, found: Sequence[Result], expected: Sequence[Result]
) -> dict[str, Tensor]:
    """Asserts that a chain of calls agrees in all it gives; returns the oracle's gradients."""
    errors = {}
    for n, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        errors[f"loss {n}"] = relative_error(mine.loss, theirs.loss)
        assert len(mine.logits) == len(theirs.logits)
        assert len(mine.state) == len(theirs.state)
        for b, logits in enumerate(theirs.logits):
            assert mine.logits[b].shape == logits.shape
            errors[f"logits {n}, row {b}"] = relative_error(mine.logits[b], logits)
        for b, state in enumerate(theirs.state):
            assert mine.state[b].requires_grad == state.requires_grad
            errors[f"state {n}, row {b}"] = relative_error(mine.state[b], state)
    counts = [result.count for result in expected]
    mine = gradients(model, scalar(found, counts))
    theirs = gradients(model, scalar(expected, counts))
    for name, gradient in theirs.items():
        errors[f"gradient of {name}"] = relative_error(mine[name], gradient)
    wrong = {name: error for name, error in errors.items() if not error < TOLERANCE}
    assert not wrong
    return theirs


def check(backbone: str, batch: Batch, **options: Any) -> dict[str, Tensor]:
    model, oracle = build(backbone, **options)
    found, _ = run_library(model, batch)
    compared = compare(model, [found], [run_oracle(oracle, batch)])
    if batch.ids.shape[1] > WINDOW:
        # Two zeros agree about nothing: a later window has read the state.
        for name, gradient in compared.items():
            assert not name.startswith("recurrence.map") or gradient.norm().item() > NOTHING, name
    return compared


# --- The tests --------------------------------------------------------------------------------

POOLED = {
    "published": {},
    "one-linear-map": {"map_hidden": ()},
    "gelu-map": {"map_activation": "gelu"},
    "layer-1": {"insert_layer": 1},
    "layer-3": {"insert_layer": 3},
    "all-layers": {"insert_layer": "all", "slots": 2},
    "last-layer-mix": {"mix_layers": "last"},
    "learned-start": {"start": "learned", "slots": 2},
    "mean-4-slots": {"slots": 4},
    # More slots than a window has positions: some share one.
    "mean-7-slots": {"slots": 7},
    "max": {"pooling": "max"},
    "max-4-slots": {"pooling": "max", "slots": 4},
    "last": {"pooling": "last"},
    "last-4-slots": {"pooling": "last", "slots": 4},
    "last-7-slots": {"pooling": "last", "slots": 7},
    "fixed-key": {"pooling": "fixed-key"},
    "fixed-key-3-slots": {"pooling": "fixed-key", "slots": 3, "start": "learned"},
    "attention": {"pooling": "attention"},
    "attention-3-slots": {"pooling": "attention", "slots": 3, "mix_layers": "last"},
    "overlap": {"overlap": 2},
    "overlap-non": {"overlap": 2, "pool_positions": "non_overlap", "pooling": "last"},
    # More than half: a position is read by several windows.
    "overlap-4": {"overlap": 4},
    "overlap-4-non": {"overlap": 4, "pool_positions": "non_overlap", "slots": 2},
    "horizon-1": {"horizon": 1},
    "horizon-2": {"horizon": 2, "start": "learned"},
    "horizon-2-overlap": {"horizon": 2, "overlap": 1},
    "detached": {"detach_state": True, "start": "learned"},
    "recomputed": {"recompute": "window", "overlap": 1, "start": "learned"},
    "recomputed-auto": {"recompute": "auto", "memory_budget": 1, "insert_layer": 3},
    "lower-batched": {"lower_layers": "batched", "insert_layer": 3, "overlap": 1},
    "lower-per-window": {"lower_layers": "per_window", "insert_layer": 3, "horizon": 2},
}
TOKENS = {
    "one": {},
    "three": {"slots": 3, "map_hidden": ()},
    "learned-start": {"slots": 2, "start": "learned", "map_activation": "gelu"},
    "overlap": {"slots": 2, "overlap": 2},
    "overlap-4": {"overlap": 4, "start": "learned"},
    "horizon-2": {"horizon": 2},
    "detached": {"detach_state": True, "slots": 2},
    "recomputed": {"recompute": "window", "slots": 2, "overlap": 1},
}


@pytest.mark.parametrize("options", POOLED.values(), ids=POOLED)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.sampled(2)
@pytest.mark.quick_sampled(8)
def test_pooled(backbone: str, options: dict[str, Any]) -> None:
    # Windows of 5, 5 and 2 positions without overlap.
    check(backbone, even(2, 12, backbone == "bert"), **options)


@pytest.mark.parametrize("options", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick_sampled(3)
def test_tokens(backbone: str, options: dict[str, Any]) -> None:
    check(backbone, even(2, 12, backbone == "bert"), carry="tokens", **options)


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick
def test_nothing_carried(backbone: str, overlap: int) -> None:
    check(backbone, even(2, 12, backbone == "bert"), carry="none", overlap=overlap)


@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick
def test_every_gradient_is_really_compared(backbone: str, carry: str) -> None:
    """Two zeros agree about nothing: only a key's bias moves all scores alike and may be one."""
    pooling = {"pooling": "attention"} if carry == "pooled" else {}
    batch = even(2, 12, backbone == "bert")
    for name, gradient in check(
        backbone, batch, carry=carry, start="learned", slots=2, **pooling
    ).items():
        assert name.endswith("key.bias") == (gradient.norm().item() < NOTHING), name


@pytest.mark.parametrize(
    "columns",
    [1, WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW],
    ids=lambda columns: f"{columns}-tokens",
)
@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.quick
def test_lengths(carry: str, columns: int) -> None:
    batch = even(2, columns, masked=False)
    batch.labels, batch.shifted = random_ids(2, columns, seed=5), True
    check("gpt2", batch, carry=carry, overlap=1, slots=2)


UNEVEN = [[4, 6], [12], [1, 7], [3]]
BATCHES = {
    "pooled": {"slots": 2},
    "pooled-learned-start": {"start": "learned", "insert_layer": "all"},
    "pooled-max-overlap": {"pooling": "max", "slots": 2, "overlap": 2},
    "pooled-last": {"pooling": "last", "slots": 3},
    "pooled-fixed-key": {"pooling": "fixed-key", "slots": 2, "overlap": 1},
    "pooled-attention-non-overlap": {
        "pooling": "attention",
        "overlap": 2,
        "pool_positions": "non_overlap",
        "start": "learned",
    },
    "pooled-recomputed-lower": {
        "insert_layer": 3,
        "lower_layers": "batched",
        "recompute": "window",
        "overlap": 1,
    },
    "tokens": {"carry": "tokens", "slots": 2},
    "tokens-learned-start": {"carry": "tokens", "slots": 2, "start": "learned", "overlap": 2},
    "tokens-recomputed": {"carry": "tokens", "recompute": "window"},
    "none": {"carry": "none", "overlap": 2},
}


@pytest.mark.parametrize("options", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick_sampled(6)
def test_uneven_documents(backbone: str, options: dict[str, Any]) -> None:
    """A padded batch of several documents a row is the documents one by one."""
    check(backbone, uneven(UNEVEN, "mixed", backbone == "bert"), **options)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick
def test_padding_on_one_side(backbone: str, carry: str, side: str) -> None:
    """The usual paddings, without document starts."""
    batch = uneven([[8], [11], [4]], side, backbone == "bert")
    batch.starts = None
    check(backbone, batch, carry=carry, overlap=1, slots=2)


@pytest.mark.parametrize("carry", ["pooled", "tokens", "none"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick
def test_loss_without_logits(backbone: str, carry: str) -> None:
    """A loss for which no logits are kept is the same, and so are its gradients."""
    start = {} if carry == "none" else {"start": "learned"}
    model, oracle = build(backbone, carry=carry, overlap=2, **start)
    batch = uneven(UNEVEN, "mixed", backbone == "bert")
    out = model(batch.ids, return_logits=False, **batch.arguments())
    assert out.logits is None
    expected = run_oracle(oracle, batch).loss
    assert relative_error(out.loss, expected) < TOLERANCE
    mine = gradients(model, out.loss)
    for name, gradient in gradients(model, expected).items():
        assert relative_error(mine[name], gradient) < TOLERANCE, name


@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_logits_without_labels(backbone: str, carry: str) -> None:
    """Gradients through the logits alone, each with its own cotangent."""
    model, oracle = build(backbone, carry=carry, overlap=2, start="learned")
    batch = uneven(UNEVEN, "right", backbone == "bert")
    out = model(batch.ids, attention_mask=batch.mask, document_starts=batch.starts)
    assert out.loss is None
    cotangent = torch.randn(out.logits.shape, generator=torch.Generator().manual_seed(3)).double()
    real = batch.mask.bool()
    expected = torch.cat(run_oracle(oracle, batch).logits)
    assert relative_error(out.logits[real], expected) < TOLERANCE
    mine = gradients(model, (out.logits * cotangent)[real].sum())
    theirs = gradients(model, (expected * cotangent[real]).sum())
    for name, gradient in theirs.items():
        assert relative_error(mine[name], gradient) < TOLERANCE, name


CONTINUED = {
    "pooled": {"slots": 2},
    "pooled-learned-start": {"start": "learned", "pooling": "attention"},
    "pooled-overlap": {"overlap": 2},
    "pooled-overlap-4": {"overlap": 4, "pool_positions": "non_overlap", "pooling": "max"},
    "pooled-detached": {"detach_state": True},
    # Counted from each call's first window, which reads the earlier call's state with its graph.
    "pooled-horizon": {"horizon": 2},
    "tokens": {"carry": "tokens", "slots": 2},
    "tokens-overlap": {"carry": "tokens", "overlap": 2, "start": "learned"},
}


@pytest.mark.parametrize("options", CONTINUED.values(), ids=CONTINUED)
@pytest.mark.parametrize("backbone", BACKBONES)
def test_continued(backbone: str, options: dict[str, Any]) -> None:
    """Two calls, the first ending with a window, are one call over the whole text."""
    model, oracle = build(backbone, **options)
    overlap = options.get("overlap", 0)
    first = WINDOW + (WINDOW - overlap)
    whole = even(2, first + 6, masked=backbone == "bert")
    parts = [
        Batch(whole.ids[:, :first], whole.labels[:, :first]),
        Batch(whole.ids[:, first:], whole.labels[:, first:]),
    ]
    one, state = run_library(model, parts[0])
    two, _ = run_library(model, parts[1], state)
    before = run_oracle(oracle, parts[0])
    after = run_oracle(oracle, parts[1], before)
    compare(model, [one, two], [before, after])

    at_once = run_oracle(oracle, whole)
    for b, logits in enumerate(at_once.logits):
        if oracle.backbone.causal or not overlap:
            # Read both ways, positions before the call's end would have waited for the next window.
            assert relative_error(torch.cat([one.logits[b], two.logits[b]]), logits) < TOLERANCE
        assert relative_error(two.state[b], at_once.state[b]) < TOLERANCE


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("backbone", ["gpt2", "llama"])
def test_continued_with_shifted_labels(backbone: str, carry: str, overlap: int) -> None:
    """With shift_labels the target across the calls is scored, so that the losses add up too."""
    model, oracle = build(backbone, carry=carry, overlap=overlap)
    first = WINDOW + (WINDOW - overlap)
    labels = random_ids(2, first + 6, seed=4)
    labels[:, 3] = IGNORED
    whole = Batch(random_ids(2, first + 6), labels, shifted=True)
    parts = [
        Batch(whole.ids[:, :first], labels[:, :first], shifted=True),
        Batch(whole.ids[:, first:], labels[:, first:], shifted=True),
    ]
    one, state = run_library(model, parts[0])
    two, _ = run_library(model, parts[1], state)
    before = run_oracle(oracle, parts[0])
    after = run_oracle(oracle, parts[1], before)
    compare(model, [one, two], [before, after])
    at_once = run_oracle(oracle, whole)
    assert before.count + after.count == at_once.count
    loss = (one.loss * before.count + two.loss * after.count) / at_once.count
    logits = [torch.cat(rows) for rows in zip(one.logits, two.logits, strict=True)]
    both = Result(loss, logits, two.state)
    compare(model, [both], [at_once])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    "options",
    [{"slots": 2}, {"start": "learned", "overlap": 2}, {"carry": "tokens", "overlap": 1}],
    ids=["pooled", "pooled-learned-start-overlap", "tokens-overlap"],
)
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick_sampled(3)
def test_continued_rows_and_new_documents(
    backbone: str, options: dict[str, Any], side: str
) -> None:
    """Rows go on from their own states; one whose first token starts a document begins afresh."""
    model, oracle = build(backbone, **options)
    masked = backbone == "bert"
    parts = [
        uneven([[5], [3, 6], [11], [7]], side, masked),
        uneven([[7], [6], [2, 4], []], side, masked, seed=7),
    ]
    for b in (0, 2):
        # These continue; the second row has a new document, the last nothing more to read.
        parts[1].starts[b, int(parts[1].mask[b].argmax())] = False
    one, state = run_library(model, parts[0])
    two, _ = run_library(model, parts[1], state)
    before = run_oracle(oracle, parts[0])
    compare(model, [one, two], [before, run_oracle(oracle, parts[1], before)])


@pytest.mark.parametrize("start", ["none", "learned"])
@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.quick_sampled(3)
def test_row_that_begins_in_a_later_call(backbone: str, carry: str, start: str) -> None:
    """A row of padding alone has no state yet; its first tokens begin a document."""
    model, oracle = build(backbone, carry=carry, start=start, overlap=2)
    masked = backbone == "bert"
    parts = [uneven([[7], []], "right", masked), uneven([[4], [6]], "left", masked, seed=7)]
    parts[1].starts[:] = False
    first = model(parts[0].ids, **parts[0].arguments())
    assert first.state.present.tolist() == [True, False]
    second, _ = run_library(model, parts[1], first.state)
    begun, fresh = (
        Batch(part.ids[b : b + 1], part.labels[b : b + 1], part.mask[b : b + 1])
        for part, b in ((parts[0], 0), (parts[1], 1))
    )
    going_on = Batch(parts[1].ids[:1], parts[1].labels[:1], parts[1].mask[:1])
    rows = [run_oracle(oracle, going_on, run_oracle(oracle, begun)), run_oracle(oracle, fresh)]
    count = sum(row.count for row in rows)
    loss = sum(row.loss * row.count for row in rows) / count
    logits, states = [row.logits[0] for row in rows], [row.state[0] for row in rows]
    compare(model, [second], [Result(loss, logits, states, count=count)])


@pytest.mark.parametrize("carry", ["pooled", "tokens"])
@pytest.mark.parametrize("overlap", [0, 3])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_many_short_calls(backbone: str, overlap: int, carry: str) -> None:
    """Calls of any length: each starts by reading the last o tokens of all that came before."""
    model, oracle = build(backbone, carry=carry, overlap=overlap)
    found: list[Result] = []
    expected: list[Result] = []
    state = None
    for seed, columns in enumerate((2, 7, 1, 4)):
        part = Batch(random_ids(2, columns, seed), random_ids(2, columns, seed + 10), shifted=True)
        if backbone == "bert":
            part.shifted = False
        result, state = run_library(model, part, state)
        found.append(result)
        expected.append(run_oracle(oracle, part, expected[-1] if expected else None))
    compare(model, found, expected)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_forward_is_the_model_itself(backbone: str) -> None:
    """An oracle that reads nothing is HF's model: the outputs of all layers, and the logits."""
    torch.manual_seed(0)
    model = tiny(backbone).double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    ids = random_ids(1, 7)
    result = ORACLES[backbone](model).forward(ids[0].tolist())
    stock = model(ids, output_hidden_states=True)
    assert relative_error(result.logits, stock.logits[0]) < TOLERANCE
    for mine, theirs in zip(result.outputs, stock.hidden_states[1:], strict=True):
        assert relative_error(mine, theirs[0]) < TOLERANCE
