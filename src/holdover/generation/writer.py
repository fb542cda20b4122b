"""Writing on and on: inside a window a key-value cache, between windows the state.

* Every token goes through the model once, those of the overlap once more in the next window.
* Whole windows of a prompt are read in one forward each and leave nothing but the state; only the
  last window is open, and of its logits only those behind the last token are kept.
* A full window is closed when there is a token for the next one: what predicts that token is the last
  position of the old window, and it is read as the first of the new.
* A token that was chosen is read when another is asked for: the last one costs no forward.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from ..recurrent.checks import check_state
from ..recurrent.model import RecurrentModel
from ..state import NO_TOKEN, State
from .open_window import OpenWindow
from .session_checks import check_not_training


class Sampler:
    """Chooses tokens by their logits, narrowed by transformers' own warpers in its own order."""

    def __init__(
        self,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        if not temperature >= 0:
            raise ValueError(
                f"temperature={temperature} must not be negative: 0 takes the most probable token, "
                "1 samples from the model as it is."
            )
        self.greedy = temperature == 0
        self.generator = generator
        self.warpers = LogitsProcessorList()
        if temperature not in (0, 1):
            self.warpers.append(TemperatureLogitsWarper(float(temperature)))
        if top_k is not None:
            self.warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None:
            self.warpers.append(TopPLogitsWarper(top_p))

    def __call__(self, logits: Tensor) -> Tensor:
        """[B] ids for logits [B, V]."""
        if self.greedy:
            return logits.argmax(-1)
        # None of these warpers looks at the text so far.
        scores = self.warpers(None, logits)  # pyright: ignore[reportArgumentType]
        probabilities = scores.softmax(-1)
        if self.generator is not None:
            # A generator draws on its own device: one seed then serves the CPU and a GPU alike.
            probabilities = probabilities.to(self.generator.device)
        return torch.multinomial(probabilities, 1, generator=self.generator)[:, 0]


class Writer:
    """One text that is read and written on, in any order: `read` what is given, iterate for more.

    It ends only when it is no longer asked; `close` ends the window early, for a state to keep.
    """

    def __init__(
        self, model: RecurrentModel, state: State | None = None, sampler: Sampler | None = None
    ) -> None:
        # A window that is thrown away: models that cannot write refuse to open one.
        model.open_window()
        check_not_training(model)
        if state is not None:
            check_state(state, 1, model.device, model.dtype, model.owner())
        self.model = model
        self.state = state  # what was carried into the open window, or will be into the next
        self.window: OpenWindow | None = None
        self.windows = 0  # begun so far
        self.sampler = sampler or Sampler()
        self.logits: Tensor | None = None  # [1, V] behind the last token that was read
        self._unread: Tensor | None = None  # [1, 1] chosen, not read yet

    def read(self, input_ids: Tensor) -> None:
        """Go on with a piece [1, n] of given text, of any length."""
        if input_ids.ndim != 2 or input_ids.shape[0] != 1:
            raise ValueError(
                f"A writer continues one text of shape (1, tokens), and input_ids have the shape "
                f"{tuple(input_ids.shape)}: give each text a writer of its own."
            )
        if input_ids.shape[1] == 0:
            raise ValueError("There is nothing to continue: give the text at least one token.")
        check_not_training(self.model)
        self._catch_up()
        self._read(input_ids.to(self.model.device))

    def next_token(self) -> int:
        """Choose the token behind everything that was read and written."""
        check_not_training(self.model)
        self._catch_up()
        if self.logits is None:
            raise ValueError("There is nothing to continue: read at least one token first.")
        chosen = self.sampler(self.logits)
        self._unread = chosen[:, None].to(self.model.device)
        return int(chosen)

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        return self.next_token()

    def close(self) -> State | None:
        """The state behind everything that was read and written; what follows opens a new window."""
        self._catch_up()
        if self.window is not None:
            self.state, self.window = self.window.close(), None
        return self.state

    def _catch_up(self) -> None:
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._read(unread, chosen=True)

    @torch.no_grad()
    def _read(self, ids: Tensor, chosen: bool = False) -> None:
        """Read ids [1, n]: given ones are checked; chosen ones, among the model's own, need not be."""
        while ids.shape[1]:
            room = self._room()
            if room == 0:
                self.close()
                continue
            piece, ids = ids[:, :room], ids[:, room:]
            if self.window is None and ids.shape[1]:
                # More follows, so nobody asks for the logits behind this window.
                self.state = self.model(piece, state=self.state, return_logits=False).state
                self.windows += 1
                continue
            if self.window is None:
                self.window = self.model.open_window(self.state)
                self.windows += 1
            # In float32, as in transformers.
            logits = self.window.feed(piece, last_only=True, checked=chosen)
            self.logits = logits[:, -1].float()

    def _room(self) -> int:
        """How many tokens still fit into the open window, or into the next where none is open."""
        if self.window is not None:
            return self.window.room - self.window.length
        tail = None if self.state is None else self.state.tail
        known = 0 if tail is None else int((tail[0] != NO_TOKEN).sum())
        return self.model.settings.window - known
