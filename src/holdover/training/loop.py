"""The one training loop. A task brings batches and their loss; everything else is here.

* A step's loss is looked at while the next step runs, so that the device never waits for Python. A
  loss that is no number therefore stops the run one step late, but before anything is saved.
* A position is (epoch, batch): with the seed it says which tokens come next.
* Everything that decides the next step is in the checkpoint; times and speeds are not.
* Several processes read their own rows of every batch and make one step. The first one writes, shows and
  keeps the time; a signal that any of them gets stops all behind the same step.
"""

import math
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ..runs.processes import all_gather_objects, own_share, rank0_broadcast, seed_rank, summed
from ..state import State
from .checkpoint import Checkpoint, Checkpoints, damaged, random_state, restore_random_state
from .compile_checks import CompileMismatch, look_is_due
from .deferred_log import DeferredMetrics
from .display import Display, memory_used, metrics_line
from .log import Log
from .optimizer import named_state, rate, restore_state, set_rate
from .options import LoopOptions
from .parallel import SingleProcess, local_part, whole
from .progress import TrainProgress, total_steps, why_over
from .signals import Signals
from .task import BatchLike, Task


class Loop:
    def __init__(
        self,
        held: SingleProcess,
        optimizer: Any,
        task: Task,
        options: LoopOptions,
        accelerator: Accelerator,
        display: Display,
        save_model: Callable[[Path, dict[str, Tensor] | None], None],
    ) -> None:
        self.held, self.optimizer, self.task, self.options = held, optimizer, task, options
        self.model: Any = held.model
        self.accelerator = accelerator
        self.display = display
        self.save_model = save_model
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # Adam keeps two numbers for each.
        adam = 2 * sum(p.numel() * p.element_size() for p in trained)
        self.checkpoints = Checkpoints(options.output, options.keep, adam)
        self.log = Log(options.output)
        self.reached = TrainProgress()
        self.carried: State | None = None
        self.total = total_steps(options, task)
        self._pending: DeferredMetrics | None = None
        self.signals = Signals()
        # Looks at what is believed of a step, from time to time.
        self.look: Callable[[], None] | None = None
        self._processes = own_share().of
        self._told_minutes = 0.0
        self._told_signal: str | None = None

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint whose weights are in the model already."""
        point = self.checkpoints.load(path)
        try:
            self.reached = TrainProgress(**point.progress)
        except TypeError as error:
            raise damaged(path, error) from error
        self.reached.finished = None
        restore_state(self.model, self.optimizer, point.optimizer, self.held.as_held)
        self.carried = point.carried
        if self.carried is not None:
            # A copy, for the reason that weights are copied when a model is opened.
            self.carried = self._own_rows(self.carried).to(self.accelerator.device, copy=True)
        self.log.continue_from(self.reached.step)
        # The run may have been killed between writing its best checkpoint and linking to it.
        rank0_broadcast(lambda: self.checkpoints.mark_best(self.reached.best_step))
        self._told_minutes = self.reached.seconds / 60
        # Last: nothing may draw a number between here and the next step.
        restore_random_state(point.random)

    def run(self) -> TrainProgress:
        self._started = time.perf_counter() - self.reached.seconds
        limit = self.options.max_time
        left = None if limit is None else 60 * limit - self.reached.seconds
        self.display.start(self.reached.step, self.reached.tokens, left)
        try:
            with self.signals:
                if self.reached.step == 0 and not rank0_broadcast(self.checkpoints.found):
                    self._validate()
                    self._save()
                    rank0_broadcast(self.checkpoints.check_room_for_run)
                self._steps()
        finally:
            self.display.stop()
            self.log.close()
        return self.reached

    def _steps(self) -> None:
        reached, stream = self.reached, self._stream()
        # A run that is continued may have been at its end already.
        reached.finished = self._why_over()
        try:
            while reached.finished is None:
                group = self._group(stream)
                self._step([batch for _, batch in group])
                begun = reached.epoch
                (reached.epoch, reached.batch), _ = group[-1]
                reached.finished = self._why_over()
                self._look_again()
                self._after_step(epoch_ended=reached.epoch > begun)
        finally:
            stream.close()

    def _look_again(self) -> None:
        """Whether a compiled step is still the step as it was written, before anything more is saved."""
        step = self.reached.step
        if self.look is None or not look_is_due(step):
            return
        self._settle()
        try:
            self.look()
        except CompileMismatch as error:
            raise CompileMismatch(
                f"Behind step {step:,}: {error} What was trained up to here may be wrong: begin again."
            ) from error
        except torch.OutOfMemoryError:
            told = "there is no memory left to compare its gradients with the uncompiled step's"
            self.display.say(f"The compiled step was not looked at behind step {step:,}: {told}.")
        self.display.pause(self.reached.tokens)

    def _after_step(self, epoch_ended: bool) -> None:
        """Validate and save where it is time to."""
        reached, every = self.reached, self.options.validate_every
        due = epoch_ended if every is None else reached.tokens - reached.validated_at >= every
        if due or (reached.finished and reached.tokens > reached.validated_at):
            self._settle()
            self._validate()
            reached.finished = reached.finished or self._why_over()
            self._save()
        elif (
            reached.finished or self._asked_to_stop() or reached.step % self.options.save_every == 0
        ):
            self._save()
        if self._asked_to_stop() and not reached.finished:
            told = f"stopped after step {reached.step:,}; continue with --resume."
            self.display.say(f"{self._asked_to_stop()}: {told}")
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
        reached, held = self.reached, self.held
        self.model.train()
        seed_rank(self.options.seed, reached.step)
        share = rate(reached.step + 1, self.total, self.options, reached.epoch)
        set_rate(self.optimizer, share)
        count = max(sum(batch.scored for batch in batches), 1)
        total: Tensor | None = None
        for number, batch in enumerate(batches):
            alone = number == len(batches) - 1
            with nullcontext() if alone else held.accumulating():
                loss, self.carried = held.loss(self.task, batch, self.carried, count)
                held.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        held.post_backward()
        norm = None
        if self.options.clip is not None:
            norm = whole(clip_grad_norm_(self.model.parameters(), self.options.clip))
        self.optimizer.step()
        self.optimizer.zero_grad()
        reached.step += 1
        reached.tokens += sum(batch.tokens for batch in batches)
        assert total is not None
        rates = (self.options.learning_rate * share, self.options.added_learning_rate * share)
        self._settle()
        told = None
        if self._processes > 1:
            minutes = (time.perf_counter() - self._started) / 60 * (own_share().number == 0)
            mine = torch.tensor([minutes, *self.signals.flags()], dtype=total.dtype)
            total, *told = summed(torch.cat([total[None], mine.to(total.device)]))
        self._pending = DeferredMetrics(reached.step, reached.tokens, rates, total, norm, told)
        if self._pending.is_here:
            self._settle()

    def _settle(self) -> None:
        """Look at the loss of the step before: log it, or stop."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        loss, norm, *told = pending.read()
        if told:
            self._told_minutes, *flags = told
            self._told_signal = self.signals.named(flags)
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
        weights = [local_part(weight.detach()) for weight in self.model.parameters()]
        finite = torch.stack([weight.isfinite().all() for weight in weights])
        if not all(all_gather_objects(lambda: bool(finite.all()))):
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
            measured = self.held.read(self.task.validate)
        # Told by one, so that all decide alike.
        found = rank0_broadcast(lambda: measured)
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
            alarm = self.held.read(lambda model: self.task.alarm(model, found))
            if alarm is not None:
                self.log.write(step=reached.step, tokens=reached.tokens, alarm=alarm)
                self.display.say(alarm)

    def _save(self) -> None:
        self._settle()
        self._check_weights()
        reached = self.reached
        reached.seconds = time.perf_counter() - self._started
        self.log.sync()
        optimizer, weights = named_state(self.model, self.optimizer), self.held.weights()
        point = Checkpoint(optimizer, random_state(), self._all_rows(), asdict(reached))

        def write() -> None:
            def save_model(folder: Path) -> None:
                self.save_model(folder, weights)

            self.checkpoints.save(reached.step, save_model, point)
            if reached.best_step == reached.step:
                self.checkpoints.mark_best(reached.step)
            self.checkpoints.drop_old()

        rank0_broadcast(write)
        self.display.pause(reached.tokens)

    def _all_rows(self) -> State | None:
        """What is carried by the rows of all processes, in their order."""
        if self._processes == 1 or self.carried is None:
            return self.carried
        own = self.carried.to("cpu")
        return State.concat(all_gather_objects(lambda: own))

    def _own_rows(self, carried: State) -> State:
        if self._processes == 1:
            return carried
        return carried.rows(list(own_share().rows(carried.batch_size)))

    def _why_over(self) -> str | None:
        return why_over(self.options, self.reached, self._clock())

    def _clock(self) -> float:
        """Minutes of training; of several processes the first one's, as it told them last."""
        if self._processes > 1:
            return self._told_minutes
        return (time.perf_counter() - self._started) / 60

    def _asked_to_stop(self) -> str | None:
        """The signal that came; of several processes one that all have been told of."""
        return self._told_signal if self._processes > 1 else self.signals.name
