"""holdover qa train: train a reader, from the beginning or from the last checkpoint."""

from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

from ..recurrent.checks import check_settings, check_vocabulary
from ..runs.models import model_folder
from ..runs.processes import Share
from ..tokenization.encoders import encoder_of
from ..training.progress import TrainProgress
from ..training.setup import Application
from ..training.setup import train as train_application
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
    """Train a reader; returns the progress of the run."""
    check_settings(fitting(options.recurrence))
    return train_application(QATraining(options), resume=resume, console=console)


class QATraining(Application):
    """A reader on questions over long contexts."""

    options: QAOptions
    training: Questions
    validation: Questions
    tokenizer: PairTokenizer

    def open_data(self, console: Console) -> dict[str, Any]:
        options = self.options
        self.training, self.validation = training_questions(
            options, options.validation, options.held_out
        )
        trust = options.trust_remote_code
        self.tokenizer = PairTokenizer(
            encoder_of(model_folder(options.model), trust_remote_code=trust)
        )
        encoder = self.tokenizer.encoder
        about = {"tokenizer": encoder.name, "tokenizer_sha256": encoder.fingerprint()}
        return {
            "training": {**self.training.about, **about},
            "validation": {**self.validation.about, **about},
        }

    def checksums(self, data: dict[str, Any]) -> dict[str, str | None]:
        return {
            f"{what} of the {part} questions": data[part].get(key)
            for part in ("training", "validation")
            for what, key in (("file", "sha256"), ("tokenizer", "tokenizer_sha256"))
        }

    def build_model(self, checkpoint: Path | None) -> Reader:
        options = self.options
        if checkpoint is None:
            default_window = options.recurrence.window == ReaderRecurrence().window
            reader = build_reader(
                options.model,
                fitting(options.recurrence),
                shrink=default_window,
                trust_remote_code=options.trust_remote_code,
            )
        else:
            trust = options.trust_remote_code
            reader = open_reader(checkpoint, trust_remote_code=trust).reader
        if options.freeze_base:
            reader.encoder.freeze_base()
        return reader

    def make_task(self, model: Reader, device: torch.device, share: Share) -> QuestionAnswering:
        check_vocabulary(model.encoder, self.tokenizer.encoder)
        layout = model.layout(self.tokenizer)
        training, validation = (
            Pairs(self.tokenizer.encode(part.items), layout)
            for part in (self.training, self.validation)
        )
        return QuestionAnswering(training, validation, self.options, device, share)

    def describe(self, model: Reader, task: QuestionAnswering) -> str:
        settings, training = model.encoder.settings, task.training
        weights = list(model.parameters())
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        added = sum(weight.numel() for weight in model.added_parameters())
        lines = [
            f"{self.options.model}, recurrence {settings.carry}: "
            f"{sum(weight.numel() for weight in weights):,} parameters, {trained:,} trained, "
            f"{added:,} added.",
            f"{len(training):,} questions to learn from, {len(task.validation):,} to validate on, in "
            f"{training.counts.mean():.1f} windows of {settings.window} tokens each, overlap "
            f"{settings.overlap}.",
        ]
        spans = [pair for pair in training.pairs if pair.question.kind == "span"]
        missing = sum(len(pair.spans) == 0 for pair in spans)
        if missing:
            lines.append(
                f"Note: {missing:,} of the {len(spans):,} answers other than yes and no do not occur "
                "in their context; the reader learns only the kind of these answers."
            )
        return "\n".join(lines)

    def layers(self, model: Reader) -> Any:
        return model.encoder.hooks.layers

    def save(self, folder: Path, model: Reader, weights: dict[str, Tensor] | None) -> None:
        save_reader(folder, model, self.tokenizer.encoder, weights)
