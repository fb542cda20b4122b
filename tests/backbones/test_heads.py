"""Each architecture's own heads over many windows, and one vector a token."""

import pytest
import torch

import holdover
from holdover.backbones.heads import head_classes
from tiny import BACKBONES, attach, build, tokens

HEADS = [
    pytest.param(name, task, id=f"{name}-{task}")
    for name, row in BACKBONES.items()
    for task in head_classes(name, row)
]
CLOSE = {"rtol": 2e-4, "atol": 2e-4}


@pytest.mark.parametrize("options", [{}, {"carry": "tokens", "slots": 2}], ids=["pooled", "tokens"])
@pytest.mark.parametrize(("name", "task"), HEADS)
@pytest.mark.quick_sampled(8)
def test_every_head_reads_many_windows_and_trains(name, task, options):
    base = build(name, task)
    model = attach(base, **options).train()
    ids = tokens(3, 25)
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    mask[2, 2:] = 0
    labels = {
        "question-answering": {
            "start_positions": torch.tensor([20, 3, 0]),
            "end_positions": torch.tensor([22, 9, 1]),
        },
        "sequence-classification": {"labels": torch.tensor([0, 1, 0])},
        "token-classification": {"labels": ids % 2},
        "bare": {},
    }.get(task, {"labels": ids})
    out = model(ids, attention_mask=mask, **labels)
    expected = {
        "question-answering": ("start_logits", (3, 25)),
        "sequence-classification": ("logits", (3, 2)),
        "token-classification": ("logits", (3, 25, 2)),
        "bare": ("last_hidden_state", (3, 25)),
    }.get(task)
    if expected is None:
        assert out.logits is None
    else:
        assert out[expected[0]].shape[: len(expected[1])] == expected[1]
    loss = out.loss if out.loss is not None else out.last_hidden_state.square().mean()
    loss.backward()
    # The end of the text taught the beginning's state.
    assert model.recurrence.map[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("name", "task"), [p.values for p in HEADS if "lm" not in p.values[1]])
@pytest.mark.quick
def test_one_window_is_the_stock_model(name, task):
    base = build(name, task)
    ids = tokens(2, 9)
    with torch.no_grad():
        stock = base(ids)
    out = attach(base)(ids)
    for key in ("logits", "start_logits", "end_logits", "last_hidden_state"):
        if out.get(key) is not None:
            torch.testing.assert_close(out[key], stock[key], **CLOSE)


def test_sequence_heads_pool_the_maximum_over_windows():
    base = build("bert", "sequence-classification")
    model = attach(base)
    ids = tokens(1, 20)
    wanted = holdover.OutputRequest("sequence-classification")
    state, vectors = None, []
    for part in ids.split(9, 1):
        with torch.no_grad():
            output, state = model.step(holdover.Window(part), state, wanted)
        vectors.append(output["vector"])
    pooled = torch.stack(vectors).amax(0)
    with torch.no_grad():
        expected = base.classifier(base.bert.pooler(pooled[:, None]))
        torch.testing.assert_close(model(ids).logits, expected, **CLOSE)


def test_answers_are_normalised_over_all_windows():
    base = build("bert", "question-answering")
    model = attach(base)
    ids = tokens(2, 25)
    mask = torch.ones_like(ids)
    mask[1, 14:] = 0
    where = {"start_positions": torch.tensor([21, 3]), "end_positions": torch.tensor([22, 13])}
    out = model(ids, attention_mask=mask, **where)
    starts = out.start_logits.log_softmax(-1)
    ends = out.end_logits.log_softmax(-1)
    expected = -(starts[0, 21] + starts[1, 3] + ends[0, 22] + ends[1, 13]) / 4
    torch.testing.assert_close(out.loss, expected, **CLOSE)
    # Padding can be no answer.
    assert out.start_logits.softmax(-1)[1, 14:].sum() == 0


@pytest.mark.parametrize("name", ["gpt2", "bert"])
@pytest.mark.parametrize("overlap", [0, 4])
def test_encode_takes_the_vector_that_saw_most(name, overlap):
    model = attach(build(name), overlap=overlap)
    ids = tokens(1, 31)
    vectors = model.encode(ids)
    assert vectors.shape == (1, 31, 32)
    centred = name == "bert"
    state = None
    for span in holdover.cut(31, 9, overlap, centred=centred):
        with torch.no_grad():
            output, state = model.step(
                holdover.Window(ids[:, span.start : span.stop]),
                state,
                holdover.OutputRequest("bare"),
            )
        local = slice(span.keep_start - span.start, span.keep_stop - span.start)
        torch.testing.assert_close(
            vectors[:, span.keep_start : span.keep_stop],
            output["last_hidden_state"][:, local],
            **CLOSE,
        )


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("options", [{}, {"carry": "tokens", "slots": 2}], ids=["pooled", "tokens"])
def test_hidden_states_are_joined_when_asked_for(name, options):
    model = attach(build(name), **options)
    out = model(tokens(2, 20), output_hidden_states=True)
    assert len(out.hidden_states) == 4
    assert all(hidden.shape[:2] == (2, 20) for hidden in out.hidden_states)
    assert model(tokens(2, 20)).hidden_states is None


def test_token_types_follow_their_tokens():
    base = build("bert")
    model = attach(base)
    ids = tokens(1, 20)
    types = torch.zeros_like(ids)
    types[:, 12:] = 1
    given = model(ids, token_type_ids=types).logits
    plain = model(ids).logits
    torch.testing.assert_close(given[:, :9], plain[:, :9], **CLOSE)
    assert not torch.allclose(given[:, 9:18], plain[:, 9:18], atol=1e-3)
