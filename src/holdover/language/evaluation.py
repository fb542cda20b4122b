"""holdover eval: from settings to a table, a record and plots."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..config import RecurrenceConfig
from ..evaluation.collapse import check_collapse
from ..evaluation.compile_checks import check_compiled
from ..evaluation.cost import flops_per_token, printed_flops
from ..evaluation.diagnose import KeptStates, diagnose, drawn_windows
from ..evaluation.measures import (
    ClassMeasures,
    mean_by_distance,
    mean_by_position,
    perplexities,
    text_counts,
)
from ..evaluation.progress import progress
from ..evaluation.scoring import Scores, score, segments_to_score
from ..recurrent.attach import add_recurrence, remove_recurrence
from ..recurrent.checks import check_vocabulary
from ..recurrent.model import RecurrentModel
from ..runs.models import RUN, model_folder, open_model, read_run, recurrence_of
from ..runs.processes import (
    all_gather_objects,
    is_first,
    join,
    own_share,
    rank0_broadcast,
    rank0_first,
)
from ..runs.provenance import (
    choose_device,
    make_folder,
    provenance,
    redact_paths,
    shown_name,
    write_record,
)
from ..runs.settings import as_dict
from ..storage import EVALUATION, VERSION_FIELD
from ..text.splits import read_text
from ..text.tokens import Encoder, Tokens
from ..text.window_loader import windows_of
from ..tokenization.encoders import encoder_of
from .eval_options import EvalOptions
from .eval_report import show, write_plots
from .reading_cost import counted_per_token, sizes_of, speed_of

RECORD = "eval.json"
# The window of a model that holdover has not trained.
STOCK_WINDOW = 300


def evaluate(options: EvalOptions, console: Console | None = None) -> dict[str, Any]:
    """Score a text, show the table, write record and plots; returns the record.

    Of several processes that a launcher started each scores a share; the first does everything else,
    and the record is its.
    """
    console = console or Console(highlight=False)
    record = measure(options, console)
    if not is_first():
        return record
    show(record, console)
    written = "Record"
    if options.plots:
        write_plots(options.output, {record["model"]["name"]: record})
        written = "Record and plots"
    console.print(f"{written}: {options.output}", soft_wrap=True)
    return record


def measure(options: EvalOptions, console: Console) -> dict[str, Any]:
    """Score a text and write the record, which is returned; only progress is shown."""
    device = join(choose_device(options.device).type == "cpu")
    if not is_first():
        console = Console(quiet=True)
    rank0_broadcast(lambda: make_folder(options.output))
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
        # What does not fit is said before hours are spent on what does.
        with model.reading(window=window, overlap=overlap, memory_length=options.memory_length):
            pass
    tokens = rank0_first(lambda: _read(options, encoder, run, window, console))
    model.eval()
    torch.nn.Module.to(model, device)
    if options.compile:
        model.compile_step()
    record: dict[str, Any] = {
        "record": "evaluation",
        VERSION_FIELD: EVALUATION.version,
        "model": {
            "name": shown_name(options.model),
            "architecture": model.backbone.config.model_type,
            "recurrence": trained.to_dict(),
            "parameters": model.parameter_counts(),
            "training": _told(run),
        },
        "data": {
            **tokens.about,
            "split": _split(options, tokens),
            "counts": text_counts(tokens),
            "documents_read": tokens.documents,
        },
        "options": redact_paths(as_dict(options)),
        "rows": [],
        "provenance": provenance(device),
    }
    for overlap in overlaps:
        row = _row(model, tokens, trained, window, overlap, options, device, console)
        if row is not None:
            record["rows"].append(row)
            # After every row: what a later one breaks is not lost.
            write_record(options.output / RECORD, record)
    return record


def _split(options: EvalOptions, tokens: Tokens) -> str:
    """A text without splits is its own train split, whatever is read of it."""
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
    stock = RecurrenceConfig(carry="none", window=window or 1)
    model = open_model(name, stock, gguf_file=gguf_file, trust_remote_code=trust_remote_code)
    if window is not None:
        return model
    most = model.spec.positions(model.backbone.config) or STOCK_WINDOW
    return add_recurrence(remove_recurrence(model), stock.replace(window=min(STOCK_WINDOW, most)))


def _training_run(model: str) -> dict[str, Any] | None:
    """What a checkpoint says of its training."""
    path = Path(model_folder(model)) / RUN
    return read_run(path) if path.is_file() else None


def _told(run: dict[str, Any] | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "options": redact_paths(run["options"]),
        "data": run["data"],
        "provenance": run["provenance"],
    }


def _read(
    options: EvalOptions,
    encoder: Encoder,
    run: dict[str, Any] | None,
    window: int,
    console: Console,
) -> Tokens:
    tokens = read_text(options, encoder, options.split, window=window, console=console)
    learnt = {} if run is None else run["data"]["training"]
    if learnt.get("content_sha256") == tokens.about["content_sha256"]:
        if "part" not in learnt or options.split in ("all", "train"):
            console.print("[bold]Note:[/bold] the model was trained on this very text.")
        elif options.split in ("test", "valid"):
            assert run is not None
            same_cut = replace(options, held_out=run["options"]["held_out"])
            tokens = read_text(same_cut, encoder, "valid", window=window)
            console.print("The model was trained on this text: its held-out end is read.")
    if not tokens.about["tokenizer_keeps_bytes"]:
        console.print(
            f"The tokenizer {encoder.name} does not give back the text it was given: numbers a byte and "
            "a character are of what it made of it."
        )
    if options.documents is not None:
        tokens = tokens.part(0, int(tokens.bounds[min(options.documents, tokens.documents)]))
    if options.document_tokens is not None:
        tokens = tokens.truncated(options.document_tokens)
    return tokens


def _row(
    model: RecurrentModel,
    tokens: Tokens,
    trained: RecurrenceConfig,
    window: int,
    overlap: int,
    options: EvalOptions,
    device: torch.device,
    console: Console,
) -> dict[str, Any] | None:
    """Everything that is measured at one overlap; None in all processes but the first."""
    reset_every = None if options.carry == "document" else options.carry
    recurrent = trained.carry != "none"
    autocast = torch.autocast(device.type, torch.bfloat16) if options.bf16 else nullcontext()
    with (
        model.reading(window=window, overlap=overlap, memory_length=options.memory_length),
        autocast,
    ):
        stretches = segments_to_score(tokens, model.settings, reset_every)
        drawn, kept = [], None
        if recurrent and options.diagnose_state:
            drawn = drawn_windows(
                tokens, stretches, window, overlap, options.diagnose_windows, options.seed
            )
            kept = KeptStates(stretches, drawn)
        if options.compile:
            check_compiled(model, tokens, options.rows, reset_every, device)
        total = sum(len(windows_of(stretch, window, overlap)) for stretch in stretches)
        share = own_share()
        measures = ClassMeasures(tokens, options.classes) if options.metrics else None

        def read() -> tuple[Any, ...]:
            """What this process scores, counts and keeps."""
            with progress(console, f"overlap {overlap}", total // share.of) as advance:
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
            # Of a plain model as well: the same tokens, to be compared.
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
                stretches,
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
            why = "fewer than two windows have a past" if kept else "it was not asked for"
            row["state_not_diagnosed"] = why
    return row


def _note(trained: RecurrenceConfig, window: int, overlap: int) -> str | None:
    notes = []
    if trained.carry != "none" and overlap != trained.overlap:
        pooled = "; only positions that are not read again are pooled" * (trained.carry == "pooled")
        notes.append(f"trained at overlap {trained.overlap}{pooled}")
    if trained.carry != "none" and window != trained.window:
        notes.append(f"trained with windows of {trained.window}")
    return "; ".join(notes) or None
