"""RecurrentModel: a stock Hugging Face model that reads texts of any length, window by window.

* `forward` lays texts out as windows, unrolls the step over them and joins what comes out.
* The stock model stays whole under `backbone`; everything that was added is under `recurrence`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..backbones.heads import Task, task_of
from ..backbones.hooks import Hooks
from ..backbones.registry import spec_of
from ..backbones.rsa import add_rsa
from ..carries.base import ModelDims
from ..carries.registry import CARRIES
from ..config import RecurrenceConfig
from ..generation.generate import Generation
from ..generation.open_window import OpenWindow
from ..generation.window_cache import WindowCache
from ..state import State
from ..unrolling import Recompute, unroll
from ..windows import IGNORED, Window, shift_left
from .checks import (
    check_attention,
    check_carry,
    check_finite,
    check_fit,
    check_ids,
    check_labels,
    check_state,
)
from .hf_compat import CompiledStep, PreTrainedMixin
from .merge_outputs import join_spans, join_tokens, pool_sequences
from .output import RecurrentOutput
from .precompute import batching_pays, precomputed
from .saving import RecurrentModelConfig, Saving, build_backbone
from .step import OutputRequest, StepMixin
from .text_layout import WindowedBatch, lay_out_batch

TOKEN_TASKS = ("causal-lm", "masked-lm", "token-classification")


class RecurrentModel(StepMixin, Saving, PreTrainedMixin, Generation, PreTrainedModel):
    """A pretrained transformer with a carried state; made by `holdover.add_recurrence`."""

    config_class = RecurrentModelConfig
    main_input_name = "input_ids"
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True

    def __init__(self, config: RecurrentModelConfig, backbone: PreTrainedModel | None = None):
        super().__init__(config)
        self._attached_to_existing = backbone is not None
        self.backbone = build_backbone(config) if backbone is None else backbone
        self.settings = RecurrenceConfig.from_dict(config.recurrence)
        self.row = spec_of(self.backbone.config.model_type)
        self.task: Task = task_of(self.backbone, self.row)
        base = self.backbone.base_model.get_submodule(self.row.base)
        layers = len(base.get_submodule(self.row.layers))
        shape = ModelDims(
            hidden=self.backbone.config.hidden_size,
            embedding=self.backbone.get_input_embeddings().embedding_dim,
            layers=layers,
            recurrent_layers=self.row.recurrent_layers(self.backbone.config),
        )
        check_carry(self.settings)
        carry = CARRIES[self.settings.carry](self.settings, shape)
        check_fit(self.settings, self.backbone, self.row, layers, carry)
        self.recurrence = carry
        insert = self.settings.insert_layer
        chosen = list(range(layers)) if insert == "all" else [insert - 1]
        hooks_class = self.row.hooks or Hooks
        self.hooks: Hooks = hooks_class(
            self.backbone, self.row, carry, chosen if carry.enters_at_insert_layer else []
        )
        add_rsa(self.hooks, self.settings)
        self.hooks.reads_left_to_right = self.task == "causal-lm" and not self.row.causal
        # Whether Trainer may leave the division by the number of labels to the loss.
        self.accepts_loss_kwargs = self.task in TOKEN_TASKS
        self.hooks.attach()
        # What was attached to; in a tuple, so that torch does not register it a second time.
        self.given: tuple[Any, ...] = ()
        self.enabled = True
        self.recompute = self.settings.recompute
        self.horizon = 1 if self.settings.detach_state else self.settings.horizon
        self._compiled = CompiledStep()
        self._fingerprint: tuple[Any, str] | None = None
        self.post_init()

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
        recompute: Literal["none", "window", "auto"] | None = None,
        return_dict: bool | None = None,
        **others: Any,
    ) -> Any:
        """Read texts [B, N] of any length, or windows that were cut before (holdover.data).

        labels: as the stock head takes them (next-token heads shift them themselves); shift_labels:
        already shifted, one for each position's output. document_starts [B, N]: true where a new
        document begins; its row's state is reset there. return_logits: logits beside a loss (on for
        all but language-modelling heads).
        Others: shift_labels, as transformers takes them (named in the signature, Trainer would wait for
        them beside the labels); past_key_values, from generate alone; while the recurrence is disabled,
        whatever the stock model takes.
        """
        if windows is not None:
            return self._read_windows(windows, state, num_items_in_batch, recompute, horizon)
        if input_ids is None:
            raise TypeError("A model reads input_ids, or windows: give one of them.")
        if not self.enabled:
            return self._stock(
                input_ids,
                state=state,
                **others,
                attention_mask=attention_mask,
                labels=labels,
                token_type_ids=token_type_ids,
                start_positions=start_positions,
                end_positions=end_positions,
                output_hidden_states=output_hidden_states,
                return_dict=return_dict,
            )
        if isinstance(past := others.get("past_key_values"), WindowCache):
            return past.answer(input_ids, attention_mask)
        self.settings.replace(horizon=horizon, recompute=recompute or self.recompute)
        shift_labels = others.pop("shift_labels", None)
        check_labels(self.task, input_ids, labels, shift_labels)
        if others:
            raise TypeError(
                f"{', '.join(others)}: a recurrent model restarts positions and caches in every window "
                "and takes no such argument; use model.disable_recurrence() to call the stock model."
            )
        targets = self._targets(labels, shift_labels, attention_mask, document_starts)
        texts = self._lay_out(
            input_ids, attention_mask, targets, state, token_type_ids, document_starts
        )
        mode = recompute or self.recompute
        lm = self.task in ("causal-lm", "masked-lm")
        wanted = OutputRequest(
            self.task,
            logits=(targets is None or not lm) if return_logits is None else return_logits,
            hidden_states=bool(output_hidden_states),
        )
        outputs, state = self._unroll_texts(texts, state, wanted, mode, horizon)
        result = RecurrentOutput(state=state)
        if self.task == "question-answering":
            join_spans(result, texts, outputs, start_positions, end_positions)
        elif self.task == "sequence-classification":
            self._classify(result, texts, outputs, labels)
        elif self.task == "bare":
            result.last_hidden_state = texts.join([out["last_hidden_state"] for out in outputs])
        else:
            join_tokens(result, texts, outputs, num_items_in_batch)
        if wanted.hidden_states:
            by_layer = zip(*[output["hidden_states"] for output in outputs], strict=True)
            result.hidden_states = tuple(texts.join(list(parts)) for parts in by_layer)
        if result.loss is not None and torch.is_grad_enabled():
            result.loss = self._touch_added(result.loss)
        return result if return_dict is not False else result.to_tuple()

    def encode(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: State | None = None,
        *,
        token_type_ids: Tensor | None = None,
        document_starts: Tensor | None = None,
    ) -> Tensor:
        """One contextual vector a token [B, N, k] for texts of any length; where windows overlap,
        the one that saw the most context."""
        if not self.enabled:
            raise ValueError(
                "encode reads windows with their state, and the recurrence is disabled: leave "
                "disable_recurrence(), or call the stock model."
            )
        texts = self._lay_out(
            input_ids, attention_mask, None, state, token_type_ids, document_starts
        )
        outputs, _ = self._unroll_texts(texts, state, OutputRequest("bare"), self.recompute, None)
        return texts.join([output["last_hidden_state"] for output in outputs])

    def open_window(self, state: State | None = None, *, rows: int = 1) -> OpenWindow:
        """A window to be read (or written) piece by piece: feed tokens, then close it for its state."""
        batch = rows if state is None else state.batch_size
        return OpenWindow(self, state, batch, self.device)

    def _targets(
        self,
        labels: Tensor | None,
        shift_labels: Tensor | None,
        attention_mask: Tensor | None,
        starts: Tensor | None,
    ) -> Tensor | None:
        """[B, N] the label of each position's own output, for heads that label tokens."""
        if self.task in ("masked-lm", "token-classification"):
            return labels
        if self.task != "causal-lm" or shift_labels is not None or labels is None:
            return shift_labels
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
        return shift_left(labels, None if starts is None else starts.bool())

    def _lay_out(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        targets: Tensor | None,
        state: State | None,
        token_type_ids: Tensor | None,
        starts: Tensor | None,
    ) -> WindowedBatch:
        check_attention(self.backbone)
        mask = None if attention_mask is None else attention_mask.bool()
        check_ids(input_ids, mask, self.vocabulary)
        if state is not None:
            check_state(state, input_ids.shape[0], input_ids.device, self.dtype, self.owner())
        return lay_out_batch(
            input_ids,
            mask,
            targets,
            state,
            window=self.settings.window,
            overlap=self.settings.overlap,
            centred=not (self.row.causal or self.task == "causal-lm"),
            padding=self.backbone.config.pad_token_id or 0,
            token_type_ids=token_type_ids,
            starts=None if starts is None else starts.bool(),
        )

    def _read_windows(
        self,
        windows: Sequence[Window],
        state: State | None,
        count: Tensor | int | None,
        recompute: Literal["none", "window", "auto"] | None,
        horizon: int | None,
    ) -> RecurrentOutput:
        """The loss of windows that bring their targets, and the state behind them.

        No value is looked at, so that nothing waits for the device: whoever cuts windows checks ids
        once for all of them, and whoever trains looks at losses when they have arrived.
        """
        outputs, state = self._unroll(
            list(windows), state, OutputRequest(self.task), recompute or self.recompute, horizon
        )
        total = torch.stack([output["loss"] for output in outputs]).sum()
        if count is None:
            scored = [(w.targets != IGNORED).sum() for w in windows if w.targets is not None]
            count = torch.stack(scored).sum().clamp(min=1)
        loss = total / count
        if torch.is_grad_enabled():
            loss = self._touch_added(loss)
        return RecurrentOutput(loss=loss, state=replace(state, owner=self.owner()))

    def _unroll_texts(
        self,
        texts: WindowedBatch,
        state: State | None,
        wanted: OutputRequest,
        mode: Any,
        horizon: int | None,
    ) -> tuple[list[dict[str, Any]], State]:
        outputs, state = self._unroll(texts.windows, state, wanted, mode, horizon)
        return outputs, replace(state, tail=texts.last(self.settings.overlap), owner=self.owner())

    def _unroll(
        self,
        windows: list[Window],
        state: State | None,
        wanted: OutputRequest,
        mode: Any,
        horizon: int | None,
    ) -> tuple[list[dict[str, Any]], State]:
        rule = Recompute(
            mode,
            self.settings.memory_budget,
            random=any(module.training for module in self.modules()),
            parameters=tuple(self.parameters()) if mode == "auto" else (),
            step=partial(self.step, wanted=replace(wanted, fused_loss=False)),
        )
        step = partial(self.step, wanted=wanted)
        outputs = []
        with self._prepared(windows, mode, wanted) as ready:
            for output, reached in unroll(
                step, ready, state, horizon=horizon or self.horizon, recompute=rule
            ):
                outputs.append(output)
                state = reached
        assert state is not None
        return outputs, state

    @contextmanager
    def _prepared(
        self, windows: list[Window], mode: str, wanted: OutputRequest
    ) -> Iterator[list[Window]]:
        """The windows, with the layers below the insert layer already run where that is faster."""
        insert = self.settings.insert_layer
        below = 0 if insert == "all" or not self.recurrence.enters_at_insert_layer else insert - 1
        if self.hooks.reads_left_to_right or wanted.hidden_states:
            # A second stream of queries passes through those layers too; their outputs are asked for.
            below = 0
        keeps = mode == "none" or not torch.is_grad_enabled()
        if below == 0 or not keeps or not batching_pays(windows, self.settings.lower_layers):
            yield windows
            return
        # Compiled for what comes again and again: windows of one shape, without padding.
        even = all(w.input_ids.shape == windows[0].input_ids.shape for w in windows)
        full = all(w.mask is None for w in windows)
        run = (self._compiled.lower if even and full else None) or self._run_lower
        with precomputed(self.hooks, windows, below, run) as done:
            yield done

    def _classify(
        self,
        result: RecurrentOutput,
        texts: WindowedBatch,
        outputs: list[dict[str, Any]],
        labels: Tensor | None,
    ) -> None:
        """Sequence heads: the stock norm, pooler and classifier on the windows' pooled vectors."""
        vector = pool_sequences(texts, outputs)
        # One token stands for the text; the layers are skipped, so which one does not matter as
        # long as it is no padding.
        token = 1 if self.backbone.config.pad_token_id == 0 else 0
        ids = torch.full((vector.shape[0], 1), token, device=vector.device)
        skip = self.hooks.skip
        with skip.skipped(0, len(self.hooks.layers)):
            skip.stored = vector[:, None]
            stock = self.backbone(input_ids=ids, labels=labels)
        result.logits, result.loss = stock.logits, stock.loss
        if result.loss is not None:
            check_finite([result.loss])
