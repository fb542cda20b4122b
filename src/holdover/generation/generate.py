"""generate and stream: transformers' own generation, through as many windows as it takes.

* transformers prepares the arguments, chooses the tokens and stops; a `WindowCache` in the place of its
  key-value cache reads them. Inside a window there are keys and values, between windows the state.
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
from .window_cache import WindowCache

_TAKES_BACK = "it takes back tokens that were read, and a state cannot forget"
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
# Values that ask for nothing, beside None and False.
_NEUTRAL = {"guidance_scale": 1, "num_beam_groups": 1, "penalty_alpha": 0}


class Generation(GenerationMixin):
    """Mixed into RecurrentModel."""

    backbone: Any
    task: str
    row: Any
    enabled: bool
    vocabulary: int

    # The backbone's: one model, one set of defaults, whether the recurrence is enabled or not.

    @property
    def generation_config(self) -> GenerationConfig:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.backbone.generation_config

    @generation_config.setter
    def generation_config(self, config: GenerationConfig) -> None:
        self.backbone.generation_config = config

    def can_generate(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        # transformers asks already while the model is being made.
        return getattr(self, "task", None) == "causal-lm" and self.row.causal

    def adjust_generation_fn(self, *args: Any, **kwargs: Any) -> None:
        """Models that were saved without generation_config.json keep their backbone's special tokens."""
        own = self.generation_config.to_dict()
        super().adjust_generation_fn(*args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        self.generation_config.update(**own, defaults_only=True)

    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *,
        state: State | None = None,
        **arguments: Any,
    ) -> Any:
        """Continue texts [B, N] of any length, with the arguments of transformers' own generate.

        Returns what it returns: prompt and new ids [B, N + n], or with return_dict_in_generate=True an
        output whose past_key_values can be closed for the state (not of beams, nor where a text ended
        before others). state: continue behind it, one row a text. Texts of different lengths are padded
        on the left, with an attention_mask.
        """
        given = {
            "generation_config": generation_config,
            "logits_processor": logits_processor,
            "stopping_criteria": stopping_criteria,
            **arguments,
        }
        if not self.enabled:
            if state is not None:
                raise ValueError(
                    "A state was given while the recurrence is disabled, and the stock model cannot "
                    "read it: leave disable_recurrence(), or call without a state."
                )
            return self.backbone.generate(inputs, **given)
        self._check_writing(generation_config, arguments)
        ids = arguments.get("input_ids") if inputs is None else inputs
        if ids is not None:
            check_ids(ids, None, self.vocabulary)
        cache = WindowCache(self, 1 if ids is None else len(ids), state)
        cache.chosen = self._writes_own_ids(generation_config, arguments)
        output = super().generate(inputs, **given, past_key_values=cache)  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(output, GenerateBeamDecoderOnlyOutput):
            cache.other_rows = "beams are cut and copied while they are read"
        elif isinstance(output, GenerateDecoderOnlyOutput):
            new = output.sequences[:, 1 if ids is None else ids.shape[1] :]
            if self._some_ended(new, generation_config, stopping_criteria, arguments):
                cache.other_rows = "a text ended before others, and the padding behind it was read"
        return output

    def stream(
        self,
        inputs: Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: LogitsProcessorList | None = None,
        stopping_criteria: StoppingCriteriaList | None = None,
        *,
        state: State | None = None,
        **arguments: Any,
    ) -> Iterator[int]:
        """The tokens that generate would write behind a text [1, N], one by one as they are made.

        Wrong arguments are refused before this returns; a token is computed when it is asked for.
        """
        if not self.enabled:
            raise ValueError(
                "stream writes through windows, and the recurrence is disabled: leave "
                "disable_recurrence(), or call generate with a streamer."
            )
        for name in ("streamer", "custom_generate"):
            if arguments.pop(name, None) is not None:
                raise ValueError(f"stream is a loop of its own and takes no {name}: use generate.")
        tokenizer = arguments.pop("tokenizer", None)
        words = self._asked("stop_strings", generation_config, arguments)
        if tokenizer is not None and words is not None:
            # transformers hands no tokenizer on to loops that are not its own.
            stops = StopStringCriteria(tokenizer, words)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), stops])
            arguments.pop("stop_strings", None)
            if generation_config is not None:
                generation_config = deepcopy(generation_config)
                generation_config.stop_strings = None
            if self.generation_config.stop_strings is not None:
                arguments["stop_strings"] = None
        return self.generate(
            inputs,
            generation_config,
            logits_processor,
            stopping_criteria,
            state=state,
            custom_generate=_write,
            **arguments,
        )

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        past_key_values: WindowCache | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        """What was not read yet; a prompt comes with its mask, new tokens are no padding."""
        assert past_key_values is not None
        seen = past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, seen:],
            "attention_mask": None if seen else attention_mask,
            "past_key_values": past_key_values,
        }

    def _asked(self, name: str, config: GenerationConfig | None, arguments: dict[str, Any]) -> Any:
        """A setting as transformers finds it: an argument, else of the config, else the model's own."""
        if name in arguments:
            return arguments[name]
        value = getattr(config, name, None)
        return getattr(self.generation_config, name, None) if value is None else value

    def _writes_own_ids(self, config: GenerationConfig | None, arguments: dict[str, Any]) -> bool:
        """Whether all that is read behind the prompt is in the vocabulary, whatever is chosen."""
        if arguments.get("custom_generate") not in (None, _write):
            return False
        eos, pad = (
            self._asked(name, config, arguments) for name in ("eos_token_id", "pad_token_id")
        )
        # Texts that have ended are filled up with the one, else with the other.
        filler = eos if pad is None else pad
        ids = [] if filler is None else torch.as_tensor(filler).flatten().tolist()
        return all(0 <= number < self.vocabulary for number in ids)

    def _some_ended(
        self,
        new: Tensor,
        config: GenerationConfig | None,
        criteria: StoppingCriteriaList | None,
        arguments: dict[str, Any],
    ) -> bool:
        """Whether rows of the new ids [B, n] may have ended before the last column."""
        eos, pad = (
            self._asked(name, config, arguments) for name in ("eos_token_id", "pad_token_id")
        )
        ends = [] if eos is None else torch.as_tensor(eos).flatten().tolist()
        own = [criterion for criterion in criteria or [] if hasattr(criterion, "eos_token_id")]
        if len(new) == 1 or not (ends or own):
            # One text ends last; and without an end token, all are written on until all have ended.
            return False
        ended = bool(torch.isin(new[:, :-1], torch.tensor(ends).to(new)).any())
        if criteria or self._asked("stop_strings", config, arguments) is not None:
            # Where these ended a text cannot be known, but there is padding behind it.
            filler = ends[0] if pad is None else int(pad)
            ended = ended or bool((new[:, -1] == filler).any())
        return ended

    def _check_writing(self, config: GenerationConfig | None, arguments: dict[str, Any]) -> None:
        if not self.can_generate():
            raise ValueError(
                f"{type(self.backbone).__name__} cannot write: only models that read from left to right "
                "and predict the next token can."
            )
        if self.training:  # type: ignore[attr-defined]
            raise ValueError(
                "The model is in training mode, where dropout would change what it writes: call "
                "model.eval() first."
            )
        defaults = config or self.generation_config
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
    """The loop of `stream`, as generate runs it: everything is prepared, the rows are repeated."""
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
    cache: WindowCache,
    mask: Tensor | None,
    text: Tensor,
    process: LogitsProcessorList,
    stops: StoppingCriteriaList,
    sample: bool | None,
) -> Iterator[int]:
    unread, done = text, 0
    while not done:
        with torch.no_grad():
            # In float32 and drawn from torch's own generator, as by transformers.
            logits = cache.read(unread, mask)[:, -1].to(text.device, torch.float32, copy=True)
            scores = process(text, logits)  # pyright: ignore[reportArgumentType]
            chosen = torch.multinomial(scores.softmax(-1), 1) if sample else scores.argmax(-1, True)
            text = torch.cat([text, chosen], 1)
            stopped = stops(text, None)  # pyright: ignore[reportArgumentType]
            # Read back together: each reading waits for the device.
            token, done = torch.cat([chosen[0], stopped.to(chosen.dtype)]).tolist()  # pyright: ignore[reportAttributeAccessIssue]
        yield token
        unread, mask = chosen, None
