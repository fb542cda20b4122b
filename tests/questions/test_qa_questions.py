"""Questions: files, occurrences of answers, tokens that map back to text, windows, batches."""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from holdover.questions.batches import Layout, Pairs
from holdover.questions.data_options import QuestionOptions
from holdover.questions.files import read_questions
from holdover.questions.pairs import PairTokenizer
from holdover.questions.question import Question, occurrences
from holdover.questions.sources import open_questions, training_questions
from holdover.tokenization.encoders import HFEncoder
from readers import AROUND, FILLERS, pair_tokenizer, question, sweet_or_hard, write_questions

RECORD = {
    "_id": "a1",
    "question": " What is it? ",
    "answer": "apple",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Facts", 0]],
    "context": [["Facts", ["It is sweet.", " It is an apple."]], ["More", ["One.", "Two."]]],
}
TEXT = "Facts\nIt is sweet. It is an apple.\nMore\nOne. Two."
LONG = " ".join(FILLERS[number % 20] for number in range(50))


def test_a_list_and_lines_are_read_alike(tmp_path):
    without_answer = {key: RECORD[key] for key in ("question", "context")}
    (tmp_path / "list.json").write_text(json.dumps([RECORD]))
    lines = f"{json.dumps(RECORD)}\n\n{json.dumps(without_answer)}\n"
    (tmp_path / "lines.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (expected,) = read_questions(tmp_path / "list.json")
    assert expected == Question("a1", "What is it?", TEXT, "apple", "bridge", "easy")
    first, second = read_questions(tmp_path / "lines.jsonl.gz", answered=False)
    assert first == expected
    assert (second.id, second.answer, second.kind) == ("2", None, None)


def test_the_hubs_form_of_a_context(tmp_path):
    titles, sentences = zip(*RECORD["context"], strict=True)
    hub = {**RECORD, "context": {"title": titles, "sentences": sentences}}
    (found,) = read_questions(write_questions(tmp_path / "hub.json", [hub]))
    assert found.context == TEXT


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1, 2", "q.json is not JSON"),
        ("[]", "q.json holds no questions"),
        ("", "q.json holds no questions"),
        ('{"question": "a"}\n{oops}', "record 1 has no answer"),
        ("[3]", "record 1 is a JSON int"),
        (
            json.dumps([RECORD, {**RECORD, "_id": "b", "question": ""}]),
            r"record 2 \(b\) has no question",
        ),
        (json.dumps([{**RECORD, "answer": 3}]), r"record 1 \(a1\) has an empty answer"),
        (json.dumps([{**RECORD, "context": "text"}]), "has no context"),
        (json.dumps([{**RECORD, "context": [["T", "one"]]}]), "malformed paragraph 1"),
        (json.dumps([{**RECORD, "context": []}]), "has nothing to read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, content, said):
    path = tmp_path / "q.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=said) as refused:
        read_questions(path)
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


def test_names_and_missing_data(tmp_path, monkeypatch):
    monkeypatch.delenv("HOLDOVER_DATA", raising=False)
    with pytest.raises(ValueError, match="--data is missing"):
        open_questions(QuestionOptions(), "test")
    with pytest.raises(ValueError, match="did you mean hotpotqa?"):
        open_questions(QuestionOptions(data="hotpot"), "test")
    with pytest.raises(OSError, match=r"put hotpotqa/test.jsonl.xz into a folder .* HOLDOVER_DATA"):
        open_questions(QuestionOptions(data="hotpotqa"), "test")
    with pytest.raises(OSError, match="into the data directory"):
        open_questions(QuestionOptions(data="hotpotqa", data_dir=tmp_path), "test")
    (tmp_path / "hotpotqa").mkdir()
    (tmp_path / "hotpotqa" / "test.jsonl.xz").write_bytes(b"other")
    with pytest.raises(ValueError, match="is not the file that hotpotqa expects"):
        open_questions(QuestionOptions(data="hotpotqa", data_dir=tmp_path), "test")


def test_a_files_end_is_held_out(tmp_path):
    path = write_questions(tmp_path / "q.json", sweet_or_hard(10))
    options = QuestionOptions(data=str(path))
    training, validation = training_questions(options, None, 0.25)
    assert [len(training), len(validation)] == [8, 2]
    assert (training.about["part"], validation.about["part"]) == ([0, 8], [8, 10])
    assert training.items + validation.items == open_questions(options, "test").items
    whole, other = training_questions(options, str(path), 0.25)
    assert len(whole) == len(other) == 10
    with pytest.raises(ValueError, match="give at least 2, one to learn"):
        training_questions(QuestionOptions(data=str(path), questions=1), None, 0.1)


@pytest.mark.parametrize(
    ("answer", "context", "places"),
    [
        ("apple", "apple, pineapple, Apple; an apple", [(0, 5), (28, 33)]),
        # Only inside a word, only in other letters, nowhere.
        ("19", "in 1984", [(3, 5)]),
        ("apple", "an APPLE", [(3, 8)]),
        ("pear", "an apple", []),
        ("(a+b)", "f (a+b) g", [(2, 7)]),
    ],
)
def test_where_an_answer_stands(answer, context, places):
    assert occurrences(answer, context) == places


def test_tokens_map_back_to_exact_text():
    context = "Facts\n  It is SWEET, it is an  apple ;  w3 stone.\nNo"
    (pair,) = pair_tokenizer().encode([question(context, "an  apple")])
    words = [context[start:stop] for start, stop in pair.offsets.tolist()]
    assert "".join(words) == "".join(context.split())
    assert [context[slice(*pair.text(*span))] for span in pair.spans.tolist()] == ["an  apple"]
    assert [pair_text(pair, n, n) for n in range(len(pair.ids))] == words
    assert pair_text(pair, 0, len(pair.ids) - 1) == context


@pytest.mark.parametrize("trims", [True, False])
def test_byte_level_tokens_map_back_too(trims):
    """As RoBERTa has them: white space belongs to a token, and a letter may be two of them."""
    context = "Café Müller:  by Pina Bausch.\n“Café” naïve 東京 Müller"
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>"]
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([context] * 3, trainer)
    made.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=trims)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>")
    (pair,) = PairTokenizer(HFEncoder(tokenizer, "bytes of words")).encode(
        [question(context, "Müller", "Who?")]
    )
    assert pair.head.tolist()[0] == 0 and pair.head.tolist()[-2:] == [1, 1]
    assert pair.tail.tolist() == [1]
    assert [pair_text(pair, *span) for span in pair.spans.tolist()] == ["Müller", "Müller"]
    assert pair_text(pair, 0, len(pair.ids) - 1) == context


def pair_text(pair, first: int, last: int) -> str:
    return pair.question.context[slice(*pair.text(first, last))]


def test_all_occurrences_are_answers_and_yes_is_none():
    tokenizer = pair_tokenizer()
    kinds = {"stone": 0, "Yes": 1, "no": 2, None: -1}
    pairs = tokenizer.encode([question("stone w1 stone yes w2", answer) for answer in kinds])
    assert [pair.kind for pair in pairs] == list(kinds.values())
    assert pairs[0].spans.tolist() == [[0, 0], [2, 2]]
    assert [len(pair.spans) for pair in pairs[1:]] == [0, 0, 0]


@pytest.mark.parametrize("length", [1, 7, 8, 9, 30, 50])
@pytest.mark.parametrize("overlap", [0, 1, 3, 7])
def test_windows_cover_every_token_once_beyond_the_overlap(length, overlap):
    (pair,) = pair_tokenizer().encode([question(" ".join(LONG.split()[:length]))])
    spans = pair.windows(8 + AROUND, overlap)
    assert [token for span in spans for token in range(span.keep_start, span.keep_stop)] == list(
        range(length)
    )
    for before, after in pairwise(spans):
        assert before.stop - after.start == overlap
        assert before.start <= after.start <= after.keep_start == before.keep_stop
    assert all(span.stop - span.start <= 8 for span in spans)


def test_a_batch_holds_every_pair_as_the_tokenizer_has_it():
    tokenizer = pair_tokenizer()
    short, long = "it is sweet", LONG
    pairs = Pairs(
        tokenizer.encode([question(short, "sweet"), question(long, "w3")]),
        Layout(window=8 + AROUND, overlap=2, types=True),
    )
    batch = pairs.batch([0, 1])
    assert pairs.counts.tolist() == [1, 8]
    assert batch.ids.shape == (8, 2, 14)
    assert batch.reads.tolist() == [[True, True], *[[False, True]] * 7]
    expected = tokenizer.encoder.tokenizer("what is it", "it is sweet")
    length = len(expected["input_ids"])
    assert batch.ids[0, 0, :length].tolist() == expected["input_ids"]
    assert batch.types[0, 0, :length].tolist() == expected["token_type_ids"]
    assert batch.mask[0, 0].sum() == length
    # A row that is at its end shows one token, so that its softmax is one.
    assert batch.mask[1:, 0].sum(-1).tolist() == [1] * 7
    # What stands at the places of `order` is the context.
    flat = batch.ids.transpose(0, 1).flatten(1)
    for row, pair in enumerate(pairs.pairs):
        kept = flat[row].gather(0, batch.order[row])[batch.context[row]]
        assert kept.tolist() == pair.ids.tolist()
    assert batch.tokens == pairs.tokens() == length + 50 + 7 * 2 + 8 * AROUND
    assert batch.occurs.sum(1).tolist() == [1, 3]
    with pytest.raises(
        ValueError, match="takes 6 of a window's 8 tokens. That leaves 2 .* overlap of 2"
    ):
        Pairs(pairs.pairs, Layout(window=8, overlap=2))


def test_an_epoch_reads_every_question_once_and_continues_anywhere():
    contexts = [" ".join(LONG.split()[: 1 + number % 40]) for number in range(70)]
    pairs = Pairs(pair_tokenizer().encode([question(c) for c in contexts]), Layout(window=14))

    def numbers(epoch, start=0):
        return [batch.numbers for batch in pairs.shuffled_batches(3, 5, epoch, start)]

    whole = numbers(0)
    assert len(whole) == pairs.count_batches(3) == 24
    assert sorted(np.concatenate(whole)) == list(range(70))
    assert numbers(0, 10) == whole[10:] and numbers(1) != whole
    longest_first = [batch.ids.shape[0] for batch in pairs.sorted_batches(3)]
    assert longest_first == sorted(longest_first, reverse=True)
    moved = next(pairs.sorted_batches(3)).to(torch.device("cpu"))
    assert moved.scored == 3
