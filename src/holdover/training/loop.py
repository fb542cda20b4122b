"""The one training loop. A task brings batches and their loss; everything else is here.

* A step's loss is read while the next step runs, so that the device never waits for Python. A loss
  that is not finite therefore stops the run one step late, but before anything is saved.
* A position is (epoch, batch): together with the seed it says which tokens come next.
* Everything that decides the next step is in the checkpoint; times and speeds are not.
* Several processes read their own rows of every batch and make one step together. Rank 0 writes,
  prints and keeps the time; a signal to any process stops all of them after the same step.
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
from .compile_checks import CompileMismatch, check_is_due
from .display import Display, memory_used, metrics_line
from .log import DeferredMetrics, Log
from .optimizer import named_state, rate, restore_state, set_rate
from .options import LoopOptions
from .parallel import SingleProcess, full_tensor, local_part
from .progress import TrainProgress, total_steps, why_over
from .signals import Signals
from .task import BatchLike, Task


class Loop:
    def __init__(
        self,
        parallel: SingleProcess,
        optimizer: Any,
        task: Task,
        options: LoopOptions,
        accelerator: Accelerator,
        display: Display,
        save_model: Callable[[Path, dict[str, Tensor] | None], None],
    ) -> None:
        self.parallel, self.optimizer, self.task, self.options = parallel, optimizer, task, options
        self.model: Any = parallel.model
        self.accelerator = accelerator
        self.display = display
        self.save_model = save_model
        trained = [p for p in self.model.parameters() if p.requires_grad]
        # Adam keeps two numbers for each weight.
        adam = 2 * sum(p.numel() * p.element_size() for p in trained)
        self.checkpoints = Checkpoints(options.output, options.keep, adam)
        self.log = Log(options.output)
        self.progress = TrainProgress()
        self.carried: State | None = None
        self.total = total_steps(options, task)
        self._deferred: DeferredMetrics | None = None
        self.signals = Signals()
        # Compares the compiled step with the step as written, from time to time.
        self.check_compiled: Callable[[], None] | None = None
        self._processes = own_share().of
        # The numbers on which several processes last agreed.
        self._agreed_minutes = 0.0
        self._agreed_signal: str | None = None

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint whose weights are in the model already."""
        point = self.checkpoints.load(path)
        try:
            self.progress = TrainProgress(**point.progress)
        except TypeError as error:
            raise damaged(path, error) from error
        self.progress.finished = None
        restore_state(self.model, self.optimizer, point.optimizer, self.parallel.shard_like)
        self.carried = point.carried
        if self.carried is not None:
            # A copy, for the same reason as the weights (runs.models.in_own_memory).
            self.carried = self._own_rows(self.carried).to(self.accelerator.device, copy=True)
        self.log.continue_from(self.progress.step)
        # The run may have been killed between writing its best checkpoint and linking to it.
        rank0_broadcast(lambda: self.checkpoints.mark_best(self.progress.best_step))
        self._agreed_minutes = self.progress.seconds / 60
        # Last: nothing may draw a number between here and the next step.
        restore_random_state(point.random)

    def run(self) -> TrainProgress:
        self._started = time.perf_counter() - self.progress.seconds
        limit = self.options.max_time
        left = None if limit is None else 60 * limit - self.progress.seconds
        self.display.start(self.progress.step, self.progress.tokens, left)
        try:
            with self.signals:
                if self.progress.step == 0 and not rank0_broadcast(self.checkpoints.paths):
                    self._validate()
                    self._save()
                    rank0_broadcast(self.checkpoints.check_room_for_run)
                self._steps()
        finally:
            self.display.stop()
            self.log.close()
        return self.progress

    def _steps(self) -> None:
        progress, stream = self.progress, self._stream()
        # A resumed run may have been at its end already.
        progress.finished = self._why_over()
        try:
            while progress.finished is None:
                group = self._group(stream)
                self._step([batch for _, batch in group])
                epoch = progress.epoch
                (progress.epoch, progress.batch), _ = group[-1]
                progress.finished = self._why_over()
                self._check_compiled_again()
                self._after_step(epoch_ended=progress.epoch > epoch)
        finally:
            stream.close()

    def _check_compiled_again(self) -> None:
        """Compare the compiled step with the step as written again, before the next save."""
        step = self.progress.step
        if self.check_compiled is None or not check_is_due(step):
            return
        self._settle()
        try:
            self.check_compiled()
        except CompileMismatch as error:
            raise CompileMismatch(
                f"After step {step:,}: {error} The weights trained so far may be wrong: begin again."
            ) from error
        except torch.OutOfMemoryError:
            self.display.say(
                f"The compiled step was not checked after step {step:,}: there is no memory left to "
                "compare its gradients with the uncompiled step's."
            )
        self.display.pause(self.progress.tokens)

    def _after_step(self, epoch_ended: bool) -> None:
        """Validate and save when it is time."""
        progress, every = self.progress, self.options.validate_every
        due = epoch_ended if every is None else progress.tokens - progress.validated_at >= every
        if due or (progress.finished and progress.tokens > progress.validated_at):
            self._settle()
            self._validate()
            progress.finished = progress.finished or self._why_over()
            self._save()
        elif (
            progress.finished or self._stop_signal() or progress.step % self.options.save_every == 0
        ):
            self._save()
        # Asked again: with several processes, saving may have brought news of a signal.
        if (signal := self._stop_signal()) and not progress.finished:
            stopped = f"stopped after step {progress.step:,}; continue with --resume."
            self.display.say(f"{signal}: {stopped}")
            raise KeyboardInterrupt

    def _stream(self) -> Generator[tuple[tuple[int, int], BatchLike]]:
        """Batches from here to the last epoch's end, each with the position after it."""
        epoch, start = self.progress.epoch, self.progress.batch
        while epoch < self.options.epochs:
            for number, batch in enumerate(self.task.batches(epoch, start), start + 1):
                last = number == self.task.length(epoch)
                yield ((epoch + 1, 0) if last else (epoch, number)), batch
            epoch, start = epoch + 1, 0

    def _group(self, stream: Iterator[Any]) -> list[Any]:
        """The batches of one step, with the position after each."""
        return [item for _, item in zip(range(self.options.accumulate), stream, strict=False)]

    def _step(self, batches: list[Any]) -> None:
        progress, parallel = self.progress, self.parallel
        self.model.train()
        seed_rank(self.options.seed, progress.step)
        share = rate(progress.step + 1, self.total, self.options, progress.epoch)
        set_rate(self.optimizer, share)
        count = max(sum(batch.scored for batch in batches), 1)
        total: Tensor | None = None
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last else parallel.accumulating():
                loss, self.carried = parallel.loss(self.task, batch, self.carried, count)
                parallel.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        parallel.post_backward()
        norm = None
        if self.options.clip is not None:
            norm = full_tensor(clip_grad_norm_(self.model.parameters(), self.options.clip))
        self.optimizer.step()
        self.optimizer.zero_grad()
        progress.step += 1
        progress.tokens += sum(batch.tokens for batch in batches)
        assert total is not None
        rates = (self.options.learning_rate * share, self.options.added_learning_rate * share)
        self._settle()
        agreed: list[Tensor] = []
        if self._processes > 1:
            minutes = (time.perf_counter() - self._started) / 60 * (own_share().number == 0)
            own = torch.tensor([minutes, *self.signals.flags()], dtype=total.dtype)
            total, *agreed = summed(torch.cat([total[None], own.to(total.device)]))
        self._deferred = DeferredMetrics(progress.step, progress.tokens, rates, total, norm, agreed)
        if self._deferred.is_here:
            self._settle()

    def _settle(self) -> None:
        """Read the metrics of the step before: log them, or stop if they are not finite."""
        metrics, self._deferred = self._deferred, None
        if metrics is None:
            return
        loss, norm, *agreed = metrics.read()
        if agreed:
            self._agreed_minutes, *flags = agreed
            self._agreed_signal = self.signals.named(flags)
        if not math.isfinite(loss):
            self._give_up(f"loss of step {metrics.step} is {loss}")
        if not math.isfinite(norm):
            self._give_up(f"gradient of step {metrics.step} is not finite")
        self.log.write(
            step=metrics.step,
            tokens=metrics.tokens,
            loss=loss,
            learning_rate=metrics.rates[0],
            added_learning_rate=metrics.rates[1],
            gradient_norm=norm if self.options.clip is not None else None,
            tokens_per_second=self.display.speed(),
            seconds=round(time.perf_counter() - self._started, 3),
        )
        self.display.step(metrics.step, metrics.tokens, loss, metrics.rates[0])
        if metrics.step % self.options.log_every == 0:
            values = {
                "loss": loss,
                "learning_rate": metrics.rates[0],
                "added_learning_rate": metrics.rates[1],
                "gradient_norm": norm,
                "tokens": metrics.tokens,
                "tokens_per_second": self.display.speed() or 0.0,
                "memory_gib": memory_used(self.accelerator.device) / 2**30,
            }
            self.accelerator.log(values, step=metrics.step)

    def _check_weights(self) -> None:
        """Without clipping nobody checks gradients: weights may break while the loss is finite."""
        weights = [local_part(weight.detach()) for weight in self.model.parameters()]
        finite = torch.stack([weight.isfinite().all() for weight in weights])
        if not all(all_gather_objects(lambda: bool(finite.all()))):
            self._give_up(f"weights after step {self.progress.step} are not finite")

    def _give_up(self, reason: str) -> NoReturn:
        paths = self.checkpoints.paths()
        good = f"{paths[-1].name} is the last good checkpoint" if paths else "nothing was saved"
        raise FloatingPointError(
            f"The {reason}: training stopped, and {good}; start again with a smaller learning rate, "
            "more warm-up or without --bf16."
        )

    def _validate(self) -> None:
        self._check_weights()
        progress = self.progress
        self.model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            own_measures = self.parallel.read(self.task.validate)
        # Rank 0's numbers, so that all processes decide alike.
        measures = rank0_broadcast(lambda: own_measures)
        value = measures[self.task.decides]
        better = math.isfinite(value) and (progress.best is None or value < progress.best)
        if better:
            progress.best, progress.best_step, progress.without_better = value, progress.step, 0
        elif progress.step:
            progress.without_better += 1
        progress.validated_at = progress.tokens
        values = {f"valid_{name}": value for name, value in measures.items()}
        self.log.write(step=progress.step, tokens=progress.tokens, **values, best=better)
        self.accelerator.log(values, step=progress.step)
        mark = "  (best so far)" if better and progress.step else ""
        self.display.say(f"validation at step {progress.step:,}: {metrics_line(measures)}{mark}")
        if progress.step > self.options.warm_up:
            alarm = self.parallel.read(lambda model: self.task.alarm(model, measures))
            if alarm is not None:
                self.log.write(step=progress.step, tokens=progress.tokens, alarm=alarm)
                self.display.say(alarm)

    def _save(self) -> None:
        self._settle()
        self._check_weights()
        progress = self.progress
        progress.seconds = time.perf_counter() - self._started
        self.log.sync()
        optimizer, weights = named_state(self.model, self.optimizer), self.parallel.weights()
        point = Checkpoint(optimizer, random_state(), self._all_rows(), asdict(progress))

        def write() -> None:
            def save_model(folder: Path) -> None:
                self.save_model(folder, weights)

            self.checkpoints.save(progress.step, save_model, point)
            if progress.best_step == progress.step:
                self.checkpoints.mark_best(progress.step)
            self.checkpoints.drop_old()

        rank0_broadcast(write)
        self.display.pause(progress.tokens)

    def _all_rows(self) -> State | None:
        """The carried state of the rows of all processes, in the order of the processes."""
        if self._processes == 1 or self.carried is None:
            return self.carried
        own = self.carried.to("cpu")
        return State.concat(all_gather_objects(lambda: own))

    def _own_rows(self, carried: State) -> State:
        if self._processes == 1:
            return carried
        return carried.rows(list(own_share().rows(carried.batch_size)))

    def _why_over(self) -> str | None:
        return why_over(self.options, self.progress, self._clock())

    def _clock(self) -> float:
        """Minutes of training; with several processes those of rank 0, as of the last step."""
        if self._processes > 1:
            return self._agreed_minutes
        return (time.perf_counter() - self._started) / 60

    def _stop_signal(self) -> str | None:
        """The signal that arrived; with several processes one that has reached all of them."""
        return self._agreed_signal if self._processes > 1 else self.signals.name
