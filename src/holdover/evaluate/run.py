"""holdover eval: from settings to a table, a record and plots."""

import json
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from ..attach import RecurrentModel, check_vocabulary, model_folder, open_model, recurrence_of
from ..config import RecurrenceConfig
from ..data.encoders import encoder_of
from ..data.splits import read_text
from ..data.tokens import Encoder, Tokens
from ..data.walk import count_windows
from ..results import provenance, write_record
from ..settings import as_dict
from .cost import PeakMemory, counted_flops, flops_per_token
from .diagnose import KeptStates, diagnose, drawn_windows
from .measures import ClassMeasures, mean_by_position, perplexities, text_counts
from .options import EvalOptions
from .score import score, stretches_to_score
from .show import progress, show, write_plots

RECORD = "eval.json"
# The window of a model that holdover has not trained.
STOCK_WINDOW = 300


def evaluate(options: EvalOptions, console: Console | None = None) -> dict[str, Any]:
    """Score a text, show the table, write record and plots; returns the record."""
    console = console or Console(highlight=False)
    _make_folder(options.output)
    device = _device(options)
    model = open_to_read(options.model, options.window, options.gguf_file)
    trained = model.settings
    encoder = encoder_of(model_folder(options.model), options.tokenizer, options.gguf_file)
    check_vocabulary(model, encoder)
    run = _training_run(options.model)
    window = options.window or trained.window
    overlaps = options.overlap or (trained.overlap,)
    for overlap in overlaps:
        # What does not fit is said before hours are spent on what does.
        with model.reading(window=window, overlap=overlap):
            pass
    tokens = _read(options, encoder, run, window, console)
    model.eval()
    torch.nn.Module.to(model, device)
    if options.compile:
        model.compile_step()
    rows = [
        _row(model, tokens, trained, window, overlap, options, device, console)
        for overlap in overlaps
    ]
    record = {
        "record": "evaluation",
        "model": {
            "name": _name(options.model),
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
        "options": _without_places(as_dict(options)),
        "rows": rows,
        "provenance": provenance(device),
    }
    write_record(options.output / RECORD, record)
    show(record, console)
    if options.plots:
        write_plots(options.output, {record["model"]["name"]: record})
    console.print(f"Record and plots: {options.output}", soft_wrap=True)
    return record


def _name(given: str) -> str:
    """What something is called, not the place where this machine keeps it."""
    path = Path(given)
    if not path.is_absolute() and not path.exists():
        return given  # a name on the hub
    return path.name if path.name not in ("", "..") else path.resolve().name


def _split(options: EvalOptions, tokens: Tokens) -> str:
    """A text without splits is its own train split, whatever is read of it."""
    about = tokens.about
    return about.get("part") or (about["split"] if about["split"] == options.split else "all")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"--output {folder} cannot be made a folder ({error.strerror}).") from error


def _device(options: EvalOptions) -> torch.device:
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device=cuda was asked for, and torch sees no GPU: give --device cpu.")
    on_gpu = torch.cuda.is_available() and options.device != "cpu"
    return torch.device("cuda" if on_gpu else "cpu")


def open_to_read(
    name: str, window: int | None = None, gguf_file: str | None = None
) -> RecurrentModel:
    """A model with its own recurrence, or a stock model that reads every window alone."""
    if recurrence_of(name) is not None:
        return open_model(name)
    stock = RecurrenceConfig(carry="none", window=window or STOCK_WINDOW)
    return open_model(name, stock, gguf_file=gguf_file)


def _training_run(model: str) -> dict[str, Any] | None:
    """What a checkpoint says of its training."""
    path = Path(model_folder(model)) / "holdover_run.json"
    return json.loads(path.read_text()) if path.is_file() else None


def _told(run: dict[str, Any] | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "options": _without_places(run["options"]),
        "data": run["data"],
        "provenance": run["provenance"],
    }


def _without_places(options: dict[str, Any]) -> dict[str, Any]:
    """Settings as they were given, with names for the files and folders of this machine."""
    places = ("data_dir", "cache_dir", "output", "model", "tokenizer", "data", "validation")
    return {
        key: _name(value) if key in places and value is not None else value
        for key, value in options.items()
    }


def _read(
    options: EvalOptions,
    encoder: Encoder,
    run: dict[str, Any] | None,
    window: int,
    console: Console,
) -> Tokens:
    tokens = read_text(options, encoder, options.split, window=window, console=console)
    if run is not None and run["data"]["training"]["sha256"] == tokens.about["sha256"]:
        if "part" not in run["data"]["training"]:
            console.print("[bold]Note:[/bold] the model was trained on this very text.")
        elif options.split in ("test", "valid"):
            same_cut = replace(options, held_out=run["options"]["held_out"])
            tokens = read_text(same_cut, encoder, "valid", window=window)
            console.print("The model was trained on this text: its held-out end is read.")
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
) -> dict[str, Any]:
    """Everything that is measured at one overlap."""
    reset_every = None if options.carry == "document" else options.carry
    recurrent = trained.carry != "none"
    autocast = torch.autocast(device.type, torch.bfloat16) if options.bf16 else nullcontext()
    with model.reading(window=window, overlap=overlap), autocast:
        stretches = stretches_to_score(tokens, model.settings, reset_every)
        drawn, kept = [], None
        if recurrent and options.diagnose_state:
            drawn = drawn_windows(
                tokens, stretches, window, overlap, options.diagnose_windows, options.seed
            )
            kept = KeptStates(stretches, drawn)
        total = sum(_windows(stretch, window, overlap) for stretch in stretches)
        measures = ClassMeasures(tokens, options.classes) if options.metrics else None
        with progress(console, f"overlap {overlap}", total) as advance:
            started = time.perf_counter()
            with PeakMemory(device) as memory:
                scores = score(
                    model,
                    tokens,
                    rows=options.rows,
                    device=device,
                    reset_every=reset_every,
                    measure=measures,
                    keep_state=kept,
                    advance=advance,
                )
            seconds = time.perf_counter() - started
        row = {
            "window": window,
            "overlap": overlap,
            "note": _note(trained, window, overlap),
            "carried_through": "nothing" if not recurrent else options.carry,
            "windows": scores.windows,
            **perplexities(scores, tokens, options.draws, options.seed),
            "loss_by_position": mean_by_position(scores, window),
            "flops_per_token": {
                "formula": flops_per_token(*_sizes(model), window, overlap),
                "counted": _counted(model, window, overlap, device),
            },
            "tokens_per_second": int(scores.scored.sum()) / seconds,
            "seconds": seconds,
            "peak_memory": memory.result,
        }
        if measures is not None:
            row["next_token"] = measures.result(scores)
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
            )
    return row


def _windows(stretch: Any, window: int, overlap: int) -> int:
    end = count_windows(stretch.length, window, overlap)
    return (end if stretch.last is None else min(stretch.last, end)) - stretch.first


def _note(trained: RecurrenceConfig, window: int, overlap: int) -> str | None:
    notes = []
    if trained.carry != "none" and overlap != trained.overlap:
        pooled = "; only positions that are not read again are pooled" * (trained.carry == "pooled")
        notes.append(f"trained at overlap {trained.overlap}{pooled}")
    if trained.carry != "none" and window != trained.window:
        notes.append(f"trained with windows of {trained.window}")
    return "; ".join(notes) or None


def _sizes(model: RecurrentModel) -> tuple[int, int]:
    return len(model.seams.layers), model.backbone.config.hidden_size


def _counted(model: RecurrentModel, window: int, overlap: int, device: torch.device) -> float:
    """Forward FLOPs of a window with a state, as torch counts them, for each new token."""
    # Which token does not matter, but transformers warns of padding.
    token = 1 if model.backbone.config.pad_token_id == 0 else 0
    ids = torch.full((1, window), token, device=device)

    def read() -> None:
        with torch.no_grad():
            model(ids, state=state)

    state = None
    with torch.no_grad():
        state = model(ids).state
    if state is not None and state.tail is not None:
        # The window as it is in the middle of a text: some of it repeats the one before.
        ids = ids[:, : window - overlap]
    compiled, model._compiled.step = model._compiled.step, None
    try:
        return counted_flops(read) / (window - overlap)
    finally:
        model._compiled.step = compiled
