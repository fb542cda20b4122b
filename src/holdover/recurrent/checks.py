"""Checks of input: each error says what was wrong, what was expected and what to do."""

from typing import Any

import torch
from torch import Tensor

from ..backbones.rsa import takes_rsa
from ..carries.base import Carry
from ..config import RSA_FIELDS, RecurrenceConfig
from ..state import State, check_owner

TOKEN_TASKS = ("causal-lm", "masked-lm", "token-classification")
SUPPORTED_ATTENTION = ("sdpa", "eager")


def check_settings(config: RecurrenceConfig) -> None:
    """Refuse settings of RSA (a recurrence in attention) while rsa is off."""
    default = RecurrenceConfig(carry="none")
    for name in () if config.rsa else RSA_FIELDS:
        if getattr(config, name) != getattr(default, name):
            raise ValueError(
                f"{name}={getattr(config, name)!r} has no effect without rsa: leave it out, or set "
                "rsa=True."
            )


def check_fit(config: RecurrenceConfig, model: Any, spec: Any, carry: Carry) -> None:
    """Refuse a configuration that the model cannot run."""
    extra, dims = carry.extra_positions, carry.dims
    limit = spec.positions(model.config)
    if limit is not None and config.window + extra > limit:
        memory = f" plus {extra} memory positions" if extra else ""
        raise ValueError(
            f"window={config.window}{memory} does not fit {type(model).__name__}, which has "
            f"{limit} positions: use a window of at most {limit - extra}."
        )
    if dims.recurrent_layers and not carry.carries_recurrent_layers:
        raise ValueError(
            f"carry={config.carry!r} leaves out the states of the recurrent layers that this "
            f'{model.config.model_type} has: use carry="blocks", which carries them and the memory (or '
            'carry="none" for the same model without a state).'
        )
    carry.check_model(config, model, spec, dims)
    if config.rsa:
        check_rsa(config, model, spec, dims.layers)
    check_attention(model)
    if getattr(model, "is_gradient_checkpointing", False):
        raise ValueError(
            "The base model's gradient checkpointing would rerun layers without the state: call "
            'base.gradient_checkpointing_disable() and use RecurrenceConfig(recompute="window").'
        )


def check_rsa(config: RecurrenceConfig, model: Any, spec: Any, layers: int) -> None:
    """Refuse settings of RSA that do not fit the model's layers, heads or attention."""
    for number in () if config.rsa_layers == "all" else config.rsa_layers:
        if number > layers:
            raise ValueError(
                f"rsa_layers={config.rsa_layers} is out of range: {type(model).__name__} has layers 1 "
                f'to {layers}; choose among them or "all".'
            )
    first = model.base_model.get_submodule(spec.base).get_submodule(spec.layers)[0]
    if not takes_rsa(first.get_submodule(spec.attention)):
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
    """Refuse labels that the head would ignore, or that have the wrong shape."""
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


def check_others(others: dict[str, Any]) -> None:
    if others:
        raise TypeError(
            f"{', '.join(others)}: a recurrent model restarts positions and caches in every window "
            "and takes no such argument; use model.disable_recurrence() to call the stock model."
        )


def check_windows(call: Any) -> None:
    """Refuse arguments that windows already contain, and windows that cannot be read together."""
    named = ("attention_mask", "labels", "token_type_ids", "document_starts", "start_positions")
    given = [name for name in (*named, "end_positions") if getattr(call, name) is not None]
    given += [name for name in ("return_logits", "output_hidden_states") if getattr(call, name)]
    if given := [*given, *call.others]:
        raise TypeError(
            f"model(windows=...) takes no {', '.join(given)}: a Window holds its own mask and targets, "
            "and the loss and state are all that is returned; use model(input_ids, ...) or model.step."
        )
    if not call.windows:
        raise ValueError("windows is empty: give at least one Window.")
    if call.model.task not in TOKEN_TASKS:
        raise ValueError(
            f"model(windows=...) gives the loss of heads that label tokens, and this is a "
            f"{call.model.task} model: use model(input_ids, ...) or model.step."
        )
    rows = call.windows[0].input_ids.shape[0]
    for number, window in enumerate(call.windows, 1):
        if window.targets is None:
            raise ValueError(
                f"Window {number} has no targets, so it has no loss: give Window(ids, targets=...), or "
                "read it with model.step(window, state)."
            )
        if window.input_ids.ndim != 2 or window.input_ids.shape[0] != rows:
            raise ValueError(
                f"Window {number} has input_ids of shape {tuple(window.input_ids.shape)} where {rows} "
                "rows were expected, as in the first window."
            )


def check_finite(losses: list[Tensor]) -> None:
    """Stop at a loss that is not finite, before an optimiser spreads it into the weights."""
    finite = torch.stack([loss.detach() for loss in losses]).isfinite()
    if not bool(finite.all()):
        number = int((~finite).nonzero()[0])
        raise FloatingPointError(
            f"The loss of window {number + 1} of {len(losses)} is {losses[number].item()}: the weights "
            "or the learning rate became too large; nothing was updated. Go back to the "
            "last checkpoint with a smaller learning rate or in float32."
        )


def check_vocabulary(model: Any, encoder: Any) -> None:
    """Refuse a tokenizer (an Encoder of holdover.text) with ids that the model does not have."""
    if encoder.vocabulary > model.vocabulary:
        raise ValueError(
            f"The tokenizer {encoder.name} has {encoder.vocabulary} ids and the model only "
            f"{model.vocabulary}: give the tokenizer that belongs to the model."
        )
