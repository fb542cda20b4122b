"""holdover eval: score a text, show a table, write a record and plots."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..backbones.registry import spec_of
from ..config import RecurrenceConfig
from ..evaluation.collapse import check_collapse
from ..evaluation.cost import flops_per_token, printed_flops
from ..evaluation.diagnose import KeptStates, diagnose, drawn_windows
from ..evaluation.driver import Evaluation, about_training
from ..evaluation.measures import (
    ClassMeasures,
    mean_by_distance,
    mean_by_position,
    perplexities,
    text_counts,
)
from ..evaluation.scoring import Scores, first_windows, score, segments_to_score
from ..recurrent.attach import add_recurrence
from ..recurrent.checks import check_vocabulary
from ..recurrent.model import RecurrentModel
from ..runs.models import RUN, model_folder, open_model, open_stock, read_run, recurrence_of
from ..runs.processes import all_gather_objects, is_first, own_share, rank0_first
from ..runs.provenance import shown_name
from ..text.splits import held_out, read_text
from ..text.tokens import Encoder, Tokens
from ..text.window_loader import windows_of
from ..tokenization.encoders import encoder_of
from .eval_options import EvalOptions
from .eval_report import show, write_plots
from .reading_cost import counted_per_token, sizes_of, speed_of

RECORD = "eval.json"
# The window of a model that holdover has not trained.
STOCK_WINDOW = 300
# Windows that are read both compiled and uncompiled.
CHECKED_WINDOWS = 64
# Nats per token: above bfloat16's rounding in another order of sums, below a real difference.
TOLERANCE = 0.01


def evaluate(options: EvalOptions, console: Console | None = None) -> dict[str, Any]:
    """Score a text, show the table, write record and plots; returns the record.

    If a launcher started several processes, each scores a share, and rank 0 does the rest. Only its
    return value is the whole record.
    """
    evaluation = Evaluation(options, console)
    record = _measure(evaluation)

    def plot() -> None:
        write_plots(options.output, {record["model"]["name"]: record})

    return evaluation.finish(record, show, plot if options.plots else None)


def measure(options: EvalOptions, console: Console) -> dict[str, Any]:
    """Score a text, write eval.json and return its content; shows only progress."""
    return _measure(Evaluation(options, console))


def _measure(evaluation: Evaluation) -> dict[str, Any]:
    options: EvalOptions = evaluation.options
    trust = options.trust_remote_code
    model = rank0_first(
        lambda: open_to_read(
            options.model, options.window, options.gguf_file, trust_remote_code=trust
        )
    )
    trained = model.settings
    encoder = encoder_of(
        model_folder(options.model),
        options.tokenizer,
        options.gguf_file,
        trust_remote_code=trust,
    )
    check_vocabulary(model, encoder)
    run = _training_run(options.model)
    window = options.window or trained.window
    overlaps = options.overlap or (trained.overlap,)
    for overlap in overlaps:
        # Refuses overlaps that do not fit before hours are spent on those that do.
        with model.reading(window=window, overlap=overlap, memory_length=options.memory_length):
            pass
    tokens = rank0_first(lambda: _read(options, encoder, run, window, evaluation.console))
    model.eval()
    torch.nn.Module.to(model, evaluation.device)
    if options.compile:
        model.compile_step()
    about_model = {
        "name": shown_name(options.model),
        "architecture": model.backbone.config.model_type,
        "recurrence": trained.to_dict(),
        "parameters": model.parameter_counts(),
        "training": about_training(run),
    }
    about_data = {
        **tokens.about,
        "split": _split(options, tokens),
        "counts": text_counts(tokens),
        "documents_read": tokens.documents,
    }
    record = evaluation.record("evaluation", about_model, about_data, rows=[])
    for overlap in overlaps:
        row = _row(evaluation, model, tokens, trained, window, overlap)
        if row is not None:
            record["rows"].append(row)
            # After every row: an error in a later one loses nothing.
            evaluation.write(RECORD, record)
    return record


def _split(options: EvalOptions, tokens: Tokens) -> str:
    """The split in the record; "all" for a text without splits that is read whole."""
    about = tokens.about
    return about.get("part") or (about["split"] if about["split"] == options.split else "all")


def open_to_read(
    name: str,
    window: int | None = None,
    gguf_file: str | None = None,
    *,
    trust_remote_code: bool = False,
) -> RecurrentModel:
    """A model with its own recurrence, or a stock model that reads every window alone."""
    if recurrence_of(name) is not None:
        return open_model(name)
    base = open_stock(name, gguf_file=gguf_file, trust_remote_code=trust_remote_code)
    if window is None:
        positions = spec_of(base.config.model_type).positions(base.config)
        window = min(STOCK_WINDOW, positions or STOCK_WINDOW)
    return add_recurrence(base, RecurrenceConfig(carry="none", window=window))


def _training_run(model: str) -> dict[str, Any] | None:
    """The training run that a checkpoint belongs to."""
    path = Path(model_folder(model)) / RUN
    return read_run(path) if path.is_file() else None


def _read(
    options: EvalOptions,
    encoder: Encoder,
    run: dict[str, Any] | None,
    window: int,
    console: Console,
) -> Tokens:
    tokens = read_text(options, encoder, options.split, window=window, console=console)
    trained_on = {} if run is None else run["data"]["training"]
    if trained_on.get("content_sha256") == tokens.about["content_sha256"]:
        if "part" not in trained_on or options.split in ("all", "train"):
            console.print("[bold]Note:[/bold] the model was trained on this very text.")
        elif options.split in ("test", "valid"):
            assert run is not None
            share = run["options"]["held_out"]
            if options.split == "test":
                tokens = held_out(tokens, share, train=False)
            elif share != options.held_out:
                same_cut = replace(options, held_out=share)
                tokens = read_text(same_cut, encoder, "valid", window=window)
            console.print("The model was trained on this text: its held-out end is read.")
    if not tokens.about["tokenizer_keeps_bytes"]:
        console.print(
            f"The tokenizer {encoder.name} changes the text: numbers per byte and per character are "
            "those of the changed text."
        )
    if options.documents is not None:
        tokens = tokens.part(0, int(tokens.bounds[min(options.documents, tokens.documents)]))
    if options.document_tokens is not None:
        tokens = tokens.truncated(options.document_tokens)
    return tokens


def _row(
    evaluation: Evaluation,
    model: RecurrentModel,
    tokens: Tokens,
    trained: RecurrenceConfig,
    window: int,
    overlap: int,
) -> dict[str, Any] | None:
    """All measurements at one overlap; None in all processes but rank 0."""
    options: EvalOptions = evaluation.options
    device = evaluation.device
    reset_every = None if options.carry == "document" else options.carry
    recurrent = trained.carry != "none"
    with (
        model.reading(window=window, overlap=overlap, memory_length=options.memory_length),
        evaluation.autocast(),
    ):
        segments = segments_to_score(tokens, model.settings, reset_every)
        drawn, kept = [], None
        if recurrent and options.diagnose_state:
            drawn = drawn_windows(
                tokens, segments, window, overlap, options.diagnose_windows, options.seed
            )
            kept = KeptStates(segments, drawn)
        if options.compile:
            check_compiled(model, tokens, options.rows, reset_every, device)
        total = sum(len(windows_of(segment, window, overlap)) for segment in segments)
        share = own_share()
        measures = ClassMeasures(tokens, options.classes) if options.metrics else None

        def read() -> tuple[Any, ...]:
            """This process's scores, class counts and kept states."""
            with evaluation.progress(f"overlap {overlap}", total // share.of) as advance:
                own = score(
                    model,
                    tokens,
                    rows=options.rows,
                    device=device,
                    reset_every=reset_every,
                    measure=measures,
                    keep_state=kept,
                    advance=advance,
                    share=share,
                )
            return own, measures and measures.part(), kept and kept.states

        own, counted, states = zip(*all_gather_objects(read), strict=True)
        scores = Scores.joined(own)
        if measures is not None:
            measures.join(counted)
        if kept is not None:
            kept.states = {number: state for some in states for number, state in some.items()}
        if not is_first():
            return None
        row = {
            "window": window,
            "overlap": overlap,
            "memory_length": model.settings.memory_length,
            "note": _note(trained, window, overlap),
            "carried_through": "nothing" if not recurrent else options.carry,
            "windows": scores.windows,
            **perplexities(scores, tokens, window, options.draws, options.seed),
            "loss_by_position": mean_by_position(scores, window, overlap),
            # For plain models too, for comparison.
            "loss_by_distance": mean_by_distance(scores, tokens, window, overlap, reset_every),
            "flops_per_token": {
                "formula": flops_per_token(*sizes_of(model), window, overlap),
                "as_printed": printed_flops(*sizes_of(model), window, overlap),
                "counted": counted_per_token(model, window, overlap, device),
            },
            **speed_of(model, tokens, options, reset_every, device),
        }
        if measures is not None:
            row["next_token"] = measures.result(scores)
        collapse = check_collapse(model, tokens, scores.mean(), device)
        if collapse is not None:
            row["collapse"] = collapse
        if kept is not None and len(drawn) > 1:
            row["state"] = diagnose(
                model,
                tokens,
                segments,
                drawn,
                kept,
                scores.nll,
                rows=options.rows,
                history=options.history,
                device=device,
                seed=options.seed,
                draws=options.draws,
            )
        elif recurrent:
            reason = "fewer than two windows have a past" if kept else "it was not asked for"
            row["state_not_diagnosed"] = reason
    return row


def _note(trained: RecurrenceConfig, window: int, overlap: int) -> str | None:
    notes = []
    if trained.carry != "none" and overlap != trained.overlap:
        pooled = "; only positions that are not read again are pooled" * (trained.carry == "pooled")
        notes.append(f"trained at overlap {trained.overlap}{pooled}")
    if trained.carry != "none" and window != trained.window:
        notes.append(f"trained with windows of {trained.window}")
    return "; ".join(notes) or None


def check_compiled(
    model: RecurrentModel, tokens: Tokens, rows: int, reset_every: int | None, device: torch.device
) -> None:
    """Read the beginning of a text compiled and uncompiled; stop if the losses differ.

    Compilers can be wrong: on an H200 every second process that compiled a plain model had losses
    half a nat too high (docs/training.md).
    """
    part = first_windows(tokens, rows, CHECKED_WINDOWS, model.settings.window)
    if part.scored is not None and not part.scored.any():
        return
    compiled = score(model, part, rows=rows, device=device, reset_every=reset_every)
    with model.uncompiled():
        expected = score(model, part, rows=rows, device=device, reset_every=reset_every)
    if not abs(compiled.mean() - expected.mean()) < TOLERANCE:
        raise FloatingPointError(
            f"The compiled step is wrong: on the first {compiled.windows} windows its loss is "
            f"{compiled.mean():.4f} nats per token, and {expected.mean():.4f} uncompiled. Leave "
            "--compile out."
        )
