"""Continuity over a window's end: topics, and rates of names, pronouns, quotes and sentences.

Topics are a latent Dirichlet allocation over words.

Each rate is counted over the contexts that decide it, and only from the spelling: a name is a
capitalised word in the middle of a sentence, a quote is open if the number of marks is odd.
"""

import re
from collections.abc import Iterable, Sequence

import numpy as np

TOPICS = 20
WORDS = 5000


class Topics:
    """Fitted on texts; gives each text a distribution over topics."""

    def __init__(self, texts: Iterable[str], seed: int, topics: int = TOPICS) -> None:
        from sklearn.decomposition import LatentDirichletAllocation
        from sklearn.feature_extraction.text import CountVectorizer

        self.words = CountVectorizer(max_features=WORDS, stop_words="english", min_df=2)
        bags = self.words.fit_transform(texts)
        self.model = LatentDirichletAllocation(
            topics, learning_method="online", random_state=seed, max_iter=5
        )
        self.model.fit(bags)

    def of(self, texts: Sequence[str]) -> np.ndarray:
        """[texts, topics]"""
        return self.model.transform(self.words.transform(texts))


def divergence(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence, in bits, between the rows of two matrices."""
    middle = (one + other) / 2
    return (_relative(one, middle) + _relative(other, middle)) / 2


def _relative(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.sum(one * np.log2(one / other), axis=1)


# Capitalised in the middle of sentences without being a name.
NOT_NAMES = {"I", "Mr", "Mrs", "Miss", "Dr", "Sir", "God", "O", "Oh", "Ah", "St"}
HE, SHE = {"he", "him", "his", "himself"}, {"she", "her", "hers", "herself"}
ENDS = '.!?\u201d"'
QUOTES = '"\u201c\u201d'
# How many more pronouns of one gender a context needs to count as being about them.
CLEARLY = 3


def names(text: str) -> set[str]:
    """Capitalised words that follow another word, not the end of a sentence."""
    words = re.findall(r"(?<=[a-z,;] )[A-Z][a-z]+", text)
    return set(words) - NOT_NAMES


def names_known(context: str, continuation: str) -> bool | None:
    """Whether every name of the continuation was in the context; None if it has no names."""
    named = names(continuation)
    if not named:
        return None
    return all(re.search(rf"\b{name}\b", context) for name in named)


def pronoun_fits(context: str, continuation: str) -> bool | None:
    """Whether the first gendered pronoun has the gender that the context is clearly about."""
    words = re.findall(r"[a-z]+", context.lower())
    lead = sum(word in HE for word in words) - sum(word in SHE for word in words)
    if abs(lead) < CLEARLY:
        return None
    wanted = HE if lead > 0 else SHE
    for word in re.findall(r"[a-z]+", continuation.lower()):
        if word in HE | SHE:
            return word in wanted
    return None


def quote_closed(context: str, continuation: str) -> bool | None:
    """For contexts that end inside a quotation: whether the next quote mark closes it."""
    if context.count("\u201c") + context.count("\u201d"):
        if context.count("\u201c") <= context.count("\u201d"):
            return None
    elif context.count('"') % 2 == 0:
        return None
    mark = re.search(f"[{QUOTES}]", continuation)
    if mark is None:
        return None
    if mark[0] != '"':
        return mark[0] == "\u201d"
    # A straight mark closes after a letter or a stop, and opens before a word.
    before = continuation[mark.start() - 1] if mark.start() else context[-1:]
    return not before.isspace()


def sentence_goes_on(context: str, continuation: str) -> bool | None:
    """For contexts that end within a sentence: whether it continues in lower case or with a mark."""
    end = context.rstrip()[-1:]
    start = continuation.lstrip()[:1]
    if not end or not start or end in ENDS:
        return None
    return start.islower() or start in ",;:.!?-'\u2019"


RATES = {
    "names_known": names_known,
    "pronoun_fits": pronoun_fits,
    "quote_closed": quote_closed,
    "sentence_goes_on": sentence_goes_on,
}


def rates(
    contexts: Sequence[str], continuations: Sequence[str], groups: Sequence[int], count: int
) -> dict[str, dict[str, list[float]]]:
    """For each rate and group (a book), the number of successes and of contexts that decide it."""
    by_rate = {}
    for name, decide in RATES.items():
        sums, counts = [0.0] * count, [0.0] * count
        for context, continuation, group in zip(contexts, continuations, groups, strict=True):
            success = decide(context, continuation)
            if success is not None:
                sums[group] += success
                counts[group] += 1
        by_rate[name] = {"sums": sums, "counts": counts}
    return by_rate
