"""Reading and writing one text, token by token: a cursor and a sampler.

Every token goes through the model once, those of the overlap once more in the next window. A chosen
token is read when another is asked for: the last one costs no forward pass.
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

from ..recurrent.model import RecurrentModel
from ..state import State
from .cursor import Cursor
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
    """One text that is read and continued, in any order: `read` takes text, iterating writes more.

    It never ends by itself; `close` ends the window early, for a state to keep.
    """

    def __init__(
        self, model: RecurrentModel, state: State | None = None, sampler: Sampler | None = None
    ) -> None:
        # A window that is thrown away: models that cannot write refuse to open one.
        model.open_window()
        check_not_training(model)
        self.model = model
        self.cursor = Cursor(model, 1, state)
        self.sampler = sampler or Sampler()
        self.logits: Tensor | None = None  # [1, V] after the last token that was read
        self._unread: Tensor | None = None  # [1, 1] chosen, not read yet

    @property
    def state(self) -> State | None:
        """The state carried into the open window, or into the next one."""
        return self.cursor.state

    @property
    def window(self) -> OpenWindow | None:
        """The window that is being read or written."""
        return self.cursor.window

    @property
    def windows(self) -> int:
        """Begun so far."""
        return self.cursor.windows

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
        """Choose the token after everything that was read and written."""
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
        """The state after everything that was read and written; more text opens a new window."""
        self._catch_up()
        return self.cursor.close()

    def _catch_up(self) -> None:
        if self._unread is not None:
            unread, self._unread = self._unread, None
            self._read(unread, chosen=True)

    def _read(self, ids: Tensor, chosen: bool = False) -> None:
        """Read ids [1, n]: given ones are checked; chosen ones are the model's own."""
        logits = self.cursor.advance(ids, checked=chosen)
        assert logits is not None
        # In float32, as in transformers.
        self.logits = logits[:, -1].float()
