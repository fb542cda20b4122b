"""holdover qa eval: score the answers of readers, and test whether each reader uses its state."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..evaluation.driver import Evaluation, about_training, difference, row_names
from ..evaluation.intervals import Resampled
from .answer_state import questions_with_past, state_use
from .answering import Answer, QuestionStates, answer_questions, score_answers
from .batches import Pairs
from .eval_options import QAEvalOptions
from .eval_report import show
from .folder import SavedReader, open_reader
from .question import KINDS
from .sources import Questions, held_out_end, open_questions

RECORD = "qa_eval.json"
ANSWERS = "answers.json"
MEASURES = ("em", "f1", "nll")
# The diagnosis reads every window three times: with its own state, without it, with another's.
READINGS = 3


@dataclass(frozen=True)
class Contender:
    name: str
    saved: SavedReader
    pairs: Pairs


def evaluate_reader(options: QAEvalOptions, console: Console | None = None) -> dict[str, Any]:
    """Answer every question, show the table, write record and answers; returns the record."""
    evaluation = Evaluation(options, console)
    trust = options.trust_remote_code
    saved = open_reader(options.model, trust_remote_code=trust)
    questions, notes = _questions(options, saved)
    first, *other_names = row_names(options.model, options.against)
    contenders = [_contender(first, saved, questions)]
    for name, model in zip(other_names, options.against, strict=True):
        other = open_reader(model, trust_remote_code=trust)
        contenders.append(_contender(name, other, questions))
    rows, answers = zip(*(_row(evaluation, contender) for contender in contenders), strict=True)
    record = evaluation.record(
        "question answering evaluation",
        model={
            "name": first,
            "architecture": saved.reader.encoder.backbone.config.model_type,
            "recurrence": saved.reader.encoder.settings.to_dict(),
            "training": about_training(saved.run),
        },
        data={**questions.about, **_counts(contenders[0].pairs)},
        notes=notes,
        rows=list(rows),
        differences=[_difference(rows[0], row, options) for row in rows[1:]],
    )
    evaluation.write(RECORD, record)
    evaluation.write(ANSWERS, _as_hotpotqa(questions, answers[0]))
    return evaluation.finish(record, show, written="Record and answers")


def _questions(options: QAEvalOptions, saved: SavedReader) -> tuple[Questions, list[str]]:
    """The questions to answer, and notes for the record about their part in the training."""
    trained_with: dict[str, Any] = {} if saved.run is None else saved.run["data"]
    chosen = replace(options, questions=None)
    if not options.data and saved.run is not None:
        before = saved.run["options"]
        folder = options.data_dir or (before["data_dir"] and Path(before["data_dir"]))
        # Preferably not the questions that it learned from.
        chosen = replace(chosen, data=before["validation"] or before["data"], data_dir=folder)
    questions = open_questions(chosen, options.split)
    notes = [questions.about["note"]] if questions.about["note"] else []
    training, validation = (trained_with.get(name, {}) for name in ("training", "validation"))
    if training.get("sha256") == questions.about["sha256"]:
        if "part" in training:
            questions = held_out_end(questions, training["part"][1])
            notes.append("the reader was trained on the beginning of this file: its end is read")
        else:
            notes.append("the reader was trained on these very questions")
    if validation.get("sha256") == questions.about["sha256"]:
        notes.append("which of the reader's checkpoints is the best was decided by these questions")
    items = questions.items[: options.questions]
    about = {**questions.about, "questions": len(items)}
    return replace(questions, items=items, about=about), notes


def _contender(name: str, saved: SavedReader, questions: Questions) -> Contender:
    pairs = Pairs(saved.tokenizer.encode(questions.items), saved.reader.layout(saved.tokenizer))
    return Contender(name, saved, pairs)


def _counts(pairs: Pairs) -> dict[str, Any]:
    kinds = [pair.question.kind for pair in pairs.pairs]
    spans = [pair for pair in pairs.pairs if pair.question.kind == "span"]
    return {
        "kinds": {kind: kinds.count(kind) for kind in KINDS},
        # No reader can give such an answer.
        "not_in_context": sum(len(pair.spans) == 0 for pair in spans),
    }


def _row(evaluation: Evaluation, contender: Contender) -> tuple[dict[str, Any], list[Answer]]:
    options: QAEvalOptions = evaluation.options
    device = evaluation.device
    reader, pairs = contender.saved.reader.to(device).eval(), contender.pairs
    reading: dict[str, Any] = {"rows": options.rows, "device": device}
    reading["longest"] = options.longest_answer
    settings = reader.encoder.settings
    diagnosed = options.diagnose_state and settings.carry != "none"
    kept = QuestionStates() if diagnosed else None
    windows = int(pairs.counts.sum())
    past = int(pairs.counts[questions_with_past(pairs)].sum())
    use = None
    with (
        evaluation.autocast(),
        evaluation.progress(contender.name, windows + READINGS * past * diagnosed) as advance,
    ):
        with PeakMemory(device) as memory:
            answers = answer_questions(reader, pairs, keep=kept, advance=advance, **reading)
        scored = score_answers(answers, pairs)
        if kept is not None:
            intervals: dict[str, Any] = {"draws": options.draws, "seed": options.seed}
            use = state_use(reader, pairs, scored, kept, advance=advance, **reading, **intervals)
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
        **{name: resampled.mean(values[name]) for name in MEASURES},
        "by_type": _groups(values, [question.type for question in questions]),
        "by_kind": _groups(values, [question.kind for question in questions]),
        "by_windows": _groups(values, pairs.counts.tolist()),
        "answered": {kind: sum(a.kind == kind for a in answers) for kind in KINDS},
        "seconds": memory.seconds,
        "questions_per_second": len(pairs) / memory.seconds,
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
    """The means of each group of questions; questions without a group are left out."""
    groups = {}
    for key in sorted({key for key in keys if key is not None}):
        chosen = [number for number, own in enumerate(keys) if own == key]
        means = {name: float(of_all[chosen].mean()) for name, of_all in values.items()}
        groups[str(key)] = {"questions": len(chosen), **means}
    return groups


def _difference(
    own: dict[str, Any], other: dict[str, Any], options: QAEvalOptions
) -> dict[str, Any]:
    """The first reader's measures less another's, paired by question."""
    ours, theirs = own["per_question"], other["per_question"]
    resampled = Resampled(np.arange(len(ours["id"])), options.draws, options.seed)
    values = {name: np.subtract(ours[name], theirs[name]) for name in MEASURES}
    return difference(own["name"], other["name"], resampled, values)


def _as_hotpotqa(questions: Questions, answers: list[Answer]) -> dict[str, Any]:
    """Predictions in the format of HotpotQA's own script."""
    given = zip(questions.items, answers, strict=True)
    return {"answer": {question.id: answer.text for question, answer in given}, "sp": {}}
