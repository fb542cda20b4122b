"""Readers: one distribution over all windows, rows that wait change nothing, answers, saving."""

import math

import pytest
import torch
from torch.testing import assert_close

from holdover.questions.answering import answer_questions
from holdover.questions.batches import Pairs
from holdover.questions.folder import open_reader, save_reader
from holdover.questions.loss import answer_nll, best_answers
from holdover.questions.pairs import PairTokenizer
from holdover.questions.reader import Reader
from readers import AROUND, FILLERS, pair_tokenizer, question
from tiny import attach, build

CPU = torch.device("cpu")
ENCODERS = ("bert", "roberta", "electra", "distilbert", "mpnet", "modernbert", "xlnet")
CLOSE = {"rtol": 1e-4, "atol": 1e-5}
SHORT = "it is sweet , w1 apple w2"
LONG = "it is hard , " + " ".join(FILLERS) + " apple w3 stone w4 stone w5"


def reader_of(name: str = "bert", **settings) -> Reader:
    encoder = attach(build(name, "bare"), **{"window": 8 + AROUND, **settings})
    torch.manual_seed(3)
    reader = Reader(encoder).eval()
    for weight in reader.heads.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return reader


def pairs_of(reader: Reader, *questions, tokenizer: PairTokenizer | None = None) -> Pairs:
    tokenizer = tokenizer or pair_tokenizer()
    return Pairs(tokenizer.encode(list(questions)), reader.layout(tokenizer))


def read(reader: Reader, pairs: Pairs, numbers):
    batch = pairs.batch(numbers)
    with torch.no_grad():
        return reader(batch), batch


def test_one_window_is_the_stock_model_and_one_softmax():
    reader = reader_of(window=40)
    tokenizer = pair_tokenizer()
    said, batch = read(reader, pairs_of(reader, question(LONG, "stone")), [0])
    assert batch.ids.shape[0] == 1
    stock = tokenizer.encoder.tokenizer("what is it", LONG, return_tensors="pt")
    with torch.no_grad(), reader.encoder.disable_recurrence():
        hidden = reader.encoder(**stock).last_hidden_state[0]
    start, end = reader.heads.span(hidden[AROUND - 1 : -1]).log_softmax(0).unbind(-1)
    assert_close(said.start[0], start, **CLOSE)
    assert_close(said.end[0], end, **CLOSE)
    assert_close(said.kind[0], reader.heads.kind(hidden[0]).log_softmax(-1), **CLOSE)


def test_windows_that_carry_nothing_are_read_alone_and_share_one_softmax():
    reader = reader_of(carry="none")
    pairs = pairs_of(reader, question(LONG))
    said, _ = read(reader, pairs, [0])
    (pair,) = pairs.pairs
    scores, vectors = [], []
    for span in pair.windows(8 + AROUND, 0):
        ids = [*pair.head, *pair.ids[span.start : span.stop], *pair.tail]
        types = [0] * len(pair.head) + [1] * (len(ids) - len(pair.head))
        with torch.no_grad(), reader.encoder.disable_recurrence():
            hidden = reader.encoder(
                torch.tensor([ids]), token_type_ids=torch.tensor([types])
            ).last_hidden_state[0]
        scores.append(reader.heads.span(hidden[AROUND - 1 : -1]))
        vectors.append(hidden[0])
    start, end = torch.cat(scores).log_softmax(0).unbind(-1)
    assert_close(said.start[0], start, **CLOSE)
    assert_close(said.end[0], end, **CLOSE)
    kind = reader.heads.kind(torch.stack(vectors).amax(0)).log_softmax(-1)
    assert_close(said.kind[0], kind, **CLOSE)


@pytest.mark.parametrize("carry", [{}, {"carry": "tokens", "slots": 2}, {"overlap": 3}], ids=str)
@pytest.mark.parametrize("name", ENCODERS)
def test_a_row_that_waits_changes_nothing(name, carry):
    """Every encoder: a short context beside a long one, and each alone, are read alike."""
    reader = reader_of(name, **carry)
    pairs = pairs_of(reader, question(SHORT, "apple"), question(LONG, "stone"))
    said, batch = read(reader, pairs, [0, 1])
    for row in (0, 1):
        alone, own = read(reader, pairs, [row])
        length = own.context.shape[1]
        for ours, theirs in ((said.start, alone.start), (said.end, alone.end)):
            assert_close(ours[row, :length], theirs[0], **CLOSE)
            assert bool((ours[row, length:] == -math.inf).all())
            assert_close(ours[row].exp().sum(), torch.tensor(1.0), **CLOSE)
        assert_close(said.kind[row], alone.kind[0], **CLOSE)
    # The state is read: without it the long context says something else.
    with torch.no_grad():
        without = reader(batch, states=[None] * len(batch.all_read))
    assert_close(without.start[0], said.start[0], **CLOSE)
    assert (without.start[1] - said.start[1]).abs()[: len(pairs.pairs[1].ids)].max() > 1e-3


def test_states_that_are_handed_in_are_those_that_are_carried():
    reader = reader_of()
    batch = pairs_of(reader, question(SHORT), question(LONG)).batch([0, 1])
    with torch.no_grad():
        carried = reader(batch, keep_states=True)
        given = reader(batch, states=[None, *carried.states[:-1]])
    assert_close(given.start, carried.start)
    assert_close(given.kind, carried.kind)


def test_the_loss_adds_all_places_of_an_answer():
    reader = reader_of()
    pairs = pairs_of(
        reader,
        question(LONG, "stone"),
        question(SHORT, "apple"),
        question(LONG, "yes"),
        question(SHORT, "no"),
        question(SHORT, "pear"),
        question(SHORT),
    )
    said, batch = read(reader, pairs, range(6))
    words = LONG.split()
    places = [number for number, word in enumerate(words) if word == "stone"]
    assert len(places) == 2
    stone = sum((said.start[0, p] + said.end[0, p]).exp() for p in places)
    apple = SHORT.split().index("apple")
    expected = torch.stack(
        [
            -said.kind[0, 0] - stone.log(),
            -said.kind[1, 0] - said.start[1, apple] - said.end[1, apple],
            -said.kind[2, 1],
            -said.kind[3, 2],
            # Nowhere in the context: only its kind can be learnt.
            -said.kind[4, 0],
            torch.tensor(0.0),
        ]
    )
    assert_close(answer_nll(said, batch), expected, **CLOSE)


@pytest.mark.parametrize("longest", [1, 3, 100])
def test_the_best_span_is_that_of_all_pairs(longest):
    reader = reader_of()
    said, batch = read(reader, pairs_of(reader, question(SHORT), question(LONG)), [0, 1])
    best = best_answers(said, longest)
    for row in (0, 1):
        count = int(batch.context[row].sum())
        spans = {
            (i, j): float(said.start[row, i] + said.end[row, j])
            for i in range(count)
            for j in range(i, min(i + longest, count))
        }
        found = int(best.first[row]), int(best.last[row])
        assert spans[found] == pytest.approx(max(spans.values()))
        kind = int(said.kind[row].argmax())
        place = max(spans.values()) if kind == 0 else 0.0
        assert float(best.logp[row]) == pytest.approx(float(said.kind[row, kind]) + place, abs=1e-5)


def test_yes_and_no_are_answered_by_their_kind():
    reader = reader_of()
    pairs = pairs_of(reader, question(LONG, "no"), question(SHORT, "no"))
    with torch.no_grad():
        reader.heads.kind.weight.zero_()
        reader.heads.kind.bias.copy_(torch.tensor([0.0, 0.0, 5.0]))
    answers = answer_questions(reader, pairs, rows=2, device=CPU, longest=5)
    p = math.exp(5) / (2 + math.exp(5))
    for answer, text in zip(answers, (LONG, SHORT), strict=True):
        assert (answer.kind, answer.text) == ("no", "no")
        assert answer.logp == pytest.approx(math.log(p)) == pytest.approx(-answer.nll)
        assert 0 <= answer.start < answer.stop <= len(text)


def test_gradients_reach_the_first_window_and_recomputing_changes_none():
    reader = reader_of().train()
    batch = pairs_of(reader, question(SHORT, "apple"), question(LONG, "stone")).batch([0, 1])
    gradients = []
    for mode in ("none", "window"):
        reader.encoder.recompute = mode
        reader.zero_grad()
        # Dropout is drawn alike both times, and again in what is computed again.
        torch.manual_seed(0)
        answer_nll(reader(batch), batch).sum().backward()
        gradients.append([weight.grad.clone() for weight in reader.added_parameters()])
    assert reader.encoder.recurrence.map[0].weight.grad.abs().sum() > 0
    for one, other in zip(*gradients, strict=True):
        assert one.isfinite().all()
        assert_close(one, other)


def test_a_saved_reader_is_the_same_reader(tmp_path):
    reader = reader_of(overlap=2)
    tokenizer = pair_tokenizer()
    save_reader(tmp_path / "reader", reader, tokenizer.encoder)
    saved = open_reader(tmp_path / "reader")
    assert not saved.reader.training and saved.run is None
    for name, weight in reader.state_dict().items():
        assert torch.equal(weight, saved.reader.state_dict()[name]), name
    pairs = pairs_of(saved.reader, question(LONG, "stone"), tokenizer=saved.tokenizer)
    assert pairs.layout == pairs_of(reader, question(LONG)).layout
    assert torch.equal(read(saved.reader, pairs, [0])[0].start, read(reader, pairs, [0])[0].start)


def test_what_is_no_reader_is_refused(tmp_path):
    (tmp_path / "file.txt").touch()
    with pytest.raises(ValueError, match="is not a reader .* holdover qa train wrote"):
        open_reader(tmp_path)
    save_reader(tmp_path / "reader", reader_of(), pair_tokenizer().encoder)
    heads = tmp_path / "reader" / "holdover_reader.safetensors"
    heads.write_bytes(heads.read_bytes()[:100])
    with pytest.raises(ValueError, match="truncated or damaged"):
        open_reader(tmp_path / "reader")


def test_types_only_where_the_model_takes_them():
    told = {name: reader_of(name).layout(pair_tokenizer()).types for name in ENCODERS}
    assert told["bert"] and told["electra"]
    assert not (told["distilbert"] or told["mpnet"] or told["modernbert"])
