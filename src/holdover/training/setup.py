"""What every run does around the loop: engine, folder, whether it is the same run, its end."""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console
from torch import Tensor, nn

from ..runs.models import RUN, numbered, read_run
from ..runs.processes import is_first, open_talk, own_share, rank0_broadcast, started_processes
from ..runs.provenance import choose_device, make_folder, provenance
from ..runs.settings import as_dict
from ..storage import RUN_DESCRIPTION, with_version, write_atomically
from .checkpoint import alone_in
from .display import Display
from .launch_checks import check_processes, wants_shards, without_accelerates_sharding
from .log import LOG, check_trackers, writing
from .loop import Loop
from .optimizer import build_optimizer
from .options import CHANGEABLE, LoopOptions
from .parallel import hold
from .progress import TrainProgress
from .task import Task


@contextmanager
def engine_of(
    options: LoopOptions, console: Console | None
) -> Iterator[tuple[Accelerator, Console]]:
    """The engine of a run, alone in the run's folder, and the console of the process that speaks."""
    check_trackers(options.report_to)
    accelerator = make_accelerator(options)
    if not is_first():
        console = Console(quiet=True, force_terminal=False)
    with ExitStack() as held:

        def enter() -> None:
            make_folder(options.output)
            held.enter_context(alone_in(options.output))

        rank0_broadcast(enter)
        yield accelerator, console or Console(highlight=False)


def make_accelerator(options: LoopOptions) -> Accelerator:
    # A second run in one process may want another precision or device.
    AcceleratorState._reset_state(reset_partial_state=True)
    device = choose_device(options.device)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    processes = started_processes()
    if processes > 1:
        check_processes(options, processes, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    elif options.processes > 1:
        raise ValueError(
            f"processes={options.processes} is for the command line, which starts them: use holdover "
            "train, or start this program with torchrun."
        )
    with without_accelerates_sharding():
        accelerator = Accelerator(
            mixed_precision="bf16" if options.bf16 else "no",
            # Asked for several processes without a GPU, accelerate wants to be told that there is none.
            cpu=options.device == "cpu" or (processes > 1 and device.type == "cpu"),
            log_with=list(options.report_to) or None,
            project_dir=options.output if options.report_to else None,
        )
    if accelerator.num_processes > 1:
        open_talk()
    return accelerator


def prepare_folder(options: LoopOptions, resume: bool) -> Path | None:
    """An empty folder for the run, or the checkpoint to continue from."""
    return rank0_broadcast(lambda: _prepare_folder(options, resume))


def _prepare_folder(options: LoopOptions, resume: bool) -> Path | None:
    folder = options.output
    found = numbered(folder)
    if resume:
        check_same_run(read_about(folder)["options"], options)
        return found[-1] if found else None
    if begun(folder):
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume, or give another --output."
        )
    # What a run that was killed before its first line wrote about itself.
    (folder / RUN).unlink(missing_ok=True)
    return None


def begun(folder: Path) -> bool:
    """Whether a folder holds a run, however far it came."""
    return bool(numbered(folder)) or (folder / LOG).exists()


def settings_before(folder: Path, resume: bool, if_begun: bool) -> dict[str, Any] | None:
    """Those of the run that is to be continued in a folder; none where a run begins."""
    if resume or (if_begun and begun(folder)):
        settings = dict(read_about(folder)["options"])
        # A folder may come from someone else: trust is given on the command line only.
        settings.pop("trust_remote_code", None)
        return settings
    return None


def read_about(folder: Path) -> dict[str, Any]:
    """What the run in a folder wrote about itself."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"There is no run in {folder} to continue: leave --resume out.")
    return read_run(path)


def check_same_run(before: dict[str, Any], options: Any) -> None:
    if differing := differences(before, options):
        raise ValueError(
            f"This is another run than the one to be continued: {'; '.join(differing)}. Give the same "
            "settings, or another --output without --resume."
        )


def differences(before: dict[str, Any], options: Any) -> list[str]:
    """In which settings a run that wrote these about itself is another one."""
    now = as_dict(options)
    # What did not exist when the run began was as it is by default.
    defaults = as_dict(type(options)(model=options.model, data=options.data))
    before, now = _dotted(defaults) | _dotted(before), _dotted(now)
    changeable = CHANGEABLE
    if now["schedule"] in ("linear", "cosine"):
        # Another end is another schedule, from the first step on.
        changeable = CHANGEABLE - {"epochs", "max_steps", "max_tokens"}
    return [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted({*before, *now} - changeable)
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


def about_run(options: LoopOptions, data: dict[str, Any]) -> dict[str, Any]:
    """The description that a run writes into its folder and into every checkpoint."""
    about = {"options": as_dict(options), "data": data, "provenance": provenance()}
    return with_version(RUN_DESCRIPTION, about)


def build_loop(
    options: LoopOptions,
    model: Any,
    task: Task,
    data: dict[str, Any],
    save: Callable[[Path, dict[str, Tensor] | None], None],
    accelerator: Accelerator,
    console: Console,
    unit: str = "tokens",
    layers: Sequence[nn.Module] = (),
) -> Loop:
    """The loop around a model that is on its device. `save` writes the model into a folder, with weights
    that it is given where processes hold parts of them; `data` is what the run says of its data, `unit`
    what its batches count, `layers` what of the model is put together at a time."""
    # Autocast, and no more: how processes hold the model is `hold`'s to say.
    prepared = accelerator.prepare_model(model, evaluation_mode=True)
    held = hold(prepared, layers, accelerator.device, wants_shards(options))
    optimizer = build_optimizer(model, options)
    if options.report_to:
        accelerator.init_trackers("holdover", config={"settings": json.dumps(as_dict(options))})
    about = json.dumps(about_run(options, data), indent=2).encode()

    def write_about() -> None:
        if not (options.output / RUN).exists():
            with writing(options.output / RUN):
                write_atomically(options.output / RUN, about)

    rank0_broadcast(write_about)

    def save_model(folder: Path, weights: dict[str, Tensor] | None) -> None:
        save(folder, weights)
        (folder / RUN).write_bytes(about)

    display = Display(console, accelerator.device, options.log_every, unit)
    loop = Loop(held, optimizer, task, options, accelerator, display, save_model)
    display.expect(loop.total)
    return loop


def looking(options: Any, look: Callable[[], None]) -> Callable[[], None] | None:
    """Look at a compiled step, also where a run goes on: its weights are others, its compiler may be.
    Gives what looks at it later; not in several processes, which hold parts of the model by then."""
    if not (options.compile and options.check_compiled):
        return None
    look()
    return look if own_share().of == 1 else None


def shared_by(options: LoopOptions) -> str:
    """How the rows of a step are shared, behind what a step is."""
    processes = own_share().of
    if processes == 1:
        return ""
    holding = "a part" if wants_shards(options) else "a copy"
    return f"; shared by {processes} processes, each with {holding} of the weights"


def continue_loop(loop: Loop, checkpoint: Path | None, resume: bool, console: Console) -> None:
    if checkpoint is not None:
        loop.resume(checkpoint)
        console.print(f"Continuing after step {loop.reached.step:,} of {loop.options.output}.")
    elif resume:
        # Killed before its first checkpoint.
        loop.log.continue_from(-1)


def run_to_end(loop: Loop, console: Console) -> TrainProgress:
    reached = loop.run()
    # Not end_training: other runs of this process may still want its process group.
    for tracker in loop.accelerator.trackers:
        tracker.finish()
    show_end(console, loop.options, reached, loop.task.decides)
    return reached


def show_end(console: Console, options: LoopOptions, reached: TrainProgress, decides: str) -> None:
    best = "" if reached.best is None else f"; best validation {decides} {reached.best:.4f}"
    console.print(
        f"Done: {reached.finished}{best} (step {reached.best_step:,}).\n"
        f"Model: {options.output / 'best'}   log: {options.output / LOG}",
        highlight=False,
        soft_wrap=True,
    )
