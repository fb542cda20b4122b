"""holdover train: from settings to a trained model in a folder, begun or continued."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor

from ..recurrent.checks import check_settings, check_vocabulary
from ..recurrent.model import RecurrentModel
from ..runs.models import model_folder, open_model, quietly, random_model
from ..runs.processes import own_share, rank0_first
from ..text.splits import read_text
from ..text.tokens import Encoder, Tokens
from ..tokenization.encoders import encoder_of
from ..training.checkpoint import damaged
from ..training.compile_checks import check_gradients
from ..training.progress import TrainProgress
from ..training.replay import check_replay
from ..training.setup import (
    build_loop,
    continue_loop,
    engine_of,
    looking,
    prepare_folder,
    read_about,
    run_to_end,
    shared_by,
)
from .options import TrainOptions
from .task import LanguageModelling


def train(
    options: TrainOptions, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a language model; returns how far it came."""
    check_settings(options.recurrence)
    with engine_of(options, console) as (accelerator, console):
        return _train(options, resume, accelerator, console)


def _train(
    options: TrainOptions, resume: bool, accelerator: Accelerator, console: Console
) -> TrainProgress:
    check_replay(options, accelerator.device, own_share().of)
    checkpoint = prepare_folder(options, resume)
    encoder = rank0_first(
        lambda: encoder_of(
            model_folder(options.model),
            options.tokenizer,
            options.gguf_file,
            trust_remote_code=options.trust_remote_code,
        )
    )
    training, validation = rank0_first(lambda: read_texts(options, encoder, console))
    if resume:
        check_same_texts(read_about(options.output), training, validation)
    model = rank0_first(lambda: build_model(options, encoder, checkpoint))
    check_vocabulary(model, encoder)
    model.to(accelerator.device)
    task = LanguageModelling(training, validation, options, accelerator.device, own_share())
    if options.compile:
        model.compile_step()
    look = looking(options, partial(check_gradients, model, task, accelerator))
    # The same dropout for twins, whatever drawing their added weights took.
    torch.manual_seed(options.seed)

    def save(folder: Path, weights: dict[str, Tensor] | None) -> None:
        with quietly():
            model.save_pretrained(folder, state_dict=weights)
        encoder.save(folder)

    data = {"training": training.about, "validation": validation.about}
    # Counted before processes hold parts of it.
    counts = model.parameter_counts()
    loop = build_loop(
        options, model, task, data, save, accelerator, console, layers=model.hooks.layers
    )
    loop.look = look
    # Behind the loop's beginning, which puts the precision around the model's forward.
    task.record(model)
    continue_loop(loop, checkpoint, resume, console)
    show_start(console, options, counts, training, validation)
    return run_to_end(loop, console)


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
            options.model,
            options.shape,
            encoder.vocabulary,
            options.recurrence,
            options.seed,
            trust_remote_code=options.trust_remote_code,
        )
    else:
        # The added weights are drawn here.
        torch.manual_seed(options.seed)
        model = open_model(
            options.model,
            options.recurrence,
            gguf_file=options.gguf_file,
            trust_remote_code=options.trust_remote_code,
        )
    if options.freeze_base:
        model.freeze_base()
    return model


def show_start(
    console: Console,
    options: TrainOptions,
    counts: dict[str, int],
    training: Tokens,
    validation: Tokens,
) -> None:
    recurrence = options.recurrence
    console.print(
        f"{options.model}, recurrence {recurrence.carry}: {counts['all']:,} parameters, "
        f"{counts['trainable']:,} trained, {counts['added']:,} added.\n"
        f"{training.about['source']}: {len(training):,} tokens in {training.documents:,} documents to "
        f"learn from, {len(validation):,} in {validation.documents:,} to validate on.\n"
        f"A step: {options.rows} rows x {options.windows * options.accumulate} windows of "
        f"{recurrence.window} tokens, overlap {recurrence.overlap}{shared_by(options)}.",
        highlight=False,
        soft_wrap=True,
    )
