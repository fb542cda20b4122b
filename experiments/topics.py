"""Topics of texts: latent Dirichlet allocation over words, and the distance between two texts."""

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
