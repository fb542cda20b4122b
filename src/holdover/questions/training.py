"""holdover qa train: from settings to a reader in a folder, begun or continued."""

from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from rich.console import Console
from torch import Tensor

from ..recurrent.checks import check_settings, check_vocabulary
from ..runs.models import model_folder
from ..runs.processes import own_share, rank0_first
from ..tokenization.encoders import encoder_of
from ..training.checkpoint import damaged
from ..training.progress import TrainProgress
from ..training.setup import (
    build_loop,
    continue_loop,
    engine_of,
    prepare_folder,
    read_about,
    run_to_end,
)
from .batches import Pairs
from .folder import build_reader, fitting, open_reader, save_reader
from .options import QAOptions, ReaderRecurrence
from .pairs import PairTokenizer
from .reader import Reader
from .sources import Questions, training_questions
from .task import QuestionAnswering


def train_reader(
    options: QAOptions, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a reader; returns how far it came."""
    check_settings(fitting(options.recurrence))
    with engine_of(options, console) as (accelerator, console):
        return _train(options, resume, accelerator, console)


def _train(
    options: QAOptions, resume: bool, accelerator: Accelerator, console: Console
) -> TrainProgress:
    checkpoint = prepare_folder(options, resume)
    training, validation = rank0_first(
        lambda: training_questions(options, options.validation, options.held_out)
    )
    trust = options.trust_remote_code
    tokenizer = rank0_first(
        lambda: PairTokenizer(encoder_of(model_folder(options.model), trust_remote_code=trust))
    )
    about = _about(training, validation, tokenizer)
    if resume:
        _check_same_questions(read_about(options.output)["data"], about)
    # The added weights are drawn here.
    torch.manual_seed(options.seed)
    reader = rank0_first(lambda: _build(options, checkpoint))
    check_vocabulary(reader.encoder, tokenizer.encoder)
    if options.freeze_base:
        reader.encoder.freeze_base()
    layout = reader.layout(tokenizer)
    pairs = [Pairs(tokenizer.encode(part.items), layout) for part in (training, validation)]
    _show_start(console, options, reader, *pairs)
    # The same dropout for twins, whatever drawing their added weights took.
    torch.manual_seed(options.seed)
    reader.to(accelerator.device)

    def save(folder: Path, weights: dict[str, Tensor] | None) -> None:
        save_reader(folder, reader, tokenizer.encoder, weights)

    task = QuestionAnswering(pairs[0], pairs[1], options, accelerator.device, own_share())
    layers = reader.encoder.hooks.layers
    loop = build_loop(options, reader, task, about, save, accelerator, console, layers=layers)
    continue_loop(loop, checkpoint, resume, console)
    return run_to_end(loop, console)


def _build(options: QAOptions, checkpoint: Path | None) -> Reader:
    if checkpoint is None:
        unsaid = options.recurrence.window == ReaderRecurrence().window
        return build_reader(
            options.model,
            fitting(options.recurrence),
            shrink=unsaid,
            trust_remote_code=options.trust_remote_code,
        )
    try:
        return open_reader(checkpoint, trust_remote_code=options.trust_remote_code).reader
    except ValueError as error:
        raise damaged(checkpoint, error) from error


def _about(training: Questions, validation: Questions, tokenizer: PairTokenizer) -> dict[str, Any]:
    encoder = tokenizer.encoder
    named = {"tokenizer": encoder.name, "tokenizer_sha256": encoder.fingerprint()}
    return {"training": {**training.about, **named}, "validation": {**validation.about, **named}}


def _check_same_questions(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with other questions: a batch's number would be another batch there."""
    for part in ("training", "validation"):
        for key, what in (("sha256", "file"), ("tokenizer_sha256", "tokenizer")):
            if before[part].get(key) != now[part][key]:
                raise ValueError(
                    f"The {what} of the {part} questions has changed since this run began: give the one "
                    "it began with, or another --output without --resume."
                )


def _show_start(
    console: Console, options: QAOptions, reader: Reader, training: Pairs, validation: Pairs
) -> None:
    settings = reader.encoder.settings
    everything = list(reader.parameters())
    trained = sum(weight.numel() for weight in everything if weight.requires_grad)
    added = sum(weight.numel() for weight in reader.added_parameters())
    spans = [pair for pair in training.pairs if pair.question.kind == "span"]
    lost = sum(len(pair.spans) == 0 for pair in spans)
    console.print(
        f"{options.model}, recurrence {settings.carry}: "
        f"{sum(weight.numel() for weight in everything):,} parameters, {trained:,} trained, "
        f"{added:,} added.\n"
        f"{len(training):,} questions to learn from, {len(validation):,} to validate on, in "
        f"{training.counts.mean():.1f} windows of {settings.window} tokens each, overlap "
        f"{settings.overlap}.",
        highlight=False,
        soft_wrap=True,
    )
    if lost:
        console.print(
            f"Note: {lost:,} of the {len(spans):,} answers to learn that are no yes or no do not stand "
            "in their context; of these only the kind is learnt.",
            highlight=False,
            soft_wrap=True,
        )
