"""generate and stream: transformers' own generation, through as many windows as it takes.

* transformers prepares the arguments, chooses the tokens and stops; a `GenerationCache` in the place of
  its key-value cache reads them. Inside a window there are keys and values, between windows the state.
* `stream` is given to generate as the loop to run (its `custom_generate`): processors and criteria are
  prepared by transformers, so that both write the same tokens.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput

from ..recurrent.checks import check_ids
from ..state import State
from .cursor import Cursor, GenerationCache

_TAKES_BACK = "it removes tokens that were read, and a state cannot forget them"
_HUB = "its loop is not part of transformers any more"
_ONLY_TOKENS = "generate keeps tokens, scores and logits: call model(sequences) for the rest"
# Arguments that cannot work, and why.
REFUSED = {
    "inputs_embeds": "windows are cut from tokens: give input_ids",
    "past_key_values": "every window has a cache of its own, and a text is continued with state=...",
    "position_ids": "positions are counted anew in every window: leave them out",
    "cache_implementation": "the cache of a window is as small as the window: leave it out",
    "prefill_chunk_size": "a prompt is read window by window in any case: leave it out",
    "assistant_model": _TAKES_BACK,
    "prompt_lookup_num_tokens": _TAKES_BACK,
    "assistant_early_exit": _TAKES_BACK,
    "use_mtp": _TAKES_BACK,
    "guidance_scale": "a second text would need windows of its own",
    "negative_prompt_ids": "a second text would need windows of its own",
    "penalty_alpha": _HUB,
    "dola_layers": _HUB,
    "num_beam_groups": _HUB,
    "constraints": _HUB,
    "force_words_ids": _HUB,
    "output_hidden_states": _ONLY_TOKENS,
    "output_attentions": _ONLY_TOKENS,
}
# Values that have no effect, in addition to None and False.
_NEUTRAL = {"guidance_scale": 1, "num_beam_groups": 1, "penalty_alpha": 0}


def generate(
    model: Any,
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    *,
    state: State | None = None,
    **arguments: Any,
) -> Any:
    """See `RecurrentModel.generate`."""
    given = {
        "generation_config": generation_config,
        "logits_processor": logits_processor,
        "stopping_criteria": stopping_criteria,
        **arguments,
    }
    if not model.enabled:
        if state is not None:
            raise ValueError(
                "A state was given while the recurrence is disabled, and the stock model cannot "
                "read it: leave disable_recurrence(), or call without a state."
            )
        return model.backbone.generate(inputs, **given)
    _check_writing(model, generation_config, arguments)
    ids = arguments.get("input_ids") if inputs is None else inputs
    if ids is not None:
        check_ids(ids, None, model.vocabulary)
    own_ids = _writes_own_ids(model, generation_config, arguments)
    cursor = Cursor(model, 1 if ids is None else len(ids), state)
    cache = GenerationCache(cursor, checks_tokens=not own_ids)
    generating: Any = GenerationMixin
    output = generating.generate(model, inputs, **given, past_key_values=cache)
    if isinstance(output, GenerateBeamDecoderOnlyOutput):
        cache.other_rows = "beams are cut and copied while they are read"
    elif isinstance(output, GenerateDecoderOnlyOutput):
        new = output.sequences[:, 1 if ids is None else ids.shape[1] :]
        if _some_ended(model, new, generation_config, stopping_criteria, arguments):
            cache.other_rows = "a text ended before others, and the padding after it was read"
    return output


def stream(
    model: Any,
    inputs: Tensor | None = None,
    generation_config: GenerationConfig | None = None,
    logits_processor: LogitsProcessorList | None = None,
    stopping_criteria: StoppingCriteriaList | None = None,
    *,
    state: State | None = None,
    **arguments: Any,
) -> Iterator[int]:
    """See `RecurrentModel.stream`."""
    if not model.enabled:
        raise ValueError(
            "stream writes through windows, and the recurrence is disabled: leave "
            "disable_recurrence(), or call generate with a streamer."
        )
    for name in ("streamer", "custom_generate"):
        if arguments.pop(name, None) is not None:
            raise ValueError(f"stream is a loop of its own and takes no {name}: use generate.")
    tokenizer = arguments.pop("tokenizer", None)
    words = _asked(model, "stop_strings", generation_config, arguments)
    if tokenizer is not None and words is not None:
        # transformers hands no tokenizer on to loops that are not its own.
        stops = StopStringCriteria(tokenizer, words)
        stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), stops])
        arguments.pop("stop_strings", None)
        if generation_config is not None:
            generation_config = deepcopy(generation_config)
            generation_config.stop_strings = None
        if model.generation_config.stop_strings is not None:
            arguments["stop_strings"] = None
    return generate(
        model,
        inputs,
        generation_config,
        logits_processor,
        stopping_criteria,
        state=state,
        custom_generate=_write,
        **arguments,
    )


def prepare_inputs(
    input_ids: Tensor,
    past_key_values: GenerationCache | None = None,
    attention_mask: Tensor | None = None,
) -> dict[str, Any]:
    """The tokens that were not read yet. Only a prompt has a mask: new tokens are never padding."""
    assert past_key_values is not None
    seen = past_key_values.get_seq_length()
    return {
        "input_ids": input_ids[:, seen:],
        "attention_mask": None if seen else attention_mask,
        "past_key_values": past_key_values,
    }


def _asked(
    model: Any, name: str, config: GenerationConfig | None, arguments: dict[str, Any]
) -> Any:
    """A setting as transformers finds it: an argument, else from the config, else the model's."""
    if name in arguments:
        return arguments[name]
    value = getattr(config, name, None)
    return getattr(model.generation_config, name, None) if value is None else value


def _writes_own_ids(model: Any, config: GenerationConfig | None, arguments: dict[str, Any]) -> bool:
    """Whether every token read after the prompt is sure to be in the vocabulary."""
    if arguments.get("custom_generate") not in (None, _write):
        return False
    eos, pad = (_asked(model, name, config, arguments) for name in ("eos_token_id", "pad_token_id"))
    # Texts that have ended are filled up with the padding id, else with the end token.
    filler = eos if pad is None else pad
    ids = [] if filler is None else torch.as_tensor(filler).flatten().tolist()
    return all(0 <= number < model.vocabulary for number in ids)


def _some_ended(
    model: Any,
    new: Tensor,
    config: GenerationConfig | None,
    criteria: StoppingCriteriaList | None,
    arguments: dict[str, Any],
) -> bool:
    """Whether rows of the new ids [B, n] may have ended before the last column."""
    eos, pad = (_asked(model, name, config, arguments) for name in ("eos_token_id", "pad_token_id"))
    ends = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
    own = [criterion for criterion in criteria or [] if hasattr(criterion, "eos_token_id")]
    if len(new) == 1 or not (ends or own):
        # A single text is never padded, and without an end token all texts end together.
        return False
    ended = bool(torch.isin(new[:, :-1], torch.tensor(ends).to(new)).any())
    if criteria or _asked(model, "stop_strings", config, arguments) is not None:
        # Where these criteria ended a text is unknown, but padding follows it.
        filler = ends[0] if pad is None else int(pad)
        ended = ended or bool((new[:, -1] == filler).any())
    return ended


def _check_writing(model: Any, config: GenerationConfig | None, arguments: dict[str, Any]) -> None:
    if not model.can_generate():
        raise ValueError(
            f"{type(model.backbone).__name__} cannot write: only models that read from left to right "
            "and predict the next token can."
        )
    if model.training:
        raise ValueError(
            "The model is in training mode, where dropout would change what it writes: call "
            "model.eval() first."
        )
    defaults = config or model.generation_config
    for name, why in REFUSED.items():
        value = arguments.get(name, getattr(defaults, name, None))
        if value is None or value is False:
            continue
        if name not in _NEUTRAL or value != _NEUTRAL[name]:
            raise ValueError(f"A recurrent model cannot generate with {name}: {why}.")


def _write(
    model: Any,
    input_ids: Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    **prepared: Any,
) -> Iterator[int]:
    """The loop of `stream`, as generate runs it: arguments are prepared and rows repeated."""
    if len(input_ids) != 1:
        raise ValueError(
            f"stream yields the tokens of one text, and there are {len(input_ids)} rows (texts, times "
            "beams or sequences to return): use generate, or a stream for each text."
        )
    cache, mask = prepared["past_key_values"], prepared.get("attention_mask")
    return _tokens(
        cache, mask, input_ids, logits_processor, stopping_criteria, generation_config.do_sample
    )


def _tokens(
    cache: GenerationCache,
    mask: Tensor | None,
    text: Tensor,
    process: LogitsProcessorList,
    stops: StoppingCriteriaList,
    sample: bool | None,
) -> Iterator[int]:
    unread, done = text, 0
    while not done:
        with torch.no_grad():
            # In float32 and drawn from torch's own generator, as transformers does.
            logits = cache.read(unread, mask)[:, -1].to(text.device, torch.float32, copy=True)
            scores = process(text, logits)  # pyright: ignore[reportArgumentType]
            chosen = torch.multinomial(scores.softmax(-1), 1) if sample else scores.argmax(-1, True)
            text = torch.cat([text, chosen], 1)
            stopped = stops(text, None)  # pyright: ignore[reportArgumentType]
            # One transfer for both: each transfer waits for the device.
            token, done = torch.cat([chosen[0], stopped.to(chosen.dtype)]).tolist()  # pyright: ignore[reportAttributeAccessIssue]
        yield token
        unread, mask = chosen, None
