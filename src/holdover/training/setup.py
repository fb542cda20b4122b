"""One setup for the one training loop. An application describes what is special to it.

`train` runs every step of a training in the one order that works: device and folder, checks, data,
model, compilation, the wrapper for several processes, the optimizer, CUDA graphs, checkpoint, loop.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from torch import Tensor, nn

from ..carries.kinds import KIND_SETTINGS
from ..config import kind_fields
from ..runs.models import RUN, numbered, read_run
from ..runs.processes import (
    Share,
    is_first,
    open_talk,
    own_share,
    rank0_broadcast,
    rank0_first,
    started_processes,
)
from ..runs.provenance import choose_device, make_folder, provenance
from ..runs.settings import as_dict
from ..storage import RUN_DESCRIPTION, with_version, write_atomically
from .checkpoint import damaged, lock_folder
from .compile_checks import check_gradients
from .display import Display
from .launch_checks import check_processes, wants_shards, without_accelerates_sharding
from .log import LOG, check_trackers, explain_write_errors
from .loop import Loop
from .optimizer import build_optimizer
from .options import CHANGEABLE, LoopOptions
from .parallel import parallelize
from .progress import TrainProgress
from .task import Task


class Application:
    """One application's part of a training. `train` calls these methods in the order given here."""

    # What the batches count.
    unit = "tokens"
    # False: the model has no weights to learn and is only saved.
    learns = True
    # Whether the compiled step and the step as written draw the same numbers for dropout.
    same_dropout_compiled = False

    def __init__(self, options: Any) -> None:
        self.options = options

    def check(self, device: torch.device) -> None:
        """Refuse settings that cannot work on this device, before the run's folder is used."""

    def open_data(self, console: Console) -> dict[str, Any]:
        """Open the data; returns the description of it that goes into holdover_run.json."""
        raise NotImplementedError

    def checksums(self, data: dict[str, Any]) -> dict[str, str | None]:
        """From a description of the data, the checksums that must not change before a resume."""
        raise NotImplementedError

    def build_model(self, checkpoint: Path | None) -> Any:
        """A new model, or the one in a checkpoint. The random seed of the run is set."""
        raise NotImplementedError

    def make_task(self, model: Any, device: torch.device, share: Share) -> Task:
        """The batches, loss and validation of this process."""
        raise NotImplementedError

    def describe(self, model: Any, task: Any) -> str:
        """Lines for the console: the model, the data, a step."""
        raise NotImplementedError

    def compile(self, model: Any) -> None:
        """Compile the step of the model."""

    def layers(self, model: Any) -> Sequence[nn.Module]:
        """The layers that are sharded one by one."""
        return ()

    def save(self, folder: Path, model: Any, weights: dict[str, Tensor] | None) -> None:
        """Write the model into a folder; `weights` are given if the processes hold shards of it."""
        raise NotImplementedError


def train(
    application: Application, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a model in its run's folder, from the beginning or from the last checkpoint."""
    with accelerator_in_folder(application.options, console) as (accelerator, console):
        return _train(application, resume, accelerator, console)


def _train(
    application: Application, resume: bool, accelerator: Accelerator, console: Console
) -> TrainProgress:
    options, device = application.options, accelerator.device
    application.check(device)
    checkpoint = prepare_folder(options, resume)
    # Rank 0 first: the others find the text already encoded and the model already downloaded.
    data = rank0_first(lambda: application.open_data(console))
    if resume:
        check_same_data(application, read_about(options.output)["data"], data)
    model = rank0_first(lambda: _build_model(application, checkpoint))
    task = application.make_task(model, device, own_share())
    # Before the processes hold shards: afterwards each would count its own weights only.
    console.print(application.describe(model, task), highlight=False, soft_wrap=True)
    if not application.learns:
        return rank0_broadcast(lambda: _save_untrained(application, model, data, console))
    model.to(device)
    if options.compile:
        application.compile(model)
    check_compiled = check_compiled_step(application, model, task, accelerator)
    # After the model was drawn: the twin with a state and the one without get the same dropout.
    torch.manual_seed(options.seed)
    loop = build_loop(application, model, task, data, accelerator, console)
    loop.check_compiled = check_compiled
    # After accelerate wrapped the model's forward: the record must contain the mixed precision.
    task.record(model)
    if checkpoint is not None:
        # Last: it restores the random numbers, and nothing may draw one before the next step.
        loop.resume(checkpoint)
        console.print(f"Continuing after step {loop.progress.step:,} of {options.output}.")
    elif resume:
        # The run was killed before its first checkpoint.
        loop.log.continue_from(-1)
    return _run_to_end(loop, console)


def _build_model(application: Application, checkpoint: Path | None) -> Any:
    # New weights are drawn from here on.
    torch.manual_seed(application.options.seed)
    try:
        return application.build_model(checkpoint)
    except ValueError as error:
        if checkpoint is None:
            raise
        raise damaged(checkpoint, error) from error


def _save_untrained(
    application: Application, model: Any, data: dict[str, Any], console: Console
) -> TrainProgress:
    options = application.options
    application.save(options.output, model, None)
    write_atomically(options.output / RUN, about_run(options, data))
    console.print(
        f"Done: {options.model} has nothing to learn.\nModel: {options.output}", soft_wrap=True
    )
    return TrainProgress(finished="there was nothing to learn")


@contextmanager
def accelerator_in_folder(
    options: LoopOptions, console: Console | None
) -> Iterator[tuple[Accelerator, Console]]:
    """Lock the run's folder; yields the accelerator, and a console that only rank 0 writes to."""
    check_trackers(options.report_to)
    accelerator = make_accelerator(options)
    if not is_first():
        console = Console(quiet=True, force_terminal=False)
    with ExitStack() as stack:

        def lock() -> None:
            make_folder(options.output)
            stack.enter_context(lock_folder(options.output))

        rank0_broadcast(lock)
        yield accelerator, console or Console(highlight=False)


def make_accelerator(options: LoopOptions) -> Accelerator:
    # A second run in this process may need another precision or device. accelerate keeps both for
    # the whole process, and has no public function to forget them.
    AcceleratorState._reset_state(reset_partial_state=True)
    device = choose_device(options.device)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    processes = started_processes()
    if processes > 1:
        check_processes(options, processes, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif options.processes > 1:
        raise ValueError(
            f"--processes {options.processes}: only the command line starts processes. Use holdover "
            "train, or start this program with torchrun."
        )
    with without_accelerates_sharding():
        accelerator = Accelerator(
            mixed_precision="bf16" if options.bf16 else "no",
            # With several processes and no GPU, accelerate needs cpu=True.
            cpu=options.device == "cpu" or (processes > 1 and device.type == "cpu"),
            log_with=list(options.report_to) or None,
            project_dir=options.output if options.report_to else None,
        )
    if accelerator.num_processes > 1:
        open_talk()
    return accelerator


def prepare_folder(options: LoopOptions, resume: bool) -> Path | None:
    """The checkpoint to continue from, or None after making sure that the folder holds no run."""
    return rank0_broadcast(lambda: _prepare_folder(options, resume))


def _prepare_folder(options: LoopOptions, resume: bool) -> Path | None:
    folder = options.output
    if resume:
        check_same_run(read_about(folder)["options"], options)
        checkpoints = numbered(folder)
        return checkpoints[-1] if checkpoints else None
    if begun(folder):
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume, or give another --output."
        )
    # A run that was killed before its first log line may have left this file.
    (folder / RUN).unlink(missing_ok=True)
    return None


def begun(folder: Path) -> bool:
    """Whether a folder holds a run, finished or not."""
    return bool(numbered(folder)) or (folder / LOG).exists()


def settings_before(folder: Path, resume: bool, if_begun: bool) -> dict[str, Any] | None:
    """The settings of the run to continue in a folder; None if a new run begins."""
    if resume or (if_begun and begun(folder)):
        settings = dict(read_about(folder)["options"])
        # A folder may come from someone else: trust is given on the command line only.
        settings.pop("trust_remote_code", None)
        return settings
    return None


def read_about(folder: Path) -> dict[str, Any]:
    """The content of a run's holdover_run.json."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"There is no run in {folder} to continue: leave --resume out.")
    return read_run(path)


def check_same_run(before: dict[str, Any], options: Any) -> None:
    if differing := differences(before, options):
        raise ValueError(
            f"The settings differ from those of the run to continue: {'; '.join(differing)}. Give the "
            "same settings, or another --output without --resume."
        )


def differences(before: dict[str, Any], options: Any) -> list[str]:
    """The settings that differ from a run's recorded ones and may not change in a resume."""
    now = as_dict(options)
    # A setting that is newer than the run had its default value then.
    defaults = as_dict(type(options)(model=options.model, data=options.data))
    before, now = _dotted(defaults) | _dotted(before), _dotted(now)
    changeable = CHANGEABLE
    if now["schedule"] in ("linear", "cosine"):
        # These schedules depend on the last step from the first step on.
        changeable = CHANGEABLE - {"epochs", "max_steps", "max_tokens"}
    # Runs of version 0.1.0 recorded the settings of all kinds of state, not only those of their own.
    unused = {f"recurrence.{name}" for kind in KIND_SETTINGS.values() for name in kind_fields(kind)}
    unused -= now.keys()
    return [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted({*before, *now} - changeable - unused)
        if before.get(key) != now.get(key)
    ]


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = value
    return flat


def check_same_data(application: Application, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to continue with other data: the same batch number would be another batch."""
    checksums = application.checksums(now).items()
    for (name, checksum), old in zip(
        checksums, application.checksums(before).values(), strict=True
    ):
        if checksum != old:
            raise ValueError(
                f"The {name} has changed since this run began: give the one it began with, or "
                "another --output without --resume."
            )


def about_run(options: LoopOptions, data: dict[str, Any]) -> bytes:
    """The content of holdover_run.json, for the run's folder and every checkpoint."""
    about = {"options": as_dict(options), "data": data, "provenance": provenance()}
    return json.dumps(with_version(RUN_DESCRIPTION, about), indent=2).encode()


def check_compiled_step(
    application: Application, model: Any, task: Task, accelerator: Accelerator
) -> Callable[[], None] | None:
    """Check the gradients of a compiled step, in resumed runs too: the compiler may be another.

    Returns a function that checks them again later. With several processes there is none, since each
    may hold only a shard of the model by then.
    """
    options = application.options
    if not (options.compile and options.check_compiled):
        return None
    check = partial(
        check_gradients,
        model,
        task,
        accelerator,
        same_dropout=application.same_dropout_compiled,
    )
    check()
    return check if own_share().of == 1 else None


def build_loop(
    application: Application,
    model: Any,
    task: Task,
    data: dict[str, Any],
    accelerator: Accelerator,
    console: Console,
) -> Loop:
    """The loop for a model that is on its device; `data` describes the data in holdover_run.json."""
    options = application.options
    # Only for autocast: `parallelize` wraps the model for several processes.
    autocast_model = accelerator.prepare_model(model, evaluation_mode=True)
    layers = application.layers(model)
    parallel = parallelize(autocast_model, layers, accelerator.device, wants_shards(options))
    optimizer = build_optimizer(model, options)
    if options.report_to:
        accelerator.init_trackers("holdover", config={"settings": json.dumps(as_dict(options))})
    about = about_run(options, data)

    def write_about() -> None:
        if not (options.output / RUN).exists():
            with explain_write_errors(options.output / RUN):
                write_atomically(options.output / RUN, about)

    rank0_broadcast(write_about)

    def save_model(folder: Path, weights: dict[str, Tensor] | None) -> None:
        application.save(folder, model, weights)
        (folder / RUN).write_bytes(about)

    display = Display(console, accelerator.device, options.log_every, application.unit)
    loop = Loop(parallel, optimizer, task, options, accelerator, display, save_model)
    display.expect(loop.total)
    return loop


def describe_sharing(options: LoopOptions) -> str:
    """How several processes share a step, as the end of a sentence about the step."""
    processes = own_share().of
    if processes == 1:
        return ""
    part = "a shard" if wants_shards(options) else "a copy"
    return f"; shared by {processes} processes, each with {part} of the weights"


def _run_to_end(loop: Loop, console: Console) -> TrainProgress:
    progress, options = loop.run(), loop.options
    # Not end_training: other runs of this Python process may still need the process group.
    for tracker in loop.accelerator.trackers:
        tracker.finish()
    best = ""
    if progress.best is not None:
        best = f"; best validation {loop.task.decides} {progress.best:.4f}"
    console.print(
        f"Done: {progress.finished}{best} (step {progress.best_step:,}).\n"
        f"Model: {options.output / 'best'}   log: {options.output / LOG}",
        highlight=False,
        soft_wrap=True,
    )
    return progress
