"""Whole-word accuracy of models whose tokens are pieces of words.

* A word begins at a token whose text begins with white space, after one whose text ends with white
  space, or at the start of a document. Tokens of only white space are not words.
* Teacher-forced: a word is right if each of its tokens was the most likely one after the true past.
* A word counts only if all its tokens were scored, so a document's first word usually does not.
"""

from typing import Any

import numpy as np


class Words:
    """Which tokens of a vocabulary begin with, end with, and consist of white space."""

    def __init__(self, starts_word: np.ndarray, ends_word: np.ndarray, blank: np.ndarray):
        shapes = {np.shape(starts_word), np.shape(ends_word), np.shape(blank)}
        if len(shapes) > 1 or len(shapes.pop()) != 1:
            raise ValueError(
                f"Words need three flags for each token of the vocabulary, got shapes "
                f"{np.shape(starts_word)}, {np.shape(ends_word)} and {np.shape(blank)}: pass three "
                f"vectors of one length."
            )
        self.blank = np.asarray(blank, dtype=bool)
        # A token of white space ends the word before it and begins the next one.
        self.starts_word = np.asarray(starts_word, dtype=bool) | self.blank
        self.ends_word = np.asarray(ends_word, dtype=bool) | self.blank

    def of(
        self,
        ids: np.ndarray,
        correct: np.ndarray,
        scored: np.ndarray,
        document_bounds: np.ndarray,
    ) -> dict[str, Any]:
        """Accuracy over whole words of the tokens `ids` [N], documents one after another."""
        first, right, words = self.judged(ids, correct, scored, document_bounds)
        return {
            "word_accuracy": int(right.sum()) / len(first) if len(first) else None,
            "words_right": int(right.sum()),
            "words_scored": len(first),
            "words_not_fully_scored": words - len(first),
        }

    def judged(
        self,
        ids: np.ndarray,
        correct: np.ndarray,
        scored: np.ndarray,
        document_bounds: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """First tokens of the words that count, whether each was right, and the number of all words.

        `document_bounds` holds the positions where documents begin; a final N is allowed.
        """
        ids, correct, scored = np.asarray(ids), np.asarray(correct), np.asarray(scored)
        bounds = np.asarray(document_bounds, dtype=np.int64)
        if ids.ndim != 1 or not ids.shape == correct.shape == scored.shape:
            raise ValueError(
                f"Each token needs to be marked correct or not and scored or not, got {ids.shape} "
                f"tokens, {correct.shape} and {scored.shape} marks: pass vectors of one length."
            )
        if bounds.size and not (bounds.min() >= 0 and bounds.max() <= len(ids)):
            raise ValueError(
                f"Documents begin at {bounds.min()} to {bounds.max()} in a text of {len(ids)} "
                f"tokens: give positions inside the text."
            )
        begins = self.starts_word[ids]
        begins[1:] |= self.ends_word[ids[:-1]]
        begins[bounds[bounds < len(ids)]] = True
        begins[:1] = True
        first = np.flatnonzero(begins)
        if not len(first):
            return first, np.zeros(0, dtype=bool), 0
        is_word = ~self.blank[ids[first]]
        counts = np.logical_and.reduceat(scored, first) & is_word
        right = np.logical_and.reduceat(correct, first)
        return first[counts], right[counts], int(is_word.sum())
