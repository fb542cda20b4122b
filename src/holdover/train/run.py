"""holdover train: from settings to a trained model in a folder, begun or continued."""

import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from rich.console import Console

from ..attach import (
    RUN,
    RecurrentModel,
    check_carry,
    check_vocabulary,
    model_folder,
    numbered,
    open_model,
    quietly,
    random_model,
    read_run,
)
from ..data.encoders import encoder_of
from ..data.splits import read_text
from ..data.tokens import Encoder, Tokens
from ..results import choose_device, make_folder, provenance
from ..settings import as_dict
from ..state import write_atomically
from .checkpoint import alone_in, damaged
from .language import LanguageModelling
from .log import LOG, check_trackers, writing
from .loop import Loop, Reached
from .optim import build_optimizer
from .options import CHANGEABLE, TrainOptions
from .progress import Display


def train(
    options: TrainOptions, *, resume: bool = False, console: Console | None = None
) -> Reached:
    """Train a language model; returns how far it came."""
    console = console or Console(highlight=False)
    check_trackers(options.report_to)
    check_carry(options.recurrence)
    accelerator = start_engine(options)
    make_folder(options.output)
    with alone_in(options.output):
        return _train(options, resume, accelerator, console)


def _train(
    options: TrainOptions, resume: bool, accelerator: Accelerator, console: Console
) -> Reached:
    checkpoint = prepare_folder(options, resume)
    encoder = encoder_of(model_folder(options.model), options.tokenizer, options.gguf_file)
    training, validation = read_texts(options, encoder, console)
    if resume:
        check_same_texts(read_about(options.output), training, validation)
    model = build_model(options, encoder, checkpoint)
    check_vocabulary(model, encoder)
    # The same dropout for twins, whatever drawing their added weights took.
    torch.manual_seed(options.seed)
    loop = build_loop(options, model, encoder, training, validation, accelerator, console)
    if checkpoint is not None:
        loop.resume(checkpoint)
        console.print(f"Continuing after step {loop.reached.step:,} of {options.output}.")
    elif resume:
        loop.log.continue_from(-1)
    show_start(console, options, model, training, validation)
    reached = loop.run()
    accelerator.end_training()
    show_end(console, options, reached)
    return reached


def start_engine(options: TrainOptions) -> Accelerator:
    # A second run in one process may want another precision or device.
    AcceleratorState._reset_state(reset_partial_state=True)
    choose_device(options.device)
    accelerator = Accelerator(
        mixed_precision="bf16" if options.bf16 else "no",
        cpu=options.device == "cpu",
        log_with=list(options.report_to) or None,
        project_dir=options.output if options.report_to else None,
    )
    if accelerator.num_processes > 1:
        raise ValueError(
            f"{accelerator.num_processes} processes were started, and holdover trains in one: start it "
            "without a launcher."
        )
    return accelerator


def prepare_folder(options: TrainOptions, resume: bool) -> Path | None:
    """An empty folder for the run, or the checkpoint to continue from."""
    folder = options.output
    found = numbered(folder)
    if resume:
        check_same_run(read_about(folder)["options"], as_dict(options))
        return found[-1] if found else None
    if found or (folder / LOG).exists():
        raise ValueError(
            f"{folder} holds a run already: continue it with --resume, or give another --output."
        )
    # What a run that was killed before its first line wrote about itself.
    (folder / RUN).unlink(missing_ok=True)
    return None


def read_about(folder: Path) -> dict[str, Any]:
    """What the run in a folder wrote about itself."""
    path = folder / RUN
    if not path.exists():
        raise ValueError(f"There is no run in {folder} to continue: leave --resume out.")
    return read_run(path)


def check_same_run(before: dict[str, Any], now: dict[str, Any]) -> None:
    # What did not exist when the run began was as it is by default.
    defaults = as_dict(TrainOptions(model=now["model"], data=now["data"]))
    before, now = _dotted(defaults) | _dotted(before), _dotted(now)
    changeable = CHANGEABLE
    if now["schedule"] != "constant":
        # Another end is another schedule, from the first step on.
        changeable = CHANGEABLE - {"epochs", "max_steps", "max_tokens"}
    differing = [
        f"{key} was {before.get(key)!r} and is now {now.get(key)!r}"
        for key in sorted({*before, *now} - changeable)
        if before.get(key) != now.get(key)
    ]
    if differing:
        raise ValueError(
            f"This is another run than the one to be continued: {'; '.join(differing)}. Give the same "
            "settings, or another --output without --resume."
        )


def check_same_texts(about: dict[str, Any], training: Tokens, validation: Tokens) -> None:
    """Refuse to go on in other texts: a position in the data would be another one there."""
    for name, tokens in (("training", training), ("validation", validation)):
        before = about["data"][name]
        for key in ("sha256", "tokenizer_sha256"):
            if before.get(key) != tokens.about.get(key):
                what = "text" if key == "sha256" else "tokenizer"
                raise ValueError(
                    f"The {what} of the {name} data has changed since this run began: give the one it "
                    "began with, or another --output without --resume."
                )


def _dotted(values: dict[str, Any]) -> dict[str, Any]:
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{inner}": inside for inner, inside in value.items()}
        else:
            flat[key] = value
    return flat


def read_texts(options: TrainOptions, encoder: Encoder, console: Console) -> tuple[Tokens, Tokens]:
    how: dict[str, Any] = {
        "window": options.recurrence.window,
        # Two texts without splits: the whole of one to train on, of the other to validate on.
        "whole": options.validation is not None,
        "console": console,
    }
    training = read_text(options, encoder, "train", **how)
    validation = read_text(options, encoder, "valid", data=options.validation, **how)
    if options.validation_tokens is not None:
        validation = validation.truncated(options.validation_tokens)
    return training, validation


def build_model(options: TrainOptions, encoder: Encoder, checkpoint: Path | None) -> RecurrentModel:
    if checkpoint is not None:
        try:
            model = open_model(str(checkpoint))
        except ValueError as error:
            raise damaged(checkpoint, error) from error
    elif options.from_scratch:
        model = random_model(
            options.model, options.shape, encoder.vocabulary, options.recurrence, options.seed
        )
    else:
        # The added weights are drawn here.
        torch.manual_seed(options.seed)
        model = open_model(options.model, options.recurrence, gguf_file=options.gguf_file)
    if options.freeze_base:
        model.freeze_base()
    return model


def build_loop(
    options: TrainOptions,
    model: RecurrentModel,
    encoder: Encoder,
    training: Tokens,
    validation: Tokens,
    accelerator: Accelerator,
    console: Console,
) -> Loop:
    device = accelerator.device
    model.to(device)
    if options.compile:
        model.compile_step()
    prepared, optimizer = accelerator.prepare(model, build_optimizer(model, options))
    if options.report_to:
        accelerator.init_trackers("holdover", config={"settings": json.dumps(as_dict(options))})
    task = LanguageModelling(training, validation, options, device)
    about = {
        "options": as_dict(options),
        "data": {"training": training.about, "validation": validation.about},
        "provenance": provenance(),
    }
    about_bytes = json.dumps(about, indent=2).encode()
    if not (options.output / RUN).exists():
        with writing(options.output / RUN):
            write_atomically(options.output / RUN, about_bytes)

    def save_model(folder: Path) -> None:
        with quietly():
            model.save_pretrained(folder)
        encoder.save(folder)
        (folder / RUN).write_bytes(about_bytes)

    display = Display(console, device, options.log_every)
    loop = Loop(prepared, optimizer, task, options, accelerator, display, save_model)
    display.expect(loop.total)
    return loop


def show_start(
    console: Console,
    options: TrainOptions,
    model: RecurrentModel,
    training: Tokens,
    validation: Tokens,
) -> None:
    counts = model.parameter_counts()
    recurrence = options.recurrence
    console.print(
        f"{options.model}, recurrence {recurrence.carry}: {counts['all']:,} parameters, "
        f"{counts['trainable']:,} trained, {counts['added']:,} added.\n"
        f"{training.about['source']}: {len(training):,} tokens in {training.documents:,} documents to "
        f"learn from, {len(validation):,} in {validation.documents:,} to validate on.\n"
        f"A step: {options.rows} rows x {options.windows * options.accumulate} windows of "
        f"{recurrence.window} tokens, overlap {recurrence.overlap}.",
        highlight=False,
        soft_wrap=True,
    )


def show_end(console: Console, options: TrainOptions, reached: Reached) -> None:
    best = "" if reached.best is None else f"; best validation loss {reached.best:.4f}"
    console.print(
        f"Done: {reached.finished}{best} (step {reached.best_step:,}).\n"
        f"Model: {options.output / 'best'}   log: {options.output / LOG}",
        highlight=False,
        soft_wrap=True,
    )
