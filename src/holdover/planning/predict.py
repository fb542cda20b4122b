"""A plan: the predicted cost of a training run, from its settings alone."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from ..runs.settings import as_dict
from .costs import (
    ADAM_BYTES,
    Communication,
    StepSeconds,
    communication,
    flops_a_token,
    memory,
    peak_of,
    step_seconds,
    window_flops,
)
from .hardware import HOURS_BETWEEN_FAILURES, USABLE, Hardware, hardware_named
from .model_profile import ActivationBytes, ModelProfile, activation_bytes, profile_model
from .options import PlannedRun, PlanOptions

GIB = 2**30


@dataclass(frozen=True)
class Plan:
    """The predicted cost. Bytes and seconds are for one GPU, tokens and hours for all."""

    options: PlanOptions
    model: ModelProfile
    flops_a_token: dict[str, float]
    memory: dict[str, float]
    room: float  # bytes that one GPU has for all of these
    communication: Communication
    seconds: StepSeconds
    tokens_a_step: int
    steps: int
    checkpoint_bytes: int
    checkpoint_seconds: float
    hours_between_failures: float
    save_every: int
    lost_share: float  # extra time to write checkpoints and to repeat steps after failures
    validation_share: float  # extra time for validation
    utilised: float  # share of the peak over the whole step; recomputed FLOPs do not count
    misfit: str | None  # why the run does not fit into memory, and which settings would

    @property
    def memory_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def tokens_a_second(self) -> float:
        return self.tokens_a_step / self.seconds.step

    @property
    def hours(self) -> float:
        """Time of the run, with validations, checkpoints and failures."""
        computing = self.steps * self.seconds.step / 3600
        return computing * (1 + self.validation_share) * (1 + self.lost_share)

    @property
    def gpu_hours(self) -> float:
        return self.hours * self.options.gpus

    @property
    def failures(self) -> float:
        return self.hours / self.hours_between_failures

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, with the names that version 0.1.0 wrote."""
        record = dataclasses.asdict(self) | {"options": as_dict(self.options)}
        names = ("memory_bytes", "tokens_a_second", "hours", "gpu_hours", "failures")
        record |= {name: getattr(self, name) for name in names}
        sent = self.communication
        del record["communication"]
        record["talk"] = {
            "before": sent.weights,
            "behind": sent.last_gradients,
            "between_batches": sent.earlier_gradients,
            "speed": sent.speed,
            "sent": sent.sent,
            "seconds": sent.seconds,
        }
        record["seconds"]["talk"] = record["seconds"].pop("communication")
        record["seconds"]["step"] = self.seconds.step
        return record


def plan(options: PlanOptions) -> Plan:
    """Predict a run: FLOPs, memory, communication between GPUs, time, checkpoints, failures.

    Downloads at most the model's configuration, and creates no weights:

        from holdover.planning import PlanOptions, plan

        planned = plan(PlanOptions.of(model="llama", gpus=8, rows=8, window=1024, recompute="window"))
        print(planned.memory_bytes, planned.seconds.step, planned.gpu_hours, planned.misfit)
    """
    hardware = hardware_named(options.hardware)
    model = profile_model(options.model, options.shape, options.recurrence)
    run = options.run()
    activations = activation_bytes(options.model, options.shape, run.precision)
    sent = communication(model, run, hardware, options.link_use)
    seconds = step_seconds(model, run, hardware, options.utilisation, sent)
    new_tokens = options.windows * (run.window - run.overlap) * options.accumulate
    tokens_a_step = options.rows * new_tokens
    flops = flops_a_token(model, run)
    useful = flops["forward"] + flops["backward"]
    between = HOURS_BETWEEN_FAILURES / options.gpus
    size = (run.weight_bytes + ADAM_BYTES) * model.parameters
    writing = size / (options.disk * 1e9)
    save_seconds = _best_interval(writing, 3600 * between)
    return Plan(
        options=options,
        model=model,
        flops_a_token=flops,
        memory=memory(model, activations, run),
        room=USABLE * hardware.memory,
        communication=sent,
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
        misfit=_misfit(model, activations, run, hardware),
    )


def _best_interval(writing: float, between_failures: float) -> float:
    """The interval between checkpoints, in seconds, that loses least time: sqrt(2 C M) (Young, 1974)."""
    return math.sqrt(2 * writing * between_failures)


def _validation_share(
    model: ModelProfile,
    run: PlannedRun,
    options: PlanOptions,
    training_seconds: float,
    writing: float,
) -> float:
    """Time of one validation (forward passes and a checkpoint) per time of training between two."""
    if options.validate_every is None:
        return 0.0
    one = window_flops(model, run.window)
    again = one.forward if run.recompute == "window" else 0.0
    forward = one.forward / (one.forward + one.backward + again)
    reading = options.validation_tokens / options.validate_every * forward
    return reading + writing / training_seconds


def _misfit(
    model: ModelProfile, activations: ActivationBytes, run: PlannedRun, hardware: Hardware
) -> str | None:
    """How much memory the run lacks and which settings would fit; None if it fits."""
    room = USABLE * hardware.memory

    def needed(candidate: PlannedRun) -> float:
        return sum(memory(model, activations, candidate).values())

    if needed(run) <= room:
        return None
    problem = (
        f"The run needs {needed(run) / GIB:,.1f} GiB per GPU and {hardware.name} has room for "
        f"{room / GIB:,.1f}: {(needed(run) - room) / GIB:,.1f} GiB too much"
    )
    flags, candidate = [], run
    for flag, changes in _smaller(run):
        candidate = dataclasses.replace(candidate, **changes)
        flags.append(flag)
        size = f"{needed(candidate) / GIB:,.1f} GiB"
        if needed(candidate) <= room:
            return f"{problem}; it fits with {' and '.join(flags)} ({size})."
    return (
        f"{problem}. With shards, recomputed windows and one row per GPU it still takes "
        f"{needed(candidate) / GIB:,.1f} GiB: use GPUs with more memory, shorter windows or a smaller "
        "model."
    )


def _smaller(run: PlannedRun) -> list[tuple[str, dict[str, Any]]]:
    """Flags that make a run need less memory, the cheapest first."""
    changes: list[tuple[str, dict[str, Any]]] = []
    if run.recompute == "none":
        changes.append(("--recompute window", {"recompute": "window"}))
    if run.processes > 1 and not run.shard:
        # --compile does not work with --shard.
        changes.append(("--shard", {"shard": True, "compiled": False}))
    if run.rows > 1:
        changes.append((f"--rows {run.processes}", {"rows": 1}))
    return changes
