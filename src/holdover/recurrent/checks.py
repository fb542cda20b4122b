"""Refusals: one sentence each that says what was wrong, what was expected and what to do."""

from typing import Any

import torch
from torch import Tensor

from ..backbones.rsa import takes_rsa
from ..carries.base import Carry
from ..carries.registry import CARRIES
from ..config import RSA_FIELDS, RecurrenceConfig
from ..state import State, check_owner

SUPPORTED_ATTENTION = ("sdpa", "eager")


def check_carry(config: RecurrenceConfig) -> None:
    """Refuse a kind of state that does not exist, and settings that would do nothing for it."""
    if config.carry not in CARRIES:
        raise ValueError(
            f"carry={config.carry!r} is not a kind of state; use one of "
            f"{', '.join(map(repr, CARRIES))}."
        )
    default = RecurrenceConfig()
    optional = frozenset().union(*(kind.uses for kind in CARRIES.values()))
    for name in sorted(optional - CARRIES[config.carry].uses):
        if getattr(config, name) != getattr(default, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no effect with carry={config.carry!r}: leave it "
                "out, or choose another kind of state."
            )
    for name in () if config.rsa else RSA_FIELDS:
        if getattr(config, name) != getattr(default, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no effect without rsa: leave it out, or set "
                "rsa=True."
            )


def check_fit(config: RecurrenceConfig, model: Any, row: Any, layers: int, carry: Carry) -> None:
    """Refuse a configuration that the model cannot run."""
    extra = carry.extra_positions
    limit = row.positions(model.config)
    if limit is not None and config.window + extra > limit:
        memory = f" plus {extra} memory positions" if extra else ""
        raise ValueError(
            f"window={config.window}{memory} does not fit {type(model).__name__}, which has "
            f"{limit} positions: use a window of at most {limit - extra}."
        )
    reads_rows = carry.enters_at_insert_layer
    if reads_rows and config.insert_layer != "all" and config.insert_layer > layers:
        raise ValueError(
            f"insert_layer={config.insert_layer} is out of range: {type(model).__name__} has layers "
            f'1 to {layers}; choose one of them or "all".'
        )
    recurrent = row.recurrent_layers(model.config)
    if recurrent and config.carry not in ("blocks", "none"):
        raise ValueError(
            f"carry={config.carry!r} leaves out the states of the recurrent layers that this "
            f'{model.config.model_type} has: use carry="blocks", which carries them and the memory (or '
            'carry="none" for the twin that carries nothing).'
        )
    if config.carry == "blocks" and not recurrent:
        raise ValueError(
            'carry="blocks" carries the states of recurrent layers, and this '
            f"{model.config.model_type} has none: name them in recurrent_layers of a holdover_xl model, "
            "or use another kind of state."
        )
    if config.carry == "memory" and not row.takes_memory:
        raise ValueError(
            f'carry="memory" uses the backbone\'s own memory and {model.config.model_type} has none: '
            'use carry="pooled" or carry="tokens".'
        )
    if config.rsa:
        check_rsa(config, model, row, layers)
    check_attention(model)
    if getattr(model, "is_gradient_checkpointing", False):
        raise ValueError(
            "The base model recomputes its layers, which would replay them without the state: call "
            'base.gradient_checkpointing_disable() and use RecurrenceConfig(recompute="window").'
        )


def check_rsa(config: RecurrenceConfig, model: Any, row: Any, layers: int) -> None:
    """Refuse a recurrence that has no place in the model's attention."""
    for number in () if config.rsa_layers == "all" else config.rsa_layers:
        if number > layers:
            raise ValueError(
                f"rsa_layers={config.rsa_layers} is out of range: {type(model).__name__} has layers 1 "
                f'to {layers}; choose among them or "all".'
            )
    first = model.base_model.get_submodule(row.base).get_submodule(row.layers)[0]
    if not takes_rsa(first.get_submodule(row.attention)):
        raise ValueError(
            "rsa=True is mixed in through transformers' attention interface, and "
            f"{model.config.model_type} does not use it: leave rsa out, or take another backbone "
            '(holdover_xl has a recurrence of its own, with attention="rsa" in its shape).'
        )
    heads, asked = model.config.num_attention_heads, sum(config.rem_counts)
    if asked > heads:
        raise ValueError(
            f"rem_counts={config.rem_counts} asks for {asked} heads with a recurrence, and "
            f"{type(model).__name__} has {heads} a layer: give {heads} at most."
        )


def check_attention(model: Any) -> None:
    implementation = model.config._attn_implementation
    if implementation not in SUPPORTED_ATTENTION:
        raise ValueError(
            f"holdover cannot insert a state into attention {implementation!r}: call "
            "set_attn_implementation('sdpa') on the base model."
        )


def check_ids(input_ids: Tensor, mask: Tensor | None, vocabulary: int) -> None:
    if input_ids.ndim != 2:
        raise ValueError(
            f"input_ids must have two dimensions, rows and tokens, not {tuple(input_ids.shape)}."
        )
    if input_ids.numel() == 0 or (mask is not None and not bool(mask.any())):
        raise ValueError(
            f"There is nothing to read: input_ids of shape {tuple(input_ids.shape)} hold no token; "
            "give at least one."
        )
    if mask is not None and mask.shape != input_ids.shape:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(input_ids.shape)}; "
            "they must agree."
        )
    low, high = (int(value) for value in torch.aminmax(input_ids))
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"input_ids hold the id {low if low < 0 else high}, but this model's vocabulary has the "
            f"ids 0 to {vocabulary - 1}: the text was tokenised for another model."
        )


def check_labels(
    task: str, input_ids: Tensor, labels: Tensor | None, shift_labels: Tensor | None
) -> None:
    """Refuse labels that a head would not look at."""
    if shift_labels is not None and task != "causal-lm":
        raise ValueError(
            f"shift_labels are for next-token heads, and this is a {task} model: give labels, one for "
            "each token."
        )
    if labels is not None and task in ("bare", "question-answering"):
        wanted = (
            "start_positions and end_positions" if task != "bare" else "no labels: it has no head"
        )
        raise ValueError(f"A {task} model takes {wanted}.")
    if task == "sequence-classification":
        return
    for name, given in (("labels", labels), ("shift_labels", shift_labels)):
        if given is not None and given.shape != input_ids.shape:
            raise ValueError(
                f"{name} have shape {tuple(given.shape)} and input_ids {tuple(input_ids.shape)}; "
                "they must agree."
            )


def check_state(
    state: State, batch: int, device: torch.device, dtype: torch.dtype, owner: dict[str, Any]
) -> None:
    if not isinstance(state, State):
        raise TypeError(
            f"state must be a holdover.State (the state of an earlier output), not "
            f"{type(state).__name__}."
        )
    check_owner(state.owner, owner, "this model")
    if state.batch_size != batch:
        raise ValueError(
            f"The state has {state.batch_size} rows and the input {batch}: choose rows with "
            "state.rows(index), or give the batch that made the state."
        )
    if state.device != device:
        raise ValueError(
            f"The state is on {state.device} and the input on {device}: move it with "
            f"state.to({str(device)!r})."
        )
    if torch.is_autocast_enabled(device.type):
        return
    for tensor in state.tensors.values():
        if tensor.is_floating_point() and tensor.numel() and tensor.dtype != dtype:
            raise ValueError(
                f"The state is in {tensor.dtype} and the model in {dtype}: convert it with "
                f"state.to({dtype})."
            )


def check_finite(losses: list[Tensor]) -> None:
    """Stop at a loss that is no number, before an optimiser spreads it into the weights."""
    finite = torch.stack([loss.detach() for loss in losses]).isfinite()
    if not bool(finite.all()):
        number = int((~finite).nonzero()[0])
        raise FloatingPointError(
            f"The loss of window {number + 1} of {len(losses)} is {losses[number].item()}: the weights "
            "or the learning rate have left the range of numbers; nothing was updated, go back to the "
            "last checkpoint with a smaller learning rate or in float32."
        )


def check_vocabulary(model: Any, encoder: Any) -> None:
    """Refuse a tokenizer (holdover.data's Encoder) with ids that the model does not have."""
    if encoder.vocabulary > model.vocabulary:
        raise ValueError(
            f"The tokenizer {encoder.name} has {encoder.vocabulary} ids and the model only "
            f"{model.vocabulary}: give the tokenizer that belongs to the model."
        )
