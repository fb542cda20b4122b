"""The context of a run: a folder that outlives interruptions, training and evaluation."""

import gc
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from rich.console import Console

from ..evaluation.cost import PeakMemory
from ..forecasting.eval_options import ForecastEvalOptions
from ..forecasting.evaluation import evaluate_forecaster
from ..forecasting.options import ForecastOptions
from ..forecasting.training import train_forecaster
from ..language.eval_options import EvalOptions
from ..language.evaluation import evaluate
from ..language.options import TrainOptions
from ..language.training import train
from ..questions.eval_options import QAEvalOptions
from ..questions.evaluation import evaluate_reader
from ..questions.options import QAOptions
from ..questions.training import train_reader
from ..runs.models import numbered
from ..runs.provenance import choose_device, write_record
from ..runs.settings import build, settings_of
from ..training.compile_checks import CompileMismatch
from ..training.log import LOG, read_log
from ..training.setup import begun, differences, read_about
from .records import read_json

# Kept in a record from the description of a text or a table of time series.
KEPT = ("source", "split", "sha256", "content_sha256", "documents_read", "counts", "windows")
NO_OPTIONS: Mapping[str, bool] = MappingProxyType({})
# A file in the folder of a finished training: the memory it needed.
FINISHED = "finished.json"


@dataclass
class RunContext:
    folder: Path
    """The run's own; an interrupted attempt continues there."""
    settings: Mapping[str, Any]
    seed: int
    others: Mapping[str, Path]
    """Folders of the runs it waited for, by their names."""
    found: Mapping[str, Mapping[str, Any]]
    """The measures of those runs."""
    console: Console
    common: Mapping[str, Any] = field(default_factory=dict)
    """Options of this machine that do not change the outcome: data_dir, cache_dir, device."""
    texts: list[dict[str, Any]] = field(default_factory=list)
    """The texts that were read, with checksums: filled by training and evaluation."""

    @property
    def device(self) -> torch.device:
        return choose_device(self.common.get("device", "auto"))

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def train(
        self,
        name: str = "train",
        *,
        faster: Mapping[str, bool] = NO_OPTIONS,
        made: Iterable[Path] = (),
        **settings: Any,
    ) -> Path:
        """Train a language model, or continue its training; returns the folder of the training.

        `faster`: options that make the same steps in less time on a GPU (compile, replay). An option
        that would change the steps is refused, and the training continues without it.
        `made`: folders of other runs' trainings. One with the same settings and seed is reused.
        """
        for other in made:
            self._reuse(other, name, faster, settings)
        for tried in self._fallbacks(self.folder / name, faster):
            try:
                return self._trained(train, TrainOptions, name, {**settings, **tried})
            except CompileMismatch as error:
                if not any(tried.values()):
                    raise
                self.console.print(f"{error} It is left out here.", markup=False)
                # A wrong step has trained these weights: begin again.
                shutil.rmtree(self.folder / name, ignore_errors=True)
        raise AssertionError("the last fallback has no faster options")

    def _reuse(
        self, other: Path, name: str, faster: Mapping[str, bool], settings: dict[str, Any]
    ) -> None:
        output = self.folder / name
        if begun(output) or not (other / FINISHED).exists():
            return
        before = read_about(other)["options"]
        own = {option: before[option] for option in faster}
        given = {**self._common(TrainOptions), "seed": self.seed, **settings, **own}
        if differences(before, build(TrainOptions, given)):
            return
        self.console.print(f"Trained already: {other}", markup=False, soft_wrap=True)
        # Links, so that either may be removed; renamed when it is complete.
        part = output.with_name(f"{name}.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(other, part, symlinks=True, copy_function=_link)
        part.rename(output)

    def _fallbacks(self, output: Path, faster: Mapping[str, bool]) -> list[dict[str, bool]]:
        """Sets of faster options to try: all, all but the compiler, none.

        A run that has begun continues with its own.
        """
        slower = [{**faster, "compile": False}] if faster.get("compile") else []
        ways = [dict(faster), *slower] if self.on_gpu else []
        ways.append(dict.fromkeys(faster, False))
        if begun(output):
            before = read_about(output)["options"]
            own = {option: before[option] for option in faster}
            rest = ways[ways.index(own) + 1 if own in ways else -1 :]
            ways = [own, *(way for way in rest if way != own)]
        return ways

    def train_forecaster(self, name: str = "train", **settings: Any) -> Path:
        return self._trained(train_forecaster, ForecastOptions, name, settings)

    def train_reader(self, name: str = "train", **settings: Any) -> Path:
        return self._trained(train_reader, QAOptions, name, settings)

    def evaluate(self, model: Path | str, name: str = "eval", **settings: Any) -> dict[str, Any]:
        """An evaluation's record."""
        return self._evaluated(evaluate, EvalOptions, model, name, settings)

    def evaluate_forecaster(
        self, model: Path | str, name: str = "eval", **settings: Any
    ) -> dict[str, Any]:
        return self._evaluated(evaluate_forecaster, ForecastEvalOptions, model, name, settings)

    def evaluate_reader(
        self, model: Path | str, name: str = "eval", **settings: Any
    ) -> dict[str, Any]:
        return self._evaluated(evaluate_reader, QAEvalOptions, model, name, settings)

    def _trained(
        self, verb: Callable[..., Any], options: type, name: str, settings: dict[str, Any]
    ) -> Path:
        output = self.folder / name
        if not (output / FINISHED).exists():
            given = {**self._common(options), "seed": self.seed, **settings, "output": output}
            resume = begun(output)
            with PeakMemory(self.device) as memory:
                verb(build(options, given), resume=resume, console=self.console)
            write_record(output / FINISHED, {"peak_memory": memory.result})
            # Reference cycles keep the trained model alive, which would count as memory of reading.
            gc.collect()
            if self.on_gpu:
                torch.cuda.empty_cache()
        return output

    def _evaluated(
        self,
        verb: Callable[..., Any],
        options: type,
        model: Path | str,
        name: str,
        settings: dict[str, Any],
    ) -> dict[str, Any]:
        # The experiment has its own figures.
        without = {"plots": False} if "plots" in settings_of(options) else {}
        given = {**self._common(options), **without, **settings, "model": str(model)}
        record = verb(build(options, {**given, "output": self.folder / name}), self.console)
        self.read(record["data"])
        return record

    def _common(self, options: type) -> dict[str, Any]:
        known = settings_of(options)
        return {key: value for key, value in self.common.items() if key in known}

    def read(self, about: Mapping[str, Any]) -> None:
        """Note a text or a table of time series that was read."""
        if "source" not in about:
            part = about["part"]
            windows = about.get("windows", {}).get(part)
            about = {**about, "source": about["data"], "split": part, "windows": windows}
        kept = {key: about[key] for key in KEPT if about.get(key) is not None}
        if kept not in self.texts:
            self.texts.append(kept)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no links
        shutil.copy2(source, target)


def training_memory(run: Path) -> int:
    """Bytes at the peak of a training, which may have ended in an earlier attempt."""
    return read_json(run / FINISHED)["peak_memory"]["bytes"]


def resident_memory(run: Path) -> int:
    """Bytes of the machine's own memory at the peak of a training, not counting the GPU's."""
    memory = read_json(run / FINISHED)["peak_memory"]
    return memory["bytes" if memory["kind"] == "process resident" else "resident"]


def log_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a training's log: steps and validations."""
    return read_log(run / LOG)


def last_checkpoint(run: Path) -> Path:
    """The last checkpoint of a training, not the best."""
    checkpoints = numbered(run)
    if not checkpoints:
        raise ValueError(
            f"There is no checkpoint in {run}: --tidy may have removed it; repeat the run that made it "
            "with --again --only NAME."
        )
    return checkpoints[-1]
