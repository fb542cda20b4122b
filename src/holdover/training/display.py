"""The console output of a run: a progress bar on a terminal, plain lines elsewhere."""

import time
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

# Steps over which tokens per second are averaged.
RECENT = 20


def memory_used(device: torch.device) -> int:
    """Peak bytes on a GPU, bytes of the process elsewhere."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return psutil.Process().memory_info().rss


class Display:
    """Loss, learning rate, tokens (or other units) per second, memory, time left."""

    def __init__(self, console: Console, device: torch.device, every: int, unit: str = "tokens"):
        self.console = console
        self.device = device
        self.unit = unit
        self.total = 0
        self._deadline: float | None = None
        self.every = every
        # The losses since the last line, which shows their mean.
        self._losses: list[float] = []
        self._marks: list[tuple[float, int]] = []
        self._bar = Progress(
            TextColumn("step {task.completed:,.0f}/{task.total:,.0f}"),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[now]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=0, now="")

    def expect(self, total: int) -> None:
        self.total = total
        self._bar.update(self._task, total=total)

    def start(self, step: int, tokens: int, seconds: float | None = None) -> None:
        """seconds: time until the run ends, if it has a time limit."""
        self._deadline = None if seconds is None else time.perf_counter() + seconds
        self._bar.update(self._task, completed=step)
        self._bar.start()
        self._marks = [(time.perf_counter(), tokens)]

    def stop(self) -> None:
        self._bar.stop()

    def pause(self, tokens: int) -> None:
        """Do not count the time since the last step (a validation, a save) as training."""
        self._marks = [(time.perf_counter(), tokens)]

    def speed(self) -> float | None:
        (start, before), (end, after) = self._marks[0], self._marks[-1]
        return (after - before) / (end - start) if end > start else None

    def step(self, step: int, tokens: int, loss: float, rate: float) -> None:
        self._marks = [*self._marks[-RECENT:], (time.perf_counter(), tokens)]
        self._losses.append(loss)
        mean = sum(self._losses) / len(self._losses)
        memory = memory_used(self.device) / 2**30
        speed = f"{self.speed() or 0:,.0f} {self.unit}/s"
        now = f"loss {mean:.4f}  lr {rate:.2e}  {speed}  {memory:.1f} GiB"
        now_at = time.perf_counter()
        seconds = (now_at - self._marks[0][0]) / max(len(self._marks) - 1, 1)
        total = self.total
        if self._deadline is not None and seconds > 0:
            total = min(total, step + int(max(self._deadline - now_at, 0) / seconds))
        self._bar.update(self._task, completed=step, total=total, now=now)
        if step % self.every == 0:
            self._losses = []
        if not self.console.is_terminal and step % self.every == 0:
            left = _duration(seconds * (total - step))
            self.say(f"step {step:,}/{total:,}  mean {now}  {left} left")

    def say(self, message: str) -> None:
        self.console.print(message, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def metrics_line(values: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in values.items())
