"""Next-token prediction as classification with one class for each token of the vocabulary.

* Micro-averaged precision, recall and F1 all equal accuracy here. Therefore averages over classes are
  reported, over classes that occur often enough.
* One-vs-rest AUC comes from a histogram of log p(class) for each class. A pair in one bin counts one
  half, so the exact value is at most 0.5 sum_b pos_b neg_b / (P N) away; that bound is reported.
* Equal logits are common in 16-bit types. The rank form gives them their average rank; "the most
  likely token" is the one with the lowest id among them, as in argmax.
* Counts are integers on the device of the logits; only `result` divides.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

# Logits processed at once: bounds the temporary copies to some hundred MiB.
SLICE = 2**24
# Histograms of more classes than this take gigabytes.
MOST_CLASSES = 2**13
# log p below this is in the first bin.
LOWEST = -32.0


class NextToken:
    """Counts over scored positions; the caller chooses `classes`, the most frequent targets."""

    def __init__(
        self,
        vocabulary: int,
        classes: Sequence[int] | None,
        minimum_support: int = 10,
        bins: int = 4096,
    ):
        chosen = sorted(
            {int(token) for token in (range(vocabulary) if classes is None else classes)}
        )
        if vocabulary < 2 or not chosen or chosen[0] < 0 or chosen[-1] >= vocabulary:
            raise ValueError(
                f"Classes must be ids of a vocabulary of at least two tokens, got {len(chosen)} "
                f"classes for {vocabulary} tokens: give ids from 0 to {vocabulary - 1}."
            )
        if len(chosen) > MOST_CLASSES:
            raise ValueError(
                f"Statistics of {len(chosen)} classes would not fit in memory, at most "
                f"{MOST_CLASSES} do: give the ids of the most frequent targets as classes."
            )
        if minimum_support < 1 or bins < 1:
            raise ValueError(
                f"minimum_support={minimum_support} and bins={bins} must be at least 1."
            )
        self.vocabulary = vocabulary
        self.minimum_support = minimum_support
        self.bins = bins
        self.described = (
            f"all {vocabulary}"
            if classes is None
            else f"the {len(chosen)} most frequent targets of {vocabulary}"
        )
        self._chosen = torch.tensor(chosen)
        # Index among the chosen classes, -1 for other tokens.
        self._place = torch.full((vocabulary,), -1)
        self._place[self._chosen] = torch.arange(len(chosen))
        size, cells = len(chosen), len(chosen) * bins
        self._sums = {name: torch.zeros((), dtype=torch.int64) for name in ("top1", "top5", "rank")}
        self._sums |= {name: torch.zeros(size, dtype=torch.int64) for name in ("predicted", "hits")}
        self._sums |= {name: torch.zeros(cells, dtype=torch.int64) for name in ("all", "positive")}
        self._positions = 0

    def add(self, other: "NextToken") -> None:
        """Add the counts of another object, from other positions."""
        self._positions += other._positions
        for name, sums in self._sums.items():
            sums += other._sums[name].to(sums.device)

    @torch.no_grad()
    def update(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Add positions [n, V]; returns for each whether its target was the most likely token."""
        if logits.shape != (*targets.shape, self.vocabulary) or targets.ndim != 1:
            raise ValueError(
                f"Logits {tuple(logits.shape)} and targets {tuple(targets.shape)} do not fit: give "
                f"[n, {self.vocabulary}] and [n]."
            )
        if targets.numel() and not 0 <= targets.min() <= targets.max() < self.vocabulary:
            raise ValueError(
                f"Targets reach from {int(targets.min())} to {int(targets.max())}, expected 0 to "
                f"{self.vocabulary - 1}: leave out positions without a target."
            )
        self._move(logits.device)
        targets = targets.to(logits.device)
        rows = max(1, SLICE // self.vocabulary)
        parts = [
            self._add(some, their)
            for some, their in zip(logits.split(rows), targets.split(rows), strict=True)
        ]
        return torch.cat(parts)

    def _add(self, logits: Tensor, targets: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        normaliser = logits.logsumexp(1, keepdim=True)
        # Comparisons with NaN are false, which would make its target the most likely token.
        if not normaliser.isfinite().all():
            raise ValueError(
                "Some logits are NaN or infinite, expected finite numbers (or -inf for single "
                "tokens): look for the window where the model overflowed."
            )
        own = logits.gather(1, targets[:, None])
        above = (logits > own).sum(1)
        equal = logits == own
        ids = torch.arange(self.vocabulary, device=logits.device)
        before = above + (equal & (ids < targets[:, None])).sum(1)
        right = before == 0
        self._positions += len(targets)
        self._sums["top1"] += right.sum()
        self._sums["top5"] += (before < 5).sum()
        # Twice (average rank - 1), which is an integer.
        self._sums["rank"] += (2 * above + equal.sum(1) - 1).sum()
        predicted, place = self._place[logits.argmax(1)], self._place[targets]
        inside = place >= 0
        self._count("predicted", predicted[predicted >= 0])
        self._count("hits", place[inside & right])
        scores = logits if len(self._chosen) == self.vocabulary else logits[:, self._chosen]
        cells = self._bin(scores - normaliser)
        cells += torch.arange(len(self._chosen), device=logits.device) * self.bins
        self._count("all", cells.flatten())
        self._count("positive", cells[inside, place[inside]])
        return right

    def _bin(self, log_probability: Tensor) -> Tensor:
        scaled = (log_probability - LOWEST) * (self.bins / -LOWEST)
        # Clamped before the conversion: -inf has no integer.
        return scaled.clamp_(0, self.bins - 1).long()

    def _count(self, name: str, where: Tensor) -> None:
        sums = self._sums[name]
        sums += torch.bincount(where, minlength=len(sums))

    def _move(self, device: torch.device) -> None:
        if self._place.device != device:
            self._place, self._chosen = self._place.to(device), self._chosen.to(device)
            self._sums = {name: sums.to(device) for name, sums in self._sums.items()}

    def result(self) -> dict[str, Any]:
        if self._positions == 0:
            raise ValueError(
                "No position was scored, expected at least one: call update before result."
            )
        n = self._positions
        sums = {name: value.cpu() for name, value in self._sums.items()}
        return {
            "positions": n,
            "vocabulary": self.vocabulary,
            "top1_accuracy": int(sums["top1"]) / n,
            "top5_accuracy": int(sums["top5"]) / n,
            # mean(1 - (rank - 1) / (V - 1))
            "rank_auc": 1 - int(sums["rank"]) / (2 * n * (self.vocabulary - 1)),
            "classes": self.described,
            "minimum_support": self.minimum_support,
            **self._precision_recall_f1(sums),
            **self._auc(sums),
        }

    def _precision_recall_f1(self, sums: dict[str, Tensor]) -> dict[str, Any]:
        support = sums["positive"].view(-1, self.bins).sum(1)
        kept = support >= self.minimum_support
        support, hits, predicted = support[kept], sums["hits"][kept], sums["predicted"][kept]
        # Never predicted: precision 0 (zero_division 0). Support is at least 1 here.
        precision = hits.double() / predicted.clamp(min=1)
        recall = hits.double() / support
        f1 = 2 * hits.double() / (predicted + support)
        measures = {"precision": precision, "recall": recall, "f1": f1}
        result: dict[str, Any] = {"classes_with_support": int(kept.sum())}
        for name, values in measures.items():
            result |= _averages(name, values, support)
        return result

    def _auc(self, sums: dict[str, Tensor]) -> dict[str, Any]:
        positive = sums["positive"].view(-1, self.bins)
        negative = sums["all"].view(-1, self.bins) - positive
        support, others = positive.sum(1), negative.sum(1)
        kept = (support >= self.minimum_support) & (others >= self.minimum_support)
        support, positive = support[kept], positive[kept].double()
        negative = negative[kept].double()
        pairs = support.double() * others[kept]
        below = negative.cumsum(1) - negative
        shared = 0.5 * (positive * negative).sum(1)
        auc = ((positive * below).sum(1) + shared) / pairs
        return {
            "classes_in_auc": int(kept.sum()),
            **_averages("auc", auc, support),
            **_averages("auc_error_bound", shared / pairs, support),
        }


def _averages(name: str, values: Tensor, support: Tensor) -> dict[str, float | None]:
    """Macro and support-weighted averages; None if no class has enough support."""
    if not len(values):
        return {f"macro_{name}": None, f"weighted_{name}": None}
    weighted = (values * support).sum() / support.sum()
    return {f"macro_{name}": float(values.mean()), f"weighted_{name}": float(weighted)}
