"""Signals: the first asks for a checkpoint after the current step, the second stops at once."""

import signal
import threading
from collections.abc import Sequence
from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class Signals:
    """Inside `with`, `name` is the name of the signal that arrived, or None."""

    def __init__(self) -> None:
        self.name: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Only the main thread can handle signals.
        if threading.current_thread() is threading.main_thread():
            # A signal that this process ignores from the start, as under nohup, stays ignored.
            handled = [n for n in HANDLED if signal.getsignal(n) is not signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in handled}
        return self

    def __exit__(self, *raised: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def flags(self) -> list[float]:
        """Which signal arrived, as numbers that processes can sum."""
        return [float(self.name == number.name) for number in HANDLED]

    @staticmethod
    def named(flags: Sequence[float]) -> str | None:
        """The signal that any process received, from the summed flags."""
        arrived = [number.name for number, flag in zip(HANDLED, flags, strict=True) if flag]
        return arrived[0] if arrived else None

    def _note(self, number: int, frame: Any) -> None:
        if self.name is not None:
            raise KeyboardInterrupt
        self.name = signal.Signals(number).name
