"""RecurrentModel: a stock Hugging Face model that reads texts of any length, window by window.

* `forward` cuts texts into windows, runs the step on one after another and joins the outputs.
* The stock model stays whole under `backbone`; everything that was added is under `recurrence`.
* Settings live in `config.recurrence`. A call reads them once, at its beginning (`overrides.py` holds
  those that apply to one thread only).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..backbones.heads import Task, task_of
from ..backbones.hooks import Hooks
from ..backbones.registry import spec_of
from ..backbones.rsa import add_rsa
from ..carries.base import ModelDims
from ..carries.registry import carry_class
from ..config import RecurrenceConfig
from ..generation import generate as generation
from ..generation.cursor import GenerationCache
from ..generation.open_window import OpenWindow
from ..state import State
from ..windows import Window
from .checks import TOKEN_TASKS, check_fit, check_settings
from .compile import CompiledStep
from .hf_compat import StockInterface
from .output import RecurrentOutput
from .overrides import change_overrides, overridden, overrides_of
from .ownership import Fingerprint, adopted, state_owner
from .reading import Call, read_texts, read_windows, read_without_recurrence
from .saving import RecurrentModelConfig, Saving, build_backbone
from .step import OutputRequest, StepRules, run_lower_layers, run_window, take_step

RecomputeMode = Literal["none", "window", "auto"]


class RecurrentModel(Saving, StockInterface):
    """A pretrained transformer with a carried state; made by `holdover.add_recurrence`."""

    def __init__(self, config: RecurrentModelConfig, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        self._attached_to_existing = backbone is not None
        self.backbone = build_backbone(config) if backbone is None else backbone
        self.settings = RecurrenceConfig.from_dict(config.recurrence)
        self.spec = spec_of(self.backbone.config.model_type)
        self.task: Task = task_of(self.backbone, self.spec)
        base = self.backbone.base_model.get_submodule(self.spec.base)
        dims = _dims_of(self.backbone, self.spec, len(base.get_submodule(self.spec.layers)))
        check_settings(self.settings)
        kind = carry_class(self.settings.carry)
        carry = kind(self.settings, dims)
        check_fit(self.settings, self.backbone, self.spec, carry)
        self.recurrence = carry
        hooks_class = self.spec.hooks or Hooks
        self.hooks: Hooks = hooks_class(self.backbone, self.spec, carry)
        add_rsa(self.hooks, self.settings)
        self.hooks.reads_left_to_right = self.task == "causal-lm" and not self.spec.causal
        # Whether Trainer may leave the division by the number of labels to the loss.
        self.accepts_loss_kwargs = self.task in TOKEN_TASKS
        self.hooks.attach()
        # The model passed to add_recurrence, in a tuple so that torch does not register it twice.
        self.given: tuple[Any, ...] = ()
        self.removed = False
        self._compiled = CompiledStep()
        self._fingerprint = Fingerprint()
        self.post_init()

    # Settings.

    @property
    def settings(self) -> RecurrenceConfig:
        """The settings that a call from this thread uses now."""
        return overrides_of(self).settings or self._settings

    @settings.setter
    def settings(self, settings: RecurrenceConfig) -> None:
        self._settings = settings
        self.config.recurrence = settings.to_dict()

    @property
    def recompute(self) -> RecomputeMode:
        return self.settings.recompute

    @recompute.setter
    def recompute(self, mode: RecomputeMode) -> None:
        self._replace_settings(recompute=mode)

    @property
    def horizon(self) -> int | None:
        settings = self.settings
        return 1 if settings.detach_state else settings.horizon

    @horizon.setter
    def horizon(self, windows: int | None) -> None:
        self._replace_settings(horizon=windows)

    def _replace_settings(self, **changes: Any) -> None:
        """Change the model's settings, and those that this thread reads with."""
        self.settings = self._settings.replace(**changes)
        read_with = overrides_of(self).settings
        if read_with is not None:
            change_overrides(self, settings=read_with.replace(**changes))

    @property
    def enabled(self) -> bool:
        """Whether calls from this thread use the recurrence."""
        return not (self.removed or overrides_of(self).disabled)

    def disable_recurrence(self) -> AbstractContextManager[None]:
        """Context manager: inside it, this thread's calls go straight to the stock model."""
        return overridden(self, disabled=True)

    @contextmanager
    def reading(
        self,
        *,
        window: int | None = None,
        overlap: int | None = None,
        memory_length: int | None = None,
    ) -> Iterator[None]:
        """Context manager: inside it, this thread reads with another window, overlap or memory.

        At an overlap that the model was not trained with, a pooled state leaves out the positions
        that the next window reads again: a model trained without overlap has never pooled a
        position twice.
        """
        before = self.settings
        changes: dict[str, Any] = {
            "window": before.window if window is None else window,
            "overlap": before.overlap if overlap is None else overlap,
        }
        changes |= self.recurrence.settings_for_reading(before, changes, memory_length)
        changed = before.replace(**changes)
        check_settings(changed)
        check_fit(changed, self.backbone, self.spec, self.recurrence)
        with overridden(self, settings=changed):
            yield

    # Reading.

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        state: State | None = None,
        *,
        windows: Sequence[Window] | None = None,
        token_type_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        return_logits: bool | None = None,
        output_hidden_states: bool | None = None,
        horizon: int | None = None,
        recompute: RecomputeMode | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """Read texts [B, N] of any length, or windows that were cut before (see holdover.text).

        labels: as the stock head takes them (next-token heads shift them themselves). document_starts
        [B, N]: true where a new document begins; its row's state is reset there. return_logits: return
        logits in addition to a loss (the default for all but language-modelling heads).
        Others: shift_labels, labels that are shifted already, one for each position's output (if it
        were named in the signature, Trainer would expect it in addition to labels); past_key_values,
        from generate alone; while the recurrence is disabled, whatever the stock model takes.
        """
        past = others.get("past_key_values")
        if isinstance(past, GenerationCache) and input_ids is not None and self.enabled:
            return past.answer(input_ids, attention_mask)
        settings = self.settings
        if horizon is not None or recompute is not None:
            settings = settings.replace(
                horizon=settings.horizon if horizon is None else horizon,
                recompute=recompute or settings.recompute,
            )
        call = Call(
            self,
            settings,
            input_ids=input_ids,
            windows=windows,
            attention_mask=attention_mask,
            labels=labels,
            state=state,
            token_type_ids=token_type_ids,
            document_starts=document_starts,
            start_positions=start_positions,
            end_positions=end_positions,
            num_items_in_batch=num_items_in_batch,
            return_logits=return_logits,
            output_hidden_states=output_hidden_states,
            others=others,
        )
        call.check()
        if not self.enabled:
            return read_without_recurrence(call, return_dict)
        result = read_texts(call) if windows is None else read_windows(call)
        if result.loss is not None and torch.is_grad_enabled():
            result.loss = self._touch_added(result.loss)
        return result if return_dict is not False else result.to_tuple()

    def step(
        self,
        window: Window,
        state: State | None = None,
        wanted: OutputRequest | None = None,
        *,
        settings: RecurrenceConfig | None = None,
        compiled: bool | None = None,
    ) -> tuple[dict[str, Any], State]:
        """Read one window: the model's output for it, and the state it hands to the next."""
        request = wanted or OutputRequest(self.task, logits=True)
        compiled = self.compiled if compiled is None else compiled
        return take_step(self, window, state, request, settings or self.settings, compiled)

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        *,
        token_type_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
    ) -> Tensor:
        """One contextual vector per token [B, N, k] for texts of any length; where windows overlap,
        the vector with the most context."""
        if not self.enabled:
            raise ValueError(
                "encode reads windows with their state, and the recurrence is disabled: leave "
                "disable_recurrence(), or call the stock model."
            )
        call = Call(
            self,
            self.settings,
            input_ids=input_ids,
            attention_mask=attention_mask,
            state=state,
            token_type_ids=token_type_ids,
            document_starts=document_starts,
            request=OutputRequest("bare"),
        )
        call.check()
        vectors = read_texts(call).last_hidden_state
        assert vectors is not None
        return vectors

    def open_window(self, state: State | None = None, *, rows: int = 1) -> OpenWindow:
        """A window that is read (or written) in pieces: feed tokens, then close it for its state."""
        batch = rows if state is None else state.batch_size
        return OpenWindow(self, state, batch, self.device)

    # Generation: see generation/generate.py.

    def can_generate(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride]
        # transformers calls this while the model is still being constructed.
        return getattr(self, "task", None) == "causal-lm" and self.spec.causal

    def generate(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, inputs: Tensor | None = None, *args: Any, state: State | None = None, **kwargs: Any
    ) -> Any:
        """Continue texts [B, N] of any length, with the arguments of transformers' own generate.

        Returns what it returns: prompt and new ids [B, N + n], or with return_dict_in_generate=True
        an output whose past_key_values can be closed for the state (not for beams, nor where a text
        ended before others). state: continue after it, one row per text. Texts of different lengths
        are padded on the left, with an attention_mask.
        """
        return generation.generate(self, inputs, *args, state=state, **kwargs)

    def stream(
        self, inputs: Tensor | None = None, *args: Any, state: State | None = None, **kwargs: Any
    ) -> Iterator[int]:
        """The tokens that generate would write after a text [1, N], one by one as they are made.

        Wrong arguments are refused before this returns; a token is computed when it is asked for.
        """
        return generation.stream(self, inputs, *args, state=state, **kwargs)

    def prepare_inputs_for_generation(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Tensor,
        past_key_values: GenerationCache | None = None,
        attention_mask: Tensor | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        return generation.prepare_inputs(input_ids, past_key_values, attention_mask)

    # Compiling.

    def compile_step(self, **options: Any) -> None:
        """Compile the step (and the lower layers) with torch.compile, without graph breaks.

        Windows of full width run compiled (padded ones in a form of their own, where that can be
        trusted: `misread_when_compiled`); others run uncompiled. Compile the step, not the model: the
        loop over windows would be unrolled into one graph.
        """
        self._compiled.compile(self._step, self._run_lower, **options)

    @property
    def compiled(self) -> bool:
        """Whether steps called from this thread run compiled."""
        return self._compiled.step is not None and not overrides_of(self).uncompiled

    def uncompiled(self) -> AbstractContextManager[None]:
        """Context manager: inside it, this thread's steps run uncompiled."""
        return overridden(self, uncompiled=True)

    def _step(self, *arguments: Any) -> Any:
        return run_window(self, *arguments)

    def _run_lower(self, window: Window, rules: StepRules) -> Any:
        return run_lower_layers(self, window, rules)

    # Training.

    def freeze_base(self) -> None:
        """Train only the added weights (adapters inside the base keep their setting)."""
        for name, parameter in self.backbone.named_parameters():
            if "lora_" not in name:
                parameter.requires_grad_(False)

    def unfreeze_base(self) -> None:
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(True)

    def parameter_counts(self) -> dict[str, int]:
        """The numbers of trained, added and all parameters; shared ones count once."""
        everything = list(self.parameters())
        return {
            "trainable": sum(p.numel() for p in everything if p.requires_grad),
            "added": sum(p.numel() for p in self.recurrence.parameters()),
            "all": sum(p.numel() for p in everything),
        }

    def print_trainable_parameters(self) -> None:
        counts = self.parameter_counts()
        share = 100 * counts["trainable"] / counts["all"]
        print(
            f"trainable params: {counts['trainable']:,} || all params: {counts['all']:,} || "
            f"trainable%: {share:.4f} || added by holdover: {counts['added']:,}"
        )

    def _touch_added(self, loss: Tensor) -> Tensor:
        """Give every added weight a gradient (zero if a text was one window long): data-parallel
        training waits for a gradient of every weight."""
        added = [p for p in self.recurrence.parameters() if p.requires_grad]
        if not added or not loss.requires_grad:
            return loss
        return loss + 0.0 * torch.stack([p.sum().to(loss.dtype) for p in added]).sum()

    # State ownership.

    def owner(self, settings: RecurrenceConfig | None = None) -> dict[str, Any]:
        """The signature that a state of this model carries, read with these settings."""
        return state_owner(self, settings or self.settings)

    def adopt(self, state: State) -> State:
        """Take over a state that another model made, if its shapes fit this one."""
        return adopted(self, state)


def _dims_of(backbone: Any, spec: Any, layers: int) -> ModelDims:
    config = backbone.config
    heads = getattr(config, "num_attention_heads", 0) or 0
    width = getattr(config, "head_dim", None) or (config.hidden_size // heads if heads else 0)
    return ModelDims(
        hidden=config.hidden_size,
        embedding=backbone.get_input_embeddings().embedding_dim,
        layers=layers,
        recurrent_layers=spec.recurrent_layers(config),
        state_vectors=getattr(config, "state_vectors", 0),
        key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=width,
    )


__all__ = ["OutputRequest", "RecurrentModel", "RecurrentOutput"]
