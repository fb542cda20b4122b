"""Questions and contexts as token ids, with the characters of every token of a context.

The tokenizer's own template for pairs gives the tokens before a window's part of the context (BERT:
[CLS] question [SEP]) and after it ([SEP]); the context is tokenised once, as a whole.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..windows import Span, cut
from .question import KINDS, Question, occurrences

# Questions that are tokenised at once: the tokenizer's output is larger than the part that is kept.
AT_ONCE = 256


@dataclass(frozen=True)
class Pair:
    """One question and its context, tokenised."""

    question: Question
    head: np.ndarray  # [H] ids before every part of the context
    head_types: np.ndarray  # [H]
    tail: np.ndarray  # [E] ids after every part of the context
    tail_types: np.ndarray  # [E]
    ids: np.ndarray  # [N] the context
    type: int  # token type of the context
    offsets: np.ndarray  # [N, 2] start and stop character of each token
    spans: np.ndarray  # [O, 2] first and last token of every occurrence of the answer

    @property
    def kind(self) -> int:
        """Index of its answer's kind in KINDS; -1 without an answer."""
        kind = self.question.kind
        return -1 if kind is None else KINDS.index(kind)

    def room(self, window: int) -> int:
        """Tokens of the context that a window holds."""
        return window - len(self.head) - len(self.tail)

    def windows(self, window: int, overlap: int, centred: bool = True) -> list[Span]:
        """Which tokens of the context each window reads, and which it scores: each token once."""
        room = self.room(window)
        if room <= overlap:
            question = len(self.head) + len(self.tail)
            raise ValueError(
                f"Question {self.question.id} takes {question} of a window's {window} tokens. That "
                f"leaves {max(room, 0)} for the context, which needs more than the overlap of "
                f"{overlap}: give a larger --window, or leave the question out."
            )
        return cut(len(self.ids), room, overlap, centred=centred)

    def text(self, first: int, last: int) -> tuple[int, int]:
        """[start, stop) characters of tokens first to last, without white space at the ends."""
        start, stop = int(self.offsets[first, 0]), int(self.offsets[last, 1])
        piece = self.question.context[start:stop]
        return start + len(piece) - len(piece.lstrip()), stop - len(piece) + len(piece.rstrip())


class PairTokenizer:
    """Tokenises question and context as one pair; `encoder` must have a fast tokenizer."""

    def __init__(self, encoder: Any) -> None:
        from tokenizers import Tokenizer

        tokenizer = getattr(encoder, "tokenizer", None)
        if tokenizer is None:
            raise ValueError(
                f"The tokenizer {encoder.name} cannot encode pairs of question and context: give a "
                "model with a tokenizer of its own."
            )
        self.encoder = encoder
        self.padding: int = tokenizer.pad_token_id or 0
        self.gives_types = "token_type_ids" in tokenizer.model_input_names
        # A copy: the caller's tokenizer may truncate and pad, this one must not.
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()

    def encode(self, questions: Sequence[Question]) -> list[Pair]:
        return list(self._encode(questions))

    def _encode(self, questions: Sequence[Question]) -> Iterator[Pair]:
        for first in range(0, len(questions), AT_ONCE):
            part = questions[first : first + AT_ONCE]
            encodings = self._backend.encode_batch([(q.question, q.context) for q in part])
            for question, encoding in zip(part, encodings, strict=True):
                yield _pair(question, encoding)


def _pair(question: Question, encoding: Any) -> Pair:
    of_context = [number for number, of in enumerate(encoding.sequence_ids) if of == 1]
    if not of_context:
        raise ValueError(
            f"Question {question.id} has a context in which the tokenizer finds no tokens: give one "
            "with words in it."
        )
    start, stop = of_context[0], of_context[-1] + 1
    ids, types = (np.array(values, dtype=np.int64) for values in (encoding.ids, encoding.type_ids))
    offsets = np.array(encoding.offsets[start:stop], dtype=np.int64)
    return Pair(
        question=question,
        head=ids[:start],
        head_types=types[:start],
        tail=ids[stop:],
        tail_types=types[stop:],
        # 32 bits are enough for any vocabulary, and a large set of questions must fit into memory.
        ids=ids[start:stop].astype(np.int32),
        type=int(types[start]),
        offsets=offsets.astype(np.int32),
        spans=_spans(question, offsets),
    )


def _spans(question: Question, offsets: np.ndarray) -> np.ndarray:
    """[O, 2] first and last token of an answer's occurrences; yes and no have none."""
    if question.kind != "span":
        return np.zeros((0, 2), dtype=np.int64)
    assert question.answer is not None
    spans = []
    for start, stop in occurrences(question.answer, question.context):
        # The first token that ends after the answer's start, the last that starts before its end.
        first = int(np.searchsorted(offsets[:, 1], start, side="right"))
        last = int(np.searchsorted(offsets[:, 0], stop, side="left")) - 1
        # The tokenizer may have dropped all characters of the answer.
        if first <= last:
            spans.append((first, last))
    return np.array(spans, dtype=np.int64).reshape(-1, 2)
