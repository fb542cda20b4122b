"""holdover train: train a language model, from the beginning or from the last checkpoint."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..recurrent.checks import check_settings, check_vocabulary
from ..recurrent.model import RecurrentModel
from ..runs.models import model_folder, open_model, quietly, random_model
from ..runs.processes import Share, own_share
from ..text.splits import read_text
from ..text.tokens import Encoder, Tokens
from ..tokenization.encoders import encoder_of
from ..training.progress import TrainProgress
from ..training.replay import check_replay
from ..training.setup import Application, describe_sharing
from ..training.setup import train as train_application
from .options import TrainOptions
from .task import LanguageModelling


def train(
    options: TrainOptions, *, resume: bool = False, console: Console | None = None
) -> TrainProgress:
    """Train a language model; returns the progress of the run."""
    check_settings(options.recurrence)
    return train_application(LanguageTraining(options), resume=resume, console=console)


class LanguageTraining(Application):
    """A language model on a text, with its recurrence."""

    options: TrainOptions
    encoder: Encoder
    training: Tokens
    validation: Tokens

    def check(self, device: torch.device) -> None:
        check_replay(self.options, device, own_share().of)

    def open_data(self, console: Console) -> dict[str, Any]:
        options = self.options
        self.encoder = encoder_of(
            model_folder(options.model),
            options.tokenizer,
            options.gguf_file,
            trust_remote_code=options.trust_remote_code,
        )
        self.training, self.validation = read_texts(options, self.encoder, console)
        return {"training": self.training.about, "validation": self.validation.about}

    def checksums(self, data: dict[str, Any]) -> dict[str, str | None]:
        return {
            f"{what} of the {part} data": data[part].get(key)
            for part in ("training", "validation")
            for what, key in (("text", "sha256"), ("tokenizer", "tokenizer_sha256"))
        }

    def build_model(self, checkpoint: Path | None) -> RecurrentModel:
        return build_model(self.options, self.encoder, checkpoint)

    def make_task(
        self, model: RecurrentModel, device: torch.device, share: Share
    ) -> LanguageModelling:
        check_vocabulary(model, self.encoder)
        return LanguageModelling(self.training, self.validation, self.options, device, share)

    def describe(self, model: RecurrentModel, task: LanguageModelling) -> str:
        options, recurrence = self.options, self.options.recurrence
        training, validation = self.training, self.validation
        counts = model.parameter_counts()
        return (
            f"{options.model}, recurrence {recurrence.carry}: {counts['all']:,} parameters, "
            f"{counts['trainable']:,} trained, {counts['added']:,} added.\n"
            f"{training.about['source']}: {len(training):,} tokens in {training.documents:,} documents "
            f"to learn from, {len(validation):,} in {validation.documents:,} to validate on.\n"
            f"A step: {options.rows} rows x {options.windows * options.accumulate} windows of "
            f"{recurrence.window} tokens, overlap {recurrence.overlap}{describe_sharing(options)}."
        )

    def compile(self, model: RecurrentModel) -> None:
        model.compile_step()

    def layers(self, model: RecurrentModel) -> Any:
        return model.hooks.layers

    def save(self, folder: Path, model: RecurrentModel, weights: dict[str, Tensor] | None) -> None:
        with quietly():
            model.save_pretrained(folder, state_dict=weights)
        self.encoder.save(folder)


def read_texts(options: TrainOptions, encoder: Encoder, console: Console) -> tuple[Tokens, Tokens]:
    """The training text and the validation text."""
    settings: dict[str, Any] = {
        "window": options.recurrence.window,
        # Two texts without splits: train on the whole of one, validate on the whole of the other.
        "whole": options.validation is not None,
        "console": console,
    }
    training = read_text(options, encoder, "train", **settings)
    validation = read_text(options, encoder, "valid", data=options.validation, **settings)
    if options.validation_tokens is not None:
        validation = validation.truncated(options.validation_tokens)
    return training, validation


def build_model(options: TrainOptions, encoder: Encoder, checkpoint: Path | None) -> RecurrentModel:
    """The model that a run begins with, or the one in a checkpoint."""
    if checkpoint is not None:
        model = open_model(str(checkpoint))
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
        model = open_model(
            options.model,
            options.recurrence,
            gguf_file=options.gguf_file,
            trust_remote_code=options.trust_remote_code,
        )
    if options.freeze_base:
        model.freeze_base()
    return model
