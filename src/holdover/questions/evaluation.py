"""holdover qa eval: a reader's answers scored, beside those of others, and whether its state is used."""

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..evaluation.intervals import Resampled
from ..evaluation.progress import progress
from ..runs.provenance import (
    choose_device,
    fresh_name,
    make_folder,
    provenance,
    redact_paths,
    shown_name,
    write_record,
)
from ..runs.settings import as_dict
from ..storage import EVALUATION, VERSION_FIELD
from .answer_state import interval, questions_with_past, state_use
from .answering import Answer, KeptStates, answer_questions, score_answers
from .batches import Pairs
from .eval_options import QAEvalOptions
from .eval_report import show
from .folder import SavedReader, open_reader
from .question import KINDS
from .sources import Questions, held_out_end, open_questions

RECORD = "qa_eval.json"
ANSWERS = "answers.json"
MEASURES = ("em", "f1", "nll")
# Readings of the diagnosis: with the own states again, without, with another's.
READINGS = 3


@dataclass(frozen=True)
class Contender:
    name: str
    saved: SavedReader
    pairs: Pairs


def evaluate_reader(options: QAEvalOptions, console: Console | None = None) -> dict[str, Any]:
    """Answer every question, show the table, write record and answers; returns the record."""
    console = console or Console(highlight=False)
    make_folder(options.output)
    device = choose_device(options.device)
    saved = open_reader(options.model, trust_remote_code=options.trust_remote_code)
    questions, notes = _questions(options, saved)
    contenders = [_contender(shown_name(options.model), saved, questions)]
    for given in options.against:
        name = fresh_name(shown_name(given), {contender.name for contender in contenders})
        other = open_reader(given, trust_remote_code=options.trust_remote_code)
        contenders.append(_contender(name, other, questions))
    rows, answers = [], []
    for contender in contenders:
        row, given = _row(contender, options, device, console)
        rows.append(row)
        answers.append(given)
    record = {
        "record": "question answering evaluation",
        VERSION_FIELD: EVALUATION.version,
        "model": {
            "name": contenders[0].name,
            "architecture": saved.reader.encoder.backbone.config.model_type,
            "recurrence": saved.reader.encoder.settings.to_dict(),
            "training": _training(saved),
        },
        "data": {**questions.about, **_counts(contenders[0].pairs)},
        "notes": notes,
        "options": redact_paths(as_dict(options)),
        "rows": rows,
        "differences": [_difference(rows[0], row, options) for row in rows[1:]],
        "provenance": provenance(device),
    }
    write_record(options.output / RECORD, record)
    write_record(options.output / ANSWERS, _as_hotpotqa(questions, answers[0]))
    show(record, console)
    console.print(f"Record and answers: {options.output}", soft_wrap=True)
    return record


def _questions(options: QAEvalOptions, saved: SavedReader) -> tuple[Questions, list[str]]:
    """What is answered, and what a reader of the record must know of it."""
    seen: dict[str, Any] = {} if saved.run is None else saved.run["data"]
    asked = replace(options, questions=None)
    if not options.data and saved.run is not None:
        before = saved.run["options"]
        folder = options.data_dir or (before["data_dir"] and Path(before["data_dir"]))
        # Not what it learnt from, where there is anything else.
        asked = replace(asked, data=before["validation"] or before["data"], data_dir=folder)
    found = open_questions(asked, options.split)
    notes = [found.about["note"]] if found.about["note"] else []
    learnt, chosen_by = (seen.get(name, {}) for name in ("training", "validation"))
    if learnt.get("sha256") == found.about["sha256"]:
        if "part" in learnt:
            found = held_out_end(found, learnt["part"][1])
            notes.append("the reader was trained on the beginning of this file: its end is read")
        else:
            notes.append("the reader was trained on these very questions")
    if chosen_by.get("sha256") == found.about["sha256"]:
        notes.append("which of the reader's checkpoints is the best was decided by these questions")
    items = found.items[: options.questions]
    return replace(found, items=items, about={**found.about, "questions": len(items)}), notes


def _contender(name: str, saved: SavedReader, questions: Questions) -> Contender:
    pairs = Pairs(saved.tokenizer.encode(questions.items), saved.reader.layout(saved.tokenizer))
    return Contender(name, saved, pairs)


def _training(saved: SavedReader) -> dict[str, Any] | None:
    if saved.run is None:
        return None
    return {
        "options": redact_paths(saved.run["options"]),
        "data": saved.run["data"],
        "provenance": saved.run["provenance"],
    }


def _counts(pairs: Pairs) -> dict[str, Any]:
    kinds = [pair.question.kind for pair in pairs.pairs]
    spans = [pair for pair in pairs.pairs if pair.question.kind == "span"]
    return {
        "kinds": {kind: kinds.count(kind) for kind in KINDS},
        # Such an answer cannot be given, whatever is read.
        "not_in_context": sum(len(pair.spans) == 0 for pair in spans),
    }


def _row(
    contender: Contender, options: QAEvalOptions, device: torch.device, console: Console
) -> tuple[dict[str, Any], list[Answer]]:
    reader, pairs = contender.saved.reader.to(device).eval(), contender.pairs
    how: dict[str, Any] = {"rows": options.rows, "device": device}
    how["longest"] = options.longest_answer
    settings = reader.encoder.settings
    diagnosed = options.diagnose_state and settings.carry != "none"
    kept = KeptStates() if diagnosed else None
    windows = int(pairs.counts.sum())
    past = int(pairs.counts[questions_with_past(pairs)].sum())
    autocast = torch.autocast(device.type, torch.bfloat16) if options.bf16 else nullcontext()
    use = None
    with (
        autocast,
        progress(console, contender.name, windows + READINGS * past * diagnosed) as advance,
    ):
        with PeakMemory(device) as memory:
            started = time.perf_counter()
            answers = answer_questions(reader, pairs, keep=kept, advance=advance, **how)
            seconds = time.perf_counter() - started
        scored = score_answers(answers, pairs)
        if kept is not None:
            intervals: dict[str, Any] = {"draws": options.draws, "seed": options.seed}
            use = state_use(reader, pairs, scored, kept, advance=advance, **how, **intervals)
    resampled = Resampled(np.arange(len(pairs)), options.draws, options.seed)
    values = {name: getattr(scored, name) for name in MEASURES}
    questions = [pair.question for pair in pairs.pairs]
    row: dict[str, Any] = {
        "name": contender.name,
        "carry": settings.carry,
        "window": settings.window,
        "overlap": settings.overlap,
        "parameters": sum(weight.numel() for weight in reader.parameters()),
        "windows": windows,
        **{name: interval(resampled, values[name]) for name in MEASURES},
        "by_type": _groups(values, [question.type for question in questions]),
        "by_kind": _groups(values, [question.kind for question in questions]),
        "by_windows": _groups(values, pairs.counts.tolist()),
        "answered": {kind: sum(a.kind == kind for a in answers) for kind in KINDS},
        "seconds": seconds,
        "questions_per_second": len(pairs) / seconds,
        "peak_memory": memory.result,
        "per_question": {
            "id": [question.id for question in questions],
            **{name: values[name].round(6).tolist() for name in MEASURES},
        },
    }
    if settings.carry != "none":
        row["state"] = use
    return row, answers


def _groups(values: dict[str, np.ndarray], keys: list[Any]) -> dict[str, Any]:
    """Means of each group of questions; without those that say nothing of themselves."""
    found = {}
    for key in sorted({key for key in keys if key is not None}):
        chosen = [number for number, own in enumerate(keys) if own == key]
        means = {name: float(of_all[chosen].mean()) for name, of_all in values.items()}
        found[str(key)] = {"questions": len(chosen), **means}
    return found


def _difference(
    own: dict[str, Any], other: dict[str, Any], options: QAEvalOptions
) -> dict[str, Any]:
    """What the first reader's measures are above another's, question by question."""
    ours, theirs = own["per_question"], other["per_question"]
    resampled = Resampled(np.arange(len(ours["id"])), options.draws, options.seed)
    return {
        "of": own["name"],
        "above": other["name"],
        **{name: interval(resampled, np.subtract(ours[name], theirs[name])) for name in MEASURES},
    }


def _as_hotpotqa(questions: Questions, answers: list[Answer]) -> dict[str, Any]:
    """As HotpotQA's own script takes predictions."""
    given = zip(questions.items, answers, strict=True)
    return {"answer": {question.id: answer.text for question, answer in given}, "sp": {}}
