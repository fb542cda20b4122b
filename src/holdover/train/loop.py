"""The one training loop. A task brings batches and their loss; everything else is here.

* A step's loss is looked at while the next step runs, so that the device never waits for Python. A
  loss that is no number therefore stops the run one step late, but before anything is saved.
* A position is (epoch, batch): with the seed it says which tokens come next.
* Everything that decides the next step is in the checkpoint; times and speeds are not.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor

from ..state import State
from .checkpoint import (
    Checkpoint,
    Checkpoints,
    damaged,
    random_state,
    restore_random_state,
)
from .log import Log
from .optim import named_state, rate, restore_state, set_rate
from .options import LoopOptions
from .pending import Pending
from .progress import Display, memory_used, metrics_line
from .signals import Signals


class BatchLike(Protocol):
    @property
    def scored(self) -> int: ...  # targets

    @property
    def tokens(self) -> int: ...  # that are read, each counted once


class Task(Protocol):
    """What is trained."""

    @property
    def decides(self) -> str:
        """The measure of `validate` whose smallest value makes a checkpoint the best."""
        ...

    def batches(self, epoch: int, start: int) -> Iterator[BatchLike]:
        """The batches of an epoch from number `start` on, on the device."""
        ...

    def length(self, epoch: int) -> int:
        """Batches of an epoch."""
        ...

    def tokens(self) -> int:
        """Tokens (or values) that are read in an epoch."""
        ...

    def loss(
        self, model: Any, batch: Any, carried: State | None, count: int
    ) -> tuple[Tensor, State | None]:
        """The batch's summed loss divided by `count`, and what the next batch continues from."""
        ...

    def validate(self, model: Any) -> dict[str, float]:
        """Measures on held-out data."""
        ...

    def alarm(self, model: Any, found: dict[str, float]) -> str | None:
        """What is plainly wrong with a model that is past its warm-up and validates so, if anything."""
        ...


@dataclass
class Reached:
    """How far a run has come."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    best: float | None = None
    best_step: int = 0
    without_better: int = 0
    validated_at: int = 0
    finished: str | None = None


class Loop:
    def __init__(
        self,
        model: Any,
        optimizer: Any,
        task: Task,
        options: LoopOptions,
        accelerator: Accelerator,
        display: Display,
        save_model: Callable[[Path], None],
    ) -> None:
        self.model, self.optimizer, self.task, self.options = model, optimizer, task, options
        self.accelerator = accelerator
        self.display = display
        self.save_model = save_model
        trained = [p for p in model.parameters() if p.requires_grad]
        # Adam keeps two numbers for each.
        adam = 2 * sum(p.numel() * p.element_size() for p in trained)
        self.checkpoints = Checkpoints(options.output, options.keep, adam)
        self.log = Log(options.output)
        self.reached = Reached()
        self.carried: State | None = None
        self.total = total_steps(options, task)
        self._pending: Pending | None = None
        self.signals = Signals()

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint whose weights are in the model already."""
        point = self.checkpoints.load(path)
        try:
            self.reached = Reached(**point.progress)
        except TypeError as error:
            raise damaged(path, error) from error
        self.reached.finished = None
        restore_state(self._own_model(), self.optimizer, point.optimizer)
        self.carried = point.carried
        if self.carried is not None:
            # A copy, for the reason that weights are copied when a model is opened.
            self.carried = self.carried.to(self.accelerator.device, copy=True)
        self.log.continue_from(self.reached.step)
        # The run may have been killed between writing its best checkpoint and linking to it.
        self.checkpoints.mark_best(self.reached.best_step)
        # Last: nothing may draw a number between here and the next step.
        restore_random_state(point.random)

    def run(self) -> Reached:
        self._started = time.perf_counter() - self.reached.seconds
        limit = self.options.max_time
        left = None if limit is None else 60 * limit - self.reached.seconds
        self.display.start(self.reached.step, self.reached.tokens, left)
        try:
            with self.signals:
                if self.reached.step == 0 and not self.checkpoints.found():
                    self._validate()
                    self._save()
                    self.checkpoints.check_room_for_run()
                self._steps()
        finally:
            self.display.stop()
            self.log.close()
        return self.reached

    def _steps(self) -> None:
        reached, stream = self.reached, self._stream()
        # A run that is continued may have been at its end already.
        reached.finished = self._limit()
        try:
            while reached.finished is None:
                group = self._group(stream)
                self._step([batch for _, batch in group])
                begun = reached.epoch
                (reached.epoch, reached.batch), _ = group[-1]
                reached.finished = self._limit()
                self._after_step(epoch_ended=reached.epoch > begun)
        finally:
            stream.close()

    def _after_step(self, epoch_ended: bool) -> None:
        """Validate and save where it is time to."""
        reached, every = self.reached, self.options.validate_every
        due = epoch_ended if every is None else reached.tokens - reached.validated_at >= every
        if due or (reached.finished and reached.tokens > reached.validated_at):
            self._settle()
            self._validate()
            reached.finished = reached.finished or self._limit()
            self._save()
        elif reached.finished or self.signals.name or reached.step % self.options.save_every == 0:
            self._save()
        if self.signals.name and not reached.finished:
            told = f"stopped after step {reached.step:,}; continue with --resume."
            self.display.say(f"{self.signals.name}: {told}")
            raise KeyboardInterrupt

    def _stream(self) -> Generator[tuple[tuple[int, int], BatchLike]]:
        """Batches from here to the last epoch's end, each with the position behind it."""
        epoch, start = self.reached.epoch, self.reached.batch
        while epoch < self.options.epochs:
            for number, batch in enumerate(self.task.batches(epoch, start), start + 1):
                last = number == self.task.length(epoch)
                yield ((epoch + 1, 0) if last else (epoch, number)), batch
            epoch, start = epoch + 1, 0

    def _group(self, stream: Iterator[Any]) -> list[Any]:
        wanted = range(self.options.accumulate)
        return [item for _, item in zip(wanted, stream, strict=False)]

    def _step(self, batches: list[Any]) -> None:
        reached, accelerator = self.reached, self.accelerator
        self.model.train()
        share = rate(reached.step + 1, self.total, self.options, reached.epoch)
        set_rate(self.optimizer, share)
        count = max(sum(batch.scored for batch in batches), 1)
        total: Tensor | None = None
        for number, batch in enumerate(batches):
            alone = number == len(batches) - 1
            with nullcontext() if alone else accelerator.no_sync(self.model):
                loss, carried = self.task.loss(self.model, batch, self.carried, count)
                accelerator.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
            self.carried = None if carried is None else carried.detach()
        norm = None
        if self.options.clip is not None:
            norm = accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        reached.step += 1
        reached.tokens += sum(batch.tokens for batch in batches)
        assert total is not None
        rates = (self.options.learning_rate * share, self.options.added_learning_rate * share)
        self._settle()
        self._pending = Pending(reached.step, reached.tokens, rates, total, norm)
        if self._pending.is_here:
            self._settle()

    def _settle(self) -> None:
        """Look at the loss of the step before: log it, or stop."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        loss, norm = pending.read()
        if not math.isfinite(loss):
            self._give_up(f"loss of step {pending.step} is {loss}")
        if not math.isfinite(norm):
            self._give_up(f"gradient of step {pending.step} is not finite")
        self.log.write(
            step=pending.step,
            tokens=pending.tokens,
            loss=loss,
            learning_rate=pending.rates[0],
            added_learning_rate=pending.rates[1],
            gradient_norm=norm if self.options.clip is not None else None,
            tokens_per_second=self.display.speed(),
            seconds=round(time.perf_counter() - self._started, 3),
        )
        self.display.step(pending.step, pending.tokens, loss, pending.rates[0])
        if pending.step % self.options.log_every == 0:
            values = {
                "loss": loss,
                "learning_rate": pending.rates[0],
                "added_learning_rate": pending.rates[1],
                "gradient_norm": norm,
                "tokens": pending.tokens,
                "tokens_per_second": self.display.speed() or 0.0,
                "memory_gib": memory_used(self.accelerator.device) / 2**30,
            }
            self.accelerator.log(values, step=pending.step)

    def _check_weights(self) -> None:
        """Without clipping nobody looks at gradients: a loss may be the last finite thing."""
        finite = [weight.detach().isfinite().all() for weight in self._own_model().parameters()]
        if not bool(torch.stack(finite).all()):
            self._give_up(f"weights after step {self.reached.step} are not finite")

    def _give_up(self, what: str) -> NoReturn:
        found = self.checkpoints.found()
        good = f"{found[-1].name} is the last good checkpoint" if found else "nothing was saved"
        raise FloatingPointError(
            f"The {what}: training stopped, and {good}; start again with a smaller learning rate, "
            "more warm-up or without --bf16."
        )

    def _validate(self) -> None:
        self._check_weights()
        reached = self.reached
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            found = self.task.validate(self._own_model())
        value = found[self.task.decides]
        better = math.isfinite(value) and (reached.best is None or value < reached.best)
        if better:
            reached.best, reached.best_step, reached.without_better = value, reached.step, 0
        elif reached.step:
            reached.without_better += 1
        reached.validated_at = reached.tokens
        values = {f"valid_{name}": value for name, value in found.items()}
        self.log.write(step=reached.step, tokens=reached.tokens, **values, best=better)
        self.accelerator.log(values, step=reached.step)
        mark = "  (best so far)" if better and reached.step else ""
        self.display.say(f"validation at step {reached.step:,}: {metrics_line(found)}{mark}")
        if reached.step > self.options.warm_up:
            alarm = self.task.alarm(self._own_model(), found)
            if alarm is not None:
                self.log.write(step=reached.step, tokens=reached.tokens, alarm=alarm)
                self.display.say(alarm)

    def _save(self) -> Path:
        self._settle()
        self._check_weights()
        reached = self.reached
        reached.seconds = time.perf_counter() - self._started
        self.log.sync()
        point = Checkpoint(
            named_state(self._own_model(), self.optimizer),
            random_state(),
            self.carried,
            asdict(reached),
        )
        path = self.checkpoints.save(reached.step, self.save_model, point)
        if reached.best_step == reached.step:
            self.checkpoints.mark_best(reached.step)
        self.checkpoints.drop_old()
        self.display.pause(reached.tokens)
        return path

    def _limit(self) -> str | None:
        """Why the run is over, if it is."""
        options, reached = self.options, self.reached
        if reached.epoch >= options.epochs:
            return f"{options.epochs} epochs were read"
        if options.patience is not None and reached.without_better >= options.patience:
            return f"{options.patience} validations brought nothing better"
        if options.max_steps is not None and reached.step >= options.max_steps:
            return f"{reached.step:,} steps were made"
        if options.max_tokens is not None and reached.tokens >= options.max_tokens:
            return f"{reached.tokens:,} tokens were read"
        minutes = (time.perf_counter() - self._started) / 60
        if options.max_time is not None and minutes >= options.max_time:
            return f"{minutes:.1f} minutes have passed"
        return None

    def _own_model(self) -> Any:
        return self.accelerator.unwrap_model(self.model, keep_torch_compile=False)


def total_steps(options: LoopOptions, task: Task) -> int:
    """Steps until the limits that are known beforehand (epochs differ by a batch at most)."""
    batches = task.length(0)
    steps = -(-batches * options.epochs // options.accumulate)
    if options.max_tokens is not None:
        a_step = max(task.tokens() * options.accumulate / batches, 1)
        steps = min(steps, math.ceil(options.max_tokens / a_step))
    return steps if options.max_steps is None else min(steps, options.max_steps)
