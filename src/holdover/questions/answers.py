"""Exact match and F1 of answers, as HotpotQA's own evaluation counts them.

* Two answers are compared as their words: small letters, without punctuation and articles.
* F1 is that of the words, each as often as it stands. Yes and no (and noanswer) are right or wrong:
  against any other answer they score nothing, whatever words they share.
"""

import re
import string
from collections import Counter

# As HotpotQA has them: what cannot be partly right.
WHOLE = frozenset({"yes", "no", "noanswer"})
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """What of an answer is compared."""
    letters = answer.lower().translate(_PUNCTUATION)
    # A space in their place: "a-b" lost its dash before, and words must not grow together here.
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(given: str, expected: str) -> float:
    return float(normalised(given) == normalised(expected))


def f1(given: str, expected: str) -> float:
    ours, theirs = normalised(given), normalised(expected)
    if ours != theirs and (ours in WHOLE or theirs in WHOLE):
        return 0.0
    our_words, their_words = ours.split(), theirs.split()
    shared = sum((Counter(our_words) & Counter(their_words)).values())
    if shared == 0:
        return 0.0
    precision, recall = shared / len(our_words), shared / len(their_words)
    return 2 * precision * recall / (precision + recall)
