"""Is the state used? The same windows read with their state, without it, with another's, with less.

* A window's loss depends on the past through its state alone, so the states of a whole reading are
  kept and single windows are then read again in batches, each with whatever state is wanted.
* The window read again with its own state must give the loss it gave before; how nearly it does is in
  the result.
* All differences are paired, window by window.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from ..generation.cursor import Cursor
from ..recurrent.step import OutputRequest
from ..state import State
from ..text.tokens import Tokens
from ..text.window_loader import Batch, RowWindow, Segment, Walk, windows_of
from ..unrolling import unroll
from ..windows import IGNORED, Window
from .intervals import Resampled, units_of

# Windows between a window and the part of the same document whose state stands in for another's.
FAR = 20
# Windows whose gradients are followed.
GRADIENTS = 32


def drawn_windows(
    tokens: Tokens,
    stretches: Sequence[Segment],
    window: int,
    overlap: int,
    count: int,
    seed: int,
) -> list[tuple[int, int]]:
    """(stretch, window) of windows that have a past and targets, drawn at random, in reading order."""
    candidates = [
        (number, window_number)
        for number, stretch in enumerate(stretches)
        for window_number in windows_of(stretch, window, overlap)[1:]
        if _scores_something(tokens, stretch, window_number, window, overlap)
    ]
    if len(candidates) > count:
        chosen = np.random.default_rng(seed).choice(len(candidates), count, replace=False)
        candidates = [candidates[index] for index in sorted(chosen)]
    return candidates


def donors(
    stretches: Sequence[Segment], drawn: Sequence[tuple[int, int]], seed: int
) -> tuple[list[int], str]:
    """For each drawn window another one whose state it is given, and what kind of other."""
    random = np.random.default_rng(seed + 1)
    # Documents, not stretches: a reset cuts one document into several of those.
    documents = np.array([stretches[stretch].document for stretch, _ in drawn])
    windows = np.array([window for _, window in drawn])
    several = len(set(documents.tolist())) > 1
    found = []
    for document, window in zip(documents, windows, strict=True):
        if several:
            others = np.flatnonzero(documents != document)
        else:
            apart = np.abs(windows - window)
            others = np.flatnonzero(apart >= min(FAR, apart.max()))
        found.append(int(random.choice(others)))
    kind = "another document" if several else f"the same document, {FAR} windows off or farthest"
    return found, kind


class KeptStates:
    """The states that the drawn windows read, taken from a reading of the whole corpus."""

    def __init__(self, stretches: Sequence[Segment], drawn: Sequence[tuple[int, int]]) -> None:
        self._wanted = {
            (stretches[stretch].document, window): number
            for number, (stretch, window) in enumerate(drawn)
        }
        self.states: dict[int, State] = {}

    def __call__(self, batch: Batch, state: State | None) -> None:
        for row, place in enumerate(batch.places[0]):
            number = None if place is None else self._wanted.get((place.document, place.window))
            if number is not None and state is not None:
                self.states[number] = replace(state.rows(row), present=None).to("cpu")


def diagnose(
    model: Any,
    tokens: Tokens,
    stretches: Sequence[Segment],
    drawn: Sequence[tuple[int, int]],
    kept: KeptStates,
    before: np.ndarray,
    *,
    rows: int,
    history: int,
    device: torch.device,
    seed: int,
    draws: int = 2000,
    advance: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """before [N]: -log p of the corpus as it was read with its states."""
    reader = WindowReader(
        model, tokens, stretches, drawn, rows, device, advance or (lambda count: None)
    )
    other, kind = donors(stretches, drawn, seed)
    own, places = reader.losses(lambda number: kept.states[number])
    sums = {
        "zeroed": reader.losses(lambda number: None)[0],
        "other": reader.losses(lambda number: kept.states[other[number]])[0],
    }
    was = np.array(
        [np.nansum(before[p.start + p.keep + 1 : p.start + p.length + 1]) for p in places]
    )
    counts = reader.counts
    resampled, units = resampled_over(places, draws, seed)
    spoilt = {name: compared(resampled, values, own, counts) for name, values in sums.items()}
    enough = reader.past >= history
    by_history = []
    if enough.any():
        chosen = np.flatnonzero(enough).tolist()
        part, _ = resampled_over([places[number] for number in chosen], draws, seed)
        for length in range(history + 1):
            values = reader.with_history(chosen, length)
            by_history.append(
                {"windows": length, **compared(part, values, own[enough], counts[enough])}
            )
    return {
        "windows": len(drawn),
        "interval_over": units,
        "units": resampled.count,
        "own_loss": float(own.sum() / counts.sum()),
        "own_differs_from_first_reading": float(np.abs(own - was).max()),
        "other_is": kind,
        **spoilt,
        "history": by_history,
        "gradient_norms": reader.gradient_norms(history, seed),
    }


def compared(resampled: Resampled, values: Any, own: Any, counts: Any) -> dict[str, Any]:
    """Loss, and what it is above the loss with the own state, in nats a token."""
    per_unit = resampled.per_unit
    mean = per_unit(values).sum() / counts.sum()
    # Subtracted window by window: equal losses leave exactly nothing to resample, no rounding.
    value, low, high = resampled.interval(
        per_unit(values - own), per_unit(counts), transform=lambda nats: nats
    )
    return {"loss": float(mean), "above_own": value, "low": low, "high": high}


def resampled_over(places: Sequence[RowWindow], draws: int, seed: int) -> tuple[Resampled, str]:
    units, kind = units_of(
        np.array([place.document for place in places]), np.array([place.window for place in places])
    )
    return Resampled(units, draws, seed), kind


def _scores_something(
    tokens: Tokens, stretch: Segment, number: int, window: int, overlap: int
) -> bool:
    if tokens.scored is None:
        return True
    start = stretch.start + number * (window - overlap)
    stop = min(start + window, stretch.start + stretch.length)
    return bool(tokens.scored[start + overlap + 1 : stop + 1].any())


class WindowReader:
    """Reads drawn windows again, in batches."""

    def __init__(self, model, tokens, stretches, drawn, rows, device, advance) -> None:
        self.model, self.tokens, self.stretches, self.drawn = model, tokens, stretches, drawn
        self.rows, self.device, self.advance = rows, device, advance
        self.counts = np.zeros(len(drawn))
        # [drawn] windows that each could remember.
        self.past = np.array([window - stretches[stretch].first for stretch, window in drawn])

    def _batches(self, numbers: Sequence[int], before: int):
        """Batches of drawn windows, each with `before` windows in front of it."""
        settings = self.model.settings
        for first in range(0, len(numbers), self.rows):
            part = list(numbers[first : first + self.rows])
            rows = []
            for number in part:
                stretch, window = self.drawn[number]
                whole = self.stretches[stretch]
                rows.append([replace(whole, first=window - before, last=window + 1)])
            compiled = self.model.compiled
            walk = Walk(self.tokens, rows, settings.window, settings.overlap, full_width=compiled)
            batch = walk.batch(0, before + 1)
            yield part, batch.to(self.device)
            self.advance(len(part) * (before + 1))

    @torch.no_grad()
    def losses(self, state_of: Callable[[int], State | None]) -> tuple[np.ndarray, list[RowWindow]]:
        """[drawn] summed -log p of each drawn window, read with a state of one's choice."""
        sums, places = np.zeros(len(self.drawn)), []
        for part, batch, nll in self.read(state_of):
            sums[part] = nll.sum(1)
            self.counts[part] = (batch.targets[-1] != IGNORED).sum(1).cpu().numpy()
            places += batch.places[0]
        return sums, places

    @torch.no_grad()
    def read(
        self, state_of: Callable[[int], State | None]
    ) -> Iterator[tuple[list[int], Batch, np.ndarray]]:
        """Batches of drawn windows, and -log p [rows, T] at each of their positions."""
        for part, batch in self._batches(range(len(self.drawn)), 0):
            states = [state_of(number) for number in part]
            state = None
            if states[0] is not None:
                state = State.concat([s for s in states if s is not None]).to(self.device)
            output, _ = self.model.step(self._unforgetting(batch)[0], state, self._request)
            yield part, batch, output["nll"].double().cpu().numpy()

    @torch.no_grad()
    def with_history(self, numbers: Sequence[int], length: int) -> np.ndarray:
        """[numbers] summed -log p of drawn windows, read after `length` windows from nothing."""
        sums = []
        for _, batch in self._batches(numbers, length):
            cursor = Cursor(self.model)
            for window in self._unforgetting(batch):
                output = cursor.read_window(window, self._request)
            sums.append(output["nll"].double().sum(1).cpu().numpy())
        return np.concatenate(sums)

    def gradient_norms(self, history: int, seed: int) -> list[dict[str, float]]:
        """Mean norm of the gradient of a window's loss a token, by the state d windows before it."""
        # Drawn again: the first of them would be those of the first documents.
        eligible = np.random.default_rng(seed).permutation(np.flatnonzero(self.past >= history))
        numbers = sorted(eligible[:GRADIENTS].tolist())
        norms: list[list[np.ndarray]] = [[] for _ in range(history)]
        for _, batch in self._batches(numbers, history):
            windows = self._unforgetting(batch)
            cursor = Cursor(self.model)
            cursor.read_window(windows[0], self._request)
            assert cursor.state is not None
            states = [_as_leaf(cursor.state)]
            # States keep their graph, also those of a model that was trained without.
            settings = self.model.settings.replace(detach_state=False)
            request = OutputRequest(self.model.task)
            with torch.enable_grad():
                step = partial(self.model.step, wanted=request, settings=settings)
                read = list(unroll(step, windows[1:], states[0]))
                states += [reached for _, reached in read]
                tensors = [list(s.tensors.values()) for s in states[:history]]
                flat = [t for group in tensors for t in group if t.is_floating_point()]
                gradients = torch.autograd.grad(read[-1][0]["loss"], flat, allow_unused=True)
            found = {id(t): g for t, g in zip(flat, gradients, strict=True) if g is not None}
            scored = (batch.targets[-1] != IGNORED).sum(1).clamp(min=1).float()
            for place, group in enumerate(tensors):
                squares = [
                    found[id(t)].float().flatten(1).square().sum(1) for t in group if id(t) in found
                ]
                if squares:
                    norm = torch.stack(squares).sum(0).sqrt() / scored
                    norms[history - 1 - place].append(norm.cpu().numpy())
        return [
            {"distance": distance, "norm": float(np.concatenate(parts).mean())}
            for distance, parts in enumerate(norms, 1)
            if parts
        ]

    @property
    def _request(self) -> OutputRequest:
        return OutputRequest(self.model.task, nll=True)

    def _unforgetting(self, batch: Batch) -> list[Window]:
        """The windows of a batch whose rows all begin with nothing and then forget nothing."""
        return [replace(window, begins=None) for window in batch.windows()]


def _as_leaf(state: State) -> State:
    tensors = {
        name: tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in state.tensors.items()
    }
    return replace(state, tensors=tensors)
