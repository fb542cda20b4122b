"""A session's position in its text, as a value: everything that changes while it reads and writes.

Importing this module does not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from ..state import State


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; temperature 0 takes the most probable one."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):
            raise ValueError(
                f"temperature={self.temperature} is out of range: 0 takes the most probable "
                "token, 1 samples from the model as it is, and 0.001 to 1000 are allowed."
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise ValueError(f"top_k={self.top_k} must be a whole number of at least 1.")
        if self.top_p is not None and not 0 < self.top_p < 1:
            raise ValueError(f"top_p={self.top_p} must be a share between 0 and 1.")

    def changed(
        self, temperature: float | None, top_k: int | None, top_p: float | None
    ) -> "Sampling":
        """A copy with the given values. None keeps a value; top_k=0 and top_p=1 remove a limit."""
        return Sampling(
            self.temperature if temperature is None else float(temperature),
            self.top_k if top_k is None else top_k or None,
            self.top_p if top_p is None else (None if top_p == 1 else float(top_p)),
        )


@dataclass(frozen=True)
class FileRead:
    """A file that the session has read completely or in part."""

    name: str
    size: int  # of the file on disk
    sha256: str
    tokens: int = 0  # read so far
    bytes: int = 0  # of its text, covered by these tokens
    finished: bool = False


@dataclass(frozen=True)
class SessionPosition:
    """A session's position in its text, and everything else that changes."""

    random: "Tensor"  # the generator's state
    sampling: Sampling = Sampling()
    state: "State | None" = None  # the state carried into the open window
    open: tuple[int, ...] = ()  # tokens of the open window, without those of the overlap
    unread: int | None = None  # a sampled token that is not read yet
    position: int = 0  # tokens read and written
    unfinished: bytes = b""  # the first bytes of a character
    files: tuple[FileRead, ...] = ()


@dataclass(frozen=True)
class SavedSession:
    """The content of a session file."""

    place: SessionPosition
    owner: Mapping[str, Any]  # the model, as in State
    tokenizer: str  # its fingerprint
    tokenizer_name: str | None = None  # as given
    model_name: str | None = None
    size: int = field(default=0, compare=False)  # of the file

    @property
    def windows(self) -> int:
        read = self.place.position - (self.place.unread is not None)
        return layout(read, self.owner["window"], self.owner["overlap"])[0]


def layout(read: int, window: int, overlap: int) -> tuple[int, int]:
    """(windows begun, new tokens in the last window) after `read` tokens."""
    if read <= window:
        return int(read > 0), read
    following = -(-(read - window) // (window - overlap))
    return 1 + following, read - window - (following - 1) * (window - overlap)
