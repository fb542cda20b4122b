"""Where a session is in its text, as a value: what changes while it reads and writes, and is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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
                f"temperature={self.temperature} is not a temperature: 0 takes the most probable "
                "token, 1 samples from the model as it is, 0.001 to 1000 can be asked for."
            )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise ValueError(f"top_k={self.top_k} must be a whole number of at least 1.")
        if self.top_p is not None and not 0 < self.top_p < 1:
            raise ValueError(f"top_p={self.top_p} must be a share between 0 and 1.")

    def changed(
        self, temperature: float | None, top_k: int | None, top_p: float | None
    ) -> "Sampling":
        """With what is given; top_k=0 and top_p=1 take the limit away."""
        return Sampling(
            self.temperature if temperature is None else float(temperature),
            self.top_k if top_k is None else top_k or None,
            self.top_p if top_p is None else (None if top_p == 1 else float(top_p)),
        )


@dataclass(frozen=True)
class FileRead:
    """A file that was read into the session, or begun."""

    name: str
    size: int  # of the file as it lies on disk
    sha256: str
    tokens: int = 0  # read so far: where reading goes on
    bytes: int = 0  # of its text that these tokens stand for
    finished: bool = False


@dataclass(frozen=True)
class SessionPosition:
    """Where a session is in its text: all of it that changes."""

    random: Tensor  # the generator's
    sampling: Sampling = Sampling()
    state: State | None = None  # what was carried into the open window
    open: tuple[int, ...] = ()  # tokens of the open window, without those of the overlap
    unread: int | None = None  # chosen, not read yet
    position: int = 0  # tokens read and written
    unfinished: bytes = b""  # of a character that was written in part
    files: tuple[FileRead, ...] = ()


@dataclass(frozen=True)
class SavedSession:
    """What a session file holds."""

    place: SessionPosition
    owner: Mapping[str, Any]  # of the model, as in State
    tokenizer: str  # its fingerprint
    tokenizer_name: str | None = None  # as they were asked for
    model_name: str | None = None
    size: int = field(default=0, compare=False)  # of the file

    @property
    def windows(self) -> int:
        read = self.place.position - (self.place.unread is not None)
        return layout(read, self.owner["window"], self.owner["overlap"])[0]


def layout(read: int, window: int, overlap: int) -> tuple[int, int]:
    """(windows begun, new tokens in the last of them) after so many tokens."""
    if read <= window:
        return int(read > 0), read
    following = -(-(read - window) // (window - overlap))
    return 1 + following, read - window - (following - 1) * (window - overlap)
