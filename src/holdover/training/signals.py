"""Polite signals: the first asks for a checkpoint after the step, a second one stops at once."""

import signal
import threading
from collections.abc import Sequence
from typing import Any

WANTED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """Inside `with`, `name` is that of the signal that came, if one did."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Only the main thread is told of signals.
        if threading.current_thread() is threading.main_thread():
            # What this process was started to ignore, as under nohup, stays ignored.
            wanted = [n for n in WANTED if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in wanted}
        return self

    def __exit__(self, *raised: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def flags(self) -> list[float]:
        """Which signal came, in numbers that processes can sum."""
        return [float(self.name == number.name) for number in WANTED]

    @staticmethod
    def named(flags: Sequence[float]) -> str | None:
        """The signal that some process's flags say came."""
        came = [number.name for number, flag in zip(WANTED, flags, strict=True) if flag]
        return came[0] if came else None

    def _note(self, number: int, frame: Any) -> None:
        if self.name is not None:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
