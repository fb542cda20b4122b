"""A plan: what a run will take, from its settings alone."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..runs.settings import as_dict
from .communication import Talk, talk
from .flops import flops_a_token, window_flops
from .hardware import HOURS_BETWEEN_FAILURES, USABLE, Hardware, hardware_named
from .memory import ADAM_BYTES, memory
from .model_profile import Kept, ModelProfile, kept_bytes, profile_model
from .options import PlanOptions
from .run import PlannedRun
from .seconds import StepSeconds, peak_of, step_seconds

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """What a run will take. Bytes and seconds are of one GPU, tokens and hours of all."""

    options: PlanOptions
    model: ModelProfile
    flops_a_token: dict[str, float]
    memory: dict[str, float]
    room: float  # bytes that a GPU has for these
    talk: Talk
    seconds: StepSeconds
    tokens_a_step: int
    steps: int
    checkpoint_bytes: int
    checkpoint_seconds: float
    hours_between_failures: float
    save_every: int
    lost_share: float  # of the time: writing checkpoints, and computing again what failures took
    validation_share: float
    utilised: float  # of the peak, with everything that is waited for; recomputing does not count
    misfit: str | None  # why it does not fit, and what would

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def tokens_a_second(self) -> float:
        return self.tokens_a_step / self.seconds.step

    @property
    def hours(self) -> float:
        """Of the run, with validations, checkpoints and failures."""
        computing = self.steps * self.seconds.step / 3600
        return computing * (1 + self.validation_share) * (1 + self.lost_share)

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.options.gpus

    @property
    def failures(self) -> float:
        return self.hours / self.hours_between_failures

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they are written to JSON."""
        found = dataclasses.asdict(self) | {"options": as_dict(self.options)}
        names = ("memory_bytes", "tokens_a_second", "hours", "gpu_hours", "failures")
        found |= {name: getattr(self, name) for name in names}
        found["talk"] |= {"sent": self.talk.sent, "seconds": self.talk.seconds}
        found["seconds"]["step"] = self.seconds.step
        return found


def plan(options: PlanOptions) -> Plan:
    """What a run will take: FLOPs, memory, talk between GPUs, time, checkpoints, failures.

    Nothing is downloaded but a configuration, and no weights are made:

        from holdover.plan import PlanOptions, plan

        found = plan(PlanOptions.of(model="llama", gpus=8, rows=8, window=1024, recompute="window"))
        print(found.memory_bytes, found.seconds.step, found.gpu_hours, found.misfit)
    """
    hardware = hardware_named(options.hardware)
    model = profile_model(options.model, options.shape, options.recurrence)
    run = options.run()
    kept = kept_bytes(options.model, options.shape, run.precision)
    sent = talk(model, run, hardware, options.link_use)
    seconds = step_seconds(model, run, hardware, options.utilisation, sent)
    new_tokens = options.windows * (run.window - run.overlap) * options.accumulate
    tokens_a_step = options.rows * new_tokens
    of_token = flops_a_token(model, run)
    useful = of_token["forward"] + of_token["backward"]
    between = HOURS_BETWEEN_FAILURES / options.gpus
    size = (run.weight_bytes + ADAM_BYTES) * model.parameters
    writing = size / (options.disk * 1e9)
    save_seconds = _best_interval(writing, 3600 * between)
    return Plan(
        options=options,
        model=model,
        flops_a_token=of_token,
        memory=memory(model, kept, run),
        room=USABLE * hardware.memory,
        talk=sent,
        seconds=seconds,
        tokens_a_step=tokens_a_step,
        steps=math.ceil(options.tokens / tokens_a_step),
        checkpoint_bytes=size,
        checkpoint_seconds=writing,
        hours_between_failures=between,
        save_every=max(1, round(save_seconds / seconds.step)),
        lost_share=writing / save_seconds + save_seconds / (2 * 3600 * between),
        validation_share=_validation_share(
            model,
            run,
            options,
            (options.validate_every or 0) / tokens_a_step * seconds.step,
            writing,
        ),
        utilised=useful * tokens_a_step / (seconds.step * options.gpus * peak_of(run, hardware)),
        misfit=_misfit(model, kept, run, hardware),
    )


def _best_interval(writing: float, between_failures: float) -> float:
    """Seconds between checkpoints that lose the least time (Young, 1974): the root of 2 C M."""
    return math.sqrt(2 * writing * between_failures)


def _validation_share(
    model: ModelProfile,
    run: PlannedRun,
    options: PlanOptions,
    training_seconds: float,
    writing: float,
) -> float:
    """Time of validations over that of the training between two: a forward each, and a checkpoint."""
    if options.validate_every is None:
        return 0.0
    one = window_flops(model, run.window)
    again = one.forward if run.recompute == "window" else 0.0
    forward = one.forward / (one.forward + one.backward + again)
    reading = options.validation_tokens / options.validate_every * forward
    return reading + writing / training_seconds


def _misfit(model: ModelProfile, kept: Kept, run: PlannedRun, hardware: Hardware) -> str | None:
    """One sentence where a run needs more memory than there is: by how much, and what would fit."""
    room = USABLE * hardware.memory

    def needed(tried: PlannedRun) -> float:
        return sum(memory(model, kept, tried).values())

    if needed(run) <= room:
        return None
    told = (
        f"The run takes {needed(run) / GIB:,.1f} GiB on a GPU and {hardware.name} has room for "
        f"{room / GIB:,.1f}: {(needed(run) - room) / GIB:,.1f} GiB too much"
    )
    words, tried = [], run
    for word, changed in _changes(run):
        tried = dataclasses.replace(tried, **changed)
        words.append(word)
        if needed(tried) <= room:
            return f"{told}; it fits with {' and '.join(words)} ({needed(tried) / GIB:,.1f} GiB)."
    return (
        f"{told}, and with shards, recomputed windows and one row a GPU it still takes "
        f"{needed(tried) / GIB:,.1f} GiB: take GPUs with more memory, shorter windows or a smaller "
        "model."
    )


def _changes(run: PlannedRun) -> list[tuple[str, dict[str, Any]]]:
    """What makes a run smaller, the cheapest first."""
    changes: list[tuple[str, dict[str, Any]]] = []
    if run.recompute == "none":
        changes.append(("--recompute window", {"recompute": "window"}))
    if run.processes > 1 and not run.shard:
        # Shards are not compiled.
        changes.append(("--shard", {"shard": True, "compiled": False}))
    if run.rows > 1:
        changes.append((f"--rows {run.processes}", {"rows": 1}))
    return changes
